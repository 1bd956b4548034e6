"""The cache on a real Redis Cluster of three masters: found, followed when slots move, missed in part."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import hiredis
import httpx
import pytest
from redis.crc import key_slot
from service import keyspace
from service.adapters.cache import RecallCache
from service.adapters.cluster import ClusterRedis
from service.errors import CacheUnavailable
from service.scope import BankId, bank_of

from tests.fakes.hindsight import HindsightStandIn
from tests.integration.conftest import run_api, settings_for
from tests.support import RedisServer, free_port, valkey, wait_until

pytestmark = pytest.mark.anyio

SLOTS = 16_384


@dataclass
class Cluster:
    """Three masters; `url` names two of them."""

    nodes: Sequence[RedisServer]

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes[:2])
        return f"redis+cluster://{hosts}"

    async def ids(self) -> list[str]:
        return [await _bulk(node, "CLUSTER MYID") for node in self.nodes]

    def home(self, bank: BankId) -> RedisServer:
        """The node that had the bank's slot in the beginning."""
        return self.nodes[key_slot(bank.encode()) * 3 // SLOTS]

    async def move(self, slot: int, to: int) -> None:
        """Give an empty slot to another node, as a cluster that grows does."""
        name = (await self.ids())[to]
        for node in (self.nodes[to], *self.nodes):
            assert await node.command(f"CLUSTER SETSLOT {slot} NODE {name}") == b"+OK\r\n"


async def _bulk(node: RedisServer, command: str) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", node.port)
    parser = hiredis.Reader()
    writer.write(command.encode() + b"\r\n")
    while (reply := parser.gets()) is False:
        parser.feed(await reader.read(1 << 16))
    writer.close()
    await writer.wait_closed()
    assert isinstance(reply, bytes)
    return reply.decode()


def _node(folder: Path, number: int) -> AbstractAsyncContextManager[RedisServer]:
    extra = (
        "--cluster-enabled", "yes", "--cluster-port", str(free_port()), "--cluster-node-timeout", "2000",
        "--cluster-require-full-coverage", "no", "--repl-diskless-sync-delay", "0",
    )  # fmt: skip
    return valkey(folder / f"node-{number}", aof=False, extra=extra)


@pytest.fixture
async def cluster(folder: Path) -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(_node(folder, number)) for number in range(3)]
        for number, node in enumerate(nodes):
            first, last = -(-SLOTS * number // 3), -(-SLOTS * (number + 1) // 3) - 1
            assert await node.command(f"CLUSTER ADDSLOTSRANGE {first} {last}") == b"+OK\r\n"
            bus = nodes[0].argv[nodes[0].argv.index("--cluster-port") + 1]
            await node.command(f"CLUSTER MEET 127.0.0.1 {nodes[0].port} {bus}")

        async def is_whole() -> bool:
            told = [await _bulk(node, "CLUSTER INFO") for node in nodes]
            return all("cluster_state:ok" in info and "cluster_slots_assigned:16384" in info for info in told)

        await wait_until(is_whole, "the three have become a cluster", timeout_s=30, poll_s=0.1)
        yield Cluster(nodes)


def _banks(count: int) -> list[BankId]:
    return [bank_of("default", f"user-{number}") for number in range(count)]


def _soon() -> float:
    return asyncio.get_running_loop().time() + 5


async def test_answers_live_on_all_nodes_and_go_with_a_purge(cluster: Cluster) -> None:
    banks = _banks(30)
    async with RecallCache(cluster.url, patience_s=5, stale_ttl_s=60) as cache:
        for bank in banks:
            epochs = await cache.epochs(bank, _soon())
            assert epochs.server != b"-"
            assert await cache.publish(bank, "q", epochs, b"answer of " + bank.encode(), 60, _soon())
        assert {cluster.home(bank).port for bank in banks} == {node.port for node in cluster.nodes}
        found = await asyncio.gather(*(cache.find(bank, "q", _soon()) for bank in banks))
        assert [each.current for each in found] == [b"answer of " + bank.encode() for bank in banks]

        await cache.note_write(banks[0])
        stale = await cache.find(banks[0], "q", _soon())
        assert (stale.current, stale.stale) == (None, b"answer of " + banks[0].encode())
        assert await cache.note_purge(banks[1]) == 1
        assert (await cache.find(banks[1], "q", _soon())).stale is None
        assert await cache.lease(banks[2], "q", b"one")
        assert not await cache.lease(banks[2], "q", b"two")
        cache.release_lease(banks[2], "q", b"one")

        async def is_free() -> bool:
            return await cache.lease(banks[2], "q", b"two")

        await wait_until(is_free, "the lease was given back")


async def test_a_slot_that_moves_is_followed(cluster: Cluster) -> None:
    bank = _banks(1)[0]
    slot = key_slot(bank.encode())
    async with RecallCache(cluster.url, patience_s=5, stale_ttl_s=60) as cache:
        epochs = await cache.epochs(bank, _soon())
        await cache.note_purge(bank)
        await cluster.home(bank).command("FLUSHALL")
        to = next(n for n, node in enumerate(cluster.nodes) if node is not cluster.home(bank))
        await cluster.move(slot, to)
        after = await cache.epochs(bank, _soon())
        # Another server keeps the epochs: nothing from before is current.
        assert after.server != epochs.server
        assert await cache.publish(bank, "q", after, b"answer", 60, _soon())
        assert (await cache.find(bank, "q", _soon())).current == b"answer"
        assert await cluster.nodes[to].command("EXISTS", keyspace.recall(bank, "q")) == b":1\r\n"


async def test_a_slot_on_its_way_is_asked_for_at_both_ends(cluster: Cluster) -> None:
    bank = _banks(1)[0]
    key, slot = keyspace.write_epoch(bank).encode(), key_slot(bank.encode())
    home = cluster.home(bank)
    names = dict(zip((node.port for node in cluster.nodes), await cluster.ids(), strict=True))
    other = next(node for node in cluster.nodes if node is not home)
    async with ClusterRedis(cluster.url) as redis:
        await redis.execute(b"GET", key)
        assert await other.command(f"CLUSTER SETSLOT {slot} IMPORTING {names[home.port]}") == b"+OK\r\n"
        assert await home.command(f"CLUSTER SETSLOT {slot} MIGRATING {names[other.port]}") == b"+OK\r\n"
        assert await redis.execute(b"SET", key, b"new") == b"OK"  # home: ASK, and the other takes it
        assert await redis.execute(b"MGET", key) == [b"new"]
        assert redis.server_of(key) != b"-"


async def test_a_node_that_is_lost_takes_only_its_share(cluster: Cluster) -> None:
    banks = _banks(12)
    lost = cluster.nodes[2]
    theirs = [bank for bank in banks if cluster.home(bank) is lost]
    others = [bank for bank in banks if cluster.home(bank) is not lost]
    assert theirs
    async with RecallCache(cluster.url, patience_s=1, stale_ttl_s=60) as cache:
        for bank in banks:
            epochs = await cache.epochs(bank, _soon())
            await cache.publish(bank, "q", epochs, b"answer", 60, _soon())
        await lost.kill()
        for bank in theirs:
            with pytest.raises(CacheUnavailable):
                await cache.find(bank, "q", _soon())
        for bank in others:
            assert (await cache.find(bank, "q", _soon())).current == b"answer"
        await lost.start()

        async def is_back() -> bool:
            return (await cache.find(theirs[0], "q", _soon())).current is None

        await wait_until(is_back, "the node is used again", timeout_s=15, not_yet=(CacheUnavailable,))


@asynccontextmanager
async def _replica_of(cluster: Cluster, number: int, folder: Path) -> AsyncIterator[RedisServer]:
    """A fourth node, the replica of one of the masters, once it has all of it."""
    master = cluster.nodes[number]
    async with _node(folder, 3) as replica:
        bus = master.argv[master.argv.index("--cluster-port") + 1]
        await replica.command(f"CLUSTER MEET 127.0.0.1 {master.port} {bus}")
        name = (await cluster.ids())[number]

        async def follows() -> bool:
            await replica.command(f"CLUSTER REPLICATE {name}")
            return "master_link_status:up" in await _bulk(replica, "INFO replication")

        await wait_until(follows, "the replica follows", timeout_s=20, poll_s=0.1)
        yield replica


async def test_a_node_that_hangs_is_left_for_the_replica_that_took_over(
    cluster: Cluster, folder: Path
) -> None:
    hung = cluster.nodes[0]
    key = next(bank.encode() for bank in _banks(30) if cluster.home(bank) is hung)
    loop = asyncio.get_running_loop()
    async with _replica_of(cluster, 0, folder) as replica, ClusterRedis(cluster.url) as redis:
        assert await redis.execute(b"SET", key, b"1") == b"OK"
        hung.pause()

        async def reads() -> bool:
            # As impatient as a recall: nobody is there any more when the connection counts as lost.
            return bool(await redis.execute_by(loop.time() + 0.1, b"GET", key) == b"1")

        await wait_until(
            reads, "the replica has taken over and is asked", timeout_s=20, poll_s=0.1,
            not_yet=(TimeoutError, ConnectionError, hiredis.ReplyError),
        )  # fmt: skip
        assert "role:master" in await _bulk(replica, "INFO replication")
        hung.resume()


async def test_the_connection_to_a_node_without_slots_is_closed(cluster: Cluster, folder: Path) -> None:
    former = cluster.nodes[2]
    key = next(bank.encode() for bank in _banks(30) if cluster.home(bank) is former)
    async with _replica_of(cluster, 2, folder) as replica, ClusterRedis(cluster.url) as redis:
        assert await redis.execute(b"SET", key, b"1") == b"OK"
        assert (await _bulk(former, "CLIENT LIST TYPE normal")).count(" addr=") == 2
        assert await replica.command("CLUSTER FAILOVER TAKEOVER") == b"+OK\r\n"

        async def is_closed() -> bool:
            with contextlib.suppress(TimeoutError):  # which lets it read the map again
                await redis.execute_by(0, b"GET", key)
            return (await _bulk(former, "CLIENT LIST TYPE normal")).count(" addr=") == 1

        await wait_until(is_closed, "the former master has no other client", timeout_s=15, poll_s=0.1)
        assert await redis.execute(b"GET", key) == b"1"


async def test_the_api_answers_from_a_cluster_and_without_it(
    cluster: Cluster, redis_server: RedisServer, stand_in: HindsightStandIn
) -> None:
    await redis_server.command("FLUSHALL")
    settings = settings_for(redis_server.url, stand_in.url, cache_redis_url=cluster.url)

    def cached(reply: httpx.Response) -> bool:
        assert reply.status_code == 200
        assert not reply.json()["degraded"]
        return bool(reply.json()["cached"])

    async with run_api(settings) as api:
        users = [f"user-{number}" for number in range(6)]
        for user in users:
            assert not cached(await api.recall(user, "What do you know?"))
            assert cached(await api.recall(user, "What do you know?"))
        assert (await api.add(users[0], "I like tea.")).status_code == 202
        assert not cached(await api.recall(users[0], "What do you know?"))
        for node in cluster.nodes:
            await node.kill()
        for user in users:
            assert not cached(await api.recall(user, "What do you know?"))


async def test_a_look_at_a_cluster_is_one_at_every_node_that_has_slots(cluster: Cluster) -> None:
    async with RecallCache(cluster.url, patience_s=1, stale_ttl_s=60) as cache:
        await cache.check(5)
        last = cluster.nodes[2]  # the URL does not name it
        await last.kill()
        with pytest.raises(CacheUnavailable):
            await cache.check(5)
        await last.start()

        async def answers() -> bool:
            with contextlib.suppress(CacheUnavailable):
                await cache.check(5)
                return True
            return False

        await wait_until(answers, "the node is back", timeout_s=15)
        # A node that hangs is another's fault, not the look's: it ends in time.
        last.pause()
        began = asyncio.get_running_loop().time()
        try:
            with pytest.raises(CacheUnavailable):
                await cache.check(0.5)
            assert asyncio.get_running_loop().time() - began < 0.5 + 1
        finally:
            last.resume()


async def test_no_node_at_all(folder: Path) -> None:
    url = f"redis+cluster://127.0.0.1:{free_port()},127.0.0.1:{free_port()}"
    async with RecallCache(url, patience_s=1, stale_ttl_s=60) as cache:
        for _ in range(2):
            with pytest.raises(CacheUnavailable):
                await cache.find(_banks(1)[0], "q", _soon())
        with pytest.raises(CacheUnavailable):
            await cache.check(1)
