"""When a conversation is due, and in which order: quiet, waited, full; the oldest first."""

import secrets
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis
from service import keyspace
from service.adapters.turns import Batch, Claim, Debounce, TurnsLog
from service.scope import BankId, DocumentId, bank_of

from tests.support import RedisServer
from tests.turns_log import add_turn, look, pass_time

pytestmark = pytest.mark.anyio
QUIET_S, MAX_WAIT_S, MOST = 10, 60, 3


@pytest.fixture
async def log(redis_server: RedisServer) -> AsyncIterator[TurnsLog]:
    await redis_server.command("FLUSHALL")
    async with TurnsLog(redis_server.url, Debounce(QUIET_S, MAX_WAIT_S, MOST)) as opened:
        yield opened


@pytest.fixture
async def redis(redis_server: RedisServer) -> AsyncIterator[Redis]:
    async with Redis.from_url(redis_server.url, decode_responses=True) as client:
        yield client


@pytest.fixture
def bank(user: str) -> BankId:
    return bank_of("default", user)


async def due_in_s(redis: Redis, bank: BankId) -> float:
    seconds, micros = await redis.time()
    score = await redis.zscore(keyspace.DUE, bank)
    assert score is not None
    return float(score) / 1000 - int(seconds) - int(micros) / 1e6


async def age(redis: Redis, bank: BankId, by_s: float) -> None:
    """Make all that waits in the bank older, and the bank's next look as much earlier."""
    fields: dict[str, str] = await redis.hgetall(keyspace.conversations(bank))  # type: ignore[misc]
    for name, text in fields.items():
        first, last, rest = text.split(" ", 2)
        aged = f"{int(first) - int(by_s * 1000)} {int(last) - int(by_s * 1000)} {rest}"
        await redis.hset(keyspace.conversations(bank), name, aged)  # type: ignore[misc]
    await redis.zincrby(keyspace.DUE, -by_s * 1000, bank)


async def take(log: TurnsLog) -> tuple[Claim, Batch | None]:
    [claim] = await log.claim(1)
    return claim, await log.take(claim, secrets.token_hex(8))


def ids(batch: Batch | None) -> list[DocumentId]:
    return [turn.document_id for turn in batch.turns] if batch else []


async def test_due_when_quiet(log: TurnsLog, redis: Redis, bank: BankId) -> None:
    await add_turn(log, bank)
    assert QUIET_S - 1 < await due_in_s(redis, bank) <= QUIET_S
    assert await log.claim(1) == []
    await age(redis, bank, QUIET_S - 2)
    assert await log.count_due() == 0
    await add_turn(log, bank)
    assert QUIET_S - 1 < await due_in_s(redis, bank) <= QUIET_S, "a new turn starts the quiet time anew"
    await age(redis, bank, QUIET_S)
    assert await log.count_due() == 1
    _, batch = await take(log)
    assert len(ids(batch)) == 2


async def test_due_after_the_longest_wait_however_much_is_said(
    log: TurnsLog, redis: Redis, bank: BankId
) -> None:
    await add_turn(log, bank)
    await age(redis, bank, MAX_WAIT_S - 3)
    await add_turn(log, bank)
    assert 2 < await due_in_s(redis, bank) <= 3


async def test_due_at_once_when_full_and_the_rest_waits_its_own_time(
    log: TurnsLog, redis: Redis, bank: BankId
) -> None:
    first = (await add_turn(log, bank, texts=("one", "two")))[2]
    second = (await add_turn(log, bank, texts=("three", "four")))[2]
    assert await log.count_due() == 1
    claim, batch = await take(log)
    assert batch is not None
    assert ids(batch) == [*first, second[0]]
    await log.settle(claim, batch, dict.fromkeys(ids(batch), 1), outcome="done", reason="", job_ttl_s=60)
    assert await log.take(claim, "later") is None
    await log.release(claim)
    assert QUIET_S - 2 < await due_in_s(redis, bank) <= QUIET_S
    held = await look(redis)
    assert held.documents == {second[1]}
    assert held.faults() == []


async def test_what_comes_while_a_batch_is_on_its_way_is_not_forgotten(
    log: TurnsLog, redis: Redis, bank: BankId
) -> None:
    await add_turn(log, bank, texts=("one", "two", "three"))
    claim, batch = await take(log)
    assert batch is not None
    late = (await add_turn(log, bank, texts=("four", "five", "six")))[2]
    assert ids(await log.take(claim, "unused")) == ids(batch)
    await log.settle(claim, batch, dict.fromkeys(ids(batch), 1), outcome="done", reason="", job_ttl_s=60)
    await log.release(claim)
    assert ids((await take(log))[1]) == late


async def test_the_conversation_that_has_waited_longest_comes_first(
    log: TurnsLog, redis: Redis, bank: BankId
) -> None:
    older = (await add_turn(log, bank, conversation="older"))[2]
    await age(redis, bank, 30)
    newer = (await add_turn(log, bank, conversation="newer", texts=("1", "2", "3")))[2]
    claim, batch = await take(log)
    assert batch is not None
    assert ids(batch) == older
    await log.settle(claim, batch, dict.fromkeys(older, 1), outcome="done", reason="", job_ttl_s=60)
    assert ids(await log.take(claim, "next")) == newer


async def test_a_bank_that_is_given_back_queues_behind_those_that_are_due(
    log: TurnsLog, redis: Redis, bank: BankId
) -> None:
    other = bank_of("default", "other")
    await add_turn(log, bank, conversation="a", texts=("1", "2", "3"))
    await add_turn(log, bank, conversation="b", texts=("1", "2", "3"))
    await add_turn(log, other, texts=("1", "2", "3"))
    [claim] = await log.claim(1)
    assert claim.bank == bank
    await log.release(claim)
    assert [claim.bank for claim in await log.claim(1)] == [other]


async def test_a_turn_said_again_after_it_had_died_lives(log: TurnsLog, redis: Redis, bank: BankId) -> None:
    documents = (await add_turn(log, bank, turn_id="t", texts=("1", "2", "3")))[2]
    claim, batch = await take(log)
    assert batch is not None
    await log.settle(claim, batch, dict.fromkeys(documents, 0), outcome="failed", reason="bad", job_ttl_s=60)
    await log.release(claim)
    assert (await look(redis)).dead == set(documents)
    async for key in redis.scan_iter(match="mem:seen:*"):
        await redis.delete(key)
    await add_turn(log, bank, turn_id="t", texts=("1", "2", "3"))
    held = await look(redis)
    assert (held.dead, held.documents, held.faults()) == (set(), set(documents), [])


async def test_a_repetition_is_known_while_the_turn_waits_even_without_its_mark(
    log: TurnsLog, redis: Redis, bank: BankId
) -> None:
    _, job_id, _ = await add_turn(log, bank, turn_id="t")
    async for key in redis.scan_iter(match="mem:seen:*"):
        await redis.delete(key)
    assert (await add_turn(log, bank, turn_id="t"))[:2] == ("duplicate", job_id)


async def test_pending_turns_are_in_order_of_acceptance(log: TurnsLog, redis: Redis, bank: BankId) -> None:
    accepted: list[DocumentId] = []
    for number in range(6):
        accepted += (await add_turn(log, bank, conversation=str(number % 2), texts=("x", "y")))[2]
        if number == 2:
            await pass_time(redis)
            await take(log)
    pending = await log.pending(bank)
    assert [turn.document_id for turn in pending] == accepted
    assert pending[0].text == "x"


async def test_a_batch_whose_turns_were_all_forgotten_makes_way(
    log: TurnsLog, redis: Redis, bank: BankId
) -> None:
    await add_turn(log, bank, conversation="a", texts=("1", "2", "3"))
    later = (await add_turn(log, bank, conversation="b", texts=("1", "2", "3")))[2]
    claim, batch = await take(log)
    await redis.hdel(keyspace.turns(bank), *ids(batch))  # type: ignore[misc]
    assert ids(await log.take(claim, "next")) == later
    await redis.hdel(keyspace.turns(bank), later[0])  # type: ignore[misc]
    assert ids(await log.take(claim, "unused")) == later[1:]
