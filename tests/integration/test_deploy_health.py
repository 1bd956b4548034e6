"""The checks that containers run, as processes of their own, against real servers."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.asyncio import Redis
from service import keyspace
from service.adapters.redis_urls import sentinel_url

from tests.deployment import DEPLOY
from tests.integration.conftest import Api
from tests.support import RedisServer, ServerProcess, free_port, valkey_binary

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


@pytest.mark.parametrize("url", ["server", "sentinel"], indirect=True)
async def test_a_worker_is_well_while_its_heartbeat_is_there(url: str, redis_server: RedisServer) -> None:
    async with Redis.from_url(redis_server.url) as redis:
        await redis.delete(keyspace.ARQ_HEALTH)
        assert await run("health_worker.py", MEMORY_REDIS_URL=url) == 1
        await redis.set(keyspace.ARQ_HEALTH, "well", ex=60)
        assert await run("health_worker.py", MEMORY_REDIS_URL=url) == 0


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
