"""What comes long after a forget: redeliveries, old dead letters, and clocks that were ahead then."""

import secrets
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis
from service import keyspace
from service.adapters.dead_letters import DeadLetter, DeadLetters
from service.adapters.turns import TurnsLog
from service.adapters.turns_forget import TurnsEraser
from service.errors import ClaimLost
from service.scope import BankId, JobId, bank_of

from tests.integration.edge import checked
from tests.integration.forget_world import World, counts, open_world
from tests.support import RedisServer
from tests.turns_log import add_turn, grow_old, look, pass_time

pytestmark = pytest.mark.anyio
HOURS_MS = 6 * 3_600_000


@pytest.fixture
async def world(redis_server: RedisServer) -> AsyncIterator[World]:
    async with open_world(redis_server) as opened:
        yield opened


@pytest.fixture
def bank(user: str) -> BankId:
    return bank_of("default", user)


async def deliver(world: World, user: str, text: str = "I keep bees") -> tuple[str, JobId]:
    """Status and job of a turn that always has the same id."""
    reply = checked(await world.api.add(user, text, conversation_id="c1", turn_id="run-1"), 202)
    return reply["status"], JobId(reply["job_id"])


async def write_seen_as_layout_1(redis: Redis) -> None:
    async for key in redis.scan_iter(match=keyspace.seen("*")):
        job, _, _ = (await redis.get(key)).partition(" ")
        await redis.set(key, job, keepttl=True)


async def test_a_redelivery_is_known_after_its_job_is_gone(world: World, user: str) -> None:
    await world.forget(user, all="true")
    _, job = await deliver(world, user)
    await world.store()
    await world.redis.delete(keyspace.job(job))  # as its TTL does, which may be shorter than the turn id's
    assert await deliver(world, user) == ("duplicate", job)


@pytest.mark.parametrize("scope", [{"all": "true"}, {"conversation_id": "c1"}])
async def test_what_was_forgotten_since_is_new_though_its_job_is_gone(
    world: World, user: str, scope: dict[str, str]
) -> None:
    _, job = await deliver(world, user)
    await world.store()
    await world.forget(user, **scope)
    await world.redis.delete(keyspace.job(job))
    status, again = await deliver(world, user)
    assert (status, again != job) == ("queued", True)
    await world.store()
    assert world.texts(user) == ["I keep bees"]
    await world.redis.delete(keyspace.job(again))
    assert await deliver(world, user) == ("duplicate", again)


async def test_what_layout_1_wrote_is_a_repetition_unless_its_job_tells_that_it_was_forgotten(
    world: World, user: str
) -> None:
    await world.forget(user, all="true")
    _, job = await deliver(world, user)
    await world.store()
    await write_seen_as_layout_1(world.redis)
    assert await deliver(world, user) == ("duplicate", job)
    await world.redis.rename(keyspace.job(job), "mem:job:kept")
    assert await deliver(world, user) == ("duplicate", job), "nobody knows whether it was before the forget"
    await world.forget(user, all="true")
    assert await deliver(world, user) == ("duplicate", job), "nor now"
    await world.redis.rename("mem:job:kept", keyspace.job(job))
    assert (await deliver(world, user))[0] == "queued"


async def test_a_reply_that_was_lost_is_no_duplicate(world: World, bank: BankId) -> None:
    for _ in range(2):
        status, job, _ = await add_turn(world.workshop.log, bank, turn_id="t", job_id="j1")
        assert (status, job) == ("queued", "j1")
    assert len(await world.workshop.log.pending(bank)) == 1


async def die(log: TurnsLog, redis: Redis, bank: BankId, *, is_listed: bool = False) -> DeadLetter:
    """Put what waits aside as a worker of layout 1 does, which lists no letter with its bank."""
    await pass_time(redis)
    [claim] = await log.claim(1)
    batch = await log.take(claim, secrets.token_hex(8))
    assert batch is not None
    kept = dict.fromkeys((turn.document_id for turn in batch.turns), 0)
    await log.settle(claim, batch, kept, outcome="failed", reason="bad", job_ttl_s=600)
    await log.release(claim)
    [letter] = await DeadLetters(log).find(kept)
    if not is_listed:
        await redis.delete(keyspace.dead_of(bank))
    return letter


@pytest.mark.parametrize("by", ["page", "find", "replay", "sweep"])
@pytest.mark.parametrize("scope", ["all", "conversation_id", "memory_id"])
async def test_an_old_dead_letter_does_not_survive_a_forget(
    world: World, user: str, bank: BankId, scope: str, by: str
) -> None:
    job = await world.add(user, "I keep bees", conversation_id="c1")
    letter = await die(world.workshop.log, world.redis, bank)
    said = {"all": "true", "conversation_id": "c1", "memory_id": letter.turn.document_id}[scope]
    await world.forget(user, **{scope: said})
    assert (await look(world.redis)).dead == {letter.turn.document_id}, "the forget did not see it"
    letters = DeadLetters(world.workshop.log)
    if by == "page":
        assert await letters.page() == ([], "")
    elif by == "find":
        assert await letters.find([letter.turn.document_id]) == []
    elif by == "replay":
        assert await letters.replay([letter]) == 0
    else:
        await world.workshop.log.sweep()
        assert await letters.page(bank=bank) == ([], "")
    assert (await look(world.redis)).dead == set()
    assert (await world.api.job(job))["status"] == "cancelled"
    await world.store()
    assert world.texts(user) == []
    assert await world.recalled(user, "bees", conversation_id="x", fresh="true") == []


@pytest.mark.parametrize("is_listed", [True, False])
async def test_a_letter_of_what_was_said_after_the_forget_stays(
    world: World, user: str, bank: BankId, is_listed: bool
) -> None:
    await world.add(user, "I keep bees", conversation_id="c1")
    await world.forget(user, all="true")
    await world.forget(user, conversation_id="c1")
    await world.add(user, "I keep bees", conversation_id="c1")
    letter = await die(world.workshop.log, world.redis, bank, is_listed=is_listed)
    await world.workshop.log.sweep()
    letters = DeadLetters(world.workshop.log)
    assert await letters.page() == await letters.page(bank=bank) != ([], "")
    assert await letters.replay([letter]) == 1
    await world.store()
    assert world.texts(user) == ["I keep bees"]


async def test_a_revived_letter_whose_job_is_gone_is_known_by_its_number(
    world: World, user: str, bank: BankId
) -> None:
    await world.forget(user, all="true")
    _, job = await deliver(world, user)
    letter = await die(world.workshop.log, world.redis, bank, is_listed=True)
    await world.redis.delete(keyspace.job(job))
    await write_seen_as_layout_1(world.redis)
    assert await DeadLetters(world.workshop.log).replay([letter]) == 1
    await world.store()
    assert await deliver(world, user) == ("duplicate", job)
    await world.forget(user, all="true")
    assert (await deliver(world, user))[0] == "queued"


async def test_a_forget_that_died_while_the_clock_was_ahead_holds_up_no_other(
    world: World, user: str, bank: BankId
) -> None:
    await world.add(user, "I keep bees", conversation_id="c1")
    eraser = TurnsEraser(world.workshop.log, mark_ttl_s=60, job_ttl_s=60)
    died = await eraser.take(bank, "all", [])
    assert died is not None
    assert await eraser.take(bank, "all", []) is None, "while it may live it is waited for"
    await world.redis.zincrby(keyspace.DUE, HOURS_MS, bank)
    assert counts(await world.forget(user, all="true")) == (0, 0, 1, 1)
    with pytest.raises(ClaimLost):
        await eraser.end(died.claim)


async def test_what_was_accepted_while_the_clock_was_ahead_is_due_at_once(world: World, bank: BankId) -> None:
    _, _, documents = await add_turn(world.workshop.log, bank)
    await grow_old(world.redis, bank, -HOURS_MS)
    await pass_time(world.redis)
    [claim] = await world.workshop.log.claim(1)
    batch = await world.workshop.log.take(claim, "b1")
    assert batch is not None
    assert [turn.document_id for turn in batch.turns] == documents
    await world.workshop.log.release(claim)


async def test_a_turn_after_the_clock_was_set_back_makes_the_others_due_with_it(
    world: World, bank: BankId
) -> None:
    await add_turn(world.workshop.log, bank)
    await grow_old(world.redis, bank, -HOURS_MS)
    await add_turn(world.workshop.log, bank)
    seconds, _ = await world.redis.time()
    due_ms = await world.redis.zscore(keyspace.DUE, bank)
    assert due_ms is not None
    assert due_ms / 1000 <= seconds + world.workshop.log.debounce.quiet_s + 1
    [waiting] = await world.redis.hvals(keyspace.conversations(bank))  # type: ignore[misc]
    first, last, count, _ = waiting.split(" ", 3)
    assert (int(first) <= (seconds + 1) * 1000, int(first) <= int(last), count) == (True, True, "2")


async def test_a_claim_that_a_failover_forgot_is_not_given_out_again(world: World, bank: BankId) -> None:
    await add_turn(world.workshop.log, bank)
    before = await world.redis.get(keyspace.CLAIM_NUMBER)
    await pass_time(world.redis)
    [lost] = await world.workshop.log.claim(1)
    # What the replica has not seen: the number, the claim and its end.
    await world.redis.set(keyspace.CLAIM_NUMBER, before)
    await world.redis.hdel(keyspace.CLAIMS, bank)  # type: ignore[misc]
    await pass_time(world.redis)
    [held] = await world.workshop.log.claim(1)
    assert await world.workshop.log.take(held, "b1") is not None
    with pytest.raises(ClaimLost):
        await world.workshop.log.take(lost, "b2")
    await world.workshop.log.release(held)
