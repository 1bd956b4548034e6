"""`GET /admin/audit`: what it shows to whom, and that nothing takes an event out again."""

import asyncio
import json
from collections.abc import Awaitable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import click
import httpx
import pytest
from click.testing import CliRunner
from redis.asyncio import Redis
from service import keyspace
from service.adapters.audit import AuditEvent, AuditTrail
from service.adapters.dead_letters import DeadLetters
from service.adapters.hindsight_erase import HindsightEraser
from service.adapters.hindsight_review import HindsightReview
from service.adapters.retention_plan import RetentionPlan
from service.adapters.user_tokens import UserTokens
from service.cli.main import main
from service.memory.audit import Audit, deletions
from service.memory.retention import Retention
from service.metrics import Metrics
from service.scope import bank_of, tenant_mark
from service.settings import Settings

from tests.fakes.hindsight import HindsightStandIn
from tests.integration.admin_world import kill_turns, operator_of
from tests.integration.conftest import Api, Workshop, open_workshop, run_api, settings_for
from tests.integration.edge import checked, code_of
from tests.integration.retention_world import TODAY, TOMORROW, policies_of, put
from tests.support import RedisServer, wait_until

pytestmark = pytest.mark.anyio
AUDIT = "/admin/audit"
ANNE, BERT = bank_of("default", "anne"), bank_of("default", "bert")
SECRET = "a-secret-of-more-than-32-characters"


@pytest.fixture
async def settings(redis_server: RedisServer, stand_in: HindsightStandIn) -> Settings:
    await redis_server.command("FLUSHALL")
    return settings_for(redis_server.url, stand_in.url, audit_days=7, token_keys=f"a:{SECRET}")


async def events_in(reply: httpx.Response) -> list[dict[str, Any]]:
    """The events of a whole answer."""
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"].startswith("application/x-ndjson")
    assert reply.headers["cache-control"] == "no-store"
    *events, end = [json.loads(line) for line in reply.text.splitlines()]
    assert end == {"type": "end"}
    return events


async def now(api: Api, **asked: str) -> list[dict[str, Any]]:
    """The events that are asked for."""
    return await events_in(await api.client.get(AUDIT, params=asked))


async def audited(api: Api, count: int, **asked: str) -> list[dict[str, Any]]:
    """The same, once there are so many."""

    async def enough() -> list[dict[str, Any]] | None:
        found = await now(api, **asked)
        return found if len(found) >= count else None

    return await wait_until(enough, f"{count} events are written")


async def test_events_are_chosen_by_key_action_subject_and_time(api: Api, user: str) -> None:
    made = checked(await api.client.post("/admin/keys", json={"name": "n", "scopes": "add,recall"}), 201)
    async with httpx.AsyncClient(
        base_url=api.url, headers={"Authorization": f"Bearer {made['key']}"}
    ) as other:
        for name in ("anne", "bert"):
            said = {"user_id": name, "user_message": "quokka"}
            checked(await other.post("/memory/add", json=said), 202)
    checked(await api.recall("anne", "quokka"), 200)
    events = await audited(api, 4)
    assert set(events[0]) == {"at", "tenant", "key_id", "action", "subject", "status", "count"}
    assert "quokka" not in json.dumps(events)
    mine = await audited(api, 2, key_id=made["id"])
    assert {(one["action"], one["subject"]) for one in mine} == {("/memory/add", ANNE), ("/memory/add", BERT)}
    [recalled] = await audited(api, 1, action="/memory/recall")
    assert (recalled["subject"], recalled["status"], recalled["count"]) == (ANNE, 200, 1)
    assert {one["action"] for one in await audited(api, 2, subject=ANNE)} == {"/memory/add", "/memory/recall"}
    [added] = await audited(api, 1, subject=ANNE, key_id=made["id"], action="/memory/add")
    at = datetime.fromisoformat(added["at"])
    assert abs(datetime.now(UTC) - at) < timedelta(minutes=1)
    assert added in await now(api, since=added["at"], until=(at + timedelta(seconds=1)).isoformat())
    assert added not in await now(api, until=added["at"])
    assert await now(api, since=(at + timedelta(hours=1)).isoformat()) == []
    # Looking is written down, too.
    assert await audited(api, 1, action=AUDIT)


async def test_a_tenant_sees_what_its_own_keys_did(
    api: Api, redis_server: RedisServer, stand_in: HindsightStandIn, settings: Settings
) -> None:
    checked(await api.recall("anne", "q"), 200)
    assert await audited(api, 1, action="/memory/recall")
    async with run_api(settings.model_copy(update={"tenant": "another"})) as other:
        checked(await other.recall("anne", "q"), 200)
        found = await audited(other, 1, action="/memory/recall")
    assert {one["tenant"] for one in found} == {"another"}
    assert {one["subject"] for one in found} == {bank_of("another", "anne")}


async def test_nothing_takes_an_event_out_again(api: Api) -> None:
    said = {"user_id": "anne", "user_message": "quokka"}
    checked(await api.client.post("/memory/add", json=said), 202)
    before = await audited(api, 1, subject=ANNE)
    checked(await api.client.post("/memory/forget", json={"user_id": "anne", "all": "true"}), 200)
    checked(await api.client.post("/admin/me-links/end", json={"user_id": "anne"}), 200)
    after = await audited(api, len(before) + 2, subject=ANNE)
    assert after[: len(before)] == before
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        assert code_of(await api.client.request(method, AUDIT), 405) == "method_not_allowed"


@pytest.mark.parametrize(
    "asked",
    [
        {"since": "yesterday"},
        {"since": "2026-01-31T09:00:00"},  # of which time zone?
        {"until": "9" * 30},
        {"key_id": "x" * 65},
        {"action": "x" * 65},
    ],
)
async def test_what_cannot_be_asked_is_told(api: Api, asked: dict[str, str]) -> None:
    assert code_of(await api.client.get(AUDIT, params=asked), 422) == "invalid_request"
    assert code_of(await api.stranger.get(AUDIT, params=asked), 401) == "key_refused"


async def test_without_a_trail_or_its_redis_it_says_so(
    api: Api, redis_server: RedisServer, stand_in: HindsightStandIn
) -> None:
    async with run_api(settings_for(redis_server.url, stand_in.url)) as off:
        assert code_of(await off.client.get(AUDIT), 404) == "not_found"
    await redis_server.stop()
    try:
        assert code_of(await api.client.get(AUDIT), 503) == "keys_unavailable"
    finally:
        await redis_server.start()


async def test_what_commands_do_is_in_it(api: Api, settings: Settings) -> None:
    for words in (["link", "anne"], ["link", "anne", "--end"]):
        await shell(settings, *words)
    events = await audited(api, 2, key_id="cli")
    assert [(one["action"], one["subject"]) for one in events] == [("link create", ANNE), ("link end", ANNE)]
    shown = await shell(settings, "audit", "export", "--key", "cli", "--action", "link end", "--user", "anne")
    assert [json.loads(line) for line in shown.splitlines()] == events[1:]
    async with Redis.from_url(settings.redis_url) as redis:
        names = await cast("Awaitable[list[Any]]", redis.xrange(keyspace.AUDIT))
    assert b"anne" not in repr(names).encode()


# Every command that reads or changes what is somebody's, and what has to be written down of it.
# {first} and {second} are dead letters of Anne's and Bert's, {memory} is one of Anne's that was set aside.
TOLD: dict[str, list[tuple[str, str, set[str]]]] = {
    "audit export": [("", "audit export", {""}), ("--user bert", "audit export", {BERT})],
    "dead list": [("", "dead list", {ANNE, BERT}), ("--show", "dead list --show", {ANNE, BERT})],
    "dead replay": [("{first}", "dead replay", {ANNE})],
    "dead drop": [("--yes {second}", "dead drop", {BERT})],
    "link": [("anne", "link create", {ANNE}), ("anne --end", "link end", {ANNE})],
    "memories set-aside": [("anne --show", "memories set-aside", {ANNE})],
    "memories restore": [("anne {memory}", "memories restore", {ANNE})],
    "retention": [("--dry-run", "", set()), ("", "retention", {ANNE})],
    "token": [("anne", "token", {ANNE})],
}
# What all others have to do with memories.
NOT_TOLD = {
    "demo": "talks to the API, which writes down what the demo's key does",
    "doctor": "likewise",
    "keys create": "keys, not memories: see test_the_commands_make_list_rotate_expire_and_revoke",
    "keys expire": "likewise",
    "keys list": "likewise",
    "keys revoke": "likewise",
    "keys rotate": "likewise",
    "openapi": "nothing",
    "policy check": "nothing",
    "policy try": "nothing: it is given a text",
    "serve": "it is the API, which writes down what keys do",
    "templates": "nothing",
    "up": "it runs the API and the worker",
    "worker": "stores what keys have added; its deletions: test_what_a_worker_deletes_is_in_it",
}


def commands(group: click.Group, *names: str) -> Iterator[str]:
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        if isinstance(found, click.Group):
            yield from commands(found, *names, name)
        else:
            yield " ".join([*names, name])


async def shell(settings: Settings, *words: str) -> str:
    """What a command says; it runs off this loop, since it brings a loop of its own."""
    env = {
        "MEMORY_REDIS_URL": settings.redis_url,
        "MEMORY_HINDSIGHT_URL": settings.hindsight_url,
        "MEMORY_AUDIT_DAYS": "7",
        "MEMORY_RETENTION_DAYS": "90",
        "MEMORY_TOKEN_KEYS": f"a:{SECRET}",
    }
    result = await asyncio.to_thread(CliRunner().invoke, main, words, env=env)
    assert result.exit_code == 0, (words, result.output)
    return result.stdout


async def told(settings: Settings) -> list[AuditEvent]:
    async with AuditTrail.from_settings(settings) as trail:
        return [one async for one in trail.read()]


def test_of_every_command_it_is_known_whether_it_touches_memories() -> None:
    assert isinstance(main, click.Group)
    assert sorted(commands(main)) == sorted([*TOLD, *NOT_TOLD])


async def test_every_command_that_touches_memories_is_in_it(
    settings: Settings, workshop: Workshop, stand_in: HindsightStandIn
) -> None:
    for user in ("anne", "bert"):
        await kill_turns(settings, workshop, stand_in, f"the code of {user} is quokka", user=user)
    letters = {one.bank: one.turn.document_id for one in (await DeadLetters(workshop.log).page())[0]}
    put(stand_in, ANNE, "old", 100)
    aside = stand_in.add_memory(ANNE, "a quokka", state="invalidated", invalidation_reason="newer")
    names = {"first": letters[ANNE], "second": letters[BERT], "memory": aside.id}
    for command, cases in TOLD.items():
        for words, action, subjects in cases:
            before = len(await told(settings))
            said = await shell(settings, *command.split(), *words.format_map(names).split())
            new = (await told(settings))[before:]
            assert {(one.action, one.subject) for one in new} == {(action, one) for one in subjects}, command
            assert len(new) == len(subjects), command
            assert {(one.tenant, one.key_id, one.status, one.count) for one in new} <= {
                ("default", "cli", 0, 1)
            }, command
            assert ("quokka" in said) == ("--show" in words), (command, said)
    assert "quokka" not in repr(await told(settings))
    assert "old" not in stand_in.banks[ANNE].documents


async def test_a_command_that_the_trail_does_not_take_is_done_and_says_so(redis_server: RedisServer) -> None:
    env = {
        "MEMORY_REDIS_URL": redis_server.url,
        "MEMORY_AUDIT_DAYS": "7",
        "MEMORY_TOKEN_KEYS": f"a:{SECRET}",
    }
    await redis_server.stop()
    try:
        result = await asyncio.to_thread(CliRunner().invoke, main, ["token", "anne"], env=env)
    finally:
        await redis_server.start()
    assert result.exit_code == 0
    assert UserTokens({"a": SECRET}).bank_in("default", result.stdout.strip()) == ANNE
    assert "not in the audit trail" in result.stderr


async def test_what_a_worker_deletes_is_in_it(settings: Settings, stand_in: HindsightStandIn) -> None:
    carl = bank_of("acme", "carl")
    for bank in (ANNE, carl):
        put(stand_in, bank, "old", 100, text="It is a quokka.")
    put(stand_in, BERT, "new", 1)
    stand_in.banks[carl].name = tenant_mark("acme")
    async with (
        AuditTrail.from_settings(settings) as trail,
        RetentionPlan.from_settings(settings) as plan,
        open_workshop(settings) as parts,
    ):
        async with Audit(trail, Metrics()) as audit:
            keeper = Retention(
                HindsightReview(parts.hindsight),
                HindsightEraser(parts.hindsight),
                parts.log,
                parts.cache,
                policies=policies_of(90).knowing({"acme"}),
                deleted=deletions(audit),
            )
            for moment in (TODAY, TOMORROW, TOMORROW):
                await keeper.work(plan, moment)
        events = [one async for one in trail.read()]
    assert {(one.tenant, one.key_id, one.action, one.subject, one.status) for one in events} == {
        ("default", "worker", "retention", ANNE, 0),
        ("acme", "worker", "retention", carl, 0),
    }


async def test_reading_and_settling_dead_letters_tells_whose(
    api: Api, settings: Settings, workshop: Workshop, stand_in: HindsightStandIn
) -> None:
    for user in ("anne", "bert"):
        await kill_turns(settings, workshop, stand_in, "one", "two", user=user)
    path = "/admin/dead-letters"
    listed = checked(await api.client.get(path), 200)["dead_letters"]
    checked(await api.client.get(path, params={"show": "true"}), 200)

    async def all_of_it() -> set[str] | None:
        # Two requests, and each of the four letters that the second one has shown.
        events = await now(api, action=path)
        return {one["subject"] for one in events} if sum(one["count"] for one in events) == 6 else None

    assert await wait_until(all_of_it, "both requests are written") >= {ANNE, BERT}
    mine = ",".join(one["id"] for one in listed if one["bank"] == ANNE)
    checked(await api.client.post(f"{path}/replay", json={"ids": mine}), 200)
    checked(await api.client.post(f"{path}/drop", json={"all": "true"}), 200)
    for action, bank in (("replay", ANNE), ("drop", BERT)):
        [one] = await audited(api, 1, action=f"{path}/{action}", subject=bank)
        assert one["status"] == 200
        assert one["count"] >= 2
    async with operator_of(api) as browser:
        await kill_turns(settings, workshop, stand_in, "three")
        await browser.get("/admin")
        page = await browser.get("/admin?show=yes")
        await browser.send(page, "admin/drop", "Drop for good")
    assert await audited(api, 1, action="/admin", subject=ANNE)
    assert await audited(api, 1, action="/admin/drop", subject=ANNE)
