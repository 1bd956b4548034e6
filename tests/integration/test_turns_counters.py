"""Counters of the turns log that a hand, a backup or a fault has broken.

They stop nothing, and no turn is lost, doubled or half accepted.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator
from typing import Any, Literal, cast

import pytest
from redis.asyncio import Redis
from service import keyspace
from service.adapters.dead_letters import DeadLetters
from service.adapters.turns import Debounce, TurnsLog
from service.adapters.turns_forget import TurnsEraser
from service.errors import TurnsLogUnavailable
from service.scope import BankId, JobId

from tests.integration.forget_world import World, open_world
from tests.integration.test_observability import ready
from tests.support import RedisServer
from tests.turns_log import add_turn, look, pass_time

pytestmark = pytest.mark.anyio

BANK = BankId("u-a")
ANOTHER = BankId("u-b")
# What nobody can count on with, and what no counter of ours has come to.
BROKEN = ("x", "", "1.5", "-7", "nan", "inf", "0x10", "1e3", "9" * 5000, str(2**63 - 1), str(2**60))
broken = pytest.mark.parametrize("value", [*BROKEN, None], ids=lambda value: str(value)[:20])


@pytest.fixture
async def redis(redis_server: RedisServer) -> AsyncIterator[Redis]:
    await redis_server.command("FLUSHALL")
    async with Redis.from_url(redis_server.url, decode_responses=True) as client:
        yield client


@pytest.fixture
async def log(redis: Redis, redis_server: RedisServer) -> AsyncIterator[TurnsLog]:
    async with TurnsLog(redis_server.url, Debounce(0, 0, 20)) as opened:
        yield opened


@pytest.fixture
async def world(redis_server: RedisServer) -> AsyncIterator[World]:
    async with open_world(redis_server) as opened:
        yield opened


async def break_key(redis: Redis, key: str, value: str | None) -> None:
    """Put `value` there; None: a list."""
    async with redis.pipeline() as pipe:
        pipe.delete(key)
        if value is None:
            pipe.rpush(key, "x")
        else:
            pipe.set(key, value)
        await pipe.execute()


async def fields(redis: Redis, key: str) -> dict[str, str]:
    found: dict[str, str] = await cast("Any", redis.hgetall(key))
    return found


async def numbers(redis: Redis, *banks: BankId) -> dict[str, int]:
    """Text → number of the turns that wait."""
    found: dict[str, int] = {}
    for bank in banks:
        for turn in (await fields(redis, keyspace.turns(bank))).values():
            number, _, _, _, payload = turn.split("\n", 4)
            found[payload.split('"')[3]] = int(number)
    return found


async def end_all(log: TurnsLog, redis: Redis, outcome: str = "done") -> list[str]:
    """One worker ends all that waits; the texts in their order."""
    texts: list[str] = []
    await pass_time(redis)
    for claim in await log.claim(10):
        while batch := await log.take(claim, f"b{len(texts)}"):
            kept = {turn.document_id: 1 for turn in batch.turns}
            texts += [turn.text for turn in batch.turns]
            await log.settle(claim, batch, kept, outcome=cast("Any", outcome), reason="bad", job_ttl_s=600)
        await log.release(claim)
    return texts


async def status(log: TurnsLog, job_id: JobId) -> tuple[str, int | None]:
    job = await log.job(job_id)
    assert job is not None
    return job.status, job.memories_kept


# --- How many wait --------------------------------------------------------------------------------------
@broken
async def test_turns_are_accepted_once_and_stored_by_a_broken_count(
    log: TurnsLog, redis: Redis, value: str | None
) -> None:
    _, first, _ = await add_turn(log, BANK, texts=("one",))
    await break_key(redis, keyspace.WAITING, value)
    assert (await add_turn(log, BANK, texts=("two", "three"), turn_id="t", job_id="j"))[:2] == ("queued", "j")
    assert (await add_turn(log, BANK, texts=("two", "three"), turn_id="t"))[:2] == ("duplicate", "j")
    assert (await look(redis)).counted == 2
    await log.sweep()
    assert (await look(redis)).faults() == []
    assert await end_all(log, redis) == ["one", "two", "three"]
    assert [await status(log, job) for job in (first, JobId("j"))] == [("done", 1), ("done", 2)]
    assert not await redis.exists(keyspace.WAITING)


@broken
@pytest.mark.parametrize("outcome", ["done", "failed"])
async def test_a_batch_is_settled_whole_by_a_broken_count(
    log: TurnsLog, redis: Redis, value: str | None, outcome: str
) -> None:
    _, job, documents = await add_turn(log, BANK, texts=("one", "two"))
    await break_key(redis, keyspace.WAITING, value)
    assert await end_all(log, redis, outcome) == ["one", "two"]
    assert (await status(log, job))[0] == outcome
    await log.sweep()
    held = await look(redis)
    assert (held.faults(), held.due, len(held.dead)) == ([], {}, 2 if outcome == "failed" else 0)
    if outcome == "failed":
        letters = DeadLetters(log)
        await break_key(redis, keyspace.WAITING, value)
        assert await letters.replay(await letters.find(documents)) == 2
        assert (await look(redis)).faults() == []


@broken
async def test_a_forget_takes_everything_by_broken_counts(
    log: TurnsLog, redis: Redis, value: str | None
) -> None:
    await add_turn(log, BANK, texts=("one", "two"), turn_id="t")
    for key in (keyspace.WAITING, keyspace.CLAIM_NUMBER):
        await break_key(redis, key, value)
    eraser = TurnsEraser(log, mark_ttl_s=600, job_ttl_s=600)
    taken = await eraser.take(BANK, "all", ())
    assert taken is not None
    assert (taken.turns, taken.jobs) == (2, 1)
    await eraser.end(taken.claim)
    await log.release(taken.claim)
    assert (await look(redis)).faults() == []
    # The same words are new words, and no others are.
    assert (await add_turn(log, BANK, texts=("one", "two"), turn_id="t"))[0] == "queued"
    assert (await add_turn(log, BANK, texts=("one", "two"), turn_id="t"))[0] == "duplicate"
    assert await end_all(log, redis) == ["one", "two"]


@broken
async def test_the_sweep_counts_anew_and_mends_the_rest(
    log: TurnsLog, redis: Redis, value: str | None
) -> None:
    for bank in (BANK, ANOTHER):
        await add_turn(log, bank, texts=("one", "two"))
    for key in (keyspace.WAITING, keyspace.CLAIM_NUMBER):
        await break_key(redis, key, value)
    await redis.zrem(keyspace.DUE, BANK)
    assert await log.sweep() == 1
    assert (await look(redis)).faults() == []
    assert (await log.check()).waiting_banks == 2


async def test_the_sweep_leaves_no_count_of_none(log: TurnsLog, redis: Redis) -> None:
    await add_turn(log, BANK)
    await end_all(log, redis)
    for wrong in (5, -5):
        await redis.set(keyspace.WAITING, wrong)
        await log.sweep()
        assert not await redis.exists(keyspace.WAITING)


async def test_nothing_is_lost_or_doubled_while_counters_break_and_turns_come_and_go(
    log: TurnsLog, redis: Redis
) -> None:
    stop = asyncio.Event()
    accepted: list[str] = []
    stored: list[str] = []

    async def come(bank: BankId) -> None:
        while not stop.is_set():
            _, _, documents = await add_turn(log, bank, texts=("one", "two"))
            accepted.extend(documents)

    async def go() -> None:
        while not stop.is_set() or await redis.exists(keyspace.turns(BANK), keyspace.turns(ANOTHER)):
            for claim in await log.claim(1):
                while batch := await log.take(claim, secrets.token_hex(8)):
                    kept = {turn.document_id: 1 for turn in batch.turns}
                    await log.settle(claim, batch, kept, outcome="done", reason="", job_ttl_s=60)
                    stored.extend(kept)
                await log.release(claim)

    async def break_all() -> None:
        try:
            for value in (*BROKEN, None) * 3:
                for key in (keyspace.WAITING, keyspace.CLAIM_NUMBER):
                    await break_key(redis, key, value)
                await log.sweep()
        finally:
            stop.set()

    await asyncio.gather(come(BANK), come(ANOTHER), go(), go(), break_all())
    await add_turn(log, BANK)
    await log.sweep()
    assert (await look(redis)).faults() == []
    assert sorted(stored) == sorted(accepted)
    assert len(accepted) > 10


# --- The number of a turn or claim ----------------------------------------------------------------------
@broken
@pytest.mark.parametrize("is_gone", [False, True])
async def test_numbers_go_on_above_all_that_were_given(
    log: TurnsLog, redis: Redis, value: str | None, is_gone: bool
) -> None:
    for text in ("one", "two"):
        await add_turn(log, BANK, texts=(text,))
    await end_all(log, redis)
    _, _, documents = await add_turn(log, BANK, texts=("a", "b"))
    before = int(await redis.get(keyspace.CLAIM_NUMBER))
    await break_key(redis, keyspace.CLAIM_NUMBER, value)
    assert not await log.is_full()
    if is_gone:
        await redis.delete(keyspace.CLAIM_NUMBER)
        await log.check()
    assert (await add_turn(log, BANK, texts=("c", "d"), turn_id="t"))[0] == "queued"
    assert not await log.is_full()
    assert (await add_turn(log, BANK, texts=("c", "d"), turn_id="t"))[0] == "duplicate"
    assert (await add_turn(log, BANK, texts=("e",)))[0] == "queued"
    given = await numbers(redis, BANK)
    assert sorted(given, key=lambda text: given[text]) == ["a", "b", "c", "d", "e"]
    assert len(set(given.values())) == 5
    assert before < given["c"]
    assert await end_all(log, redis, "failed") == ["a", "b", "c", "d", "e"]

    # A forget of before concerns none of what comes later: dead letters of then stay.
    await break_key(redis, keyspace.CLAIM_NUMBER, value)
    letters = DeadLetters(log)
    assert await letters.replay(await letters.find(documents[:1])) == 1
    assert await end_all(log, redis) == ["a"]
    assert (await look(redis)).faults() == []


@broken
async def test_a_turn_after_a_forget_is_not_forgotten_with_it(
    log: TurnsLog, redis: Redis, value: str | None
) -> None:
    await add_turn(log, BANK, texts=("one",))
    eraser = TurnsEraser(log, mark_ttl_s=600, job_ttl_s=600)
    taken = await eraser.take(BANK, "all", ())
    assert taken is not None
    await log.release(taken.claim)
    await break_key(redis, keyspace.CLAIM_NUMBER, value)
    _, _, documents = await add_turn(log, BANK, texts=("two",), turn_id="t")
    assert (await add_turn(log, BANK, texts=("two",), turn_id="t"))[0] == "duplicate"
    assert await end_all(log, redis, "failed") == ["two"]
    assert (await add_turn(log, BANK, texts=("two",), turn_id="t"))[0] == "duplicate"
    assert len(await DeadLetters(log).find(documents)) == 1


@broken
async def test_claims_are_given_out_by_a_broken_number(
    log: TurnsLog, redis: Redis, value: str | None
) -> None:
    for bank in (BANK, ANOTHER):
        await add_turn(log, bank)
    await break_key(redis, keyspace.CLAIM_NUMBER, value)
    claims = await log.claim(10)
    assert {claim.bank for claim in claims} == {BANK, ANOTHER}
    tokens = [claim.token.split("-")[0] for claim in claims]
    assert len(set(tokens)) == 2
    assert all(token.isdigit() for token in tokens)


@broken
async def test_the_health_check_mends_the_number(world: World, value: str | None) -> None:
    await world.add("ann", "I keep bees")
    await world.store()
    async with Redis.from_url(world.api.settings.redis_url, decode_responses=True) as redis:
        await break_key(redis, keyspace.CLAIM_NUMBER, value)
    assert await ready(world.api, only="accepting") == (200, "ok", [])


async def test_a_full_server_sets_nothing_anew(log: TurnsLog, redis: Redis) -> None:
    await add_turn(log, BANK)
    before = [await redis.get(key) for key in (keyspace.WAITING, keyspace.CLAIM_NUMBER)]
    await redis.config_set("maxmemory", "1")
    try:
        assert await log.is_full()
        for refused in (log.check, lambda: add_turn(log, BANK)):
            with pytest.raises(TurnsLogUnavailable):
                await refused()
    finally:
        await redis.config_set("maxmemory", "0")
    assert [await redis.get(key) for key in (keyspace.WAITING, keyspace.CLAIM_NUMBER)] == before


# --- Counts in jobs and batches -------------------------------------------------------------------------
@pytest.mark.parametrize("value", BROKEN, ids=lambda value: value[:20])
@pytest.mark.parametrize("field", ["left", "kept", "failed"])
@pytest.mark.parametrize("outcome", ["done", "failed"])
async def test_a_job_ends_whatever_its_counts_hold(
    log: TurnsLog, redis: Redis, value: str, field: str, outcome: str
) -> None:
    _, job, documents = await add_turn(log, BANK, texts=("one", "two"))
    await cast("Any", redis.hset(keyspace.job(job), field, value))
    assert await log.job(job) is not None
    assert await end_all(log, redis, outcome) == ["one", "two"]
    ended = await log.job(job)
    assert ended is not None
    assert ended.finished_ms is not None
    assert (await look(redis)).faults() == []
    if outcome == "failed":
        assert ended.status == "failed"
        await cast("Any", redis.hset(keyspace.job(job), field, value))
        letters = DeadLetters(log)
        assert await letters.replay(await letters.find(documents)) == 2
        assert (await look(redis)).faults() == []
        await cast("Any", redis.hset(keyspace.job(job), field, value))
        taken = await TurnsEraser(log, mark_ttl_s=600, job_ttl_s=600).take(BANK, "all", ())
        assert taken is not None
        assert taken.turns == 2
        ended = await log.job(job)
        assert ended is not None
        assert ended.finished_ms is not None


@pytest.mark.parametrize("value", BROKEN, ids=lambda value: value[:20])
async def test_a_batch_goes_on_whatever_its_counts_hold(log: TurnsLog, redis: Redis, value: str) -> None:
    _, job, _ = await add_turn(log, BANK, texts=("one", "two"))
    [claim] = await log.claim(1)
    assert await log.take(claim, "b") is not None
    counts = ("attempts", "tries", "looks", "round", "solo", "processing_ms", "frozen_ms")
    await cast("Any", redis.hset(keyspace.batch(BANK), mapping=dict.fromkeys(counts, value)))
    assert await log.wake(BANK, "event")
    await add_turn(log, ANOTHER)
    await redis.zrem(keyspace.DUE, ANOTHER)
    assert await log.sweep() == 1
    batch = await log.take(claim, "c")
    assert batch is not None
    assert (batch.id, batch.attempts, batch.tries, batch.looks, batch.round) == ("b", 0, 0, 0, 0)
    assert (batch.is_solo, batch.processing_ms) == (False, 0)
    await log.sweep()
    assert await redis.exists(keyspace.OLDEST_BATCH)
    await log.release(claim)
    await end_all(log, redis)
    assert await status(log, job) == ("done", 2)


@pytest.mark.parametrize("value", BROKEN, ids=lambda value: value[:20])
async def test_a_forget_takes_a_batch_whatever_its_counts_hold(
    log: TurnsLog, redis: Redis, value: str
) -> None:
    _, _, documents = await add_turn(log, BANK, texts=("one", "two"))
    [claim] = await log.claim(1)
    assert await log.take(claim, "b") is not None
    await add_turn(log, BANK, conversation="another", texts=("three",))
    await cast("Any", redis.hset(keyspace.batch(BANK), mapping={"round": value, "solo": value}))
    [name] = await fields(redis, keyspace.conversations(BANK))
    await cast("Any", redis.hset(keyspace.conversations(BANK), name, value))
    eraser = TurnsEraser(log, mark_ttl_s=600, job_ttl_s=600)
    taken = await eraser.take(BANK, "documents", documents[:1])
    assert taken is not None
    assert taken.turns == 1
    assert taken.operations
    for field in await fields(redis, keyspace.forgetting(BANK)):
        await cast("Any", redis.hset(keyspace.forgetting(BANK), field, value))
    again = await eraser.take(BANK, "documents", documents[:1], taken.claim.token)
    assert again is not None
    assert again.operations == taken.operations
    await eraser.end(again.claim)
    for field in await fields(redis, keyspace.forgetting(BANK)):
        await cast("Any", redis.hset(keyspace.forgetting(BANK), field, value))
    await eraser.end(again.claim)
    everything = await eraser.take(BANK, "all", (), again.claim.token)
    assert everything is not None
    assert set(taken.operations) <= set(everything.operations)


@pytest.mark.parametrize("kind", ["documents", "conversation"])
async def test_a_forget_beside_a_list_that_cannot_be_read_leaves_the_rest(
    log: TurnsLog, redis: Redis, kind: Literal["documents", "conversation"]
) -> None:
    _, _, documents = await add_turn(log, BANK, texts=("one", "two"))
    [name] = await fields(redis, keyspace.conversations(BANK))
    await add_turn(log, BANK, conversation="another", texts=("three",))
    for conversation in await fields(redis, keyspace.conversations(BANK)):
        await cast("Any", redis.hset(keyspace.conversations(BANK), conversation, "broken"))
    eraser = TurnsEraser(log, mark_ttl_s=600, job_ttl_s=600)
    taken = await eraser.take(BANK, kind, documents[:1] if kind == "documents" else [name])
    assert taken is not None
    assert taken.turns == (1 if kind == "documents" else 2)
    await eraser.end(taken.claim)
    await log.release(taken.claim)
    assert sorted(await end_all(log, redis)) == (["three", "two"] if kind == "documents" else ["three"])
    assert (await look(redis)).faults() == []
    assert (await look(redis)).due == {}


async def test_a_letter_is_put_back_beside_a_list_that_cannot_be_read(log: TurnsLog, redis: Redis) -> None:
    _, _, documents = await add_turn(log, BANK, texts=("one",))
    assert await end_all(log, redis, "failed") == ["one"]
    await add_turn(log, BANK, texts=("two", "three"))
    [name] = await fields(redis, keyspace.conversations(BANK))
    await cast("Any", redis.hset(keyspace.conversations(BANK), name, "broken"))
    letters = DeadLetters(log)
    assert await letters.replay(await letters.find(documents)) == 1
    assert await end_all(log, redis) == ["one", "two", "three"]
    assert (await look(redis)).faults() == []
