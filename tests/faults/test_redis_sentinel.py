"""Accepted work behind Redis Sentinel: what goes on when a master dies or is replaced, and at what cost."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from hiredis import HiredisError
from redis.asyncio import Redis
from service.adapters.pipelined import PipelinedRedis
from service.adapters.redis_urls import open_client, sentinel_url
from service.adapters.turns import Debounce, TurnsLog
from service.errors import TurnsLogUnavailable
from service.scope import DocumentId, bank_of

from tests.fakes.hindsight import HindsightStandIn
from tests.processes import WorkerProcess
from tests.support import NOT_YET, RedisServer, ServerProcess, free_port, valkey, valkey_binary, wait_until
from tests.turns_log import add_turn, look

pytestmark = pytest.mark.anyio

MASTER = "turns"
BANK = bank_of("default", "anne")
# Sentinels look once a second, also for a master they have just chosen: with less patience than that they now
# and then take it for dead, and choose the one that has just come back without what was written meanwhile.
_SENTINEL = """\
port {port}
bind 127.0.0.1
dir ./
sentinel monitor {name} 127.0.0.1 {master} 2
sentinel down-after-milliseconds {name} 2000
sentinel failover-timeout {name} 3000
"""


@dataclass
class Site:
    """A master, a replica, three Sentinels; which of the two is the master changes."""

    pair: tuple[RedisServer, RedisServer]
    ports: list[int]

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{port}" for port in self.ports)
        return f"redis+sentinel://{hosts}/{MASTER}/0"

    async def master(self) -> RedisServer:
        """The one that the Sentinels name now."""
        _, port = await sentinel_url(self.url).master_address()
        return next(server for server in self.pair if server.port == port)

    async def other_than(self, server: RedisServer) -> RedisServer:
        """The new master, once the Sentinels have agreed on it."""

        async def replaced() -> RedisServer | None:
            now = await self.master()
            return None if now is server else now

        return await wait_until(replaced, "there is a new master", timeout_s=30, poll_s=0.1)


@pytest.fixture
async def site(folder: Path) -> AsyncIterator[Site]:
    async with open_site(folder) as running:
        yield running


@asynccontextmanager
async def open_site(folder: Path) -> AsyncIterator[Site]:
    """Five servers on loopback, known to each other."""
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(valkey(folder / "first"))
        extra = ("--replicaof", f"127.0.0.1 {first.port}", "--repl-diskless-sync-delay", "0")
        second = await stack.enter_async_context(valkey(folder / "second", extra=extra))
        ports = [free_port() for _ in range(3)]
        for port in ports:
            home = folder / f"sentinel-{port}"
            home.mkdir()
            text = _SENTINEL.format(port=port, name=MASTER, master=first.port)
            (home / "sentinel.conf").write_text(text, "utf-8")
            sentinel = ServerProcess(
                [str(valkey_binary()), "sentinel.conf", "--sentinel"],
                log_path=folder / f"sentinel-{port}.log",
                is_ready=_knows_the_others(port),
                cwd=home,
            )
            stack.push_async_callback(sentinel.stop)
            await sentinel.start()

        async def all_is_known() -> bool:
            for port in ports:
                async with Redis(port=port, decode_responses=True) as client:
                    state = (await cast("Any", client.sentinel_masters)())[MASTER]
                if (state["num-other-sentinels"], state["num-slaves"]) != (2, 1):
                    return False
            async with Redis(port=second.port) as client:
                return bool((await client.info("replication"))["master_link_status"] == "up")

        await wait_until(all_is_known, "the Sentinels know each other and the replica", timeout_s=30)
        yield Site((first, second), ports)


def _knows_the_others(port: int) -> Callable[[], Awaitable[bool]]:
    async def answers() -> bool:
        async with Redis(port=port) as client:
            return bool(await client.ping())

    return answers


@asynccontextmanager
async def open_log(url: str) -> AsyncIterator[TurnsLog]:
    """The turns log on that URL; everything is due at once."""
    async with TurnsLog(url, Debounce(0, 60, 20)) as log:
        yield log


# Replication is asynchronous: what was acknowledged in the last moment before a master died may be gone.
_LAST_MOMENT_S = 1.0


async def test_adds_go_on_after_the_master_was_killed_and_what_was_replicated_is_kept(site: Site) -> None:
    loop = asyncio.get_running_loop()
    accepted: dict[DocumentId, float] = {}
    refused = 0
    is_over = asyncio.Event()

    async def add_on(log: TurnsLog, caller: int) -> None:
        nonlocal refused
        number = 0
        while not is_over.is_set():
            try:
                _, _, documents = await add_turn(log, BANK, turn_id=f"{caller}-{number}")
            except TurnsLogUnavailable:
                refused += 1
                await asyncio.sleep(0.05)  # a client that tries again, with the same turn
                continue
            accepted.update(dict.fromkeys(documents, loop.time()))
            number += 1
            await asyncio.sleep(0.01)

    for server in site.pair:
        assert await server.command("CONFIG SET min-replicas-to-write 1") == b"+OK\r\n"
        # As in a file of its own: whoever comes back still thinks that it is the master.
        server.argv += ["--min-replicas-to-write", "1"]
    async with open_log(site.url) as log:
        adding = [asyncio.create_task(add_on(log, caller)) for caller in range(4)]
        await wait_until(lambda: len(accepted) >= 50, "adds are under way", timeout_s=30)
        master = await site.master()
        killed_at = loop.time()
        await master.kill()
        new = await site.other_than(master)
        before = len(accepted)
        await master.start()  # it comes back as a replica, and the new master takes writes
        await wait_until(lambda: len(accepted) >= before + 50, "adds go on", timeout_s=60)
        is_over.set()
        await asyncio.gather(*adding)
    assert refused > 0, "nobody noticed: this shows nothing"
    async with Redis.from_url(new.url, decode_responses=True) as redis:
        held = await look(redis)
    lost = {document: at for document, at in accepted.items() if document not in held.documents}
    assert all(killed_at - _LAST_MOMENT_S < at < killed_at + _LAST_MOMENT_S for at in lost.values())
    assert held.faults() == []


async def test_without_a_replica_nothing_is_accepted_where_the_server_wants_one(site: Site) -> None:
    async with open_log(site.url) as log:
        await add_turn(log, BANK, turn_id="one")
        master = await site.master()
        assert await master.command("CONFIG SET min-replicas-to-write 1") == b"+OK\r\n"
        replica = next(server for server in site.pair if server is not master)
        await replica.kill()

        async def is_refused() -> bool:
            try:
                await add_turn(log, BANK)
            except TurnsLogUnavailable:
                return True
            return False

        await wait_until(is_refused, "the master has noticed", timeout_s=15)
        with pytest.raises(TurnsLogUnavailable):
            await add_turn(log, BANK, turn_id="two")
        await replica.start()

        async def is_accepted() -> bool:
            return (await add_turn(log, BANK, turn_id="two"))[0] == "queued"

        await wait_until(is_accepted, "it is accepted", timeout_s=15, not_yet=(TurnsLogUnavailable,))


async def test_clients_leave_a_master_that_was_demoted(site: Site) -> None:
    master = await site.master()
    async with PipelinedRedis(site.url) as shared:
        client = open_client(site.url, decode_responses=True)
        async with client:
            assert await shared.execute(b"SET", b"mem:a", b"1") == b"OK"
            await client.set("mem:b", "1")
            old = shared.server
            async with Redis(port=site.ports[0], decode_responses=True) as sentinel:
                await cast("Any", sentinel.execute_command)("SENTINEL FAILOVER", MASTER)
            await site.other_than(master)

            async def is_demoted() -> bool:
                async with Redis.from_url(master.url, decode_responses=True) as asked:
                    return bool((await asked.info("replication"))["role"] == "slave")

            # Until it is told, it takes writes that nobody will ever see.
            await wait_until(is_demoted, "the former master is a replica", timeout_s=15)

            async def both_write() -> bool:
                await shared.execute(b"SET", b"mem:a", b"2")
                await client.set("mem:b", "2")
                return True

            await wait_until(
                both_write, "both write to the new one", timeout_s=15, not_yet=(HiredisError, *NOT_YET)
            )
            assert shared.server != old


async def test_the_worker_goes_on_with_the_new_master(site: Site, folder: Path) -> None:
    async with HindsightStandIn() as stand_in, open_log(site.url) as log:
        worker = WorkerProcess(folder / "worker", site.url, stand_in.url)
        try:
            await worker.start()
            await add_turn(log, BANK, texts=("before",))
            await wait_until(lambda: BANK in stand_in.banks, "the first turn is stored", timeout_s=20)
            master = await site.master()
            await master.kill()
            await site.other_than(master)

            async def is_accepted() -> bool:
                await add_turn(log, BANK, turn_id="after", texts=("after",))
                return True

            await wait_until(is_accepted, "adds go on", timeout_s=15, not_yet=(TurnsLogUnavailable,))

            def is_stored() -> bool:
                return len(stand_in.banks[BANK].documents) == 2

            await wait_until(is_stored, "the worker stores what came after", timeout_s=60)
        finally:
            await worker.stop()
