"""When Hindsight fails: the last good answer, together with what was accepted since; never across a purge."""

from collections.abc import AsyncIterator

import pytest
from service.adapters.cache import RecallCache
from service.settings import Settings

from tests.fakes.hindsight import HindsightStandIn
from tests.integration.conftest import Api, Workshop, run_api, settings_for
from tests.integration.recall_parts import HIT, MISS, QUERY, bank, how, remember, said, stored, texts
from tests.support import RedisServer

pytestmark = pytest.mark.anyio
LONG = {"max_chars": "500"}
STALE = {"cached": True, "stale": True, "degraded": True, "reason": "hindsight_unavailable"}
EMPTY = {"cached": False, "stale": False, "degraded": True, "reason": "hindsight_unavailable"}


@pytest.fixture
async def settings(redis_server: RedisServer, stand_in: HindsightStandIn) -> Settings:
    """Without a floor, so that nothing here depends on the ranking."""
    await redis_server.command("FLUSHALL")
    return settings_for(redis_server.url, stand_in.url, min_score=0)


@pytest.fixture
async def cache(settings: Settings) -> AsyncIterator[RecallCache]:
    """The cache of another process, as a worker or a forget has it."""
    async with RecallCache.from_settings(settings) as opened:
        yield opened


async def test_the_last_good_answer_stands_in_with_what_was_accepted_since(
    api: Api, stand_in: HindsightStandIn, user: str
) -> None:
    remember(stand_in, user, "first")
    await api.recall(user, QUERY, **LONG)
    stand_in.fail("recall", "status", status=500)
    assert how(await api.recall(user, QUERY, **LONG)) == HIT
    await api.add(user, said("Anna"))
    reply = await api.recall(user, QUERY, **LONG)
    assert how(reply) == STALE
    body = reply.json()
    assert body["count"] == 2
    assert {memory["pending"] for memory in body["memories"]} == {False, True}
    assert sorted(texts(reply)) == sorted([stored("first"), said("Anna")])
    assert body["context"].count("\n- ") == 2
    assert said("Anna") in body["context"]
    text = await api.recall(user, QUERY, format="text", **LONG)
    assert text.text == body["context"]


async def test_a_text_stands_in_as_a_text(api: Api, stand_in: HindsightStandIn, user: str) -> None:
    remember(stand_in, user, "first")
    good = await api.recall(user, QUERY, format="text", **LONG)
    assert stored("first") in good.text
    await api.add(user, said("Anna"))
    stand_in.fail("recall", "status", status=500)
    reply = await api.recall(user, QUERY, format="text", **LONG)
    assert stored("first") in reply.text
    assert said("Anna") in reply.text


async def test_without_anything_new_the_bytes_are_those_of_the_last_good_answer(
    api: Api, stand_in: HindsightStandIn, cache: RecallCache, user: str
) -> None:
    remember(stand_in, user, "first")
    good = await api.recall(user, QUERY, **LONG)
    block = await api.recall(user, QUERY, format="text", **LONG)
    await cache.note_write(bank(user))
    stand_in.fail("recall", "close")
    reply = await api.recall(user, QUERY, **LONG)
    assert how(reply) == STALE
    assert reply.content.partition(b', "cached"')[0] == good.content.partition(b', "cached"')[0]
    assert (await api.recall(user, QUERY, format="text", **LONG)).content == block.content


async def test_the_limits_hold_for_both_together(api: Api, stand_in: HindsightStandIn, user: str) -> None:
    limits = {"top_k": "2", "max_chars": "60", "max_total_chars": "100"}
    remember(stand_in, user, "first")
    await api.recall(user, QUERY, **limits)
    for marker in ("Anna", "Berthold", "Chiara"):
        await api.add(user, f"{marker} {said(marker)}", conversation_id=marker)
    stand_in.fail("recall", "status", status=503)
    reply = await api.recall(user, QUERY, **limits)
    assert how(reply) == STALE
    found = texts(reply)
    assert 1 <= len(found) <= 2
    assert all(len(text) <= 60 for text in found)
    assert sum(map(len, found)) <= 100


async def test_a_turn_that_was_pending_then_is_not_doubled(
    api: Api, stand_in: HindsightStandIn, workshop: Workshop, cache: RecallCache, user: str
) -> None:
    await api.add(user, said("Anna"))
    await api.recall(user, QUERY, **LONG)
    await cache.note_write(bank(user))
    stand_in.fail("recall", "status", status=500)
    assert how(await api.recall(user, QUERY, **LONG)) == STALE
    assert len(texts(await api.recall(user, QUERY, **LONG))) == 1
    # Stored meanwhile, which the last good answer cannot know: it stays in it.
    await workshop.work()
    assert len(texts(await api.recall(user, QUERY, **LONG))) == 1


async def test_on_error_fail_wants_neither(api: Api, stand_in: HindsightStandIn, user: str) -> None:
    remember(stand_in, user, "first")
    await api.recall(user, QUERY, **LONG)
    await api.add(user, said("Anna"))
    stand_in.fail("recall", "status", status=500)
    reply = await api.recall(user, QUERY, on_error="fail", **LONG)
    assert reply.status_code == 503
    assert reply.json()["error"]["code"] == "unavailable"
    assert reply.headers["retry-after"]
    assert "first" not in reply.text
    stand_in.heal()
    assert how(await api.recall(user, QUERY, on_error="fail", **LONG)) == MISS


async def test_never_across_a_purge(
    api: Api, stand_in: HindsightStandIn, cache: RecallCache, user: str
) -> None:
    memory = remember(stand_in, user, "forgotten")
    await api.recall(user, QUERY, **LONG)
    del stand_in.banks[bank(user)].memories[memory.id]
    await cache.note_purge(bank(user))
    stand_in.fail("recall", "status", status=500)
    for _ in range(2):
        reply = await api.recall(user, QUERY, **LONG)
        assert how(reply) == EMPTY
        assert "forgotten" not in reply.text
    await cache.note_write(bank(user))
    assert "forgotten" not in (await api.recall(user, QUERY, **LONG)).text


async def test_an_expired_answer_stands_in(stand_in: HindsightStandIn, settings: Settings, user: str) -> None:
    async with run_api(settings.model_copy(update={"cache_ttl_s": 0})) as api:
        remember(stand_in, user, "first")
        assert how(await api.recall(user, QUERY, **LONG)) == MISS
        assert how(await api.recall(user, QUERY, **LONG)) == MISS
        stand_in.fail("recall", "status", status=500)
        reply = await api.recall(user, QUERY, **LONG)
        assert how(reply) == STALE
        assert texts(reply) == [stored("first")]


async def test_fresh_is_answered_with_what_there_is(api: Api, stand_in: HindsightStandIn, user: str) -> None:
    remember(stand_in, user, "first")
    await api.recall(user, QUERY, **LONG)
    stand_in.fail("recall", "status", status=500)
    reply = await api.recall(user, QUERY, fresh="true", **LONG)
    assert how(reply) == STALE
    assert texts(reply) == [stored("first")]


async def test_a_failing_log_of_turns_does_not_hide_what_hindsight_says(
    stand_in: HindsightStandIn, settings: Settings, user: str
) -> None:
    remember(stand_in, user, "first")
    no_log = {"redis_url": "redis://127.0.0.1:1/0", "cache_redis_url": settings.redis_url}
    async with run_api(settings) as api:
        await api.recall(user, QUERY, **LONG)
    async with run_api(settings.model_copy(update=no_log)) as api:
        remember(stand_in, user, "second-and-newer than the last good answer")
        reply = await api.recall(user, QUERY, fresh="true", on_error="fail", **LONG)
        assert how(reply) == {
            "cached": False,
            "stale": False,
            "degraded": True,
            "reason": "turns_log_unavailable",
        }
        assert len(texts(reply)) == 2
        # It may lack somebody's last words, so that it is nobody else's answer.
        assert len(texts(await api.recall(user, QUERY, **LONG))) == 1
