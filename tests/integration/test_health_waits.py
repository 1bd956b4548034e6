"""Turns that wait as they were told to: seen by whoever looks at the queue, and not called stuck."""

from typing import Any

import pytest
from redis.asyncio import Redis
from service import keyspace
from service.adapters.vitals import Vitals

from tests.integration.conftest import run_api
from tests.integration.test_extract import Scene, llm, scene, scene_with
from tests.integration.test_observability import age, ready
from tests.support import RedisServer

pytestmark = [
    pytest.mark.anyio,
    # Of a provider that litellm loads at the first call.
    pytest.mark.filterwarnings("ignore:Items? .* on TypedDict class:UserWarning"),
]
__all__ = ["llm", "scene"]


async def fifteen_minutes_pass(scene: Scene) -> None:
    """Nothing was stored since; the worker lives, and the walk through the log has come by."""
    redis: Redis = scene.redis
    async with Vitals.from_settings(scene.settings) as vitals:
        await vitals.beat("w", has_stored=True)
    await redis.hset(keyspace.batch(scene.bank), "frozen_ms", await age(redis, 1900))  # type: ignore[misc]
    await redis.set(keyspace.LAST_STORED, await age(redis, 1900), ex=60)
    await scene.log.sweep()


async def test_a_spent_budget_is_seen_and_is_no_stuck_queue(
    scene: Scene, redis_server: RedisServer, llm: Any
) -> None:
    async with scene_with(redis_server, scene.stand_in, *llm, llm_daily_tokens=1) as poor:
        await poor.tell("我在杭州做后端")
        assert (await poor.tell("我喜欢咖啡")).status == "waiting"
        await fifteen_minutes_pass(poor)
        async with run_api(poor.settings) as api:
            assert await ready(api) == (200, "degraded", ["llm_budget_spent"])
            log = (await api.stranger.get("/health/ready")).json()["parts"]["turns_log"]
            assert log["llm_not_asked_banks"] == 1
            assert 0 <= log["llm_not_asked_s"]["llm_budget_spent"] < 60
            # It says so for as long as it is so, and stays bounded.
            for key in (keyspace.RESTING, keyspace.not_asked("llm_budget_spent")):
                assert 0 < await poor.redis.ttl(key) <= 900

            # Said no more, the same turns are tried in vain.
            await poor.redis.delete(keyspace.RESTING, keyspace.not_asked("llm_budget_spent"))
            await poor.log.sweep()
            status, _, reasons = await ready(api)
            assert (status, set(reasons)) == (503, {"queue_stuck", "batch_stuck"})


async def test_a_pause_that_the_model_has_asked_for_is_seen(scene: Scene) -> None:
    scene.llm.behave("429", times=1)
    await scene.add("我在杭州做后端")
    await scene.work(2)
    await fifteen_minutes_pass(scene)
    async with run_api(scene.settings) as api:
        assert await ready(api) == (200, "degraded", ["llm_paused"])
    # It is over soon: a pause of a second is not told for a quarter of an hour.
    assert 0 < await scene.redis.ttl(keyspace.not_asked("llm_paused")) <= 121


async def test_a_model_that_nobody_can_ask_is_still_a_stuck_queue(scene: Scene) -> None:
    scene.llm.behave("401")
    await scene.tell("我在杭州做后端")
    await fifteen_minutes_pass(scene)
    async with run_api(scene.settings) as api:
        status, _, reasons = await ready(api)
        assert (status, set(reasons)) == (503, {"queue_stuck", "batch_stuck"})
