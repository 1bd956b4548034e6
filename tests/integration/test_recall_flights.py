"""One backend call per question, however many ask, in a process and across them; and nothing left behind."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress

import httpx
import pytest
from redis.asyncio import Redis
from service.settings import Settings

from tests.fakes.hindsight import HindsightStandIn
from tests.integration.conftest import KEY, Api, run_api, settings_for
from tests.integration.recall_parts import (
    HIT,
    MISS,
    QUERY,
    commands,
    how,
    keys_of,
    remember,
    said,
    stored,
    texts,
)
from tests.support import RedisServer, free_port, wait_until

pytestmark = pytest.mark.anyio


@pytest.fixture
async def settings(redis_server: RedisServer, stand_in: HindsightStandIn) -> Settings:
    """Without a floor, so that nothing here depends on the ranking."""
    await redis_server.command("FLUSHALL")
    return settings_for(redis_server.url, stand_in.url, min_score=0)


@pytest.fixture
async def redis(redis_server: RedisServer) -> AsyncIterator[Redis]:
    async with Redis.from_url(redis_server.url, decode_responses=True) as client:
        yield client


def asked(stand_in: HindsightStandIn) -> int:
    """How often Hindsight was asked to recall."""
    return len(stand_in.requests_for("recall"))


async def test_64_at_once_are_one_backend_call(api: Api, stand_in: HindsightStandIn, user: str) -> None:
    remember(stand_in, user, "first")
    stand_in.fail("recall", "slow", seconds=0.2, times=1)
    replies = await asyncio.gather(*(api.recall(user, QUERY) for _ in range(64)))
    assert asked(stand_in) == 1
    assert {tuple(texts(reply)) for reply in replies} == {(stored("first"),)}
    assert all(how(reply) in (MISS, HIT) for reply in replies)
    assert len({reply.json()["request_id"] for reply in replies}) == 64


async def test_64_at_once_over_two_replicas_are_one_backend_call(
    api: Api, stand_in: HindsightStandIn, settings: Settings, redis: Redis, user: str
) -> None:
    remember(stand_in, user, "first")
    stand_in.fail("recall", "slow", seconds=0.3, times=1)
    async with run_api(settings) as other:
        asking = [one.recall(user, QUERY) for one in (api, other) for _ in range(32)]
        replies = await asyncio.gather(*asking)
    assert asked(stand_in) == 1
    assert {tuple(texts(reply)) for reply in replies} == {(stored("first"),)}
    assert await keys_of(redis, "lease") == []


async def test_a_short_lease_is_prolonged_while_its_holder_works(
    api: Api, stand_in: HindsightStandIn, settings: Settings, user: str
) -> None:
    remember(stand_in, user, "first")
    stand_in.fail("recall", "slow", seconds=1.6, times=1)
    async with run_api(settings) as other:
        replies = await asyncio.gather(api.recall(user, QUERY), other.recall(user, QUERY))
    assert asked(stand_in) == 1
    assert [texts(reply) for reply in replies] == [[stored("first")]] * 2


async def test_waiters_keep_their_own_deadlines(api: Api, stand_in: HindsightStandIn, user: str) -> None:
    remember(stand_in, user, "first")
    stand_in.fail("recall", "slow", seconds=0.6, times=1)
    loop = asyncio.get_running_loop()

    async def ask(timeout_ms: int) -> tuple[httpx.Response, float]:
        started = loop.time()
        reply = await api.recall(user, QUERY, timeout_ms=str(timeout_ms))
        return reply, loop.time() - started

    patient, hasty = await asyncio.gather(ask(5000), ask(150))
    assert texts(patient[0]) == [stored("first")]
    assert how(patient[0]) == MISS
    assert how(hasty[0]) == {"cached": False, "stale": False, "degraded": True, "reason": "deadline"}
    assert hasty[1] < 0.15 + 0.4
    assert asked(stand_in) == 1


async def test_the_hurry_of_the_first_is_not_the_patients_loss(
    api: Api, stand_in: HindsightStandIn, user: str
) -> None:
    remember(stand_in, user, "first")
    stand_in.fail("recall", "slow", seconds=1.5, times=2)
    hasty = asyncio.create_task(api.recall(user, QUERY, timeout_ms="600"))
    await wait_until(lambda: asked(stand_in), "the first has asked")
    patient = await asyncio.gather(*(api.recall(user, QUERY, timeout_ms="5000") for _ in range(20)))
    assert how(await hasty)["degraded"]
    assert all(how(reply) in (MISS, HIT) for reply in patient)
    assert asked(stand_in) == 2


async def test_a_quick_failure_is_shared_and_not_repeated_by_each(
    api: Api, stand_in: HindsightStandIn, user: str
) -> None:
    stand_in.fail("recall", "slow", seconds=0.2, times=1)
    stand_in.fail("recall", "status", status=500)
    first = asyncio.create_task(api.recall(user, "another question"))
    await first
    replies = await asyncio.gather(*(api.recall(user, QUERY) for _ in range(32)))
    assert all(how(reply)["reason"] == "hindsight_unavailable" for reply in replies)
    assert asked(stand_in) < 1 + 32 / 4
    stand_in.heal()
    remember(stand_in, user, "first")
    assert texts(await wait_until(lambda: healed(api, user), "the failure has left nothing behind", 15)) == [
        stored("first")
    ]


async def healed(api: Api, user: str) -> httpx.Response | None:
    """An answer that is whole."""
    reply = await api.recall(user, QUERY)
    return None if how(reply)["degraded"] else reply


async def test_fresh_never_joins_what_has_begun(api: Api, stand_in: HindsightStandIn, user: str) -> None:
    remember(stand_in, user, "first")
    stand_in.fail("recall", "slow", seconds=0.4, times=1)
    early = asyncio.create_task(api.recall(user, QUERY, fresh="true"))
    await wait_until(lambda: asked(stand_in), "the first has asked")
    late = await api.recall(user, QUERY, fresh="true")
    assert asked(stand_in) == 2
    assert not early.done()
    assert texts(late) == texts(await early) == [stored("first")]


async def test_without_a_cache_nobody_joins_what_began_before_they_asked(
    stand_in: HindsightStandIn, settings: Settings, user: str
) -> None:
    remember(stand_in, user, "first")
    gone = f"redis://127.0.0.1:{free_port()}"
    async with run_api(settings.model_copy(update={"cache_redis_url": gone})) as api:
        stand_in.fail("recall", "slow", seconds=0.4, times=1)
        early = asyncio.create_task(api.recall(user, QUERY))
        await wait_until(lambda: asked(stand_in), "the first has asked")
        # The add is told that it may not be seen at once; it is seen all the same.
        assert (await api.add(user, said("Anna"))).json()["searchable_now"] is False
        late = await api.recall(user, QUERY, max_chars="500")
        assert len(texts(late)) == 2
        assert texts(await early) == [stored("first")]
        # What waits for its turn may be joined: a crowd is still few calls.
        before = asked(stand_in)
        stand_in.fail("recall", "slow", seconds=0.2)
        replies = await asyncio.gather(*(api.recall(user, QUERY, max_chars="501") for _ in range(64)))
        assert [how(reply) for reply in replies if len(texts(reply)) != 2] == []
        assert asked(stand_in) - before < 32


@pytest.mark.parametrize("waiters", [1, 3])
async def test_clients_that_go_away_leave_no_work(
    api: Api, stand_in: HindsightStandIn, redis: Redis, user: str, waiters: int
) -> None:
    stand_in.fail("recall", "hang", times=1)
    before = asyncio.all_tasks()
    async with AsyncExitStack() as stack:
        for _ in range(waiters):
            stack.push_async_callback(close, await half_asked(api, user))
        await wait_until(lambda: asked(stand_in), "Hindsight is asked")
        await wait_until(lambda: lease_is(redis, held=True), "the lease is held")
    # Long before the deadline: the call is cut, the lease given back, and no task is left.
    await wait_until(lambda: lease_is(redis, held=False), "the lease is given back", 1)
    await wait_until(lambda: not work_since(before), "no work is left", 1)
    assert stand_in.requests[-1].status is None
    remember(stand_in, user, "first")
    assert texts(await api.recall(user, QUERY)) == [stored("first")]


async def test_one_client_that_goes_away_leaves_the_others_alone(
    api: Api, stand_in: HindsightStandIn, redis: Redis, user: str
) -> None:
    remember(stand_in, user, "first")
    await api.recall(user, "another question")  # which makes the epochs
    await redis.config_resetstat()
    stand_in.fail("recall", "slow", seconds=0.5, times=1)
    writer = await half_asked(api, user)
    await wait_until(lambda: asked(stand_in) == 2, "Hindsight is asked")
    other = asyncio.create_task(api.recall(user, QUERY))
    await wait_until(lambda: looked_up(redis, 2), "the other has looked and joined")
    await close(writer)
    assert texts(await other) == [stored("first")]
    assert asked(stand_in) == 2


async def looked_up(redis: Redis, times: int) -> bool:
    """Whether the cache was asked so often since the counts were reset."""
    return (await commands(redis)).get("mget", 0) >= times


async def half_asked(api: Api, user: str) -> asyncio.StreamWriter:
    """A client that has asked and does not read."""
    host, port = api.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    body = json.dumps({"user_id": user, "query": QUERY}).encode()
    head = f"POST /memory/recall HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {KEY}\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    await writer.drain()
    return writer


async def close(writer: asyncio.StreamWriter) -> None:
    """Hang up."""
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


async def lease_is(redis: Redis, *, held: bool) -> bool:
    """Whether somebody holds a lease, or nobody does."""
    return bool(await keys_of(redis, "lease")) == held


def work_since(before: set[asyncio.Task[object]]) -> list[str]:
    """Tasks of recall and its adapters that came since."""
    names = [repr(task.get_coro()) for task in asyncio.all_tasks() - before]
    return [name for name in names if "ecall" in name or "_keep" in name or "flights" in name]
