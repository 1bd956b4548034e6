"""User tokens, bound keys, rate limits and the audit trail, also when a question is asked again."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import jwt
import pytest
from redis.asyncio import Redis
from service import keyspace
from service.adapters.audit import AuditEvent, AuditTrail
from service.scope import bank_of
from service.settings import Settings

from tests.fakes.hindsight import HindsightStandIn
from tests.integration.conftest import Api, run_api, settings_for
from tests.integration.edge import checked, code_of, texts_of
from tests.integration.recall_parts import HIT, QUERY, how, remember
from tests.support import RedisServer, wait_until
from tests.turns_log import without_ttl

pytestmark = pytest.mark.anyio
SECRET = "a-secret-of-more-than-32-characters"


@pytest.fixture
async def settings(redis_server: RedisServer, stand_in: HindsightStandIn) -> Settings:
    await redis_server.command("FLUSHALL")
    return settings_for(redis_server.url, stand_in.url, min_score=0, token_keys=f"a:{SECRET}", audit_days=7)


@dataclass
class Clients:
    """Clients of one API, each with a key of its own."""

    api: Api
    stack: AsyncExitStack

    async def make(self, **fields: Any) -> tuple[httpx.AsyncClient, str]:
        """A client with a new key, and the key's id."""
        body = {"name": "n", "scopes": "recall,add,review,forget", **fields}
        made = checked(await self.api.client.post("/admin/keys", json=body), 201)
        headers = {"Authorization": f"Bearer {made['key']}"}
        client = httpx.AsyncClient(base_url=self.api.url, headers=headers)
        return await self.stack.enter_async_context(client), made["id"]

    async def token(self, user: str, ttl_s: int = 60) -> str:
        reply = await self.api.client.post("/admin/user-tokens", json={"user_id": user, "ttl_s": ttl_s})
        token: str = checked(reply, 201)["token"]
        return token


@pytest.fixture
async def clients(api: Api) -> AsyncIterator[Clients]:
    async with AsyncExitStack() as stack:
        yield Clients(api, stack)


async def recall(client: httpx.AsyncClient, user: str, **more: Any) -> httpx.Response:
    return await client.post("/memory/recall", json={"user_id": user, "query": QUERY, **more})


# --- Signed keys ----------------------------------------------------------------------------------------
async def test_a_token_opens_its_users_memory_and_nobody_elses(
    clients: Clients, stand_in: HindsightStandIn, user: str
) -> None:
    remember(stand_in, user, "mine")
    remember(stand_in, "another", "not mine")
    signed, _ = await clients.make(identity="signed")
    mine, theirs = await clients.token(user), await clients.token("another")
    for _ in range(2):
        assert ["mine" in text for text in texts_of(checked(await recall(signed, mine), 200))] == [True]
        assert "not mine" in (await recall(signed, theirs)).text
        for other in (user, mine[:-5], mine.rpartition(".")[0], f"{mine}x", ""):
            assert code_of(await recall(signed, other), 422) == "user_token_refused"
        assert code_of(await signed.post("/memory/add", json={"user_id": user, "user_message": "x"}), 422)
    checked(await signed.post("/memory/add", json={"user_id": mine, "user_message": f"{QUERY} later"}), 202)
    # The trusted key meets the same memory under the user's own name.
    assert any("later" in text for text in texts_of(checked(await clients.api.recall(user, QUERY), 200)))
    assert user not in json.dumps(jwt.decode(mine, options={"verify_signature": False}))


async def test_a_token_that_has_ended_is_refused_even_if_its_answer_is_known(
    clients: Clients, stand_in: HindsightStandIn, user: str
) -> None:
    remember(stand_in, user, "mine")
    signed, _ = await clients.make(identity="signed")
    loop = asyncio.get_running_loop()
    # Clocks may differ by 30 seconds, so that this one is good for two more.
    claims = {"aud": "memory-user:default", "sub": bank_of("default", user), "exp": int(time.time()) - 28}
    token = jwt.encode(claims, SECRET, "HS256", headers={"kid": "a"})
    assert (await recall(signed, token)).status_code == 200
    assert how(await recall(signed, token)) == HIT
    began = loop.time()
    await wait_until(lambda: _refused(signed, token), "the token has ended")
    assert loop.time() - began < 5


async def _refused(client: httpx.AsyncClient, user: str) -> bool:
    return (await recall(client, user)).status_code == 422


async def test_the_same_bytes_under_two_keys_are_two_requests(
    clients: Clients, stand_in: HindsightStandIn, user: str
) -> None:
    """What was read before under one key must not answer for another that knows its user differently."""
    remember(stand_in, user, "mine")
    remember(stand_in, "alice", "hers")
    bound, _ = await clients.make(identity="bound", user_id="alice")
    prefixed, _ = await clients.make(user_prefix="app-")
    signed, _ = await clients.make(identity="signed")
    for _ in range(3):
        assert "mine" in (await recall(clients.api.client, user)).text
        assert code_of(await recall(bound, user), 409) == "identity_conflict"
        assert code_of(await recall(prefixed, user), 409) == "identity_conflict"
        assert code_of(await recall(signed, user), 422) == "user_token_refused"
        # Nobody is named: the bound key's user, and nobody for the others.
        assert "hers" in (await recall(bound, "")).text
        assert code_of(await recall(clients.api.client, ""), 422) == "user_id_required"
        assert "hers" in (await recall(bound, "alice")).text


async def test_a_bound_key_is_one_users_on_every_route(clients: Clients, stand_in: HindsightStandIn) -> None:
    remember(stand_in, "victim", "secret")
    bound, _ = await clients.make(identity="bound", user_id="alice")
    bodies: dict[str, dict[str, str]] = {
        "/memory/recall": {"query": QUERY},
        "/memory/add": {"user_message": "x"},
        "/memory/list": {},
        "/memory/forget": {"all": "true"},
        "/memory/reflect": {"query": QUERY},
        "/memory/correct": {"memory_id": "1", "text": "x"},
    }
    for path, body in bodies.items():
        reply = await bound.post(path, json={"user_id": "victim", **body})
        assert code_of(reply, 409) == "identity_conflict", path
    assert code_of(await bound.get("/memory/export", params={"user_id": "victim"}), 409)
    assert "secret" in (await recall(clients.api.client, "victim")).text


async def test_another_tenants_token_is_refused_in_the_same_words(
    clients: Clients, redis_server: RedisServer, stand_in: HindsightStandIn, user: str
) -> None:
    settings = settings_for(redis_server.url, stand_in.url, tenant="another", token_keys=f"a:{SECRET}")
    async with run_api(settings) as other:
        reply = await other.client.post("/admin/user-tokens", json={"user_id": user})
        theirs = checked(reply, 201)["token"]
    signed, _ = await clients.make(identity="signed")
    messages = {
        checked(await recall(signed, token), 422)["error"]["message"]
        for token in (theirs, "forged", await clients.token(user) + "x")
    }
    assert len(messages) == 1


# --- Rate limits ----------------------------------------------------------------------------------------
async def early_in_a_minute() -> None:
    """Not when a new minute is about to begin, with room of its own."""
    await wait_until(lambda: time.time() % 60 < 55, "a new minute has begun")


async def test_a_key_that_asks_too_often_is_told_when_to_come_again(clients: Clients, user: str) -> None:
    limited, _ = await clients.make(rate_per_minute=5)
    await early_in_a_minute()
    statuses = [(await recall(limited, user)).status_code for _ in range(8)]
    assert statuses == [200] * 5 + [429] * 3
    reply = await limited.post("/memory/add", json={"user_id": user, "user_message": "x"})
    assert code_of(reply, 429) == "too_many_requests"
    assert 1 <= int(reply.headers["retry-after"]) <= 120
    assert (await recall(clients.api.client, user)).status_code == 200


async def test_a_user_is_limited_over_all_keys_and_processes(
    redis_server: RedisServer, stand_in: HindsightStandIn, user: str
) -> None:
    await redis_server.command("FLUSHALL")
    settings = settings_for(redis_server.url, stand_in.url, user_rate_limit=6)
    async with (
        run_api(settings) as one,
        run_api(settings) as other,
        Redis.from_url(settings.redis_url, decode_responses=True) as redis,
    ):
        await early_in_a_minute()
        # The very same bytes each time: what was read before is counted as well.
        assert [(await recall(one.client, user)).status_code for _ in range(6)] == [200] * 6
        assert code_of(await recall(one.client, user), 429) == "too_many_requests"

        async def told() -> bool:
            return sum([int(await redis.get(key)) async for key in redis.scan_iter("mem:rate:*")]) >= 6

        await wait_until(told, "Redis knows of them")
        assert (await recall(other.client, user)).status_code == 200  # it did not know of them before
        await wait_until(lambda: _is_limited(other, user), "the other process knows of them")
        assert (await recall(one.client, f"{user}2")).status_code == 200
        assert await without_ttl(redis) == set()


async def _is_limited(api: Api, user: str) -> bool:
    return (await recall(api.client, user)).status_code == 429


async def test_without_redis_requests_go_on_and_it_is_counted(
    redis_server: RedisServer, stand_in: HindsightStandIn, user: str
) -> None:
    settings = settings_for(redis_server.url, stand_in.url, key_rate_limit=1000, audit_days=1)
    async with run_api(settings) as api:
        await redis_server.stop()
        try:
            assert (await recall(api.client, user)).status_code == 200

            async def counted() -> bool:
                return "memory_rate_limit_failures_total 0.0" not in (await api.stranger.get("/metrics")).text

            await wait_until(counted, "the failure is counted")
            assert (await recall(api.client, user)).status_code == 200
        finally:
            await redis_server.start()


# --- Audit ----------------------------------------------------------------------------------------------
@asynccontextmanager
async def trail_of(settings: Settings) -> AsyncIterator[AuditTrail]:
    async with AuditTrail.from_settings(settings) as trail:
        yield trail


async def events_of(settings: Settings, count: int) -> list[AuditEvent]:
    """The trail, once it has so many events."""
    async with trail_of(settings) as trail:

        async def enough() -> list[AuditEvent] | None:
            found = [event async for event in trail.read()]
            return found if len(found) >= count else None

        return await wait_until(enough, f"{count} events are written")


async def test_reads_writes_and_refusals_are_written_down_without_what_was_said(
    clients: Clients, redis_server: RedisServer, stand_in: HindsightStandIn, user: str
) -> None:
    settings = clients.api.settings
    remember(stand_in, user, "first")
    reader, key_id = await clients.make(scopes="recall,add")
    for _ in range(3):  # a miss and hits, from the very same bytes
        assert (await recall(reader, user)).status_code == 200
    checked(await reader.post("/memory/add", json={"user_id": user, "user_message": "quokka"}), 202)
    assert (await reader.post("/memory/forget", json={"user_id": user, "all": "true"})).status_code == 403
    checked(await clients.api.client.post("/admin/keys/revoke", json={"id": key_id}), 200)
    assert (await recall(reader, user)).status_code == 401
    events = await events_of(settings, 5)
    bank = bank_of("default", user)
    assert {(e.action, e.subject, e.status) for e in events if e.key_id == key_id} == {
        ("/memory/recall", bank, 200),
        ("/memory/add", bank, 202),
        ("/memory/forget", "", 403),
    }
    assert sum(e.count for e in events if e.action == "/memory/recall") == 3
    assert {(e.action, e.subject) for e in events if e.key_id != key_id} == {
        ("/admin/keys", key_id),
        ("/admin/keys/revoke", key_id),
    }
    assert {e.tenant for e in events} == {"default"}
    assert user not in repr(events)
    assert "quokka" not in repr(events)
    async with Redis.from_url(settings.redis_url) as redis:
        assert 0 < await redis.ttl(keyspace.AUDIT) <= 7 * 86_400


async def test_the_trail_is_cut_at_its_old_end_and_by_its_length(settings: Settings) -> None:
    event = AuditEvent(1, "t", "k", "a", "s", 200, 1)
    async with Redis.from_url(settings.redis_url) as redis, trail_of(settings) as trail:
        for day in range(1, 2001):
            await redis.xadd(keyspace.AUDIT, {"at": 0}, id=f"{day}-0")  # in 1970
        await trail.append([event])
        assert await redis.xlen(keyspace.AUDIT) < 1100, "At least a thousand of the old are gone."
        await trail.append([event])
        await redis.delete(keyspace.AUDIT)
        async with AuditTrail(settings.redis_url, days=1, most=1000) as short:
            await short.append([event] * 3000)
        assert 1000 <= await redis.xlen(keyspace.AUDIT) <= 1200
        assert len([event async for event in trail.read()]) == await redis.xlen(keyspace.AUDIT)
        assert [event async for event in trail.read(since_ms=int(time.time()) * 1000 + 60_000)] == []


async def test_it_is_off_unless_a_setting_says_so(
    redis_server: RedisServer, stand_in: HindsightStandIn, user: str
) -> None:
    await redis_server.command("FLUSHALL")
    settings = settings_for(redis_server.url, stand_in.url)
    async with run_api(settings) as api:
        assert (await recall(api.client, user)).status_code == 200
    async with Redis.from_url(settings.redis_url) as redis:
        assert not await redis.exists(keyspace.AUDIT)


async def test_a_silent_redis_holds_up_nobody_and_what_waits_is_written_later(
    clients: Clients, redis_server: RedisServer, user: str
) -> None:
    settings = clients.api.settings
    redis_server.pause()
    try:
        assert (await recall(clients.api.client, user)).status_code == 200
    finally:
        redis_server.resume()
    events = await events_of(settings, 1)
    assert [event.action for event in events] == ["/memory/recall"]
