"""The checks that containers run, as processes of their own, against real servers."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.asyncio import Redis
from service import keyspace
from service.adapters.redis_urls import sentinel_url
from service.adapters.vitals import Vitals, new_worker

from tests.deployment import DEPLOY
from tests.fakes.hindsight import HindsightStandIn
from tests.integration.conftest import Api
from tests.processes import WorkerProcess
from tests.support import RedisServer, ServerProcess, free_port, valkey_binary, wait_until

pytestmark = pytest.mark.anyio


async def run(script: str, *arguments: str, **env: str) -> int:
    """Exit status of a check, run as the image runs it."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", str(DEPLOY / "docker" / script), *arguments, env=env
    )
    return await process.wait()


@pytest.fixture
async def url(redis_server: RedisServer, folder: Path, request: pytest.FixtureRequest) -> AsyncIterator[str]:
    """MEMORY_REDIS_URL of one server: its own, or by a Sentinel that knows it."""
    if request.param == "server":
        yield redis_server.url
        return
    port, home = free_port(), folder / "sentinel"
    home.mkdir()
    (home / "sentinel.conf").write_text(
        f"port {port}\nbind 127.0.0.1\ndir ./\nsentinel monitor turns 127.0.0.1 {redis_server.port} 1\n",
        "utf-8",
    )
    through = f"redis+sentinel://127.0.0.1:{port}/turns/0"

    async def knows_the_master() -> bool:
        return (await sentinel_url(through).master_address())[1] == redis_server.port

    sentinel = ServerProcess(
        [str(valkey_binary()), "sentinel.conf", "--sentinel"],
        log_path=folder / "sentinel.log",
        is_ready=knows_the_master,
        cwd=home,
    )
    await sentinel.start()
    try:
        yield through
    finally:
        await sentinel.stop()


@pytest.fixture
async def redis(redis_server: RedisServer) -> AsyncIterator[Redis]:
    await redis_server.command("FLUSHALL")
    async with Redis.from_url(redis_server.url, decode_responses=True) as client:
        yield client


async def beat_ago(redis: Redis, seconds: float) -> None:
    """All workers gave their last sign of life that long ago."""
    at, micros = await redis.time()
    for worker in await redis.zrange(keyspace.WORKERS, 0, -1):
        await redis.zadd(keyspace.WORKERS, {worker: at * 1000 + micros // 1000 - seconds * 1000})


@pytest.mark.parametrize("url", ["server", "sentinel"], indirect=True)
async def test_a_worker_is_well_while_its_own_heart_beats(url: str, redis: Redis) -> None:
    assert await run("health_worker.py", MEMORY_REDIS_URL=url) == 1
    async with Vitals(url) as vitals:
        # One of another container, also to arq.
        await vitals.beat("0" * 16 + ":1", has_stored=True)
        await redis.set(keyspace.ARQ_HEALTH, "well", ex=60)
        assert await run("health_worker.py", MEMORY_REDIS_URL=url) == 1
        await vitals.beat(new_worker(), has_stored=False)
        assert await run("health_worker.py", MEMORY_REDIS_URL=url) == 0
        await redis.delete(keyspace.ARQ_HEALTH)
        assert await run("health_worker.py", MEMORY_REDIS_URL=url) == 0


async def test_a_worker_that_hangs_is_not_well_whoever_else_lives(
    redis: Redis, redis_server: RedisServer, stand_in: HindsightStandIn, folder: Path
) -> None:
    worker = WorkerProcess(folder, redis_server.url, stand_in.url)
    await worker.start()

    async def is_well() -> bool:
        return await run("health_worker.py", MEMORY_REDIS_URL=redis_server.url) == 0

    try:
        await wait_until(is_well, "the worker's heart beats")
        worker.pause()
        await beat_ago(redis, 10)
        assert await is_well()
        await beat_ago(redis, 16)
        async with Vitals(redis_server.url) as vitals:
            await vitals.beat("0" * 16 + ":1", has_stored=True)
        assert not await is_well()
        # A stamp of a server whose clock was ahead.
        await beat_ago(redis, -60)
        assert not await is_well()
        worker.resume()
        await wait_until(is_well, "its heart beats again")
    finally:
        await worker.stop()


def test_workers_of_one_container_have_names_of_their_own() -> None:
    assert new_worker() != new_worker()


async def test_a_worker_without_its_redis_is_not_well() -> None:
    nowhere = f"127.0.0.1:{free_port()}"
    for url in (f"redis://{nowhere}", f"redis+sentinel://{nowhere}/turns/0"):
        assert await run("health_worker.py", MEMORY_REDIS_URL=url) == 1


async def test_an_api_is_well_while_it_answers(api: Api, redis_server: RedisServer) -> None:
    port = str(api.stranger.base_url.port)
    for probe in ("live", "ready?only=serving", "ready?only=accepting"):
        assert await run("health_api.py", probe, MEMORY_PORT=port) == 0
    assert await run("health_api.py", "nothing", MEMORY_PORT=port) == 1
    assert await run("health_api.py", "live", MEMORY_PORT=str(free_port())) == 1
