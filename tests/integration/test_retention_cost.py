"""What a night costs Hindsight: a bank is asked whose it is only when something of it is to go.

That question is a search through all banks there, so that asking it of each would cost the square of how
many there are; one search asks all whose ids begin alike.
"""

from collections import Counter
from collections.abc import AsyncIterator
from urllib.parse import parse_qs

import pytest
from service.adapters.hindsight_review import HindsightReview
from service.adapters.retention_plan import Place, RetentionPlan
from service.memory.policies import Policies
from service.memory.retention import Expired
from service.memory.retention_marks import HOLDS_S, Marks
from service.policy.tenant_policy import read_policy_file
from service.scope import BankId, bank_of, tenant_mark
from service.settings import Settings

from tests.fakes.hindsight import HindsightStandIn
from tests.fakes.hindsight_store import Fact
from tests.integration.conftest import Workshop
from tests.integration.retention_world import (
    ANNE,
    BERT,
    TASK,
    TASTE,
    TODAY,
    TOMORROW,
    bank_with,
    keeper,
    night,
    policies_of,
    put,
)

pytestmark = pytest.mark.anyio

DAYS_90 = policies_of(90)
POLICY = """\
version: 1
default: {retention_days: 90}
tenants:
  acme: {retention_days: 0}
  kinds:
    retention_days: 90
    kinds:
      - {name: preference, retention_days: 60}
      - {name: task_state, retention_days: 10}
  only-kinds:
    retention_days: 0
    kinds:
      - {name: preference, retention_days: 60}
      - {name: task_state, retention_days: 10}
"""
POLICIES = Policies(read_policy_file(POLICY), owner="default")


@pytest.fixture
async def plan(settings: Settings) -> AsyncIterator[RetentionPlan]:
    """How far the round is, in the test's Redis."""
    async with RetentionPlan.from_settings(settings) as opened:
        yield opened


def searches(stand_in: HindsightStandIn) -> list[str]:
    """Beginnings of the banks that were asked whose they are."""
    asked = [parse_qs(one.query)["q"][0] for one in stand_in.requests_for("banks")]
    return [text for text in asked if text != "u-"]


def asked(stand_in: HindsightStandIn) -> Counter[str]:
    """How often each operation was asked for."""
    return Counter(one.operation for one in stand_in.requests)


async def test_a_night_without_anything_too_old_asks_one_question_of_each_bank(
    stand_in: HindsightStandIn, workshop: Workshop, plan: RetentionPlan
) -> None:
    for number in range(30):
        put(stand_in, bank_with(stand_in, "default", str(number)), "new", 1)
    assert await night(workshop, plan, DAYS_90) == Expired()
    assert asked(stand_in) == {"banks": 1, "documents": 30}


async def test_a_bank_is_asked_whose_it_is_right_before_something_goes(
    stand_in: HindsightStandIn, workshop: Workshop, plan: RetentionPlan
) -> None:
    for number in range(30):
        put(stand_in, bank_with(stand_in, "default", str(number)), "new", 1)
    for name in ("a", "b", "c"):
        put(stand_in, ANNE, name, 100)
    assert await night(workshop, plan, DAYS_90) == Expired(1, 3, 3)
    assert searches(stand_in) == [ANNE[:3]]
    of_anne = [one.operation for one in stand_in.requests if ANNE in one.path or f"q={ANNE[:3]}" in one.query]
    assert of_anne == ["documents", "banks", "document_delete", "document_delete", "document_delete"]


async def test_one_search_asks_all_banks_whose_ids_begin_alike(
    stand_in: HindsightStandIn, workshop: Workshop, plan: RetentionPlan
) -> None:
    banks = [bank_with(stand_in, "default", str(number)) for number in range(200)]
    for bank in banks:
        put(stand_in, bank, "old", 100)
    assert await night(workshop, plan, DAYS_90) == Expired(200, 200, 200)
    # Where the round begins is left to chance, so that one beginning may come at both of its ends.
    assert len(set(searches(stand_in))) == 16
    assert len(searches(stand_in)) <= 17


async def test_an_answer_about_whose_banks_are_holds_for_seconds(
    stand_in: HindsightStandIn, workshop: Workshop
) -> None:
    now = [1000.0]
    marks = Marks(HindsightReview(workshop.hindsight), clock=lambda: now[0])
    bank = bank_with(stand_in, "acme")
    assert await marks.of(bank) == tenant_mark("acme")
    stand_in.banks[bank].name = tenant_mark("kinds")
    now[0] += HOLDS_S - 1
    assert await marks.of(bank) == tenant_mark("acme")
    now[0] += 1
    assert await marks.of(bank) == tenant_mark("kinds")
    assert await marks.of(BankId(bank[:-1] + "?")) is None
    stand_in.store.delete_bank(bank)
    now[0] += HOLDS_S
    assert await marks.of(bank) is None
    assert searches(stand_in) == [bank[:3]] * 3


async def test_an_answer_that_took_long_to_find_holds_as_long_again(
    stand_in: HindsightStandIn, workshop: Workshop
) -> None:
    # Asked at 0, searched for 30 seconds; asked at 59, and at 60, when it is searched anew.
    readings = iter([0.0, 0.0, 30.0, 59.0, 60.0, 60.0, 61.0])
    marks = Marks(HindsightReview(workshop.hindsight), clock=lambda: next(readings))
    bank = bank_with(stand_in, "acme")
    assert await marks.of(bank) == tenant_mark("acme")
    stand_in.banks[bank].name = tenant_mark("kinds")
    assert await marks.of(bank) == tenant_mark("acme")
    assert await marks.of(bank) == tenant_mark("kinds")
    assert searches(stand_in) == [bank[:3]] * 2


async def test_answers_are_about_no_more_banks_than_fit_one(
    stand_in: HindsightStandIn, workshop: Workshop
) -> None:
    banks = [BankId(f"u-{number:048x}") for number in range(600)]
    for bank in banks:
        stand_in.store.ensure_bank(bank).name = tenant_mark("acme")
    marks = Marks(HindsightReview(workshop.hindsight))
    assert {await marks.of(bank) for bank in banks} == {tenant_mark("acme")}
    # The first 256, the second, and the rest.
    assert [len(begin) for begin in searches(stand_in)][-3:] == [48, 48, 48]
    stand_in.requests.clear()
    await Marks(HindsightReview(workshop.hindsight), banks=100_000).of(ANNE)
    assert searches(stand_in) == [ANNE[:4]]


@pytest.mark.parametrize("now", ["acme", "kinds", "unknown", ""])
async def test_a_bank_that_changed_hands_after_it_was_listed_is_left_alone(
    stand_in: HindsightStandIn, workshop: Workshop, plan: RetentionPlan, now: str
) -> None:
    banks = [bank_with(stand_in, "default", user) for user in ("anne", "bert")]
    for bank in banks:
        put(stand_in, bank, "old", 100, tags=[TASK])
    await keeper(workshop, POLICIES).work(plan, TODAY)
    # No time at all: both are listed, and one is worked off.
    assert await keeper(workshop, POLICIES, run_s=0.001).work(plan, TOMORROW) == Expired(1, 1, 1)
    [left] = [bank for bank in banks if stand_in.banks[bank].documents]
    stand_in.banks[left].name = tenant_mark(now) if now else left
    assert await keeper(workshop, POLICIES).work(plan, TOMORROW) == Expired()
    assert set(stand_in.banks[left].documents) == {"old"}
    assert searches(stand_in)[-1] == left[:3]
    assert await plan.places() == []


@pytest.mark.parametrize("shared", [False, True])
async def test_a_kind_of_a_bank_that_changed_hands_is_left_alone(
    stand_in: HindsightStandIn, workshop: Workshop, plan: RetentionPlan, shared: bool
) -> None:
    bank = bank_with(stand_in, "acme")
    facts = [Fact("She writes a book", tags=[TASK]), Fact("She likes tea", tags=["a tag"])]
    # A fact that shares its document goes alone, another one with its document.
    stand_in.extract_with({"book": facts[: 1 + shared]})
    put(stand_in, bank, "task", 15, text="book")
    before = stand_in.banks[bank].texts
    await plan.begin(TODAY.date().isoformat())
    await plan.add([Place(bank, mark=tenant_mark("kinds"))], listed=1, is_listed=True)
    assert await keeper(workshop, POLICIES).work(plan, TODAY) == Expired()
    assert searches(stand_in) == [bank[:3]]
    assert stand_in.banks[bank].texts == before
    assert await plan.places() == []


async def test_a_bank_that_is_gone_after_it_was_listed_is_done_with(
    stand_in: HindsightStandIn, workshop: Workshop, plan: RetentionPlan
) -> None:
    banks = [bank_with(stand_in, "default", user) for user in ("anne", "bert")]
    for bank in banks:
        put(stand_in, bank, "old", 100)
    await keeper(workshop, DAYS_90).work(plan, TODAY)
    await keeper(workshop, DAYS_90, run_s=0.001).work(plan, TOMORROW)
    [left] = [bank for bank in banks if stand_in.banks[bank].documents]
    stand_in.store.delete_bank(left)
    assert await keeper(workshop, DAYS_90).work(plan, TOMORROW) == Expired()
    assert left not in stand_in.banks
    assert await plan.places() == []


async def test_a_new_round_notes_anew_whose_a_bank_is_and_keeps_how_far_it_is(
    stand_in: HindsightStandIn, workshop: Workshop, plan: RetentionPlan
) -> None:
    await plan.begin("2026-01-01")
    for mark in (None, "", tenant_mark("acme")):
        place = Place(ANNE, kept=7, mark=mark)
        await plan.note(place)
        assert await plan.places() == [place]
    await plan.add([Place(ANNE, mark=tenant_mark("kinds"))], listed=1, is_listed=True)
    assert await plan.places() == [Place(ANNE, kept=7, mark=tenant_mark("kinds"))]


async def test_a_dry_run_goes_by_the_list_of_banks_alone(
    stand_in: HindsightStandIn, workshop: Workshop
) -> None:
    put(stand_in, bank_with(stand_in, "default"), "old", 100)
    put(stand_in, BERT, "old", 100)
    put(stand_in, bank_with(stand_in, "acme"), "old", 100)
    swept = await keeper(workshop, POLICIES).sweep(TODAY, is_dry=True)
    assert swept == {
        tenant_mark("default"): Expired(1, 1, 1),
        "": Expired(1, 1, 1),
        tenant_mark("acme"): Expired(),
    }
    assert asked(stand_in) == {"banks": 1, "documents": 2}


async def test_kinds_of_their_own_cost_nothing_while_all_is_young(
    stand_in: HindsightStandIn, workshop: Workshop, plan: RetentionPlan
) -> None:
    put(stand_in, bank_with(stand_in, "kinds", "young"), "task", 5, tags=[TASK])
    put(stand_in, bank_with(stand_in, "kinds", "empty"), "task", 5, tags=[TASK])
    stand_in.banks[bank_of("kinds", "empty")].documents.clear()
    stand_in.banks[bank_of("kinds", "empty")].memories.clear()
    await night(workshop, plan, POLICIES)
    assert asked(stand_in) == {"banks": 1, "documents": 2}


async def test_kinds_are_looked_for_in_a_bank_that_was_looked_at_in_parts(
    stand_in: HindsightStandIn, workshop: Workshop, plan: RetentionPlan
) -> None:
    bank = bank_with(stand_in, "kinds")
    for number in range(110):
        put(stand_in, bank, f"new {number}", 1)
    put(stand_in, bank, "task", 15, tags=[TASK])
    await keeper(workshop, POLICIES).work(plan, TODAY)
    # It is among the first 100, and the next run begins after those.
    assert await keeper(workshop, POLICIES, run_s=0.001).work(plan, TOMORROW) == Expired()
    assert await plan.places() == [Place(bank, kept=100, mark=tenant_mark("kinds"))]
    assert await keeper(workshop, POLICIES).work(plan, TOMORROW) == Expired(1, 1, 1)
    assert "task" not in stand_in.banks[bank].documents


@pytest.mark.parametrize(("tenant", "documents"), [("kinds", 1), ("only-kinds", 0)])
async def test_kinds_are_looked_for_together_until_there_is_something_of_one(
    stand_in: HindsightStandIn, workshop: Workshop, plan: RetentionPlan, tenant: str, documents: int
) -> None:
    bank = bank_with(stand_in, tenant)
    put(stand_in, bank, "other", 85, tags=["memory_type:user_profile"])
    put(stand_in, bank, "task", 5, tags=[TASK])
    await keeper(workshop, POLICIES).sweep(TODAY, is_dry=False)
    # What can be recalled, and what was set aside.
    assert asked(stand_in) == Counter(banks=1, documents=documents, memories=2)
    put(stand_in, bank, "taste", 65, tags=[TASTE])
    put(stand_in, bank, "young taste", 15, tags=[TASTE])
    assert (await keeper(workshop, POLICIES).sweep(TODAY, is_dry=False))[tenant_mark(tenant)].documents == 1
    assert set(stand_in.banks[bank].documents) == {"other", "task", "young taste"}


async def test_a_large_bank_is_read_in_large_pages_and_deleted_from_in_small_steps(
    stand_in: HindsightStandIn, workshop: Workshop, plan: RetentionPlan
) -> None:
    for number in range(1100):
        put(
            stand_in,
            ANNE,
            f"old {number}" if number % 5 == 0 else f"new {number}",
            100 - 60 * (number % 5 > 0),
        )
    await keeper(workshop, DAYS_90).work(plan, TODAY)
    await keeper(workshop, DAYS_90, run_s=0.001).work(plan, TOMORROW)
    # Of the last 100 that were written.
    assert asked(stand_in)["document_delete"] == 20
    assert await plan.places() == [Place(ANNE, kept=80, mark="")]
    stand_in.requests.clear()
    await keeper(workshop, DAYS_90).work(plan, TOMORROW)
    assert asked(stand_in)["document_delete"] == 200
    assert asked(stand_in)["documents"] == 3
    assert set(stand_in.banks[ANNE].documents) == {f"new {n}" for n in range(1100) if n % 5}
