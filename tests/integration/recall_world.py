"""A recall under way, stopped at each of its steps, while something is added, stored or forgotten.

Whatever the order: afterwards nobody is told as current what is old, and what was forgotten is told nobody,
not even by the recall that had begun before.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
from redis.asyncio import Redis
from service import keyspace

from tests.fakes.hindsight import HindsightStandIn
from tests.integration.conftest import Api, Workshop, open_workshop, run_api, settings_for
from tests.integration.recall_parts import (
    QUERY,
    Gate,
    ReplyGate,
    bank,
    how,
    keys_of,
    remember,
    said,
    texts,
)
from tests.support import RedisServer, wait_until

# Where a recall is stopped: at a command of Redis, before or after it has run, or at Hindsight.
POINTS = [
    ("MGET", "before"),
    ("MGET", "after"),
    ("SET", "before"),
    ("SET", "after"),
    ("HGETALL", "before"),
    ("HGETALL", "after"),
    ("hindsight", "before"),
    ("hindsight", "after"),
    ("EVAL", "before"),
    ("EVAL", "after"),
]
EVENTS = ("add", "store", "forget")


@dataclass
class World:
    """Two replicas of the API, of which the first one's wires can be held, and a worker."""

    held: Api
    free: Api
    workshop: Workshop
    stand_in: HindsightStandIn
    redis: Redis
    gate: Gate
    requests: ReplyGate
    replies: ReplyGate
    count: int = 0
    expected: dict[str, set[str]] = field(default_factory=dict)
    forgotten: dict[str, set[str]] = field(default_factory=dict)

    @contextmanager
    def stopped_at(self, point: tuple[str, str]) -> Iterator[asyncio.Event]:
        """Stop the first replica there; the event tells that it has got there."""
        what, when = point
        if what != "hindsight":
            with self.gate.hold(what, after=when == "after") as hold:
                yield hold.reached
            return
        gate = self.requests if when == "before" else self.replies
        gate.reached.clear()
        gate.is_open.clear()
        try:
            yield gate.reached
        finally:
            gate.is_open.set()

    async def happen(self, event: str, user: str) -> None:
        """Let one thing happen to a user's memory, completely, the way the service does it."""
        if event == "add":
            self.count += 1
            marker = f"M{self.count}x"
            reply = await self.free.add(user, f"{marker} {said(marker)}", conversation_id=marker)
            assert reply.status_code == 202
            self.expected[user].add(marker)
        elif event == "store":
            await self.workshop.work()
        else:
            # Sources first, then the cache; only what Hindsight has, since the log is not emptied here.
            pending = " ".join(await self.redis.hvals(keyspace.turns(bank(user))))  # type: ignore[misc]
            self.stand_in.banks[bank(user)].memories.clear()
            gone = {marker for marker in self.expected[user] if marker not in pending}
            await self.workshop.cache.note_purge(bank(user))
            self.expected[user] -= gone
            self.forgotten[user] |= gone


@asynccontextmanager
async def open_world(redis_server: RedisServer, stand_in: HindsightStandIn) -> AsyncIterator[World]:
    """Everything running."""
    await redis_server.command("FLUSHALL")
    port = int(stand_in.url.rpartition(":")[2])
    gate = Gate(redis_server.port)
    replies = ReplyGate(port, holds="reply")
    async with AsyncExitStack() as stack:
        replies_url = await stack.enter_async_context(replies.open())
        requests = ReplyGate(int(replies_url.rpartition(":")[2]), holds="request")
        url = await stack.enter_async_context(requests.open())
        patient: dict[str, Any] = {"min_score": 0, "cache_patience_ms": 3000, "recall_deadline_ms": 8000}
        held = settings_for(await stack.enter_async_context(gate.open()), url, **patient)
        free = settings_for(redis_server.url, url, **patient)
        yield World(
            await stack.enter_async_context(run_api(held)),
            await stack.enter_async_context(run_api(free)),
            await stack.enter_async_context(open_workshop(settings_for(redis_server.url, stand_in.url))),
            stand_in,
            await stack.enter_async_context(Redis.from_url(redis_server.url, decode_responses=True)),
            gate,
            requests,
            replies,
        )


async def ask(api: Api, user: str) -> httpx.Response:
    """A recall wide enough for all that there is."""
    return await api.recall(user, QUERY, max_chars="500", top_k="20")


def markers(reply: httpx.Response, world: World, user: str) -> list[str]:
    """Which of the user's markers are in an answer, as often as they are."""
    known = world.expected[user] | world.forgotten[user]
    return sorted(marker for text in texts(reply) for marker in known if f"{marker} " in f"{text} ")


async def stopped_recall(
    world: World, user: str, point: tuple[str, str], order: tuple[str, ...], is_warm: bool
) -> None:
    """One recall, stopped at one point while things happen in one order."""
    where = f"{point} {order} {is_warm}"
    remember(world.stand_in, user, "M0x")
    world.expected[user], world.forgotten[user] = {"M0x"}, set()
    if is_warm:
        # There is an old answer, which is old only since another one is known to be there.
        await ask(world.free, user)
        await world.happen("add", user)
    with world.stopped_at(point) as reached:
        running = asyncio.create_task(ask(world.held, user))
        await wait_until(reached.is_set, f"the recall is there: {where}", 5, 0.001)
        for event in order:
            await world.happen(event, user)
    reply = await running
    told = markers(reply, world, user)
    is_whole = not how(reply)["degraded"]
    if not is_whole:
        # The log of turns is waited for a moment only: this recall went on before all this had happened,
        # or a busy machine kept it waiting when it had to ask again.
        assert how(reply)["reason"] == "turns_log_unavailable", where
    assert len(told) == len(set(told)), where
    if is_whole and point != ("EVAL", "after"):
        # It could still know: what it read was forgotten before it answered.
        assert not set(told) & world.forgotten[user], where
    for again in (world.held, world.free):
        assert markers(await ask(again, user), world, user) == sorted(world.expected[user]), where
    await no_trace(world, user, where)
    world.stand_in.fail("recall", "status", status=422)  # refused, which spares the breaker
    for again in (world.held, world.free):
        reply = await again.recall(user, QUERY, max_chars="500", top_k="20", fresh="true")
        assert how(reply)["stale"], where
        assert markers(reply, world, user) == sorted(world.expected[user]), where
    world.stand_in.heal()


async def no_trace(world: World, user: str, where: str) -> None:
    """No answer that was stored later holds what was forgotten."""
    for key in await keys_of(world.redis, "recall"):
        if bank(user) not in key:
            continue
        value = await world.redis.get(key)
        assert not [marker for marker in world.forgotten[user] if f"{marker} " in value], where
