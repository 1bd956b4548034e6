"""One bank is never held by two, and never holds up the others, be it slow, hanging, busy or down."""

import asyncio
import secrets
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis
from service import keyspace
from service.adapters.hindsight import HindsightAdapter
from service.adapters.turns import Claim, Debounce, TurnsLog
from service.memory.store import StoreOptions, Storer
from service.metrics import Metrics
from service.scope import BankId, bank_of
from service.settings import Settings

from tests.fakes.hindsight import HindsightStandIn
from tests.integration.conftest import Workshop, open_workshop, settings_for
from tests.support import RedisServer, wait_until
from tests.turns_log import add_turn, look, pass_time

pytestmark = pytest.mark.anyio


@pytest.fixture
async def settings(redis_server: RedisServer, stand_in: HindsightStandIn) -> Settings:
    """No limit to what may wait: some of these add without a pause."""
    await redis_server.command("FLUSHALL")
    return settings_for(redis_server.url, stand_in.url, max_waiting_per_user=1_000_000)


@pytest.fixture
async def redis(settings: Settings) -> AsyncIterator[Redis]:
    async with Redis.from_url(settings.redis_url, decode_responses=True) as client:
        yield client


@pytest.fixture
def bank(user: str) -> BankId:
    return bank_of("default", user)


async def due_in_s(redis: Redis, bank: BankId) -> float:
    """When the bank is looked at next."""
    seconds, micros = await redis.time()
    score = await redis.zscore(keyspace.DUE, bank)
    assert score is not None
    return float(score) / 1000 - int(seconds) - int(micros) / 1e6


def texts(stand_in: HindsightStandIn, bank: BankId) -> list[str]:
    """What was stored in a bank, in order."""
    return [text for _, text in stand_in.banks[bank].written] if bank in stand_in.banks else []


def impatient(workshop: Workshop, *, stuck_s: float = 600) -> Storer:
    """A storer that leaves a running operation alone soon."""
    options = StoreOptions(3, 600, stuck_s=stuck_s, follow_s=0.1)
    return Storer(workshop.log, workshop.cache, workshop.hindsight, Metrics(), options)


async def test_a_slow_operation_is_left_to_itself(
    workshop: Workshop, stand_in: HindsightStandIn, redis: Redis, bank: BankId
) -> None:
    _, job_id, _ = await add_turn(workshop.log, bank, texts=("slow",))
    stand_in.hold_operations()
    storer = impatient(workshop)

    async def work() -> None:
        await pass_time(redis)
        for claim in await workshop.claims():
            await storer.drain(claim)

    await work()  # it comes back although nothing is done
    job = await workshop.log.job(job_id)
    assert job is not None
    assert (job.status, job.reason) == ("retaining", "Hindsight is still working on it.")

    waits: list[float] = []
    for _ in range(5):
        waits.append(await due_in_s(redis, bank))
        await work()
    assert waits == sorted(waits)
    assert waits[-1] > 7
    assert len(stand_in.requests_for("retain")) == 1, "a look costs one question, not another upload"

    stand_in.release_operations()
    await wait_until(lambda: texts(stand_in, bank) == ["slow"], "the operation has ended")
    await work()
    job = await workshop.log.job(job_id)
    assert job is not None
    assert (job.status, job.reason) == ("done", "")
    assert [document.writes for document in stand_in.banks[bank].documents.values()] == [1]


async def test_an_operation_that_hangs_for_ever_is_started_anew(
    workshop: Workshop, stand_in: HindsightStandIn, redis: Redis, bank: BankId
) -> None:
    storer = impatient(workshop, stuck_s=0.001)
    _, job_id, _ = await add_turn(workshop.log, bank)
    stand_in.hold_operations()

    async def look_at_it() -> tuple[str, str]:
        await pass_time(redis)
        for claim in await workshop.claims():
            await storer.drain(claim)
        job = await workshop.log.job(job_id)
        assert job is not None
        return job.status, job.reason

    assert (await look_at_it())[0] == "retaining"
    assert await look_at_it() == ("waiting", "Hindsight has worked on it for too long.")
    await look_at_it()
    first, second = (request.body["operation_id"] for request in stand_in.requests_for("retain"))
    assert first != second


async def test_one_that_only_waits_in_hindsights_queue_is_not(
    workshop: Workshop, stand_in: HindsightStandIn, redis: Redis, bank: BankId
) -> None:
    storer = impatient(workshop, stuck_s=0.001)
    await add_turn(workshop.log, bank)
    stand_in.hold_operations("pending")
    for _ in range(4):
        await pass_time(redis)
        for claim in await workshop.claims():
            await storer.drain(claim)
    assert len(stand_in.requests_for("retain")) == 1


async def test_a_bank_with_steady_traffic_leaves_room_for_others(
    workshop: Workshop, stand_in: HindsightStandIn, bank: BankId
) -> None:
    stop = asyncio.Event()

    async def talk() -> None:
        while not stop.is_set():
            await add_turn(workshop.log, bank, conversation=secrets.token_hex(4))

    async def one_slot() -> None:
        while not stop.is_set():
            await workshop.storer.work()

    quiet = bank_of("default", "quiet one")
    tasks = [asyncio.create_task(talk()), asyncio.create_task(one_slot())]
    try:
        await wait_until(lambda: len(texts(stand_in, bank)) > 3, "the busy bank is being served")
        await add_turn(workshop.log, quiet, texts=("hello",))
        await wait_until(lambda: texts(stand_in, quiet) == ["hello"], "the quiet bank had its turn", 15)
    finally:
        stop.set()
        await asyncio.gather(*tasks)


async def test_a_bank_that_hangs_takes_one_slot(
    settings: Settings, stand_in: HindsightStandIn, bank: BankId
) -> None:
    patient = settings_for(settings.redis_url, stand_in.url, retain_timeout_s=20)
    async with open_workshop(patient) as workshop:
        await add_turn(workshop.log, bank)
        stand_in.fail("retain", "hang", times=1)
        hanging = asyncio.create_task(workshop.storer.work())
        await wait_until(lambda: stand_in.requests_for("retain"), "the first bank hangs")
        others = [bank_of("default", f"other {number}") for number in range(5)]
        for other in others:
            await add_turn(workshop.log, other, texts=("hello",))
        await workshop.storer.work()
        assert [texts(stand_in, other) for other in others] == [["hello"]] * 5
        assert not hanging.done()
        stand_in.heal()
        await hanging


async def test_only_one_worker_has_a_bank_and_the_late_one_writes_nothing(
    settings: Settings, stand_in: HindsightStandIn, redis: Redis, bank: BankId
) -> None:
    patient = settings_for(settings.redis_url, stand_in.url, retain_timeout_s=20)
    async with open_workshop(patient) as workshop, open_workshop(patient) as other:
        _, job_id, _ = await add_turn(workshop.log, bank, texts=("once",))
        stand_in.fail("retain", "commit_then_hang", times=1)
        [claim] = await workshop.claims()
        late = asyncio.create_task(workshop.storer.drain(claim))
        await wait_until(lambda: stand_in.requests_for("retain"), "the first worker hangs in its call")
        assert await other.claims() == [], "it still has the bank"
        await pass_time(redis, bank)
        assert await other.work() == 1
        job = await other.log.job(job_id)
        assert job is not None
        assert job.status == "done"
        before = await look(redis)
        stand_in.heal()
        await late
        assert await look(redis) == before
        assert await other.log.job(job_id) == job
    assert [document.writes for document in stand_in.banks[bank].documents.values()] == [1]


async def test_a_claim_lasts_as_long_as_its_worker_works(
    settings: Settings, redis: Redis, bank: BankId
) -> None:
    async with (
        HindsightStandIn() as stand_in,
        open_workshop(settings_for(settings.redis_url, stand_in.url, retain_timeout_s=20)) as workshop,
        TurnsLog(settings.redis_url, Debounce(0, 0, 20), claim_s=0.3) as log,
        HindsightAdapter(stand_in.url, None, recall_timeout_s=5, retain_timeout_s=5) as hindsight,
    ):
        storer = Storer(log, workshop.cache, hindsight, Metrics(), StoreOptions(3, 600))
        await add_turn(log, bank)
        stand_in.fail("retain", "slow", seconds=1, times=1)
        [claim] = await log.claim(1)
        working = asyncio.create_task(storer.drain(claim))
        stolen: list[Claim] = []
        while not working.done():
            stolen += await log.claim(1)
            await asyncio.wait([working], timeout=0.02)
        await working
        assert stolen == []
        assert await redis.exists(keyspace.CLAIMS) == 0


async def test_a_worker_that_is_told_to_stop_gives_its_bank_back(
    workshop: Workshop, stand_in: HindsightStandIn, redis: Redis, bank: BankId
) -> None:
    await add_turn(workshop.log, bank)
    stand_in.fail("retain", "hang", times=1)
    [claim] = await workshop.claims()
    working = asyncio.create_task(workshop.storer.drain(claim))
    await wait_until(lambda: stand_in.requests_for("retain"), "it hangs in its call")
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    assert (await look(redis)).claims == {}
    assert await workshop.work() == 1
    assert len(texts(stand_in, bank)) == 1


async def test_the_pauses_between_tries_grow(
    workshop: Workshop, stand_in: HindsightStandIn, redis: Redis, bank: BankId
) -> None:
    # Its calls are dropped although Hindsight is well: that never counts, and must not be hammered either.
    await add_turn(workshop.log, bank)
    stand_in.fail("retain", "close")
    waits = []
    for _ in range(8):
        await pass_time(redis)
        await workshop.work()
        waits.append(await due_in_s(redis, bank))
    longest_s = 300
    assert all(
        0.4 * min(longest_s, 2**n) < wait <= min(longest_s, 2**n) for n, wait in enumerate(waits, start=2)
    ), waits


async def test_a_new_turn_does_not_shorten_a_pause(
    workshop: Workshop, stand_in: HindsightStandIn, redis: Redis, bank: BankId
) -> None:
    await add_turn(workshop.log, bank)
    stand_in.fail("retain", "close", times=1)
    await workshop.work()
    before = await redis.zscore(keyspace.DUE, bank)
    await add_turn(workshop.log, bank)
    await add_turn(workshop.log, bank, conversation="another")
    assert await redis.zscore(keyspace.DUE, bank) == before


async def test_a_hindsight_that_is_down_is_left_alone_however_many_banks_are_due(
    workshop: Workshop, stand_in: HindsightStandIn, redis: Redis
) -> None:
    banks = [bank_of("default", f"user {number}") for number in range(30)]
    for bank in banks:
        await add_turn(workshop.log, bank)
    stand_in.fail("*", "status", status=503)

    async def slot() -> None:
        for _ in range(40):
            await workshop.storer.work()
            await workshop.log.check()

    await asyncio.gather(*(slot() for _ in range(8)))
    assert workshop.storer.is_hindsight_away
    assert len(stand_in.requests) <= 8 * 2 + 5, "a try of each slot, then one question now and then"
    assert len((await look(redis)).batches) <= 8

    stand_in.heal()

    async def all_stored() -> bool:
        await pass_time(redis)
        await workshop.storer.work()
        return all(texts(stand_in, bank) for bank in banks)

    await wait_until(all_stored, "all banks are stored once Hindsight is back", 20)
    assert not workshop.storer.is_hindsight_away
