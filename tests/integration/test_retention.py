"""Retention: what is too old goes, bit by bit, and nothing else does."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from itertools import pairwise
from typing import cast
from urllib.parse import parse_qs

import pytest
from click.testing import CliRunner
from service import jobs
from service.adapters.retention_plan import Place, RetentionPlan
from service.cli.main import main
from service.errors import CacheUnavailable, HindsightUnavailable
from service.jobs import Context
from service.memory.retention import Expired
from service.scope import BankId, bank_of, tenant_mark
from service.settings import Settings

from tests.fakes.hindsight import HindsightStandIn
from tests.integration.conftest import Api, Workshop, open_workshop
from tests.integration.retention_world import (
    ANNE,
    BERT,
    TODAY,
    TOMORROW,
    keeper,
    night,
    policies_of,
    put,
)
from tests.support import RedisServer, valkey, wait_until

pytestmark = pytest.mark.anyio

DAYS_90 = policies_of(90)


@pytest.fixture
async def plan(settings: Settings) -> AsyncIterator[RetentionPlan]:
    """How far the round is, in the test's Redis."""
    async with RetentionPlan.from_settings(settings) as opened:
        yield opened


async def test_what_was_said_too_long_ago_goes_and_nothing_else(
    stand_in: HindsightStandIn, workshop: Workshop, plan: RetentionPlan
) -> None:
    for bank in (ANNE, BERT):
        put(stand_in, bank, "new", 1)
        put(stand_in, bank, "almost", 88.5)
        put(stand_in, bank, "old", 90.5)
        put(stand_in, bank, "ancient", 3000)
    # Of other applications; the second begins as ours do.
    others = (BankId("somebody-elses-bank"), BankId("u-support-desk"), BankId(f"u-{'0' * 47}g"))
    for bank in others:
        put(stand_in, bank, "old", 500)
    assert await night(workshop, plan, DAYS_90) == Expired(2, 4, 4)
    for bank in (ANNE, BERT):
        assert set(stand_in.banks[bank].documents) == {"new", "almost"}
        assert sorted(stand_in.banks[bank].texts) == ["It is almost.", "It is new."]
    for bank in others:
        assert set(stand_in.banks[bank].documents) == {"old"}


async def test_observations_that_rest_on_expired_facts_alone_go_with_them(
    stand_in: HindsightStandIn, workshop: Workshop, plan: RetentionPlan
) -> None:
    put(stand_in, ANNE, "old", 100)
    put(stand_in, ANNE, "new", 1)
    old, new = stand_in.banks[ANNE].memories
    stand_in.add_memory(ANNE, "It was old.", type="observation", source_fact_ids=[old])
    stand_in.add_memory(ANNE, "It was new.", type="observation", source_fact_ids=[new])
    await night(workshop, plan, DAYS_90)
    assert sorted(stand_in.banks[ANNE].texts) == ["It is new.", "It was new."]


async def test_documents_without_a_memory_go_by_the_same_age(
    stand_in: HindsightStandIn, workshop: Workshop, plan: RetentionPlan
) -> None:
    put(stand_in, ANNE, "old", 100)
    put(stand_in, ANNE, "new", 1)
    stand_in.banks[ANNE].memories.clear()
    assert await night(workshop, plan, DAYS_90) == Expired(1, 1, 0)
    assert set(stand_in.banks[ANNE].documents) == {"new"}


async def test_zero_keeps_everything(
    stand_in: HindsightStandIn, workshop: Workshop, plan: RetentionPlan
) -> None:
    put(stand_in, ANNE, "ancient", 10_000)
    assert await night(workshop, plan, policies_of(0)) == Expired()
    assert await keeper(workshop, policies_of(0)).sweep(TODAY, is_dry=False) == {}
    assert not stand_in.requests


async def test_a_round_is_once_a_day_and_not_on_the_first(
    stand_in: HindsightStandIn, workshop: Workshop, plan: RetentionPlan
) -> None:
    put(stand_in, ANNE, "old", 100)
    assert await keeper(workshop, DAYS_90).work(plan, TODAY) == Expired()
    assert await keeper(workshop, DAYS_90).work(plan, TODAY + timedelta(minutes=1)) == Expired()
    assert not stand_in.requests
    assert (await keeper(workshop, DAYS_90).work(plan, TOMORROW)).documents == 1
    asked = len(stand_in.requests)
    put(stand_in, ANNE, "old too", 100)
    assert await keeper(workshop, DAYS_90).work(plan, TOMORROW + timedelta(hours=3)) == Expired()
    assert len(stand_in.requests) == asked
    assert (await keeper(workshop, DAYS_90).work(plan, TOMORROW + timedelta(days=1))).documents == 1


async def test_a_bounded_run_goes_on_where_the_last_one_was(
    stand_in: HindsightStandIn, workshop: Workshop, plan: RetentionPlan, settings: Settings
) -> None:
    for number in range(250):
        put(stand_in, ANNE, f"old {number}", 100)
        put(stand_in, ANNE, f"new {number}", 1)
    put(stand_in, BERT, "old", 100)
    await keeper(workshop, DAYS_90).work(plan, TODAY)
    runs = 0
    left = [501]
    while stand_in.banks[BERT].documents or len(stand_in.banks[ANNE].documents) > 250:
        # No time at all: each run does the one step it has begun. Every run is another process's.
        async with RetentionPlan.from_settings(settings) as anew:
            await keeper(workshop, DAYS_90, run_s=0.001).work(anew, TOMORROW)
        left.append(sum(len(bank.documents) for bank in stand_in.banks.values()))
        runs += 1
        assert runs < 30
    assert runs > 3
    assert max(before - after for before, after in pairwise(left)) <= 101
    assert all(name.startswith("new") for name in stand_in.banks[ANNE].documents)


async def test_a_failure_stops_the_run_and_the_next_one_goes_on(
    stand_in: HindsightStandIn, workshop: Workshop, plan: RetentionPlan
) -> None:
    for number in range(5):
        put(stand_in, bank_of("default", str(number)), "old", 100)
    await keeper(workshop, DAYS_90).work(plan, TODAY)
    stand_in.fail("document_delete", "slow", times=2)
    stand_in.fail("document_delete", "status", times=1)
    with pytest.raises(HindsightUnavailable):
        await keeper(workshop, DAYS_90).work(plan, TOMORROW)
    assert len(stand_in.requests_for("document_delete")) == 3
    assert (await keeper(workshop, DAYS_90).work(plan, TOMORROW)).documents == 3
    # All were listed once; the other searches ask whose the banks are.
    assert [parse_qs(one.query)["q"] == ["u-"] for one in stand_in.requests_for("banks")].count(True) == 1
    assert not any(bank.documents for bank in stand_in.banks.values())


@pytest.mark.parametrize("operation", ["documents", "document_delete"])
async def test_a_bank_that_hindsight_refuses_is_left_for_later_and_the_others_are_done(
    stand_in: HindsightStandIn,
    workshop: Workshop,
    plan: RetentionPlan,
    caplog: pytest.LogCaptureFixture,
    operation: str,
) -> None:
    caplog.set_level("INFO", logger="service.memory.retention")
    banks = [bank_of("default", str(number)) for number in range(5)]
    for bank in banks:
        put(stand_in, bank, "old", 100)
    await keeper(workshop, DAYS_90).work(plan, TODAY)
    stand_in.fail(operation, "status", status=422, times=1)
    assert await keeper(workshop, DAYS_90).work(plan, TOMORROW) == Expired(4, 4, 4)
    [refused] = [bank for bank in banks if stand_in.banks[bank].documents]
    assert [place.bank for place in await plan.places()] == [refused]
    assert not (await plan.round()).is_over
    told = {record.message: record.__dict__ for record in caplog.records}
    assert told["retention_refused"]["banks"] == 1
    assert told["retention_done"]["documents"] == 4
    assert refused not in str(told)
    assert await keeper(workshop, DAYS_90).work(plan, TOMORROW) == Expired(1, 1, 1)
    assert await plan.places() == []
    assert (await plan.round()).is_over


async def test_two_workers_do_not_work_at_once(
    stand_in: HindsightStandIn, workshop: Workshop, plan: RetentionPlan
) -> None:
    put(stand_in, ANNE, "old", 100)
    await keeper(workshop, DAYS_90).work(plan, TODAY)
    async with plan.leased(60) as is_ours:
        assert is_ours
        assert await keeper(workshop, DAYS_90).work(plan, TOMORROW) == Expired()
    assert (await keeper(workshop, DAYS_90).work(plan, TOMORROW)).documents == 1


async def test_what_waits_to_be_stored_is_not_expired(
    api: Api, stand_in: HindsightStandIn, workshop: Workshop, plan: RetentionPlan
) -> None:
    await api.add("anne", "I like tea.", timestamp="2020-01-01T00:00:00Z")
    await api.add("anne", "I like coffee.", timestamp="2020-01-01T00:00:00Z", conversation_id="other")
    (turn, other) = await workshop.log.pending(ANNE)
    # It is in Hindsight already, and the worker has not been told so.
    put(stand_in, ANNE, turn.document_id, 3000)
    put(stand_in, ANNE, "old", 3000)
    assert (await night(workshop, plan, DAYS_90)).documents == 1
    assert set(stand_in.banks[ANNE].documents) == {turn.document_id}
    assert len(await workshop.log.pending(ANNE)) == 2
    await workshop.work()
    assert (await keeper(workshop, DAYS_90).sweep(TOMORROW, is_dry=False))[
        tenant_mark("default")
    ].documents == 2
    assert other.document_id not in stand_in.banks[ANNE].documents


async def test_expired_memories_leave_the_cached_answers_too(
    api: Api, stand_in: HindsightStandIn, workshop: Workshop, plan: RetentionPlan
) -> None:
    put(stand_in, ANNE, "old", 100, text="Anne's cat is called Biscuit.")
    put(stand_in, BERT, "new", 1, text="Bert's cat is called Marmalade.")
    assert "Biscuit" in (await api.recall("anne", "What is the cat called?")).json()["context"]
    assert "Marmalade" in (await api.recall("bert", "What is the cat called?")).json()["context"]
    await night(workshop, plan, DAYS_90)
    anne = (await api.recall("anne", "What is the cat called?")).json()
    assert (anne["context"], anne["cached"]) == ("", False)
    assert (await api.recall("bert", "What is the cat called?")).json()["cached"] is True


async def test_nothing_is_deleted_while_the_cache_cannot_be_told(
    tmp_path_factory: pytest.TempPathFactory,
    stand_in: HindsightStandIn,
    settings: Settings,
    plan: RetentionPlan,
) -> None:
    put(stand_in, ANNE, "old", 100)
    async with valkey(tmp_path_factory.mktemp("cache") / "data", aof=False) as cache:
        apart = settings.model_copy(update={"cache_redis_url": cache.url})
        async with open_workshop(apart) as workshop:
            await keeper(workshop, DAYS_90).work(plan, TODAY)
            await cache.kill()
            with pytest.raises(CacheUnavailable):
                await keeper(workshop, DAYS_90).work(plan, TOMORROW)
            assert set(stand_in.banks[ANNE].documents) == {"old"}
            await cache.start()

            async def next_run() -> Expired:
                return await keeper(workshop, DAYS_90).work(plan, TOMORROW)

            done = await wait_until(next_run, "the cache is known to be back", not_yet=(CacheUnavailable,))
            assert done.documents == 1


async def test_every_key_of_a_round_expires(
    stand_in: HindsightStandIn, workshop: Workshop, plan: RetentionPlan, redis_server: RedisServer
) -> None:
    put(stand_in, ANNE, "old", 100)
    await keeper(workshop, DAYS_90).work(plan, TODAY)
    await plan.begin("2026-01-01")
    await plan.add([Place(ANNE), Place(BERT)], listed=2, is_listed=True)
    for key in ("mem:retention", "mem:retention-banks"):
        assert await redis_server.command("TTL", key) not in (b":-1\r\n", b":-2\r\n")
    await keeper(workshop, DAYS_90).work(plan, TOMORROW)
    assert await redis_server.command("EXISTS", "mem:retention-lease") == b":0\r\n"
    assert await redis_server.command("EXISTS", "mem:retention-banks") == b":0\r\n"


async def test_the_worker_s_job_lets_nothing_out_and_goes_on_the_next_minute(
    stand_in: HindsightStandIn, workshop: Workshop, plan: RetentionPlan, caplog: pytest.LogCaptureFixture
) -> None:
    put(stand_in, ANNE, "old", 100)
    await plan.begin("2026-01-01", is_over=True)
    context = cast("Context", {"retention": keeper(workshop, DAYS_90), "retention_plan": plan})
    stand_in.fail("banks", "status", times=1)
    await jobs.retention(context)
    assert [(record.message, record.__dict__["job"]) for record in caplog.records] == [
        ("job_stopped", "retention")
    ]
    await jobs.retention(context)
    assert not stand_in.banks[ANNE].documents


async def test_many_banks_are_listed_page_by_page(
    stand_in: HindsightStandIn, workshop: Workshop, plan: RetentionPlan
) -> None:
    for number in range(2020):
        bank = stand_in.store.ensure_bank(f"u-{number:048}")
        # Of a tenant that is not known, so that they are not looked at.
        bank.name = tenant_mark("unknown")
    put(stand_in, ANNE, "old", 100)
    assert (await night(workshop, plan, DAYS_90)).documents == 1
    asked = [parse_qs(one.query) for one in stand_in.requests_for("banks")]
    assert [one["offset"] for one in asked if one["q"] == ["u-"]] == [["0"], ["2000"]]


async def test_the_command_counts_and_deletes(
    stand_in: HindsightStandIn, workshop: Workshop, redis_server: RedisServer
) -> None:
    put(stand_in, ANNE, "old", 100)
    put(stand_in, ANNE, "new", 1)
    put(stand_in, BERT, "ancient", 1000)

    async def run(*words: str, **more: str) -> str:
        where = {"MEMORY_REDIS_URL": redis_server.url, "MEMORY_HINDSIGHT_URL": stand_in.url, **more}
        result = await asyncio.to_thread(CliRunner().invoke, main, ["retention", *words], env=where)
        assert result.exit_code == 0, result.output
        return result.output

    counts = "2 documents with 2 memories, of 2 users"
    whose = "default (or not known: not written to since tenants are noted), after 90 days"
    told = f"what was said too long ago: {counts}.\n  {whose}: {counts}\n"
    assert await run("--dry-run") == f"Would delete {told}"
    assert len(stand_in.banks[ANNE].documents) == 2
    assert "is 0" in await run(MEMORY_RETENTION_DAYS="0")
    assert await run() == f"Deleted {told}"
    assert set(stand_in.banks[ANNE].documents) == {"new"}
    assert "0 documents" in await run()


async def test_the_command_says_in_a_sentence_what_it_cannot_reach(redis_server: RedisServer) -> None:
    where = {"MEMORY_REDIS_URL": redis_server.url, "MEMORY_HINDSIGHT_URL": "http://127.0.0.1:9"}
    result = await asyncio.to_thread(CliRunner().invoke, main, ["retention"], env=where)
    assert result.exit_code == 1
    assert result.output == "Error: Hindsight does not answer; try again soon.\n"
