"""The whole service as processes, and somebody who hurts them all."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import httpx

from tests.fakes.hindsight import HindsightProcess
from tests.faults.conftest import Sizes
from tests.processes import KEY, ApiProcess, WorkerProcess
from tests.support import RedisServer, ServerProcess, valkey


@dataclass
class Stack:
    """Everything that can be killed; `clients` has one for each process of the API."""

    redis: RedisServer
    hindsight: HindsightProcess
    apis: Sequence[ApiProcess]
    workers: Sequence[WorkerProcess]
    clients: Sequence[httpx.AsyncClient]

    @property
    def processes(self) -> dict[str, ServerProcess]:
        """By name."""
        ours: dict[str, ServerProcess] = {f"api {n}": api for n, api in enumerate(self.apis)}
        ours |= {f"worker {n}": worker for n, worker in enumerate(self.workers)}
        return {"redis": self.redis, "hindsight": self.hindsight, **ours}


@asynccontextmanager
async def open_stack(folder: Path, sizes: Sizes, **settings: object) -> AsyncIterator[Stack]:
    """All of them as processes, stopped in the end; the clients wait up to ten seconds for an answer."""
    async with AsyncExitStack() as stack:
        redis = await stack.enter_async_context(valkey(folder / "redis"))
        hindsight = HindsightProcess(folder / "hindsight")
        apis = [
            ApiProcess(folder / f"api-{n}", redis.url, hindsight.url, **settings) for n in range(sizes.apis)
        ]
        workers = [
            WorkerProcess(folder / f"worker-{n}", redis.url, hindsight.url, **settings)
            for n in range(sizes.workers)
        ]
        for process in (hindsight, *apis, *workers):
            stack.push_async_callback(process.stop)
            await process.start()  # one by one: a slow machine has time limits to keep, too
        clients = [
            await stack.enter_async_context(
                httpx.AsyncClient(
                    base_url=api.url, headers={"Authorization": f"Bearer {KEY}"}, timeout=10, trust_env=False
                )
            )
            for api in apis
        ]
        yield Stack(redis, hindsight, apis, workers, clients)


class Havoc:
    """Hurts each process again and again, at its own pace, until told to stop; counts the blows.

    It is the supervisor as well: what has died of the others' wounds is started again, and counted.
    Each process gets `least_blows` in any case.
    """

    def __init__(self, stack: Stack, rng: random.Random, least_blows: int) -> None:
        self._stack = stack
        self._random = rng
        self._least_blows = least_blows
        self.blows: dict[str, int] = {}
        self.deaths: dict[str, int] = {}

    async def run(self, is_over: asyncio.Event) -> None:
        """Go on until `is_over`, but until each process had its share in any case."""
        async with asyncio.TaskGroup() as tasks:
            for name, process in self._stack.processes.items():
                tasks.create_task(self._hurt(name, process, is_over))

    async def _hurt(self, name: str, process: ServerProcess, is_over: asyncio.Event) -> None:
        self.blows[name] = self.deaths[name] = 0
        start_s = 0.0
        while not is_over.is_set() or self.blows[name] < self._least_blows:
            # Where starting takes long, living must as well, or nothing would ever be up.
            await pause(self._random.uniform(0.5, 6) + start_s, is_over)
            if not process.is_running:
                self.deaths[name] += 1
            else:
                await self._random.choice((process.kill, process.kill, process.stop, self._freeze(process)))()
                self.blows[name] += 1
            if not process.is_running:
                began = monotonic()
                await self._revive(process)
                start_s = monotonic() - began

    def _freeze(self, process: ServerProcess) -> Callable[[], Awaitable[None]]:
        async def freeze() -> None:
            process.pause()
            # Longer than a claim, sometimes: the worker then comes back after its banks were given away.
            await pause(self._random.choice((0.3, 3, 12)))
            process.resume()

        return freeze

    async def _revive(self, process: ServerProcess) -> None:
        for _ in range(5):
            # What it needs may be dead at this moment; then it is started once more.
            with suppress(AssertionError):
                await process.start()
                return
        await process.start()


async def pause(seconds: float, is_over: asyncio.Event | None = None) -> None:
    """Let that much time pass, or less if it is over."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await (is_over or asyncio.Event()).wait()
