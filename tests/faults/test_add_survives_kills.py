"""Promises 1 and 2 at once: everything is killed again and again while 50 users talk.

APIs, workers, Hindsight (the stand-in, with its state on disk) and Redis are killed, frozen and
restarted at random. Callers repeat a request until it is acknowledged. In the end each
acknowledged turn is in Hindsight exactly once, in order within its conversation; nothing is dead,
nothing is left waiting, and Redis holds no text and no key that would stay for ever.

With the way past the queue open (it is while Redis is down, unless a setting forbids it), a turn may
overtake those that wait, and may be written by both ways; it is one document all the same, and the
times that the memories carry tell their order.
"""

import asyncio
import random
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import httpx
import pytest
from redis.asyncio import Redis
from service import keyspace
from service.scope import bank_of

from tests.fakes.hindsight_store import Bank
from tests.faults.conftest import Sizes
from tests.faults.havoc import Havoc, Stack, open_stack
from tests.support import wait_until
from tests.turns_log import look, without_ttl

pytestmark = pytest.mark.anyio

USERS = 50
CONVERSATIONS = 2
TURNS = 20  # of each conversation: 2,000 in all
CALLERS = 10
LEAST_BLOWS = 5  # to each process
MARKER = "marigold"


async def talk(clients: Sequence[httpx.AsyncClient], user: str, conversation: str, rng: random.Random) -> int:
    """Add a conversation's turns in order, each until it is acknowledged; how many requests it took.

    Each request goes to any process of the API, as behind a load balancer.
    """
    requests = 0
    for number in range(TURNS):
        form = {
            "user_id": user,
            "conversation_id": conversation,
            "turn_id": f"run-{conversation}-{number}",
            "user_message": said(conversation, number),
        }

        async def acknowledged(form: dict[str, str] = form) -> bool:
            nonlocal requests
            requests += 1
            reply = await rng.choice(clients).post("/memory/add", data=form)
            assert reply.status_code in (202, 503), reply.text
            return reply.status_code == 202

        await wait_until(
            acknowledged, "the turn is acknowledged", timeout_s=300, poll_s=rng.uniform(0.05, 0.3)
        )
        if rng.random() < 0.1:
            with suppress(httpx.HTTPError):
                await acknowledged()  # Dify's own retry: the same turn once more
    return requests


def said(conversation: str, number: int) -> str:
    """The words of a turn."""
    return f"{MARKER} {conversation} turn {number:03d}."


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("seed", "direct_fallback"), [(1, False), (2, False), (3, True)])
async def test_each_acknowledged_turn_is_stored_once_and_in_order(
    folder: Path, sizes: Sizes, seed: int, direct_fallback: bool
) -> None:
    rng = random.Random(seed)
    given: dict[str, object] = {
        "quiet_s": 0.2,
        "max_wait_s": 2,
        "retain_timeout_s": 5,
        "direct_fallback": direct_fallback,
    }
    async with open_stack(folder, sizes, **given) as stack:
        is_over = asyncio.Event()
        havoc = Havoc(stack, random.Random(seed), LEAST_BLOWS)
        hurting = asyncio.create_task(havoc.run(is_over))
        callers = asyncio.Semaphore(CALLERS)

        async def one(user: int, conversation: int) -> int:
            async with callers:
                return await talk(stack.clients, f"user-{user}", f"c{conversation}", rng)

        talks = [one(user, c) for user in range(USERS) for c in range(CONVERSATIONS)]
        requests = sum(await asyncio.gather(*talks))
        is_over.set()
        await hurting
        print(f"requests: {requests}, blows: {havoc.blows}, died by themselves: {havoc.deaths}")  # noqa: T201
        assert requests >= USERS * CONVERSATIONS * TURNS
        assert min(havoc.blows.values()) >= LEAST_BLOWS

        await check_log(stack)
        await check_hindsight(stack, has_one_way=not direct_fallback)
        await check_recall(stack.clients)


async def check_log(stack: Stack) -> None:
    """Everything is stored in the end, and nothing of it is left in Redis."""
    async with Redis.from_url(stack.redis.url, decode_responses=True) as redis:

        async def is_quiet() -> bool:
            for worker in stack.workers:
                if not worker.is_running:
                    await worker.start()
            held = await look(redis)
            assert held.faults() == []
            return not held.documents and not held.due

        await wait_until(is_quiet, "everything is stored", timeout_s=300, poll_s=0.5)
        held = await look(redis)
        assert (held.dead, held.claims) == (set(), {})
        assert await without_ttl(redis) <= {keyspace.ARQ_QUEUE}
        assert await texts_in(redis) == []


async def check_hindsight(stack: Stack, *, has_one_way: bool) -> None:
    """Each turn is one document with one memory, written once if there is one way only; in order."""

    async def has_ended() -> bool:
        # What went past the queue is in Hindsight's own.
        banks = await stack.hindsight.banks()
        return sum(len(bank.documents) for bank in banks.values()) >= USERS * CONVERSATIONS * TURNS

    await wait_until(has_ended, "Hindsight has stored everything", timeout_s=60, poll_s=0.5)
    banks = await stack.hindsight.banks()
    for user in range(USERS):
        bank = banks[bank_of("default", f"user-{user}")]
        assert len(bank.documents) == len(bank.memories) == CONVERSATIONS * TURNS
        # What went past the queue may be stored before what waits in it: there the times tell the order.
        orders = [by_time(bank)] + ([[text for _, text in bank.written]] if has_one_way else [])
        for texts in orders:
            found = [re.findall(r"(c\d) turn (\d+)", text) for text in texts]
            assert all(len(pairs) == 1 for pairs in found)
            for conversation in range(CONVERSATIONS):
                numbers = [int(n) for ((c, n),) in found if c == f"c{conversation}"]
                assert numbers == list(range(TURNS)), (user, conversation)
        most_writes = max(document.writes for document in bank.documents.values())
        assert most_writes == 1 or not has_one_way


def by_time(bank: Bank) -> list[str]:
    """Memories in the order of the times that they carry."""
    return [
        m.text
        for m in sorted(bank.memories.values(), key=lambda m: datetime.fromisoformat(str(m.mentioned_at)))
    ]


async def check_recall(clients: Sequence[httpx.AsyncClient]) -> None:
    """Each turn is recalled, by every process."""
    at_once = asyncio.Semaphore(4)
    wide = {"min_score": "0", "top_k": "50", "max_chars": "1000", "timeout_ms": "10000"}
    turns = {said(f"c{c}", number) for c in range(CONVERSATIONS) for number in range(TURNS)}

    async def check(client: httpx.AsyncClient, user: int) -> None:
        asked = {"user_id": f"user-{user}", "query": f"{MARKER} turn", **wide}
        async with at_once:
            reply = await client.post("/memory/recall", json=asked, timeout=30)
        known = {memory["text"].removeprefix("User: ") for memory in reply.json()["memories"]}
        assert known == turns, (user, reply.text)

    await asyncio.gather(*(check(client, user) for client in clients for user in range(USERS)))


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
        kind = await redis.type(key)
        # One that has expired since is none.
        if kind != "none" and MARKER in str(await readers[kind](key)):
            found.append(key)
    return found
