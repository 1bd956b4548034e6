"""The soak's clients: a request that a living process leaves without an answer is a breach, not a death."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from tests.soak.ledger import Ledger
from tests.soak.load import Door, Load
from tests.support import free_port

pytestmark = pytest.mark.anyio

_RECALLED = {"memories": [], "cached": False, "stale": False, "degraded": False, "reason": ""}


class _Api:
    """Gives the first request no answer in its own way, the others one that pleases everybody."""

    def __init__(self, failing: str, is_over: asyncio.Event) -> None:
        self.failing = failing
        self.is_over = is_over
        self.life = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if not self.is_over.is_set():
            self.is_over.set()
            if self.failing == "killed and started again":
                self.life += 1
            if self.failing == "hangs":
                await asyncio.Event().wait()
            assert request.transport is not None
            request.transport.close()
        status = 202 if request.path.endswith("/add") else 200
        return web.json_response({**_RECALLED, "verified": True}, status=status)


@asynccontextmanager
async def _serving(api: _Api) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post("/memory/{what}", api.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.05)
    await runner.setup()
    port = free_port()
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("failing", "exception"),
    [("hangs", "TimeoutError"), ("hangs up", "Server"), ("killed and started again", None)],
)
async def test_who_gives_no_answer(failing: str, exception: str | None) -> None:
    is_over, ledger = asyncio.Event(), Ledger()
    api = _Api(failing, is_over)
    async with _serving(api) as url:
        load = Load(
            [Door(url, lambda: api.life)], "key", ledger, random.Random(1),
            users=10, rate=100, callers=1, deadline_s=3, call_timeout_s=0.3,
        )  # fmt: skip
        await load.run(is_over)
    assert load.counts.answers["no answer: another process was asked"] == 1
    assert [kind for kind, _ in ledger.breaches] == ["no answer from a living process"] * (
        exception is not None
    )
    assert all(exception is not None and exception in what for _, what in ledger.breaches)


@pytest.mark.parametrize(("life", "breaches"), [(None, 0), (3, 1)])
async def test_a_door_that_is_closed(life: int | None, breaches: int) -> None:
    """Refused connections are no fault of a process that was killed, and one of a process that was not."""
    is_over, ledger = asyncio.Event(), Ledger()
    api = _Api("nothing", asyncio.Event())
    api.is_over.set()

    def look() -> int | None:
        is_over.set()
        return life

    async with _serving(api) as url:
        closed = Door(f"http://127.0.0.1:{free_port()}", look)
        load = Load(
            [closed, Door(url, lambda: 0)], "key", ledger, random.Random(1),
            users=10, rate=100, callers=1, deadline_s=3,
        )  # fmt: skip
        await load.run(is_over)
    assert len(ledger.breaches) == breaches
