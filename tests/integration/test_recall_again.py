"""A question whose very bytes were read before: quicker, and otherwise no different from a new one."""

import asyncio
import json

import pytest
from service.settings import Settings

from tests.fakes.hindsight import HindsightStandIn
from tests.integration.conftest import KEY, Api, settings_for
from tests.integration.recall_parts import HIT, MISS, QUERY, how, remember, texts
from tests.support import RedisServer

pytestmark = pytest.mark.anyio


@pytest.fixture
async def settings(redis_server: RedisServer, stand_in: HindsightStandIn) -> Settings:
    """Without a floor, so that nothing here depends on the ranking; nothing stays current."""
    await redis_server.command("FLUSHALL")
    return settings_for(redis_server.url, stand_in.url, min_score=0, cache_ttl_s=1)


async def test_the_key_is_asked_for_each_time(api: Api, user: str, stand_in: HindsightStandIn) -> None:
    remember(stand_in, user, "first")
    body = json.dumps({"user_id": user, "query": QUERY})
    for key, status in ((KEY, 200), (KEY, 200), ("wrong-key-0123456789", 401), (KEY, 200)):
        reply = await api.stranger.post(
            "/memory/recall", content=body, headers={"Authorization": f"Bearer {key}"}
        )
        assert reply.status_code == status
        assert ("first" in reply.text) == (status == 200)
    assert (await api.stranger.post("/memory/recall", content=body)).status_code == 401


async def test_a_key_that_was_seen_is_no_second_key(api: Api, user: str) -> None:
    body = {"user_id": user, "query": QUERY}
    for _ in range(2):
        assert (await api.client.post("/memory/recall", json=body)).status_code == 200
        for headers, params in (
            ({"X-API-Key": "another-key-0123456789"}, {}),
            ({}, {"api_key": "another-key-0123456789"}),
        ):
            reply = await api.client.post("/memory/recall", json=body, headers=headers, params=params)
            assert reply.status_code == 401


async def test_another_user_in_the_address_is_refused_each_time(api: Api, user: str) -> None:
    body = {"user_id": user, "query": QUERY}
    for _ in range(2):
        assert (await api.client.post("/memory/recall", json=body)).status_code == 200
        reply = await api.client.post("/memory/recall", json=body, params={"user_id": "victim"})
        assert reply.status_code == 409


async def test_equal_bytes_of_another_type_are_another_request(api: Api, user: str) -> None:
    body = json.dumps({"user_id": user, "query": QUERY})
    types = {"application/json": 200, "application/x-www-form-urlencoded": 422, "image/png": 400}
    for _ in range(2):
        for kind, status in types.items():
            reply = await api.client.post("/memory/recall", content=body, headers={"Content-Type": kind})
            assert reply.status_code == status


async def test_what_was_refused_is_refused_again(api: Api, user: str) -> None:
    for _ in range(2):
        for wrong in ({"user_id": "null"}, {"user_id": user, "top_k": 0}, {"user_id": user, "unknown": 1}):
            reply = await api.client.post("/memory/recall", json={"query": QUERY, **wrong})
            assert reply.status_code == 422


async def test_it_sees_what_is_new(api: Api, stand_in: HindsightStandIn, user: str) -> None:
    """An answer that has run out is asked for anew, a turn that was added is in the next one."""
    remember(stand_in, user, "first")
    assert how(await api.recall(user, QUERY)) == MISS
    assert how(await api.recall(user, QUERY)) == HIT
    await api.client.post("/memory/add", json={"user_id": user, "user_message": f"{QUERY} second"})
    again = await api.recall(user, QUERY)
    assert how(again) == MISS
    assert any("second" in text for text in texts(again))


async def test_fresh_is_never_answered_from_the_cache(
    api: Api, stand_in: HindsightStandIn, user: str
) -> None:
    remember(stand_in, user, "first")
    for _ in range(3):
        assert how(await api.recall(user, QUERY, fresh="true")) == MISS
    assert len(stand_in.requests_for("recall")) == 3


async def test_a_silent_cache_does_not_cost_the_deadline(
    api: Api, stand_in: HindsightStandIn, redis_server: RedisServer, user: str
) -> None:
    remember(stand_in, user, "first")
    for _ in range(2):
        await api.recall(user, QUERY, timeout_ms="700")
    stand_in.fail("recall", "hang")
    redis_server.pause()
    try:
        loop = asyncio.get_running_loop()
        started = loop.time()
        reply = await api.recall(user, QUERY, timeout_ms="700")
        took_s = loop.time() - started
    finally:
        redis_server.resume()
        stand_in.heal()
    assert reply.status_code == 200
    assert reply.json()["degraded"]
    assert took_s < 5, "Bounded; how sharply is measured in the fault tests."
