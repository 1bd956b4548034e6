"""Retention by tenant and by kind: each tenant's memories go by its own policy, some kinds sooner."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner
from service.adapters.hindsight_curate import HindsightCurate
from service.adapters.hindsight_erase import HindsightEraser
from service.adapters.hindsight_review import HindsightReview
from service.adapters.keys import KeyStore
from service.adapters.retention_plan import Place, RetentionPlan
from service.cli.main import main
from service.memory.keys import Keys, NewKey, RevokeKey
from service.memory.policies import Policies
from service.memory.retention import Expired, Retention
from service.policy.tenant_policy import read_policy_file
from service.scope import BankId, bank_of, tenant_mark
from service.settings import Settings

from tests.fakes.hindsight import HindsightStandIn
from tests.fakes.hindsight_store import Fact
from tests.integration.conftest import Api, Workshop
from tests.integration.retention_world import (
    ANNE,
    TASK,
    TASTE,
    TODAY,
    TOMORROW,
    bank_with,
    keeper,
    night,
    put,
)
from tests.support import RedisServer

pytestmark = pytest.mark.anyio

POLICY = """\
version: 1
default: {retention_days: 50}
tenants:
  acme: {retention_days: 0}
  zeta: {retention_days: 20}
  kinds:
    retention_days: 60
    kinds:
      - {name: preference}
      - {name: task_state, retention_days: 10}
      - {name: user_profile, retention_days: 365}
  only-kinds:
    retention_days: 0
    kinds:
      - {name: preference}
      - {name: task_state, retention_days: 10}
"""
POLICIES = Policies(read_policy_file(POLICY), owner="zeta")
KINDS = bank_of("kinds", "anne")


@pytest.fixture
async def plan(settings: Settings) -> AsyncIterator[RetentionPlan]:
    """How far the round is, in the test's Redis."""
    async with RetentionPlan.from_settings(settings) as opened:
        yield opened


def documents(stand_in: HindsightStandIn, bank: BankId) -> set[str]:
    return set(stand_in.banks[bank].documents)


# --- By tenant ------------------------------------------------------------------------------------------
async def test_each_tenants_memories_go_by_its_own_policy(
    stand_in: HindsightStandIn, workshop: Workshop, plan: RetentionPlan
) -> None:
    left = {
        "acme": {"1", "15", "30", "70", "1000"},
        "zeta": {"1", "15"},
        # Named by a key alone: the default's.
        "with-a-key": {"1", "15", "30"},
        # Named nowhere, as one of another installation.
        "other": {"1", "15", "30", "70", "1000"},
    }
    policies = POLICIES.knowing(["with-a-key"])
    for tenant in left:
        bank = bank_with(stand_in, tenant)
        for days in (1, 15, 30, 70, 1000):
            put(stand_in, bank, str(days), days)
    # One that does not tell is the owner's, here zeta.
    for days in (1, 15, 30, 70, 1000):
        put(stand_in, ANNE, str(days), days)
    dry = await keeper(workshop, policies).sweep(TOMORROW, is_dry=True)
    assert await night(workshop, plan, policies) == sum(dry.values(), Expired())
    for tenant, names in left.items():
        assert documents(stand_in, bank_of(tenant, "anne")) == names
    assert documents(stand_in, ANNE) == left["zeta"]
    assert dry == {
        tenant_mark("acme"): Expired(),
        tenant_mark("zeta"): Expired(1, 3, 3),
        tenant_mark("with-a-key"): Expired(1, 2, 2),
        tenant_mark("other"): Expired(),
        "": Expired(1, 3, 3),
    }
    # Who keeps everything, or is not known, is not asked for anything.
    for tenant in ("acme", "other"):
        assert not [one for one in stand_in.requests_for("documents") if bank_of(tenant, "anne") in one.path]


async def test_whoever_has_a_key_is_known_as_long_as_the_key_is(
    settings: Settings,
    stand_in: HindsightStandIn,
    workshop: Workshop,
    plan: RetentionPlan,
    caplog: pytest.LogCaptureFixture,
) -> None:
    bank = bank_with(stand_in, "with-a-key")
    put(stand_in, bank, "old", 70)
    async with KeyStore.from_settings(settings) as store:
        keep = Retention(
            HindsightReview(workshop.hindsight),
            HindsightEraser(workshop.hindsight),
            workshop.log,
            workshop.cache,
            policies=POLICIES,
            keys=store,
        )
        await keep.work(plan, TODAY)
        assert await keep.work(plan, TOMORROW) == Expired()
        assert [one.__dict__["banks"] for one in caplog.records if "unknown_tenants" in one.message] == [1]
        keys = Keys(store, settings, tenant=None)
        _, key = await keys.create(NewKey.read({"name": "n", "scopes": "recall"}), "with-a-key")
        # One that has ended is known until it is dropped.
        await keys.revoke(RevokeKey.read({"id": key.key_id}))
        assert await keep.work(plan, TOMORROW + timedelta(days=1)) == Expired(1, 1, 1)
        assert not documents(stand_in, bank)


@pytest.mark.parametrize("listed", ["0", f"0 {tenant_mark('zeta')}"])
async def test_a_bank_that_got_its_tenant_while_it_waited_goes_by_that_tenants_policy(
    stand_in: HindsightStandIn,
    workshop: Workshop,
    plan: RetentionPlan,
    redis_server: RedisServer,
    listed: str,
) -> None:
    bank = bank_of("acme", "anne")
    put(stand_in, bank, "old", 400)
    gone = bank_of("acme", "gone")
    await keeper(workshop, POLICIES).work(plan, TODAY)
    # Left of the round before, also by a version that noted with it whose it was.
    for left in (bank, gone):
        await redis_server.command("HSET", "mem:retention-banks", left, listed)
    bank_with(stand_in, "acme")
    assert await keeper(workshop, POLICIES).work(plan, TOMORROW) == Expired()
    assert documents(stand_in, bank) == {"old"}
    assert gone not in stand_in.banks
    assert await plan.places() == []


async def test_a_stored_turn_makes_its_bank_tell_whose_it_is(
    api: Api, stand_in: HindsightStandIn, workshop: Workshop
) -> None:
    """As one does that was made before banks told it."""
    put(stand_in, ANNE, "old", 30)
    await keeper(workshop, POLICIES).sweep(TODAY, is_dry=False)
    assert not documents(stand_in, ANNE)
    put(stand_in, ANNE, "old", 30)
    # As such a version has noted that it knows the bank.
    await workshop.log.note_bank_made(ANNE, "1")
    await api.add("anne", "I like tea.")
    await workshop.work()
    # Its own tenant, `default`, has the file's default, which keeps it.
    await keeper(workshop, POLICIES).sweep(TODAY, is_dry=False)
    assert "old" in documents(stand_in, ANNE)


async def test_a_round_knows_how_far_each_bank_is_after_a_restart(
    stand_in: HindsightStandIn, workshop: Workshop, plan: RetentionPlan
) -> None:
    await plan.begin("2026-01-01")
    places = [Place(bank_with(stand_in, "acme")), Place(ANNE, kept=3)]
    await plan.add(places, listed=2, is_listed=True)
    assert await plan.places() == sorted(places, key=lambda place: place.bank)
    for place in places:
        await plan.finish(place.bank)
    assert await plan.places() == []
    await plan.note(Place(ANNE, kept=7))
    # Listed once more, it stays where it is.
    await plan.add([Place(ANNE)], listed=1, is_listed=True)
    assert await plan.places() == [Place(ANNE, kept=7)]


# --- By kind --------------------------------------------------------------------------------------------
async def test_a_kind_is_deleted_after_its_own_time_and_never_later_than_the_rest(
    api: Api, stand_in: HindsightStandIn, workshop: Workshop, plan: RetentionPlan
) -> None:
    for tenant, left in (
        ("kinds", {"task 5", "taste 5", "taste 15"}),
        ("only-kinds", {"task 5", "taste 5", "taste 15", "taste 70", "profile 70"}),
        ("acme", {"task 5", "task 15", "taste 5", "taste 15", "taste 70", "profile 70"}),
    ):
        bank = bank_with(stand_in, tenant)
        for days in (5, 15):
            put(stand_in, bank, f"task {days}", days, tags=[TASK])
        for days in (5, 15, 70):
            put(stand_in, bank, f"taste {days}", days, tags=[TASTE])
        put(stand_in, bank, "profile 70", 70, tags=["memory_type:user_profile"])
        dry = await keeper(workshop, POLICIES).sweep(TODAY, is_dry=True)
        gone = 6 - len(left)
        assert dry[tenant_mark(tenant)] == Expired(1 if gone else 0, gone, gone)
        assert await keeper(workshop, POLICIES).sweep(TODAY, is_dry=False) == dry
        assert documents(stand_in, bank) == left
        assert len(stand_in.banks[bank].memories) == len(left)
        stand_in.store.delete_bank(bank)


async def test_facts_that_share_a_document_with_others_go_alone(
    stand_in: HindsightStandIn, workshop: Workshop, plan: RetentionPlan
) -> None:
    bank = bank_with(stand_in, "kinds")
    stand_in.extract_with(
        {
            "both": [Fact("She writes a book", tags=[TASK]), Fact("She likes tea", tags=[TASTE])],
            "tasks": [Fact("She learns Thai", tags=[TASK]), Fact("She sells her car", tags=[TASK])],
        }
    )
    put(stand_in, bank, "d1", 15, text="both")
    put(stand_in, bank, "d2", 15, text="tasks")
    put(stand_in, bank, "d3", 5, text="both")
    ids = {memory.text: memory.id for memory in stand_in.banks[bank].memories.values()}
    stand_in.add_memory(
        bank, "She sells things", type="observation", tags=[TASK], source_fact_ids=[ids["She sells her car"]]
    )
    assert await night(workshop, plan, POLICIES) == Expired(1, 1, 3)
    assert documents(stand_in, bank) == {"d1", "d3"}
    assert sorted(
        (memory.document_id, memory.text)
        for memory in stand_in.banks[bank].memories.values()
        if memory.state == "valid"
    ) == [("d1", "She likes tea"), ("d3", "She likes tea"), ("d3", "She writes a book")]
    # Its words are gone, too.
    blanked = [memory for memory in stand_in.banks[bank].memories.values() if memory.state != "valid"]
    assert [memory.text for memory in blanked] == ["(forgotten)"]
    assert await keeper(workshop, POLICIES).sweep(TOMORROW, is_dry=False) == {tenant_mark("kinds"): Expired()}


async def test_what_was_set_aside_of_a_kind_goes_with_it(
    stand_in: HindsightStandIn, workshop: Workshop, plan: RetentionPlan
) -> None:
    bank = bank_with(stand_in, "kinds")
    stand_in.extract_with(
        {
            "both": [Fact("She writes a book", tags=[TASK]), Fact("She likes tea", tags=[TASTE])],
            "tasks": [Fact("She learns Thai", tags=[TASK]), Fact("She sells her car", tags=[TASK])],
            "taste": [Fact("She learns Lao", tags=[TASK]), Fact("She likes rum", tags=[TASTE])],
        }
    )
    put(stand_in, bank, "alone", 15, text="She paints", tags=[TASK])
    put(stand_in, bank, "d1", 15, text="both")
    put(stand_in, bank, "d2", 15, text="tasks")
    put(stand_in, bank, "d3", 15, text="taste")
    put(stand_in, bank, "young", 5, text="She sings", tags=[TASK])
    ids = {memory.text: memory.id for memory in stand_in.banks[bank].memories.values()}
    curate = HindsightCurate(workshop.hindsight)
    # A memory that is kept longer and was set aside keeps its document, too: it may be taken back.
    for text in ("She paints", "She writes a book", "She sells her car", "She likes rum", "She sings"):
        await curate.invalidate(bank, ids[text], "superseded by a newer memory")
    dry = await keeper(workshop, POLICIES).sweep(TOMORROW, is_dry=True)
    assert dry[tenant_mark("kinds")] == Expired(1, 2, 5)
    assert await night(workshop, plan, POLICIES) == Expired(1, 2, 5)
    assert documents(stand_in, bank) == {"d1", "d3", "young"}
    left = sorted(
        (memory.document_id, memory.text, memory.state) for memory in stand_in.banks[bank].memories.values()
    )
    assert left == [
        ("d1", "(forgotten)", "invalidated"),
        ("d1", "She likes tea", "valid"),
        ("d3", "(forgotten)", "invalidated"),
        ("d3", "She likes rum", "invalidated"),
        ("young", "She sings", "invalidated"),
    ]
    assert await keeper(workshop, POLICIES).sweep(TOMORROW, is_dry=False) == {tenant_mark("kinds"): Expired()}


async def test_many_that_were_set_aside_go_run_by_run(stand_in: HindsightStandIn, workshop: Workshop) -> None:
    bank = bank_with(stand_in, "kinds")
    curate = HindsightCurate(workshop.hindsight)
    stand_in.extract_with(
        {"both": [Fact("She writes a book", tags=[TASK]), Fact("She likes tea", tags=[TASTE])]}
    )
    for number in range(110):
        put(stand_in, bank, f"d{number}", 15, text="both")
        put(stand_in, bank, f"task {number}", 15, tags=[TASK])
    for memory in list(stand_in.banks[bank].memories.values()):
        if TASK in memory.tags:
            await curate.invalidate(bank, memory.id, "superseded by a newer memory")
    swept = await keeper(workshop, POLICIES).sweep(TODAY, is_dry=False)
    assert swept == {tenant_mark("kinds"): Expired(1, 110, 220)}
    assert documents(stand_in, bank) == {f"d{number}" for number in range(110)}
    assert {memory.text for memory in stand_in.banks[bank].memories.values()} == {
        "(forgotten)",
        "She likes tea",
    }


async def test_an_expired_kind_leaves_the_cached_answers_too(
    settings: Settings, api: Api, stand_in: HindsightStandIn, workshop: Workshop, plan: RetentionPlan
) -> None:
    bank = bank_with(stand_in, "default")
    policies = Policies(
        read_policy_file("version: 1\ndefault: {kinds: [{name: task_state, retention_days: 10}]}")
    )
    put(stand_in, bank, "old", 15, text="Anne writes a book about bees.", tags=[TASK])
    query = "What does Anne write?"
    assert "bees" in (await api.recall("anne", query)).json()["context"]
    assert (await api.recall("anne", query)).json()["cached"]
    assert await night(workshop, plan, policies) == Expired(1, 1, 1)
    reply = (await api.recall("anne", query)).json()
    assert (reply["context"], reply["cached"]) == ("", False)


async def test_facts_of_a_turn_that_is_not_stored_for_good_stay(
    api: Api, stand_in: HindsightStandIn, workshop: Workshop
) -> None:
    bank = bank_with(stand_in, "default")
    policies = Policies(
        read_policy_file("version: 1\ndefault: {kinds: [{name: task_state, retention_days: 10}]}")
    )
    await api.add("anne", "I write a book.", timestamp="2020-01-01T00:00:00Z")
    [turn] = await workshop.log.pending(bank)
    put(stand_in, bank, f"{turn.document_id}.0", 15, tags=[TASK])
    put(stand_in, bank, f"{turn.document_id}.1", 100)
    put(stand_in, bank, "other", 15, tags=[TASK])
    await keeper(workshop, policies).sweep(TODAY, is_dry=False)
    assert documents(stand_in, bank) == {f"{turn.document_id}.0", f"{turn.document_id}.1"}


async def test_many_facts_go_run_by_run(
    stand_in: HindsightStandIn, workshop: Workshop, plan: RetentionPlan
) -> None:
    bank = bank_with(stand_in, "kinds")
    for number in range(230):
        put(stand_in, bank, f"task {number}", 15, tags=[TASK])
        put(stand_in, bank, f"taste {number}", 15, tags=[TASTE])
    await keeper(workshop, POLICIES).work(plan, TODAY)
    runs = 0
    while len(stand_in.banks[bank].documents) > 230:
        await keeper(workshop, POLICIES, run_s=0.001).work(plan, TOMORROW + timedelta(minutes=runs))
        runs += 1
        assert runs < 30
    assert runs > 3
    assert all(name.startswith("taste") for name in documents(stand_in, bank))


# --- The command ----------------------------------------------------------------------------------------
async def test_the_command_tells_counts_by_tenant(
    settings: Settings,
    stand_in: HindsightStandIn,
    workshop: Workshop,
    redis_server: RedisServer,
    tmp_path: Path,
) -> None:
    await asyncio.to_thread((tmp_path / "policy.yaml").write_text, POLICY, "utf-8")
    async with KeyStore.from_settings(settings) as store:
        ask = NewKey.read({"name": "n", "scopes": "recall"})
        await Keys(store, settings, tenant=None).create(ask, "with-a-key")
    for tenant in ("acme", "zeta", "kinds", "with-a-key", "unknown"):
        put(stand_in, bank_with(stand_in, tenant), "old", 55)
        put(stand_in, bank_of(tenant, "anne"), "task", 15, tags=[TASK])
    env = {
        "MEMORY_REDIS_URL": redis_server.url,
        "MEMORY_HINDSIGHT_URL": stand_in.url,
        "MEMORY_POLICY_FILE": str(tmp_path / "policy.yaml"),
    }
    result = await asyncio.to_thread(CliRunner().invoke, main, ["retention", "--dry-run"], env=env)
    assert result.exit_code == 0, result.output
    first, *lines = result.output.splitlines()
    assert first == "Would delete what was said too long ago: 3 documents with 3 memories, of 3 users."
    mark = tenant_mark("unknown")[:15]
    assert sorted(lines) == sorted(
        [
            "  acme, never: 0 documents with 0 memories, of 0 users",
            "  zeta, after 20 days: 1 documents with 1 memories, of 1 users",
            "  kinds, after 60 days, task_state after 10: 1 documents with 1 memories, of 1 users",
            "  with-a-key, after 50 days: 1 documents with 1 memories, of 1 users",
            f"  {mark}…: kept, since no key or policy names its tenant",
        ]
    )
    assert len(documents(stand_in, bank_of("zeta", "anne"))) == 2
