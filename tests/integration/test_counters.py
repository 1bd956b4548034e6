"""Counters in Redis go on where something that is no number of ours has got in their place."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest
from redis.asyncio import Redis
from service import keyspace
from service.adapters.spending import Spending, Spent
from service.adapters.usage import UsageStore
from service.errors import CacheUnavailable
from service.settings import Settings

from tests.integration.admin_world import operator_of
from tests.integration.conftest import Api
from tests.integration.test_admin_page import rows_of
from tests.support import RedisServer

pytestmark = pytest.mark.anyio
_NOW = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)
_RECALLS = ("recall_hit", "acme")
_TURNS = ("turn_queued", "acme")
# What a counter may hold that nobody can add to, or that no counter of ours has come to.
BROKEN = pytest.mark.parametrize("value", ["abc", "", "1.5", "-7", "9" * 5000, str(2**63)])


@pytest.fixture
async def redis(redis_server: RedisServer) -> AsyncIterator[Redis]:
    await redis_server.command("FLUSHALL")
    async with Redis.from_url(redis_server.url, decode_responses=True) as client:
        yield client


@pytest.fixture
async def usage(redis: Redis, redis_server: RedisServer) -> AsyncIterator[UsageStore]:
    async with UsageStore(redis_server.url) as store:
        yield store


@pytest.fixture
async def spending(redis: Redis, redis_server: RedisServer) -> AsyncIterator[Spending]:
    async with Spending(redis_server.url) as store:
        yield store


async def keys_of(redis: Redis, pattern: str) -> list[str]:
    found = [key async for key in redis.scan_iter(match=pattern)]
    for key in found:
        assert await redis.ttl(key) > 0
    return found


# --- What is used ---------------------------------------------------------------------------------------
@BROKEN
async def test_a_broken_count_is_none_and_is_begun_anew(redis: Redis, usage: UsageStore, value: str) -> None:
    await usage.add({_NOW: {_RECALLS: 1, _TURNS: 2}})
    for key in await keys_of(redis, f"{keyspace.usage('')}*"):
        await redis.hset(key, "recall_hit:acme", value)  # type: ignore[misc]
    assert await usage.hours([_NOW]) == await usage.days([_NOW]) == [{_RECALLS: 0, _TURNS: 2}]
    await usage.add({_NOW: {_RECALLS: 3, _TURNS: 2}})
    assert await usage.hours([_NOW]) == await usage.days([_NOW]) == [{_RECALLS: 3, _TURNS: 4}]


async def test_a_count_that_cannot_grow_is_begun_anew(redis: Redis, usage: UsageStore) -> None:
    await usage.add({_NOW: {_RECALLS: 1}})
    for key in await keys_of(redis, f"{keyspace.usage('')}*"):
        await redis.hset(key, "recall_hit:acme", str(2**63 - 1))  # type: ignore[misc]
    await usage.add({_NOW: {_RECALLS: 3}})
    assert await usage.hours([_NOW]) == await usage.days([_NOW]) == [{_RECALLS: 3}]


async def test_what_is_no_hash_is_none_and_is_begun_anew(redis: Redis, usage: UsageStore) -> None:
    await usage.add({_NOW: {_RECALLS: 1}})
    keys = await keys_of(redis, f"{keyspace.usage('')}*")
    assert len(keys) == 2
    for key in keys:
        await redis.set(key, "1")
    assert await usage.hours([_NOW]) == await usage.days([_NOW]) == [{}]
    await usage.add({_NOW: {_RECALLS: 3}})
    assert await usage.hours([_NOW]) == await usage.days([_NOW]) == [{_RECALLS: 3}]
    assert sorted(await keys_of(redis, f"{keyspace.usage('')}*")) == sorted(keys)


async def test_a_full_server_is_told_and_counts_nothing_twice(redis: Redis, usage: UsageStore) -> None:
    await redis.config_set("maxmemory", "1")
    try:
        with pytest.raises(CacheUnavailable):
            await usage.add({_NOW: {_RECALLS: 1}})
    finally:
        await redis.config_set("maxmemory", "0")
    assert await usage.hours([_NOW]) == await usage.days([_NOW]) == [{}]


async def test_the_operators_page_shows_the_rest(api: Api, settings: Settings, redis: Redis) -> None:
    now = datetime.now(UTC)
    async with UsageStore.from_settings(settings) as store:
        await store.add({now: {("recall_hit", "default"): 40, ("llm_tokens", "default"): 1_234}})
    for key in await keys_of(redis, f"{keyspace.usage('')}*"):
        await redis.hset(key, mapping={"recall_hit:default": "abc", "turn_dead:default": "9" * 5000})  # type: ignore[misc]
    async with operator_of(api) as browser:
        page = await browser.get()
    assert browser.status == 200
    tenant = rows_of(page, "Tenants")["default"]
    assert "1,234" in tenant
    assert "40" not in tenant


# --- What the language model costs ----------------------------------------------------------------------
@BROKEN
async def test_a_broken_sum_is_none_and_is_begun_anew(redis: Redis, spending: Spending, value: str) -> None:
    await spending.note("acme", usd=0.5, tokens=10)
    (key,) = await keys_of(redis, "mem:spent:*")
    await redis.hset(key, "micro_usd", value)  # type: ignore[misc]
    assert await spending.today("acme") == Spent(0, 10)
    await spending.note("acme", usd=0.25, tokens=5)
    assert await spending.today("acme") == Spent(0.25, 15)


async def test_spending_in_no_hash_is_none_and_is_begun_anew(redis: Redis, spending: Spending) -> None:
    await spending.note("acme", usd=0.5, tokens=10)
    (key,) = await keys_of(redis, "mem:spent:*")
    await redis.set(key, "abc")
    assert await spending.today("acme") == Spent(0, 0)
    await spending.note("acme", usd=0.25, tokens=5)
    assert await spending.today("acme") == Spent(0.25, 5)
    assert await keys_of(redis, "mem:spent:*") == [key]


async def test_a_full_server_takes_what_was_spent(redis: Redis, spending: Spending) -> None:
    """Else what has been paid for already would not be stored, and be paid for again."""
    await redis.config_set("maxmemory", "1")
    try:
        await spending.note("acme", usd=0.5, tokens=10)
        await spending.note("acme", usd=0.5, tokens=10)
    finally:
        await redis.config_set("maxmemory", "0")
    assert await spending.today("acme") == Spent(1, 20)
    await keys_of(redis, "mem:spent:*")
