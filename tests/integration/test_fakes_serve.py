"""The server of the tests ends at once, but not before it has answered."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import httpx
import pytest

from tests.support import serve

pytestmark = pytest.mark.anyio
Message = MutableMapping[str, Any]


async def test_leaving_waits_for_a_request_and_ends_the_lifespan_after_it() -> None:
    asked, told = asyncio.Event(), asyncio.Event()
    seen: list[str] = []

    async def app(scope: Message, receive: Callable[[], Awaitable[Message]], send: Any) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            seen.append("lifespan")
            await send({"type": "lifespan.shutdown.complete"})
            return
        asked.set()
        await told.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"hello"})
        seen.append("request")

    async with httpx.AsyncClient() as client:
        async with serve(app) as url:
            answered = asyncio.create_task(client.get(url))
            await asyncio.wait_for(asked.wait(), 5)
            # Once the server has begun to end.
            asyncio.get_running_loop().call_later(0.05, told.set)
        assert (await answered).text == "hello"
    assert seen == ["request", "lifespan"]


async def test_an_idle_connection_holds_nothing_up() -> None:
    async def app(scope: Message, receive: Callable[[], Awaitable[Message]], send: Any) -> None:
        assert scope["type"] == "http"
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    async with httpx.AsyncClient() as client:
        async with asyncio.timeout(5), serve(app) as url:
            assert (await client.get(url)).status_code == 200
        # The client has kept its connection, which the server has closed.
        with pytest.raises(httpx.ConnectError):
            await client.get(url)
