"""The local stack's Hindsight tells the API what it has stored: real events, really signed."""

import hashlib
from collections.abc import AsyncIterator

import httpx
import pytest
from redis.asyncio import Redis
from service import keyspace
from service.scope import bank_of

from tests.e2e.conftest import Stack
from tests.support import wait_until

pytestmark = [pytest.mark.anyio, pytest.mark.hindsight]


@pytest.fixture
async def redis(stack: Stack) -> AsyncIterator[Redis]:
    async with Redis.from_url(stack.connection.redis_url, decode_responses=True) as client:
        yield client


async def hooks(redis: Redis) -> set[str]:
    """Marks of the events that were seen to."""
    return {key async for key in redis.scan_iter("mem:hook:*", count=1000)}


async def answered(stack: Stack) -> dict[str, float]:
    """How often the hook has answered with which status."""
    async with stack.client as client:
        lines = (await client.get("/metrics")).text.splitlines()
    found = [line.split(" ") for line in lines if line.startswith("memory_requests_total{")]
    return {name.split('status="')[1][:3]: float(count) for name, count in found if "/hooks/" in name}


async def add(stack: Stack, user: str, message: str) -> None:
    """Add a turn and wait until it is stored."""
    async with stack.client as client:
        added = await client.post("/memory/add", data={"user_id": user, "user_message": message})
        job = await client.get(f"/memory/jobs/{added.json()['job_id']}", params={"wait_s": 30})
    assert job.json()["status"] == "done", job.text


async def test_events_reach_the_api_and_every_one_is_taken(stack: Stack, redis: Redis, user: str) -> None:
    before = await hooks(redis)
    await add(stack, user, "I keep two cats")

    async def is_seen() -> bool:
        return bool(await hooks(redis) - before)

    await wait_until(is_seen, "an event was seen to", timeout_s=30, poll_s=0.1)
    for key in await hooks(redis) - before:
        assert 0 < await redis.ttl(key) <= 86_400
    assert set(await answered(stack)) == {"200"}


async def test_what_is_stored_behind_our_back_makes_cached_answers_old(
    stack: Stack, redis: Redis, user: str
) -> None:
    bank = bank_of("default", user)
    cache = Redis.from_url(stack.connection.cache_redis_url, decode_responses=True)
    seen = await hooks(redis)
    await add(stack, user, "I keep two cats")
    question = {"user_id": user, "query": "Which animals do I keep?", "timeout_ms": "8000"}
    async with (
        cache,
        stack.client as client,
        httpx.AsyncClient(base_url=stack.hindsight_url) as hindsight,
    ):

        async def is_quiet() -> bool:
            # The event of the turn itself has come: what is cached now stays until the next one.
            return bool(await hooks(redis) - seen)

        await wait_until(is_quiet, "the event of the turn has come", timeout_s=30, poll_s=0.1)
        await client.post("/memory/recall", data=question)
        before = await cache.get(keyspace.write_epoch(bank))
        assert before
        assert (await client.post("/memory/recall", data=question)).json()["cached"] is True
        stored = await hindsight.post(
            f"/v1/default/banks/{bank}/memories",
            json={"items": [{"content": "User: I keep a dog as well", "document_id": "t-dog"}]},
            timeout=60,
        )
        assert stored.status_code == 200, stored.text

        async def is_changed() -> bool:
            return bool(await cache.get(keyspace.write_epoch(bank)) != before)

        await wait_until(is_changed, "the event has changed the epoch", timeout_s=30, poll_s=0.1)
        recalled = (await client.post("/memory/recall", data=question)).json()
    assert any("dog" in memory["text"] for memory in recalled["memories"]), recalled


async def test_the_api_does_not_take_an_event_that_hindsight_has_not_signed(
    stack: Stack, redis: Redis, user: str
) -> None:
    body = f'{{"event_id": "{user}", "event": "retain.completed", "bank_id": "{bank_of("default", user)}"}}'
    async with stack.client as client:
        for signature in ("", "t=1,v1=" + "0" * 64):
            reply = await client.post(
                "/hooks/hindsight", content=body, headers={"X-Hindsight-Signature-V2": signature}
            )
            assert reply.status_code == 401, reply.text
    mark = keyspace.hook(hashlib.sha256(user.encode()).hexdigest()[:48])
    assert not await redis.exists(mark)
