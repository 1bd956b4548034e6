"""Each script of the turns log is run, and its reply is lost: the repetition must come to the same end.

A proxy between log and server lets the command through, swallows the reply and cuts the connection. Lost
once, the client's own repetition converges. Lost twice, the caller is told that the log is away
although the effect has happened; then the caller's repetition, or the next worker, converges.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest
from redis.asyncio import Redis
from service import keyspace
from service.adapters.turns import Batch, Claim, Debounce, TurnsLog
from service.errors import ClaimLost, TurnsLogUnavailable
from service.scope import BankId

from tests.support import RedisServer
from tests.turns_log import add_turn, look, pass_time

pytestmark = pytest.mark.anyio
BANK = BankId("u-lost")


class LossyProxy:
    """Passes bytes on; replies to the next `lost_replies` script calls are swallowed, the connection cut.

    Those of `let_by` calls are not, which come before.
    """

    def __init__(self, port: int) -> None:
        self.lost_replies = 0
        self.let_by = 0
        self.swallowed = 0
        self._target = port

    @asynccontextmanager
    async def open(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        async with server:
            yield f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._target)
        try:
            while command := await reader.read(1 << 20):
                up_writer.write(command)
                reply = await up_reader.read(1 << 20)
                if b"EVALSHA" in command and self.lost_replies and not reply.startswith(b"-NOSCRIPT"):
                    if not self.let_by:
                        self.lost_replies -= 1
                        self.swallowed += 1
                        return
                    self.let_by -= 1
                writer.write(reply)
        finally:
            for end in (writer, up_writer):
                end.close()
                with suppress(OSError):
                    await end.wait_closed()


@pytest.fixture
async def proxy(redis_server: RedisServer) -> LossyProxy:
    await redis_server.command("FLUSHALL")
    return LossyProxy(redis_server.port)


@pytest.fixture
async def log(proxy: LossyProxy) -> AsyncIterator[TurnsLog]:
    async with proxy.open() as url, TurnsLog(url, Debounce(0, 0, 20)) as opened:
        yield opened


@pytest.fixture
async def redis(redis_server: RedisServer) -> AsyncIterator[Redis]:
    client = Redis.from_url(redis_server.url, decode_responses=True)
    yield client
    await client.aclose()


async def lose(proxy: LossyProxy, times: int, step: Callable[[], Awaitable[Any]]) -> Any:
    """Do a step whose reply is lost `times` times: once is not noticed, twice is."""
    proxy.lost_replies, proxy.swallowed = times, 0
    if times == 1:
        outcome = await step()
    else:
        with pytest.raises(TurnsLogUnavailable):
            await step()
        outcome = None
    assert proxy.swallowed == times, "the script did not run"
    return outcome


async def taken(log: TurnsLog) -> tuple[Claim, Batch]:
    """The only due bank's claim and batch."""
    [claim] = await log.claim(1)
    batch = await log.take(claim, secrets.token_hex(8))
    assert batch is not None
    return claim, batch


@pytest.mark.parametrize("times", [1, 2])
async def test_accept(proxy: LossyProxy, log: TurnsLog, redis: Redis, times: int) -> None:
    job_id = secrets.token_hex(16)
    first = await lose(proxy, times, lambda: add_turn(log, BANK, turn_id="t1", job_id=job_id))
    if times == 1:
        assert first[:2] == ("queued", job_id)
    # The caller that was told 503 sends it again, under a new job: it is the repetition of the first.
    assert (await add_turn(log, BANK, turn_id="t1"))[:2] == ("duplicate", job_id)
    held = await look(redis)
    assert held.faults() == []
    assert len(held.documents) == 1


@pytest.mark.parametrize("times", [1, 2])
async def test_claim(proxy: LossyProxy, log: TurnsLog, redis: Redis, times: int) -> None:
    await add_turn(log, BANK)
    assert not await lose(proxy, times, lambda: log.claim(1))
    assert await log.claim(1) == [], "the lost claim still holds the bank until it ends"
    await pass_time(redis)
    claim, _ = await taken(log)
    await log.release(claim)
    assert (await look(redis)).claims == {}


@pytest.mark.parametrize("times", [1, 2])
async def test_take(proxy: LossyProxy, log: TurnsLog, redis: Redis, times: int) -> None:
    await add_turn(log, BANK)
    [claim] = await log.claim(1)
    batch = await lose(proxy, times, lambda: log.take(claim, "b1"))
    again = await log.take(claim, "b2")
    assert again is not None
    assert again.id == "b1", "a frozen batch keeps its id, and so its operation"
    assert batch is None or batch.turns == again.turns
    assert (await look(redis)).faults() == []


@pytest.mark.parametrize("times", [1, 2])
async def test_postpone(proxy: LossyProxy, log: TurnsLog, times: int) -> None:
    await add_turn(log, BANK)
    claim, batch = await taken(log)
    later = replace(batch, attempts=1, tries=2, looks=3, round=4, is_solo=True, processing_ms=5)
    await lose(proxy, times, lambda: log.postpone(claim, later, job_status="waiting", reason="bad"))
    again = await log.take(claim, "unused")
    assert again is not None
    assert replace(again, loaded_ms=0) == replace(later, loaded_ms=0)
    job = await log.job(batch.turns[0].job_id)
    assert job is not None
    assert (job.status, job.reason) == ("waiting", "bad")


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("outcome", ["done", "failed"])
async def test_settle_all(proxy: LossyProxy, log: TurnsLog, redis: Redis, times: int, outcome: Any) -> None:
    _, job_id, documents = await add_turn(log, BANK, texts=("one", "two"))
    claim, batch = await taken(log)

    async def settle() -> None:
        kept = dict.fromkeys(documents, 3)
        await log.settle(claim, batch, kept, outcome=outcome, reason="bad", job_ttl_s=60)

    await lose(proxy, times, settle)
    await settle()
    job = await log.job(job_id)
    assert job is not None
    assert (job.status, job.memories_kept) == (outcome, 6), "each turn is accounted for once"
    held = await look(redis)
    assert held.documents == set()
    assert held.dead == (set(documents) if outcome == "failed" else set())
    await log.release(claim)
    assert await redis.exists(keyspace.DUE, keyspace.CLAIMS) == 0


@pytest.mark.parametrize("times", [1, 2])
async def test_settle_one_of_two(proxy: LossyProxy, log: TurnsLog, redis: Redis, times: int) -> None:
    _, job_id, documents = await add_turn(log, BANK, texts=("one", "two"))
    claim, batch = await taken(log)

    async def settle() -> None:
        await log.settle(claim, batch, {documents[0]: 1}, outcome="done", reason="", job_ttl_s=60)

    await lose(proxy, times, settle)
    await settle()
    job = await log.job(job_id)
    assert job is not None
    assert (job.status, job.memories_kept) == ("retaining", 1), "the other turn is still to come"
    left = await log.take(claim, "unused")
    assert left is not None
    assert [turn.document_id for turn in left.turns] == documents[1:]
    assert (await look(redis)).faults() == []


@pytest.mark.parametrize("times", [1, 2])
async def test_release(proxy: LossyProxy, log: TurnsLog, redis: Redis, times: int) -> None:
    await add_turn(log, BANK)
    claim, batch = await taken(log)
    await lose(proxy, times, lambda: log.release(claim))
    other, again = await taken(log)
    assert again.id == batch.id
    before = await look(redis)
    await log.release(claim)
    assert await look(redis) == before, "a release that comes late takes nobody's claim away"
    await log.renew(other)


@pytest.mark.parametrize("times", [1, 2])
async def test_renew(proxy: LossyProxy, log: TurnsLog, redis: Redis, times: int) -> None:
    await add_turn(log, BANK)
    [claim] = await log.claim(1)
    await lose(proxy, times, lambda: log.renew(claim))
    await pass_time(redis)
    [newer] = await log.claim(1)
    with pytest.raises(ClaimLost):
        await log.renew(claim)
    await log.renew(newer)


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("script", ["counters", "rearm", "measure", "pull_back", "recount"])
async def test_sweep(proxy: LossyProxy, log: TurnsLog, redis: Redis, times: int, script: str) -> None:
    await add_turn(log, BANK)
    await redis.delete(keyspace.DUE)
    await redis.set(keyspace.WAITING, "x")
    await redis.set(keyspace.CLAIM_NUMBER, "x")
    # The scripts of a sweep of one bank, which scans all keys at once.
    proxy.let_by = ["counters", "rearm", "measure", "pull_back", "recount"].index(script)
    await lose(proxy, times, log.sweep)
    assert proxy.let_by == 0
    if times == 2:
        assert await log.sweep() == int(script == "counters")
    assert (await look(redis)).faults() == []
    assert await log.sweep() == 0
