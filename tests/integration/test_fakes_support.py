"""The test tools themselves: a tool that cannot fail, or loses data, would hide everything else."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis

from tests.support import ServerProcess, free_port, serve, valkey, wait_until

pytestmark = pytest.mark.anyio
Message = MutableMapping[str, Any]


async def test_wait_until_returns_the_true_value() -> None:
    seen: list[int] = []

    def third_time() -> int:
        seen.append(1)
        return len(seen) if len(seen) == 3 else 0

    assert await wait_until(third_time, "three calls") == 3


async def test_wait_until_names_what_was_awaited_and_the_last_value() -> None:
    with pytest.raises(AssertionError, match=r"in vain for: the moon\. Last seen: \[\]"):
        await wait_until(list, "the moon", timeout_s=0.05)


async def test_wait_until_reports_the_last_exception() -> None:
    async def refused() -> bool:
        raise ConnectionRefusedError("nobody there")

    with pytest.raises(AssertionError, match="ConnectionRefusedError: nobody there"):
        await wait_until(refused, "a listener", timeout_s=0.05)


async def test_wait_until_cuts_off_a_condition_that_hangs() -> None:
    with pytest.raises(AssertionError, match="the end of time"):
        await wait_until(asyncio.Event().wait, "the end of time", timeout_s=0.05)


async def test_wait_until_does_not_hide_a_bug_in_the_condition() -> None:
    def broken() -> bool:
        raise TypeError("a bug")

    with pytest.raises(TypeError, match="a bug"):
        await wait_until(broken, "never")


async def test_serve_runs_an_app_and_cuts_what_hangs_when_leaving() -> None:
    hanging = asyncio.Event()

    async def app(scope: Message, receive: Callable[[], Awaitable[Message]], send: Any) -> None:
        assert scope["type"] == "http"
        if scope["path"] == "/hang":
            hanging.set()
            await asyncio.Event().wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"hello"})

    async with httpx.AsyncClient() as client:
        async with serve(app) as url:
            assert (await client.get(url)).text == "hello"
            stuck = asyncio.create_task(client.get(f"{url}/hang"))
            await asyncio.wait_for(hanging.wait(), 5)
        with pytest.raises(httpx.ConnectError):
            await client.get(url)
        await asyncio.gather(stuck, return_exceptions=True)
        assert stuck.done()


async def test_serve_says_that_the_lifespan_failed() -> None:
    async def app(scope: Message, receive: Callable[[], Awaitable[Message]], send: Any) -> None:
        await receive()
        await send({"type": "lifespan.startup.failed", "message": "no"})

    with pytest.raises(RuntimeError, match="lifespan"):
        async with serve(app):
            pass


async def test_a_server_process_that_ends_at_once_shows_its_log(tmp_path: Path) -> None:
    async def never() -> bool:
        return False

    script = "import sys; sys.exit('no such option')"
    server = ServerProcess([sys.executable, "-c", script], log_path=tmp_path / "log", is_ready=never)
    with pytest.raises(AssertionError, match="no such option"):
        await server.start()
    assert not server.is_running


async def test_valkey_keeps_acknowledged_writes_over_a_kill(tmp_path: Path) -> None:
    async with valkey(tmp_path / "redis") as server:
        async with Redis.from_url(server.url) as redis:
            await redis.set("a", "1")
        await server.kill()
        assert server.returncode == -9
        await server.start()
        async with Redis.from_url(server.url) as redis:
            assert await redis.get("a") == b"1"


async def test_valkey_without_aof_forgets_over_a_kill(tmp_path: Path) -> None:
    async with valkey(tmp_path / "redis", aof=False) as server:
        async with Redis.from_url(server.url) as redis:
            await redis.set("a", "1")
        await server.kill()
        await server.start()
        async with Redis.from_url(server.url) as redis:
            assert await redis.get("a") is None


async def test_valkey_restarts_with_its_data_and_empty(tmp_path: Path) -> None:
    async with valkey(tmp_path / "redis", port=free_port()) as server:
        url = server.url
        async with Redis.from_url(url) as redis:
            await redis.set("a", "1")
        await server.restart()
        async with Redis.from_url(url) as redis:
            assert await redis.get("a") == b"1"
        await server.restart_empty()
        assert server.url == url
        async with Redis.from_url(url) as redis:
            assert await redis.get("a") is None


async def test_a_paused_valkey_accepts_and_does_not_answer(tmp_path: Path) -> None:
    async with valkey(tmp_path / "redis") as server:
        server.pause()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(server.command("PING"), 0.2)
        server.resume()
        assert await server.command("PING") == b"+PONG\r\n"


async def test_valkey_takes_further_arguments(tmp_path: Path) -> None:
    extra = ("--maxmemory-policy", "allkeys-lru")
    async with valkey(tmp_path / "redis", extra=extra) as server, Redis.from_url(server.url) as redis:
        assert await redis.config_get("maxmemory-policy") == {"maxmemory-policy": "allkeys-lru"}
