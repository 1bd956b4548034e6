"""The cache on the way of a recall: one round trip on a hit, stored bytes untouched, and the right key."""

import json
from collections.abc import AsyncIterator
from urllib.parse import urlencode

import pytest
from redis.asyncio import Redis
from service import keyspace
from service.schemas import RecallRequest
from service.settings import Settings

from tests.fakes.hindsight import HindsightStandIn
from tests.integration.conftest import KEY, Api, run_api, settings_for
from tests.integration.recall_parts import (
    HIT,
    MISS,
    QUERY,
    bank,
    commands,
    how,
    keys_of,
    remember,
    said,
    stored,
    texts,
)
from tests.support import RedisServer, wait_until
from tests.turns_log import without_ttl

pytestmark = pytest.mark.anyio


@pytest.fixture
async def settings(redis_server: RedisServer, stand_in: HindsightStandIn) -> Settings:
    """Without a floor, so that nothing here depends on the ranking."""
    await redis_server.command("FLUSHALL")
    return settings_for(redis_server.url, stand_in.url, min_score=0)


@pytest.fixture
async def redis(redis_server: RedisServer) -> AsyncIterator[Redis]:
    """A client of the test's own."""
    async with Redis.from_url(redis_server.url, decode_responses=True) as client:
        yield client


@pytest.mark.parametrize("form", ["json", "text"])
async def test_a_hit_is_one_command(
    api: Api, stand_in: HindsightStandIn, redis: Redis, user: str, form: str
) -> None:
    remember(stand_in, user, "first")
    await api.recall(user, QUERY, format=form)
    await redis.config_resetstat()
    for _ in range(7):
        reply = await api.recall(user, QUERY, format=form)
        assert "first" in reply.text
    assert await commands(redis) == {"mget": 7}
    assert len(stand_in.requests_for("recall")) == 1


async def test_a_miss_adds_few_commands(
    api: Api, stand_in: HindsightStandIn, redis: Redis, user: str
) -> None:
    remember(stand_in, user, "first")
    await api.recall(user, QUERY)
    await api.recall(user, "something else entirely", max_chars="200")
    await redis.config_resetstat()
    await api.recall(user, QUERY, max_chars="300")
    counts = await commands(redis)
    # Look-up, lease, pending turns, publication and release; what the two scripts run counts as well.
    assert counts == {
        "mget": 1,
        "set": 2,
        "hgetall": 1,
        "eval": 2,
        "get": 3,
        "del": 1,
        "time": 1,
        "zremrangebyscore": 1,
        "zadd": 1,
        "ttl": 1,
    }


async def test_stored_bytes_are_answered_untouched(
    api: Api, stand_in: HindsightStandIn, redis: Redis, user: str
) -> None:
    remember(stand_in, user, "第一 \U0001f41f é")
    first = await api.recall(user, QUERY, max_chars="500")
    assert how(first) == MISS
    [key] = await keys_of(redis, "recall")
    value = (await redis.get(key)).encode()
    body = value.partition(b"\n")[2]
    second = await api.recall(user, QUERY, max_chars="500")
    assert how(second) == HIT
    assert second.content.startswith(body[:-1])
    assert first.content.startswith(body[:-1])
    for reply in (first, second):
        assert reply.headers["cache-control"] == "no-store"
        assert reply.headers["content-type"] == "application/json"
        assert reply.content == json.dumps(reply.json(), ensure_ascii=False).encode()
        assert reply.json()["request_id"] == reply.headers["x-request-id"]


async def test_text_is_exactly_the_block(api: Api, stand_in: HindsightStandIn, user: str) -> None:
    nothing = await api.recall(user, QUERY, format="text")
    assert nothing.content == b""
    remember(stand_in, user, "first")
    block = (await api.recall(user, QUERY, max_chars="400")).json()["context"]
    for fresh in ("true", "false"):
        reply = await api.recall(user, QUERY, format="text", max_chars="400", fresh=fresh)
        assert reply.text == block
        assert reply.headers["content-type"] == "text/plain; charset=utf-8"
        assert reply.headers["cache-control"] == "no-store"


_BUDGET: str = RecallRequest.model_fields["budget"].default
CHANGES: list[dict[str, str]] = [
    {"query": QUERY + " today"},
    {"query": QUERY.upper()},
    {"top_k": "4"},
    {"max_chars": "99"},
    {"max_total_chars": "300"},
    {"kinds": "preference"},
    {"kinds": "preference,fact"},
    {"fact_types": "world"},
    {"fact_types": "world,observation"},
    {"min_score": "0.3"},
    {"budget": "high"},
    {"tags": "a"},
    {"tags": "a,b"},
    {"tags": "a,b", "tags_match": "any"},
    {"tags": "b"},
    {"conversation_id": "c1"},
    {"conversation_id": "c2"},
    {"format": "text"},
    {"language": "zh"},
    {"language": "en"},
]
SAME: list[dict[str, str]] = [
    {"query": f"  {QUERY} \n"},
    {"query": QUERY.replace(" ", "\u3000")},
    {"query": QUERY.replace("fi", "\ufb01")},
    {"top_k": "5.0", "max_chars": " 100 ", "max_total_chars": "", "kinds": "null", "tags": "None"},
    {
        "min_score": "-1",
        "budget": f" {_BUDGET.upper()}",
        "format": "JSON",
        "language": "Auto",
        "tags_match": "any",
    },
    {"min_score": "0"},
    {"min_score": "-0.0"},
    {"conversation_id": "undefined", "timeout_ms": "900", "on_error": "fail", "fresh": "no"},
]


async def test_the_key_covers_what_changes_the_answer(api: Api, redis: Redis, user: str) -> None:
    known: set[str] = set()
    for change in [{}, *CHANGES]:
        reply = await api.client.post("/memory/recall", data={"user_id": user, "query": QUERY, **change})
        assert reply.status_code == 200, reply.text
        if change.get("format") != "text":
            assert how(reply)["cached"] is False, f"{change} was answered with another's answer"
        now = set(await keys_of(redis, "recall"))
        # A text is kept as JSON as well, under the key it has as JSON.
        assert len(now - known) == (0 if change.get("format") == "text" else 1) + ("format" in change), change
        known = now


async def test_equal_requests_share_an_answer(api: Api, stand_in: HindsightStandIn, user: str) -> None:
    remember(stand_in, user, "first")
    first = await api.recall(user, QUERY)
    for change in SAME:
        fields = {"user_id": user, "query": QUERY, **change}
        for sent in (
            {"json": fields},
            {"data": fields},
            {
                "content": urlencode(fields),
                "headers": {"content-type": "application/x-www-form-urlencoded; charset=utf-8"},
            },
            {"content": json.dumps(fields), "headers": {"content-type": "text/plain"}},
        ):
            reply = await api.client.post("/memory/recall", **sent)
            assert how(reply) == HIT, change
            assert texts(reply) == texts(first)
    assert len(stand_in.requests_for("recall")) == 1


async def test_a_floor_that_is_asked_for_is_another_question(settings: Settings, user: str) -> None:
    async with run_api(settings.model_copy(update={"min_score": 0.25})) as api:
        await api.recall(user, QUERY)
        assert how(await api.recall(user, QUERY, min_score="0.25")) == MISS
        assert how(await api.recall(user, QUERY, min_score="-1")) == HIT


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"kinds": "a,b"}, {"kinds": " b ， a,a"}),
        ({"fact_types": "world,experience"}, {"fact_types": " experience ， world,world"}),
        ({"tags": "x,y", "tags_match": "any"}, {"tags": "y, x", "tags_match": " ANY"}),
    ],
)
async def test_lists_are_sets(api: Api, user: str, one: dict[str, str], other: dict[str, str]) -> None:
    await api.recall(user, QUERY, **one)
    assert how(await api.recall(user, QUERY, **other)) == HIT


async def test_another_users_answer_is_never_a_hit(api: Api, stand_in: HindsightStandIn, user: str) -> None:
    remember(stand_in, user, "first")
    await api.recall(user, QUERY)
    reply = await api.recall(f"{user}-other", QUERY)
    assert how(reply) == MISS
    assert texts(reply) == []


async def test_other_installations_and_settings_have_answers_of_their_own(
    api: Api, stand_in: HindsightStandIn, settings: Settings, user: str
) -> None:
    await api.recall(user, QUERY)
    for change in (
        {"timezone": "Asia/Shanghai"},
        {"min_score": 0.1},
        {"hindsight_url": f"{stand_in.url}/x"},
        {"embedding_model": "multilingual-e5-small"},
    ):
        async with run_api(settings.model_copy(update=change)) as other:
            assert how(await other.recall(user, QUERY))["cached"] is False, change
    async with run_api(settings) as same:
        assert how(await same.recall(user, QUERY)) == HIT


async def test_nothing_found_is_cached_for_a_shorter_time(
    api: Api, stand_in: HindsightStandIn, redis: Redis, settings: Settings, user: str
) -> None:
    remember(stand_in, user, "first")
    seconds, micros = await redis.time()
    for query, ttl_s in ((QUERY, settings.cache_ttl_s), ("nothing of the kind", settings.empty_ttl_s)):
        await redis.delete(*(await keys_of(redis, "recall") or ["mem:none"]))
        reply = await api.recall(user, query)
        assert bool(texts(reply)) == (query == QUERY)
        [key] = await keys_of(redis, "recall")
        until = float((await redis.get(key)).partition("\n")[0].split(" ")[-1])
        assert ttl_s - 1 <= until - (seconds + micros / 1e6) <= ttl_s + 10
        assert settings.stale_ttl_s - 5 <= await redis.ttl(key) <= settings.stale_ttl_s + 1


async def test_an_answer_is_current_only_for_its_time(
    stand_in: HindsightStandIn, settings: Settings, user: str
) -> None:
    remember(stand_in, user, "first")
    async with run_api(settings.model_copy(update={"cache_ttl_s": 1})) as api:
        await api.recall(user, QUERY)
        assert how(await api.recall(user, QUERY)) == HIT
        remember(stand_in, user, "second-after-everything")

        async def is_asked_again() -> bool:
            return len(texts(await api.recall(user, QUERY))) == 2

        await wait_until(is_asked_again, "the answer has expired", 5)


async def test_fresh_bypasses_and_renews(api: Api, stand_in: HindsightStandIn, user: str) -> None:
    memory = remember(stand_in, user, "first")
    await api.recall(user, QUERY)
    stand_in.store.update_memory(bank(user), memory.id, {"text": stored("changed")})
    assert texts(await api.recall(user, QUERY)) == [stored("first")]
    reply = await api.recall(user, QUERY, fresh="true")
    assert how(reply) == MISS
    assert texts(reply) == [stored("changed")]
    reply = await api.recall(user, QUERY)
    assert how(reply) == HIT
    assert texts(reply) == [stored("changed")]


async def test_a_query_without_a_word_asks_nobody(
    api: Api, stand_in: HindsightStandIn, redis: Redis, user: str
) -> None:
    await redis.config_resetstat()
    for query in ("???", "", "   ", "🙂🙂", "…—！"):
        reply = await api.recall(user, query)
        assert texts(reply) == []
        assert how(reply) == {**MISS, "reason": "no_words"}
    assert stand_in.requests_for("recall") == []
    assert await commands(redis) == {}


async def test_a_value_that_cannot_be_read_is_a_miss(api: Api, redis: Redis, user: str) -> None:
    await api.recall(user, QUERY)
    [key] = await keys_of(redis, "recall")
    for junk in ("", "junk", "a b c\nd", "a b c d\n{}", "\n\n", "a b c d e\n{}"):
        await redis.set(key, junk)
        assert how(await api.recall(user, QUERY)) == MISS
        assert how(await api.recall(user, QUERY)) == HIT
    await redis.delete(key)
    await redis.lpush(key, "of another type")  # type: ignore[misc]
    reply = await api.recall(user, QUERY)
    assert how(reply) == MISS


async def test_every_key_has_an_end(
    api: Api, stand_in: HindsightStandIn, redis: Redis, settings: Settings, user: str
) -> None:
    remember(stand_in, user, "first")
    for form in ("json", "text"):
        for fresh in ("true", "false"):
            await api.recall(user, QUERY, format=form, fresh=fresh)
    await api.add(user, said("Anna"))
    await api.recall(user, QUERY)
    assert await without_ttl(redis) == set()
    assert await keys_of(redis, "lease") == []
    assert await redis.ttl(keyspace.write_epoch(bank(user))) > 0


async def test_the_key_of_the_api_decides_not_the_cache(
    api: Api, stand_in: HindsightStandIn, user: str
) -> None:
    remember(stand_in, user, "first")
    await api.recall(user, QUERY)
    reply = await api.stranger.post("/memory/recall", data={"user_id": user, "query": QUERY})
    assert reply.status_code == 401
    assert "first" not in reply.text
    assert KEY not in reply.text
