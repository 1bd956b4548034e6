"""How many memories a batch has made is counted without holding the bank for one round trip a turn."""

import time

import pytest
from service.scope import BankId, bank_of

from tests.fakes.hindsight import HindsightStandIn
from tests.integration.conftest import Workshop
from tests.turns_log import add_turn

pytestmark = pytest.mark.anyio


@pytest.fixture
def bank(user: str) -> BankId:
    return bank_of("default", user)


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


async def test_a_count_that_cannot_be_had_is_zero_and_stops_nothing(
    workshop: Workshop, stand_in: HindsightStandIn, bank: BankId
) -> None:
    stand_in.fail("document", "status", status=503)
    _, job_id, _ = await add_turn(workshop.log, bank, texts=tuple("abcdefghij"))
    await workshop.work()
    job = await workshop.log.job(job_id)
    assert job is not None
    assert (job.status, job.memories_kept) == ("done", 0)
    assert len(stand_in.requests_for("document")) <= 5, "it is not asked for all of them then"
