"""Promises 1 and 2 at once: everything is killed again and again while 50 users talk.

API, worker, Hindsight (the stand-in, with its state on disk) and Redis are killed, frozen and
restarted at random. Callers repeat a request until it is acknowledged. In the end each
acknowledged turn is in Hindsight exactly once, in order within its conversation; nothing is dead,
nothing is left waiting, and Redis holds no text and no key that would stay for ever.

With the way past the queue open (it is while Redis is down, unless a setting forbids it), a turn may
overtake those that wait, and may be written by both ways; it is one document all the same.
"""

import asyncio
import random
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from redis.asyncio import Redis
from service import keyspace
from service.scope import bank_of

from tests.fakes.hindsight import HindsightProcess
from tests.processes import KEY, ApiProcess, WorkerProcess
from tests.support import RedisServer, ServerProcess, valkey, wait_until
from tests.turns_log import look, without_ttl

pytestmark = pytest.mark.anyio

USERS = 50
CONVERSATIONS = 2
TURNS = 20  # of each conversation: 2,000 in all
CALLERS = 10
LEAST_BLOWS = 5  # to each of the four processes
MARKER = "marigold"


@dataclass
class Stack:
    """Everything that can be killed."""

    redis: RedisServer
    hindsight: HindsightProcess
    api: ApiProcess
    worker: WorkerProcess

    @property
    def processes(self) -> list[ServerProcess]:
        return [self.redis, self.hindsight, self.api, self.worker]


@asynccontextmanager
async def open_stack(folder: Path, *, direct_fallback: bool) -> AsyncIterator[Stack]:
    """All four as processes, stopped in the end."""
    async with AsyncExitStack() as stack:
        redis = await stack.enter_async_context(valkey(folder / "redis"))
        hindsight = HindsightProcess(folder / "hindsight")
        given = {"quiet_s": 0.2, "max_wait_s": 2, "retain_timeout_s": 5}
        api = ApiProcess(folder / "api", redis.url, hindsight.url, direct_fallback=direct_fallback, **given)
        worker = WorkerProcess(folder / "worker", redis.url, hindsight.url, **given)
        for process in (hindsight, api, worker):
            stack.push_async_callback(process.stop)
            await process.start()
        yield Stack(redis, hindsight, api, worker)


class Havoc:
    """Hurts each process again and again, at its own pace, until told to stop; counts the blows.

    It is the supervisor as well: what has died of the others' wounds is started again, and counted.
    """

    def __init__(self, stack: Stack, seed: int) -> None:
        self._stack = stack
        self._random = random.Random(seed)
        self.blows: dict[str, int] = {}
        self.deaths: dict[str, int] = {}

    async def run(self, is_over: asyncio.Event) -> None:
        """Go on until `is_over`, but until each process had its share in any case."""
        async with asyncio.TaskGroup() as tasks:
            for process in self._stack.processes:
                tasks.create_task(self._hurt(process, is_over))

    async def _hurt(self, process: ServerProcess, is_over: asyncio.Event) -> None:
        name = type(process).__name__
        self.blows[name] = self.deaths[name] = 0
        while not is_over.is_set() or self.blows[name] < LEAST_BLOWS:
            await _pause(self._random.uniform(0.5, 6), is_over)
            if not process.is_running:
                self.deaths[name] += 1
            else:
                await self._random.choice((process.kill, process.kill, process.stop, self._freeze(process)))()
                self.blows[name] += 1
            if not process.is_running:
                await self._revive(process)

    def _freeze(self, process: ServerProcess) -> Callable[[], Awaitable[None]]:
        async def freeze() -> None:
            process.pause()
            # Longer than a claim, sometimes: the worker then comes back after its banks were given away.
            await _pause(self._random.choice((0.3, 3, 12)), asyncio.Event())
            process.resume()

        return freeze

    async def _revive(self, process: ServerProcess) -> None:
        for _ in range(5):
            # What it needs may be dead at this moment; then it is started once more.
            with suppress(AssertionError):
                await process.start()
                return
        await process.start()


async def _pause(seconds: float, is_over: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(seconds):
            await is_over.wait()
    except TimeoutError:
        return


async def talk(client: httpx.AsyncClient, user: str, conversation: str, rng: random.Random) -> int:
    """Add a conversation's turns in order, each until it is acknowledged; how many requests it took."""
    requests = 0
    for number in range(TURNS):
        form = {
            "user_id": user,
            "conversation_id": conversation,
            "turn_id": f"run-{conversation}-{number}",
            "user_message": f"{MARKER} {conversation} turn {number:03d}.",
        }

        async def acknowledged(form: dict[str, str] = form) -> bool:
            nonlocal requests
            requests += 1
            reply = await client.post("/memory/add", data=form)
            assert reply.status_code in (202, 503), reply.text
            return reply.status_code == 202

        await wait_until(
            acknowledged, "the turn is acknowledged", timeout_s=120, poll_s=rng.uniform(0.05, 0.3)
        )
        if rng.random() < 0.1:
            with suppress(httpx.HTTPError):
                await acknowledged()  # Dify's own retry: the same turn once more
    return requests


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("seed", "direct_fallback"), [(1, False), (2, False), (3, True)])
async def test_each_acknowledged_turn_is_stored_once_and_in_order(
    folder: Path, seed: int, direct_fallback: bool
) -> None:
    rng = random.Random(seed)
    async with open_stack(folder, direct_fallback=direct_fallback) as stack:
        is_over = asyncio.Event()
        havoc = Havoc(stack, seed)
        hurting = asyncio.create_task(havoc.run(is_over))
        callers = asyncio.Semaphore(CALLERS)
        headers = {"Authorization": f"Bearer {KEY}"}
        async with httpx.AsyncClient(base_url=stack.api.url, headers=headers, timeout=10) as client:

            async def one(user: int, conversation: int) -> int:
                async with callers:
                    return await talk(client, f"user-{user}", f"c{conversation}", rng)

            talks = [one(user, c) for user in range(USERS) for c in range(CONVERSATIONS)]
            requests = sum(await asyncio.gather(*talks))
        is_over.set()
        await hurting

        async with Redis.from_url(stack.redis.url, decode_responses=True) as redis:

            async def is_quiet() -> bool:
                if not stack.worker.is_running:
                    await stack.worker.start()
                held = await look(redis)
                assert held.faults() == []
                return not held.documents and not held.due

            await wait_until(is_quiet, "everything is stored", timeout_s=300, poll_s=0.5)
            held = await look(redis)
            assert (held.dead, held.claims) == (set(), {})
            assert await without_ttl(redis) <= {keyspace.ARQ_QUEUE}
            assert await texts_in(redis) == []

        assert requests >= USERS * CONVERSATIONS * TURNS
        assert min(havoc.blows.values()) >= LEAST_BLOWS
        print(f"requests: {requests}, blows: {havoc.blows}, died by themselves: {havoc.deaths}")  # noqa: T201

        async def has_ended() -> bool:
            # What went past the queue is in Hindsight's own.
            banks = await stack.hindsight.banks()
            return sum(len(bank.documents) for bank in banks.values()) >= USERS * CONVERSATIONS * TURNS

        await wait_until(has_ended, "Hindsight has stored everything", timeout_s=60, poll_s=0.5)
        banks = await stack.hindsight.banks()
        for user in range(USERS):
            bank = banks[bank_of("default", f"user-{user}")]
            texts = [text for _, text in bank.written]
            if direct_fallback:
                texts = sorted(document.text for document in bank.documents.values())
            written = [re.findall(r"(c\d) turn (\d+)", text) for text in texts]
            assert all(len(found) == 1 for found in written)
            for conversation in range(CONVERSATIONS):
                numbers = [int(n) for ((c, n),) in written if c == f"c{conversation}"]
                assert numbers == list(range(TURNS)), (user, conversation)
            most_writes = max(document.writes for document in bank.documents.values())
            assert most_writes == 1 or direct_fallback
        async with httpx.AsyncClient(base_url=stack.api.url, headers=headers, timeout=30) as client:
            for user in range(USERS):
                asked = {"user_id": f"user-{user}", "query": f"{MARKER} c1 turn {user % TURNS:03d}."}
                wide = {"min_score": "0", "top_k": "50", "max_chars": "1000", "timeout_ms": "10000"}
                reply = await client.post("/memory/recall", json={**asked, **wide})
                known = [memory["text"] for memory in reply.json()["memories"]]
                assert any(f"c1 turn {user % TURNS:03d}." in text for text in known), (user, reply.text)


async def texts_in(redis: Redis) -> list[str]:
    """Keys that still hold something that was said."""
    readers: dict[str, Callable[[str], Awaitable[object]]] = {
        "string": redis.get,
        "hash": redis.hgetall,  # type: ignore[dict-item]
        "list": lambda key: redis.lrange(key, 0, -1),  # type: ignore[dict-item,return-value]
        "zset": lambda key: redis.zrange(key, 0, -1),
        "set": redis.smembers,  # type: ignore[dict-item]
    }
    found: list[str] = []
    async for key in redis.scan_iter(match="*", count=500):
        value = await readers[await redis.type(key)](key)
        if MARKER in str(value):
            found.append(key)
    return found
