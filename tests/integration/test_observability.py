"""What the service says of itself: `/health/ready` under real faults, `/metrics` of API and worker."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from redis.asyncio import Redis
from service import keyspace
from service.adapters.cache import RecallCache
from service.adapters.metrics_server import MetricsServer
from service.adapters.vitals import Vitals
from service.errors import CacheUnavailable
from service.metrics import GAUGES
from service.policy.admin_texts_en import EN
from service.scope import bank_of
from service.settings import Settings

from tests.fakes.hindsight import HindsightStandIn
from tests.integration.admin_world import operator_of
from tests.integration.conftest import Api, Workshop, run_api, settings_for
from tests.integration.edge import checked
from tests.metrics_catalogue import everything, families_of
from tests.processes import WorkerProcess
from tests.support import RedisServer, free_port, valkey, wait_until
from tests.turns_log import without_ttl

pytestmark = pytest.mark.anyio


# Fault → what is set on the server, to what, and to what again afterwards.
_NOT_DURABLE = {
    "append-only file off": ("appendonly", "no", "yes"),
    "append-only file not flushed": ("appendfsync", "no", "always"),
    "turns may be evicted": ("maxmemory-policy", "allkeys-lru", "noeviction"),
}


@pytest.fixture
async def redis(redis_server: RedisServer, settings: Settings) -> AsyncIterator[Redis]:
    async with Redis.from_url(redis_server.url, decode_responses=True) as client:
        yield client


@pytest.fixture
async def well(redis: Redis, settings: Settings) -> Redis:
    """A Redis in which a worker seems to live and has just stored something."""
    await redis.set(keyspace.ARQ_HEALTH, "well", ex=60)
    async with Vitals.from_settings(settings) as vitals:
        await vitals.beat("w", has_stored=True)
    return redis


@pytest.fixture
async def cache_server(folder: Path) -> AsyncIterator[RedisServer]:
    """A Redis of the cache alone."""
    async with valkey(folder / "cache", aof=False) as server:
        yield server


@pytest.fixture
async def apart(settings: Settings, cache_server: RedisServer) -> AsyncIterator[Api]:
    """The API with its cache on a Redis of its own."""
    changes = {"cache_redis_url": cache_server.url, "cache_patience_ms": 200}
    async with run_api(settings.model_copy(update=changes)) as running:
        yield running


async def ready(api: Api, **params: str) -> tuple[int, str, list[str]]:
    reply = await api.stranger.get("/health/ready", params=params)
    state = reply.json()
    return reply.status_code, state["status"], state["reasons"]


async def samples(client: httpx.AsyncClient, url: str = "/metrics") -> dict[str, float]:
    """Sample → value; labels as Prometheus writes them."""
    reply = await client.get(url)
    assert reply.status_code == 200
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(reply.text):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


async def age(redis: Redis, seconds: float) -> str:
    """The server's time that long ago, in Unix milliseconds."""
    now, _ = await redis.time()
    return str(int((now - seconds) * 1000))


async def test_all_is_well(api: Api, well: Redis) -> None:
    assert await ready(api) == (200, "ok", [])
    parts = (await api.stranger.get("/health/ready")).json()["parts"]
    assert parts["turns_log"]["durable"] is True
    assert parts["turns_log"]["workers"] == 1
    assert 0 <= parts["turns_log"]["heartbeat_age_s"] < 60
    assert 0 <= parts["turns_log"]["last_stored_age_s"] < 60
    assert parts["hindsight"] == {"ok": True, "spared": False}


async def test_a_stuck_queue_is_red_although_every_process_lives(
    api: Api, well: Redis, stand_in: HindsightStandIn, user: str
) -> None:
    await well.zadd(keyspace.DUE, {bank_of("default", user): float(await age(well, 130))})
    assert await ready(api) == (200, "degraded", ["queue_slow"])  # something was stored just now
    await well.set(keyspace.LAST_STORED, await age(well, 125), ex=60)
    assert await ready(api) == (503, "down", ["queue_stuck"])
    await well.delete(keyspace.LAST_STORED)
    assert await ready(api) == (503, "down", ["queue_stuck"])
    # That is no reason to refuse a new process its start.
    assert await ready(api, only="accepting") == (200, "ok", [])
    # With Hindsight away waiting is what the queue is for.
    stand_in.fail("health", "status", status=503)
    assert await ready(api) == (200, "degraded", ["queue_stuck", "hindsight_down"])


async def test_turns_that_are_tried_in_vain_are_red_although_every_process_lives(
    api: Api, workshop: Workshop, redis: Redis, stand_in: HindsightStandIn, user: str
) -> None:
    """A wrong key: each try postpones the batch, so that it is never due for long."""
    await redis.set(keyspace.ARQ_HEALTH, "well", ex=60)
    for operation in ("bank", "retain", "operation"):
        stand_in.fail(operation, "status", status=401)
    job_id = checked(await api.add(user, "I live in Hangzhou."), 202)["job_id"]
    await workshop.work()
    assert (await api.job(job_id))["status"] == "waiting"
    assert await ready(api) == (200, "ok", [])

    batch = keyspace.batch(bank_of("default", user))
    await redis.hset(batch, "frozen_ms", await age(redis, 901))  # type: ignore[misc]
    await workshop.log.sweep()
    assert (await samples(api.stranger))["memory_oldest_due_seconds"] < 120
    assert await ready(api) == (503, "down", ["queue_stuck"])
    assert await ready(api, only="accepting") == (200, "ok", [])


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("no worker", "no_worker"),
        ("dead letter", "dead_letters"),
        ("old batch", "batch_stuck"),
        ("append-only file off", "not_durable"),
        ("append-only file not flushed", "not_durable"),
        ("turns may be evicted", "not_durable"),
    ],
)
async def test_what_needs_an_eye_is_degraded(api: Api, well: Redis, fault: str, reason: str) -> None:
    if fault == "no worker":
        await well.delete(keyspace.ARQ_HEALTH)
        await well.zadd(keyspace.WORKERS, {"w": float(await age(well, 20))})
    elif fault == "dead letter":
        await well.hset(keyspace.DEAD, "d", "x")  # type: ignore[misc]
    elif fault == "old batch":
        await well.set(keyspace.OLDEST_BATCH, await age(well, 1801), ex=60)  # and others are stored
    setting, value, restored = _NOT_DURABLE.get(fault, ("", "", ""))
    if setting:
        await well.config_set(setting, value)
    try:
        assert await ready(api) == (200, "degraded", [reason])
        assert (await samples(api.stranger))["memory_redis_durable"] == (reason != "not_durable")
        # Nothing of that keeps a process from answering.
        assert await ready(api, only="serving") == (200, "ok", [])
    finally:
        if setting:
            await well.config_set(setting, restored)


@pytest.mark.parametrize(
    ("forbidden", "known"),
    [
        (["+@all", "-config"], True),
        (["+@all", "-config", "-info"], None),
    ],
)
async def test_a_redis_that_does_not_tell_is_not_called_lossy(
    redis: Redis, redis_server: RedisServer, forbidden: list[str], known: bool | None
) -> None:
    """Managed servers refuse CONFIG, and some of them INFO."""
    await redis.acl_setuser(
        "tenant", enabled=True, passwords=["+secret"], keys=["*"], commands=forbidden, reset=True
    )
    url = redis_server.url.replace("redis://", "redis://tenant:secret@")
    try:
        async with Vitals(url) as vitals:
            assert (await vitals.read(2)).is_durable is known
    finally:
        await redis.acl_deluser("tenant")


async def test_what_spreads_requests_keeps_a_process_while_recall_still_works(
    api: Api, well: Redis, stand_in: HindsightStandIn, redis_server: RedisServer, user: str
) -> None:
    """Redis and the queue are common to all processes: were they red for it, all would be taken out."""
    await well.zadd(keyspace.DUE, {bank_of("default", user): float(await age(well, 130))})
    await well.delete(keyspace.LAST_STORED)
    await well.set(keyspace.WAITING, 200_000)
    status, _, reasons = await ready(api)
    assert (status, set(reasons)) == (503, {"queue_stuck", "queue_full"})
    assert await ready(api, only="serving") == (200, "ok", [])
    await well.delete(keyspace.WAITING)
    redis_server.pause()
    try:
        began = time.monotonic()
        assert await ready(api, only="serving") == (200, "ok", [])
        assert time.monotonic() - began < 1  # it waits for nobody
        recalled = await api.recall(user, "Where do I live?")
        assert recalled.status_code == 200
    finally:
        redis_server.resume()
    stand_in.fail("health", "status", status=503)
    assert await ready(api, only="serving") == (200, "ok", [])


async def test_a_worker_that_leaves_others_behind_is_missed_by_nobody(api: Api, well: Redis) -> None:
    """arq's own sign is one for all workers, and each that ends takes it away for some seconds."""
    await well.delete(keyspace.ARQ_HEALTH)
    assert await ready(api) == (200, "ok", [])
    # Of workers that give no signs of their own it is all there is.
    await well.delete(keyspace.WORKERS)
    assert await ready(api) == (200, "degraded", ["no_worker"])
    await well.set(keyspace.ARQ_HEALTH, "well", ex=60)
    assert await ready(api) == (200, "ok", [])


async def test_stamps_of_a_clock_that_was_ahead_say_nothing(
    api: Api, redis: Redis, settings: Settings, user: str
) -> None:
    """After a fail-over to a server whose clock is behind."""
    await redis.zadd(keyspace.DUE, {bank_of("default", user): float(await age(redis, 600))})
    await redis.set(keyspace.LAST_STORED, await age(redis, -3600), ex=60)
    await redis.zadd(keyspace.WORKERS, {"w": float(await age(redis, -3600))})
    status, _, reasons = await ready(api)
    assert (status, set(reasons)) == (503, {"queue_stuck", "no_worker"})
    async with Vitals.from_settings(settings) as vitals:
        await vitals.beat("v", has_stored=True)
        signs = await vitals.read(2)
    assert (signs.workers, await redis.zcard(keyspace.WORKERS)) == (1, 1)
    assert signs.last_stored_age_s is not None
    # A clock that is corrected by moments is one.
    await redis.set(keyspace.LAST_STORED, await age(redis, -2), ex=60)
    async with Vitals.from_settings(settings) as vitals:
        assert (await vitals.read(2)).last_stored_age_s == 0


@pytest.mark.parametrize(
    ("key", "value", "reasons"),
    [
        (keyspace.WAITING, "1.5", ["signs_unknown"]),
        (keyspace.WAITING, "x", ["signs_unknown"]),
        (keyspace.LAST_STORED, "x", []),
        (keyspace.LAST_STORED, "nan", []),
        (keyspace.OLDEST_BATCH, "x", []),
    ],
)
async def test_what_somebody_has_broken_is_unknown_and_no_fault_of_ours(
    api: Api, well: Redis, key: str, value: str, reasons: list[str]
) -> None:
    await well.set(key, value, ex=60)
    assert await ready(api) == (200, "degraded" if reasons else "ok", reasons)
    found = await samples(api.stranger)
    assert ("memory_waiting_turns" in found) is (not reasons)
    assert found["memory_redis_up"] == 1


@pytest.mark.parametrize("fault", ["out of memory", "lost its replicas", "the queue is full"])
async def test_a_redis_that_takes_no_turns_is_down(
    api: Api, well: Redis, redis_server: RedisServer, user: str, fault: str
) -> None:
    limits = {"out of memory": "maxmemory", "lost its replicas": "min-replicas-to-write"}
    if limit := limits.get(fault):
        await well.config_set(limit, "1")
    else:
        await well.set(keyspace.WAITING, 200_000)
    try:
        reason = "redis_down" if limit else "queue_full"
        assert await ready(api) == (503, "down", [reason])
        assert await ready(api, only="accepting") == (503, "down", [reason])
    finally:
        if limit:
            await well.config_set(limit, "0")
    if not limit:
        assert (await api.add(user, "hello")).status_code == 429
        await well.delete(keyspace.WAITING)
    assert await ready(api) == (200, "ok", [])


async def test_a_redis_that_hangs_or_is_gone_is_down_within_the_deadline(
    api: Api, well: Redis, redis_server: RedisServer
) -> None:
    redis_server.pause()
    began = time.monotonic()
    try:
        assert await ready(api) == (503, "down", ["redis_down"])
        found = await samples(api.stranger)
    finally:
        redis_server.resume()
    assert time.monotonic() - began < 2 + 1 + 1.5  # both deadlines, and a busy machine
    assert "memory_waiting_turns" not in found
    assert found["memory_redis_up"] == 0
    assert found["memory_scrape_failures_total{part=turns_log}"] == 1
    assert found["memory_scrape_failures_total{part=vitals}"] == 1
    await redis_server.kill()
    try:
        assert await ready(api) == (503, "down", ["redis_down"])
    finally:
        await redis_server.start()


@pytest.mark.parametrize("kind", ["hang", "status", "close"])
async def test_a_hindsight_that_does_not_answer_is_degraded_within_the_deadline(
    api: Api, well: Redis, stand_in: HindsightStandIn, kind: Any
) -> None:
    stand_in.fail("health", kind)
    began = time.monotonic()
    assert await ready(api) == (200, "degraded", ["hindsight_down"])
    assert time.monotonic() - began < 2 + 1.5
    assert (await samples(api.stranger))["memory_hindsight_up"] == 0


@pytest.mark.parametrize("fault", ["is gone", "hangs", "asks for a password"])
async def test_a_cache_of_its_own_that_does_not_answer_is_degraded_within_a_deadline(
    apart: Api, cache_server: RedisServer, well: Redis, user: str, fault: str
) -> None:
    assert await ready(apart) == (200, "ok", [])
    assert (await samples(apart.stranger))["memory_cache_up"] == 1
    if fault == "is gone":
        await cache_server.kill()
    elif fault == "hangs":
        cache_server.pause()
    else:
        async with Redis.from_url(cache_server.url) as operator:
            await operator.config_set("requirepass", "secret")
            await operator.client_kill_filter(_type="normal", skipme=True)
    began = time.monotonic()
    try:
        state = checked(await apart.stranger.get("/health/ready"), 200)
        assert (state["status"], state["reasons"]) == ("degraded", ["cache_down"])
        assert state["parts"]["cache"] == {"ok": False}
        found = await samples(apart.stranger)
        assert time.monotonic() - began < 1 + 1 + 1.5  # both deadlines, and a busy machine
        assert (found["memory_cache_up"], found["memory_redis_up"]) == (0, 1)
        # Turns are taken all the same, and recalls answered.
        assert await ready(apart, only="accepting") == (200, "ok", [])
        assert checked(await apart.recall(user, "Where do I live?"), 200)["degraded"] is False
        if fault == "is gone":
            async with operator_of(apart) as browser:
                assert EN.notes["cache_down"] in (await browser.get()).text
    finally:
        if fault == "hangs":
            cache_server.resume()
        elif fault == "is gone":
            await cache_server.start()
    if fault != "asks for a password":

        async def is_well() -> bool:
            return await ready(apart) == (200, "ok", [])

        await wait_until(is_well, "the cache is back")


async def test_with_both_redis_away_each_is_named(
    apart: Api, cache_server: RedisServer, redis_server: RedisServer, well: Redis
) -> None:
    redis_server.pause()
    await cache_server.kill()
    try:
        assert await ready(apart) == (503, "down", ["redis_down", "cache_down"])
    finally:
        redis_server.resume()


@pytest.mark.parametrize("url", [None, "the same"])
async def test_a_cache_on_the_redis_of_turns_is_not_asked_for_itself(
    settings: Settings, well: Redis, url: str | None
) -> None:
    same = settings.model_copy(update={"cache_redis_url": url and settings.redis_url})
    async with run_api(same) as api:
        assert "memory_cache_up" not in await samples(api.stranger)
        state = (await api.stranger.get("/health/ready")).json()
        assert (state["status"], set(state["parts"])) == ("ok", {"turns_log", "hindsight"})


@pytest.mark.parametrize("refused", ["-ping", "-ping -info"])
async def test_a_cache_whose_acl_lacks_ping_answers_all_the_same(
    cache_server: RedisServer, refused: str
) -> None:
    await cache_server.command(f"ACL SETUSER tenant on >secret ~mem:* +@all {refused}")
    url = cache_server.url.replace("redis://", "redis://tenant:secret@")
    async with RecallCache(url, patience_s=1, stale_ttl_s=60) as cache:
        await cache.check(2)
    async with RecallCache(url.replace("secret", "wrong"), patience_s=1, stale_ttl_s=60) as cache:
        with pytest.raises(CacheUnavailable):
            await cache.check(2)


async def test_an_open_circuit_is_seen(api: Api, well: Redis, stand_in: HindsightStandIn, user: str) -> None:
    stand_in.fail("recall", "status", status=503)
    for number in range(6):
        await api.recall(user, f"question {number}")
    assert await ready(api) == (200, "degraded", ["recalls_spared"])
    assert (await samples(api.stranger))["memory_breaker_open"] == 1


async def test_the_gauges_are_those_of_the_queue_at_this_moment(api: Api, well: Redis, user: str) -> None:
    await api.add(user, "hello")
    await api.add(user, "again")
    await well.zadd(keyspace.DUE, {bank_of("default", user): float(await age(well, 50))})
    found = await samples(api.stranger)
    assert set(GAUGES) - {"memory_oldest_batch_seconds", "memory_cache_up"} <= set(found)
    assert found["memory_waiting_turns"] == 2
    assert found["memory_waiting_banks"] == 1
    assert 50 <= found["memory_oldest_due_seconds"] < 110
    assert (found["memory_workers"], found["memory_dead_letters"], found["memory_breaker_open"]) == (1, 0, 0)
    assert found["memory_redis_up"] == found["memory_redis_durable"] == found["memory_hindsight_up"] == 1


async def test_workers_are_counted_and_the_last_sign_of_life_is_remembered(
    redis: Redis, settings: Settings
) -> None:
    async with Vitals.from_settings(settings) as vitals:
        assert (await vitals.read(2)).heartbeat_age_s is None
        await vitals.beat("a", has_stored=False)
        await vitals.beat("b", has_stored=False)
        signs = await vitals.read(2)
        assert (signs.workers, signs.last_stored_age_s) == (2, None)
        await vitals.leave("a")
        await vitals.leave("b")  # the newest: that somebody was there stays known
        assert (await vitals.read(2)).workers == 1
        await redis.zadd(keyspace.WORKERS, {"b": float(await age(redis, 20))})
        signs = await vitals.read(2)
        assert signs.workers == 0
        assert signs.heartbeat_age_s is not None
        assert 20 <= signs.heartbeat_age_s < 60


async def test_the_metrics_server_minds_nobody_who_is_slow_or_strange() -> None:
    async with MetricsServer("127.0.0.1", 0, lambda: b"a 1\n", "text/plain") as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /metr")  # and nothing more
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", trust_env=False) as client:
            replies = await asyncio.gather(*(client.get("/metrics?x=1") for _ in range(20)))
            assert {reply.text for reply in replies} == {"a 1\n"}
            assert (await client.get("/metrics/x")).status_code == 404
        writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"x" * 100_000)
        assert await reader.read() == b""
        writer.close()
        with pytest.raises(OSError, match=r".+"):
            async with MetricsServer("127.0.0.1", server.port, lambda: b"", ""):
                pass


async def test_an_exposition_that_cannot_be_made_is_a_500_and_the_server_lives_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def breaks() -> bytes:
        raise ValueError("marigold")

    async with (
        MetricsServer("127.0.0.1", 0, breaks, "text/plain") as server,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", trust_env=False) as client,
    ):
        reply = await client.get("/metrics")
        assert reply.status_code == 500
        assert "marigold" not in reply.text
        assert (await client.get("/health/live")).status_code == 200
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == [
        "exposition_failed"
    ]


async def test_the_metrics_server_answers_head_as_get_without_its_body() -> None:
    async with (
        MetricsServer("127.0.0.1", 0, lambda: b"a 1\n", "text/plain") as server,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", trust_env=False) as client,
    ):
        reply = await client.head("/metrics")
        assert (reply.status_code, reply.headers["content-length"], reply.content) == (200, "4", b"")


async def test_whoever_holds_connections_open_keeps_nobody_from_the_metrics() -> None:
    async with MetricsServer("127.0.0.1", 0, lambda: b"a 1\n", "text/plain") as server:
        held = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(40)]
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", trust_env=False) as client:
            assert (await client.get("/metrics")).text == "a 1\n"
        # Those that came first are cut off, long before their time to read is over.
        began = time.monotonic()
        for reader, _ in held[:8]:
            with suppress(ConnectionError):
                assert await reader.read() == b""
        assert time.monotonic() - began < 2
        for _, writer in held:
            writer.close()


async def test_a_worker_shows_what_it_does_and_its_end_is_seen(
    redis: Redis, redis_server: RedisServer, stand_in: HindsightStandIn, user: str, folder: Path
) -> None:
    port = free_port()
    settings = settings_for(redis_server.url, stand_in.url, audit_days=7)
    worker = WorkerProcess(folder, redis_server.url, stand_in.url, worker_metrics_port=port)
    await worker.start()
    try:
        async with run_api(settings) as api:
            job_id = checked(await api.add(user, "I live in Hangzhou."), 202)["job_id"]
            assert (await api.job(job_id, wait_s=20))["status"] == "done"
            url = f"http://127.0.0.1:{port}"
            found = await samples(api.stranger, f"{url}/metrics")
            assert found["memory_turns_total{outcome=stored}"] == 1
            assert found["memory_queue_seconds_count"] == found["memory_retain_seconds_count"] == 1
            assert 0 < found["memory_retain_seconds_sum"] <= found["memory_queue_seconds_sum"] + 0.01 < 30
            assert found["memory_operation_polls_total{status=completed}"] == 1
            assert (await api.stranger.get(f"{url}/health/live")).json() == {"status": "alive"}
            assert (await api.stranger.get(f"{url}/anything")).status_code == 404
            assert (await api.stranger.post(f"{url}/metrics")).status_code == 404

            async def has_told() -> bool:
                return "memory_last_stored_age_seconds" in await samples(api.stranger)

            await wait_until(has_told, "the heartbeat has told of the stored turn")
            assert await ready(api) == (200, "ok", [])

            # What dashboard and alerts are held to is what the two really export.
            await api.recall(user, "Where do I live?")
            known, exported = families_of(everything()), set()
            for where in ("", url):
                text = (await api.stranger.get(f"{where}/metrics")).text
                exported |= set(families_of(text))
                for name, (help_text, labels) in families_of(text).items():
                    assert help_text == known[name][0]
                    assert labels <= known[name][1]
            assert exported == set(known)

            assert await without_ttl(redis) <= {keyspace.ARQ_QUEUE, keyspace.CLAIM_NUMBER}

            await worker.kill()
            before = (await samples(api.stranger))["memory_worker_heartbeat_age_seconds"]

            async def grows() -> bool:
                return (await samples(api.stranger))["memory_worker_heartbeat_age_seconds"] > before

            await wait_until(grows, "the heartbeat grows old")
    finally:
        await worker.kill()
