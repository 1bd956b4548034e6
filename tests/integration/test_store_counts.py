"""How many memories a batch has made is counted without holding the bank for one round trip a turn.

A count that cannot be had is not known, which is not the same as none.
"""

import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from service.adapters.turns import Debounce, TurnsLog
from service.scope import BankId, bank_of

from tests.fakes.hindsight import HindsightStandIn
from tests.integration.conftest import Workshop
from tests.support import RedisServer
from tests.turns_log import add_turn

pytestmark = pytest.mark.anyio


@pytest.fixture
def bank(user: str) -> BankId:
    return bank_of("default", user)


@pytest.fixture
async def log(redis_server: RedisServer) -> AsyncIterator[TurnsLog]:
    async with TurnsLog(redis_server.url, Debounce(0, 0, 20)) as opened:
        yield opened


async def test_a_batch_of_twenty_is_counted_in_a_few_round_trips(
    workshop: Workshop, stand_in: HindsightStandIn, bank: BankId
) -> None:
    texts = tuple(f"text {number}" for number in range(20))
    _, job_id, _ = await add_turn(workshop.log, bank, texts=texts)
    stand_in.fail("document", "slow", seconds=0.1)
    started = time.monotonic()
    await workshop.work()
    took_s = time.monotonic() - started
    job = await workshop.log.job(job_id)
    assert job is not None
    assert (job.status, job.memories_kept) == ("done", 20)
    asked = [request.at for request in stand_in.requests_for("document")]
    assert len(asked) == 20
    # One after another they would be two seconds apart from first to last.
    assert max(asked) - min(asked) < 1.0
    assert took_s < 2.0


async def test_one_turn_costs_one_question(
    workshop: Workshop, stand_in: HindsightStandIn, bank: BankId
) -> None:
    await add_turn(workshop.log, bank)
    await workshop.work()
    assert len(stand_in.requests_for("document")) == 1


@pytest.mark.parametrize(
    "fault",
    [
        {"kind": "status", "status": 503},
        {"kind": "status", "status": 422},
        {"kind": "wrong_shape", "body": {"id": "t", "memory_unit_count": None}},
        {"kind": "garbage"},
    ],
    ids=["away", "refused", "does not tell", "garbage"],
)
async def test_a_count_that_cannot_be_had_is_not_known_and_stops_nothing(
    workshop: Workshop, stand_in: HindsightStandIn, bank: BankId, fault: dict[str, Any]
) -> None:
    stand_in.fail("document", **fault)
    _, job_id, _ = await add_turn(workshop.log, bank, texts=tuple("abcdefghij"))
    await workshop.work()
    job = await workshop.log.job(job_id)
    assert job is not None
    assert (job.status, job.memories_kept) == ("done", None)
    assert len(stand_in.banks[bank].memories) == 10
    assert len(stand_in.requests_for("document")) <= 5, "it is not asked for all of them then"


async def test_a_sum_of_which_one_part_is_missing_is_not_known(
    workshop: Workshop, stand_in: HindsightStandIn, bank: BankId
) -> None:
    stand_in.fail("document", "status", status=503, times=1)
    _, job_id, _ = await add_turn(workshop.log, bank, texts=("one", "two"))
    await workshop.work()
    job = await workshop.log.job(job_id)
    assert job is not None
    assert (job.status, job.memories_kept) == ("done", None)
    assert len(stand_in.requests_for("document")) == 2


async def test_what_is_not_known_of_one_job_is_known_of_the_next(
    workshop: Workshop, stand_in: HindsightStandIn, bank: BankId
) -> None:
    stand_in.fail("document", "status", status=503, times=1)
    _, first, _ = await add_turn(workshop.log, bank, texts=("one",))
    await workshop.work()
    _, second, _ = await add_turn(workshop.log, bank, texts=("two",))
    await workshop.work()
    jobs = [await workshop.log.job(job_id) for job_id in (first, second)]
    assert [job and job.memories_kept for job in jobs] == [None, 1]


async def test_a_job_whose_later_part_is_counted_stays_unknown(log: TurnsLog, bank: BankId) -> None:
    _, job_id, _ = await add_turn(log, bank, texts=("one", "two", "three"))
    [claim] = await log.claim(1)
    batch = await log.take(claim, "b")
    assert batch is not None
    for turn, kept in zip(batch.turns, (2, None, 3), strict=True):
        await log.settle(claim, batch, {turn.document_id: kept}, outcome="done", reason="", job_ttl_s=60)
        job = await log.job(job_id)
        assert job is not None
        assert job.memories_kept == (2 if kept == 2 else None)
        assert job.status == ("done" if kept == 3 else "retaining")
