"""A rolling restart under load: no request is refused or fails, no turn is lost; readiness goes red first.

The load balancer here is as plain as those in life: it asks each process of the API whether it is ready,
keeps connections open and uses them again, opens none to a process that is not ready, and repeats nothing.
"""

import asyncio
import itertools
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest
from redis.asyncio import Redis
from service.scope import bank_of

from tests.faults.conftest import Sizes
from tests.faults.havoc import Stack, open_stack
from tests.processes import KEY, ApiProcess
from tests.support import wait_until
from tests.turns_log import look

pytestmark = pytest.mark.anyio

DRAIN_S = 1.5
LOOKS_EVERY_S = 0.2
CALLERS = 8


class Balancer:
    """Spreads requests over the processes that are ready; `failures` are those that got no good answer."""

    def __init__(self, apis: list[ApiProcess], session: aiohttp.ClientSession) -> None:
        self._apis = apis
        self._session = session
        self._turns = itertools.count()
        self.ready: set[str] = set()
        self.failures: list[str] = []
        self.answered: dict[str, int] = {api.url: 0 for api in apis}

    async def watch(self) -> None:
        """Ask each process for its readiness, for ever, over connections of its own."""
        async with httpx.AsyncClient(trust_env=False, timeout=2) as client:
            while True:
                for api in self._apis:
                    try:
                        reply = await client.get(f"{api.url}/health/ready", params={"only": "serving"})
                        is_ready = reply.status_code == 200
                    except httpx.HTTPError:
                        is_ready = False
                    (self.ready.add if is_ready else self.ready.discard)(api.url)
                await asyncio.sleep(LOOKS_EVERY_S)

    async def post(self, path: str, form: dict[str, str]) -> Any:
        """Send it once to one of them; its answer, or None."""
        ready = sorted(self.ready)
        if not ready:
            self.failures.append("no process is ready")
            return None
        url = ready[next(self._turns) % len(ready)]
        try:
            async with self._session.post(f"{url}{path}", data=form) as reply:
                body = await reply.json()
                if reply.status >= 300:
                    self.failures.append(f"{reply.status} {body}")
                    return None
        except (aiohttp.ClientError, TimeoutError) as exc:
            self.failures.append(f"{type(exc).__name__} {exc}")
            return None
        self.answered[url] += 1
        return body


@asynccontextmanager
async def balanced(stack: Stack) -> AsyncIterator[Balancer]:
    """A balancer over the stack's processes that knows them to be ready."""
    headers = {"Authorization": f"Bearer {KEY}"}
    async with aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(10)) as session:
        balancer = Balancer(list(stack.apis), session)
        watching = asyncio.create_task(balancer.watch())
        try:
            await wait_until(lambda: len(balancer.ready) == len(stack.apis), "all processes are ready", 30)
            yield balancer
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching


async def talk(balancer: Balancer, caller: int, is_over: asyncio.Event) -> list[str]:
    """Add and recall in turn until it is over; the turns that were acknowledged."""
    acknowledged: list[str] = []
    for number in itertools.count():
        text = f"caller {caller} says {number:04d}."
        form = {"user_id": f"user-{caller}", "user_message": text, "turn_id": str(number)}
        if await balancer.post("/memory/add", form):
            acknowledged.append(text)
        asked = {"user_id": f"user-{caller}", "query": f"What says caller {caller}?"}
        await balancer.post("/memory/recall", asked)
        if is_over.is_set():
            return acknowledged
        await asyncio.sleep(0.02)  # so that the callers leave the processor to the processes that start
    raise AssertionError("counting has an end")


@pytest.mark.timeout(300)
async def test_a_rolling_restart_loses_and_refuses_nothing(folder: Path, sizes: Sizes) -> None:
    settings = {"quiet_s": 0.2, "max_wait_s": 2, "retain_timeout_s": 5, "drain_s": DRAIN_S}
    async with open_stack(folder, sizes, **settings) as stack, balanced(stack) as balancer:
        is_over = asyncio.Event()
        talks = [asyncio.create_task(talk(balancer, caller, is_over)) for caller in range(CALLERS)]
        for process in (*stack.apis, *stack.workers):
            served = sum(balancer.answered.values())
            await process.restart()
            await wait_until(lambda: len(balancer.ready) == len(stack.apis), "all are ready again", 30)
            assert sum(balancer.answered.values()) > served, "nothing was asked meanwhile: this shows nothing"
        is_over.set()
        acknowledged = await asyncio.gather(*talks)
        assert balancer.failures == []
        assert min(balancer.answered.values()) > 0
        assert sum(map(len, acknowledged)) > 100

        async with Redis.from_url(stack.redis.url, decode_responses=True) as redis:

            async def is_stored() -> bool:
                held = await look(redis)
                assert held.dead == set()
                return not held.documents

            await wait_until(is_stored, "everything is stored", timeout_s=60, poll_s=0.2)
        banks = await stack.hindsight.banks()
        for caller, texts in enumerate(acknowledged):
            documents = banks[bank_of("default", f"user-{caller}")].documents.values()
            assert sorted(document.text for document in documents) == sorted(
                f"User: {text}" for text in texts
            )


async def test_a_process_that_leaves_says_so_first_and_ends_what_it_has(folder: Path) -> None:
    async with open_stack(folder, Sizes(1, 0), drain_s=DRAIN_S) as stack:
        [api], [client] = stack.apis, stack.clients
        assert (await client.get("/health/ready")).headers.get("connection") != "close"
        # A recall that takes longer than the drain: Hindsight is frozen, the deadline is 3 s.
        stack.hindsight.pause()
        asked = {"user_id": "somebody", "query": "What is it?", "timeout_ms": "3000"}
        slow = asyncio.create_task(client.post("/memory/recall", data=asked))
        await asyncio.sleep(0.2)  # it is on its way
        began = time.monotonic()
        api_ends = asyncio.create_task(api.stop(timeout_s=15))

        async def is_draining() -> bool:
            # As a balancer asks: the whole look waits for the frozen Hindsight.
            reply = await client.get("/health/ready", params={"only": "serving"})
            return reply.status_code == 503 and reply.json()["status"] == "draining"

        await wait_until(is_draining, "it says that it is leaving", timeout_s=1)
        live = await client.get("/health/live")
        assert live.status_code == 200
        assert live.headers["connection"] == "close"

        async def is_closed() -> bool:
            try:
                await client.get("/health/live")
            except httpx.ConnectError:
                return True
            return False

        await wait_until(is_closed, "it takes no more", timeout_s=5)
        assert time.monotonic() - began >= DRAIN_S
        reply = await slow
        assert reply.status_code == 200
        assert reply.json()["degraded"]
        await api_ends
        assert api.returncode == -signal.SIGTERM
        stack.hindsight.resume()


async def test_a_long_poll_is_answered_when_the_process_is_told_to_leave(folder: Path) -> None:
    async with open_stack(folder, Sizes(1, 0), drain_s=DRAIN_S, in_flight_s=2) as stack:
        [api], [client] = stack.apis, stack.clients
        added = await client.post("/memory/add", data={"user_id": "somebody", "user_message": "Tea."})
        path = f"/memory/jobs/{added.json()['job_id']}"
        polling = asyncio.create_task(client.get(path, params={"wait_s": "30"}, timeout=35))
        await asyncio.sleep(0.3)  # it is on its way, and no worker will ever end it
        assert not polling.done()
        await api.stop(timeout_s=15)
        assert (reply := await polling).status_code == 200
        assert reply.json()["status"] == "queued"


async def test_a_second_signal_ends_the_wait(folder: Path) -> None:
    async with open_stack(folder, Sizes(1, 0), drain_s=60) as stack:
        [api], [client] = stack.apis, stack.clients
        ending = asyncio.create_task(api.stop(timeout_s=20))

        async def is_draining() -> bool:
            return (await client.get("/health/ready")).status_code == 503

        await wait_until(is_draining, "it says that it is leaving")
        began = time.monotonic()
        os.kill(api.pid, signal.SIGTERM)
        await ending
        assert time.monotonic() - began < 10
        assert api.returncode == -signal.SIGTERM
