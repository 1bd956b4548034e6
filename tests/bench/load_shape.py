"""What traffic shaped like chats costs: processor time by role, Redis memory, times, and what size follows.

A chat's turn is a recall of a question that nobody has asked before, sometimes the same recall again (a
second node of the flow, an agent that calls twice, a retry), then an add, after which what is cached of that
user is old. So most recalls of honest traffic are misses: the share of repetitions is the hit ratio. Users
are drawn from a million, some much more often than others. One process of each role; the stand-in plays
Hindsight, whose own share is not in these numbers.

Processor time a request hardly changes with the rate, so that cores for 1,000 recalls a second follow from
what this machine can drive.
"""

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import aiohttp
from redis.asyncio import Redis
from service import keyspace
from service.scope import bank_of

from tests.bench import report
from tests.fakes.hindsight import HindsightProcess, HindsightStandIn
from tests.fakes.hindsight_store import Store
from tests.processes import KEY, ApiProcess, WorkerProcess
from tests.support import RedisServer, valkey, wait_until

_USERS: Final = 1_000_000
_DRAWN: Final = 2_000
_AT_ONCE: Final = 16
# How often a turn's question is asked before its add: once, twice, three times.
_ASKED: Final = (0.6, 0.3, 0.1)
_FACTS: Final = (
    "I live in Lisbon and work as a backend engineer on payment systems, mostly in Go.",
    "My daughter started school in September and I can only meet after nine in the morning.",
    "I am allergic to peanuts, please never suggest a restaurant without checking for that.",
    "For the marathon in October I run four times a week and rest on Mondays and Fridays.",
    "Answer in short bullet points, I read your messages on my phone on the train to work.",
)
_SAID: Final = "For the trip in May I would rather take the train, and the hotel may cost 120 euros a night"
_ANSWERED: Final = "Then I look for connections by train and for hotels of up to 120 euros near the station."


@dataclass
class Site:
    """One process of each role."""

    redis: RedisServer
    cache: RedisServer
    api: ApiProcess
    worker: WorkerProcess
    session: aiohttp.ClientSession


@dataclass
class Times:
    """Milliseconds by what was asked and how it was answered."""

    ms: dict[str, list[float]] = field(default_factory=dict)

    def note(self, what: str, since: float) -> None:
        """One answer."""
        self.ms.setdefault(what, []).append((time.perf_counter() - since) * 1000)


def _user() -> str:
    """Of a million, with a long tail; as many different ones as were given memories."""
    return f"user-{int(_USERS * (int(random.random() ** 2 * _DRAWN) / _DRAWN))}"


async def _open(stack: AsyncExitStack, folder: Path) -> Site:
    # Memories of those who will ask, put where the stand-in looks when it starts.
    store = Store()
    for number in range(_DRAWN):
        bank = bank_of("default", f"user-{int(_USERS * (number / _DRAWN))}")
        store.ensure_bank(bank)
        for fact in _FACTS:
            store.add_memory(bank, f"User: {fact}")
    home = folder / "hindsight"
    hindsight = HindsightProcess(home)
    (home / "memories.json").write_text(json.dumps(store.dump()), encoding="utf-8")
    # Read once and not written again: the stand-in's way of being durable is not what is measured here.
    hindsight.argv = [sys.executable, "-m", "tests.bench.load_shape", "--port", str(hindsight.port)]
    hindsight.argv += ["--hindsight", str(home / "memories.json")]
    redis = await stack.enter_async_context(valkey(folder / "redis"))
    cache = await stack.enter_async_context(valkey(folder / "cache", aof=False))
    given = {"cache_redis_url": cache.url, "quiet_s": 1, "log_level": "warning", "min_score": 0}
    api = ApiProcess(folder / "api", redis.url, hindsight.url, **given)
    worker = WorkerProcess(folder / "worker", redis.url, hindsight.url, **given)
    for process in (hindsight, api, worker):
        stack.push_async_callback(process.stop)
        await process.start()
    headers = {"Authorization": f"Bearer {KEY}"}
    session = await stack.enter_async_context(aiohttp.ClientSession(headers=headers))
    return Site(redis, cache, api, worker, session)


async def _recall(site: Site, user: str, query: str, times: Times) -> None:
    since = time.perf_counter()
    form = {"user_id": user, "query": query, "conversation_id": "now"}
    async with site.session.post(f"{site.api.url}/memory/recall", data=form) as reply:
        answer = await reply.json()
    assert reply.status == 200, answer
    times.note("degraded" if answer["degraded"] else "hit" if answer["cached"] else "miss", since)


async def _add(site: Site, user: str, turn: str, times: Times) -> None:
    since = time.perf_counter()
    said = {"user_message": f"{_SAID} ({turn}).", "assistant_message": _ANSWERED}
    form = {"user_id": user, "turn_id": turn, "conversation_id": "now", **said}
    async with site.session.post(f"{site.api.url}/memory/add", data=form) as reply:
        assert reply.status == 202, await reply.text()
    times.note("add", since)


async def _all(work: Iterable[Callable[[], Awaitable[None]]]) -> None:
    """As many at once as there are connections."""
    waiting = iter(work)

    async def one_after_the_other() -> None:
        for each in waiting:
            await each()

    await asyncio.gather(*(one_after_the_other() for _ in range(_AT_ONCE)))


async def run(*, count: int, seconds: float, rate: float) -> dict[str, float]:
    """`count` misses, hits and adds alone, then `seconds` of chats with `rate` turns a second."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        site = await _open(stack, folder)
        for number in range(50):  # warm
            await _recall(site, _user(), f"What is it that I asked in {number}?", Times())
        found = await _alone(site, count)
        return found | await _chats(site, seconds, rate) | _sizes(found)


async def _alone(site: Site, count: int) -> dict[str, float]:
    """Each kind of request by itself: processor time a request, and bytes that it leaves."""
    users = [_user() for _ in range(count)]
    found: dict[str, float] = {}
    before, bytes_before = _cpu_s(site.api.pid), await _bytes(site.cache)
    await _all(
        partial(_recall, site, user, f"Miss {number}: what do I like?", Times())
        for number, user in enumerate(users)
    )
    found["cpu_us_miss"] = _each(_cpu_s(site.api.pid) - before, count)
    found["bytes_per_cached_answer"] = round((await _bytes(site.cache) - bytes_before) / count)
    bytes_before = await _bytes(site.redis)
    api, worker = _cpu_s(site.api.pid), _cpu_s(site.worker.pid)
    await _all(partial(_add, site, user, f"alone-{number}", Times()) for number, user in enumerate(users))
    found["cpu_us_add"] = _each(_cpu_s(site.api.pid) - api, count)
    await _stored(site)
    found["cpu_us_stored_turn"] = _each(_cpu_s(site.worker.pid) - worker, count)
    found["bytes_per_stored_turn"] = round((await _bytes(site.redis) - bytes_before) / count)
    return found


async def _chats(site: Site, seconds: float, rate: float) -> dict[str, float]:
    """Turns that come whether the last one has ended or not; names → how they went."""
    times = Times()
    before = {name: _cpu_s(pid) for name, pid in (("api", site.api.pid), ("worker", site.worker.pid))}
    began = time.perf_counter()
    turns: list[asyncio.Task[None]] = []

    async def turn(number: int) -> None:
        user, query = _user(), f"Turn {number}: when does my train leave?"
        [asked] = random.choices((1, 2, 3), _ASKED)
        for _ in range(asked):
            await _recall(site, user, query, times)
        await _add(site, user, f"chat-{number}", times)

    for number in range(int(seconds * rate)):
        await asyncio.sleep(max(0.0, began + number / rate - time.perf_counter()))
        turns.append(asyncio.create_task(turn(number)))
    await asyncio.gather(*turns)
    took_s = time.perf_counter() - began
    await _stored(site)
    degraded = len(times.ms.pop("degraded", ()))
    recalls = len(times.ms["hit"]) + len(times.ms["miss"]) + degraded
    used = {"api": _cpu_s(site.api.pid), "worker": _cpu_s(site.worker.pid)}
    found = {
        "shape_recalls_per_s": round(recalls / took_s, 1),
        "shape_hit_ratio": round(len(times.ms["hit"]) / recalls, 3),
        "shape_degraded_ratio": round(degraded / recalls, 4),
    }
    for role, cpu_s in used.items():
        cores = round((cpu_s - before[role]) / recalls * 1000, 2)
        found[f"shape_{role}_cores_per_1000_recalls_per_s"] = cores
    for what, ms in times.ms.items():
        cuts = statistics.quantiles(ms, n=100, method="inclusive")
        found |= {f"shape_{what}_ms_p{p}": round(cuts[p - 1], 1) for p in (50, 95, 99)}
    return found


def _sizes(found: dict[str, float]) -> dict[str, float]:
    """What the formulas of deploy/README.md make of it for 1,000 recalls a second, all misses."""
    return {
        "size_api_cores_per_1000_misses_per_s": round(found["cpu_us_miss"] / 1000, 2),
        "size_api_cores_per_1000_adds_per_s": round(found["cpu_us_add"] / 1000, 2),
        "size_worker_cores_per_1000_turns_per_s": round(found["cpu_us_stored_turn"] / 1000, 2),
        # Answers stay for MEMORY_STALE_TTL_S, what is known of a turn for MEMORY_TURN_ID_TTL_S.
        "size_cache_mib_per_miss_per_s": round(found["bytes_per_cached_answer"] * 3600 / 2**20, 2),
        "size_redis_mib_per_turn_per_minute": round(found["bytes_per_stored_turn"] * 7 * 1440 / 2**20, 2),
    }


async def _stored(site: Site) -> None:
    async with Redis.from_url(site.redis.url) as redis:

        async def nothing_waits() -> bool:
            return not await redis.exists(keyspace.WAITING)

        await wait_until(nothing_waits, "everything is stored", timeout_s=120, poll_s=0.1)


async def _bytes(server: RedisServer) -> int:
    async with Redis.from_url(server.url) as redis:
        return int((await redis.info("memory"))["used_memory"])


def _each(seconds: float, count: int) -> float:
    return round(seconds / count * 1e6, 1)


def _cpu_s(pid: int) -> float:
    # After the name in parentheses: user and system time are the 14th and 15th field of proc(5).
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _hindsight(port: int, memories: str) -> None:
    stand_in = HindsightStandIn(port=port, operation_delay_s=0)
    stand_in.store.load(json.loads(memories))
    async with stand_in:
        await asyncio.Event().wait()


def main() -> None:
    """Measure and write the numbers, or be the stand-in."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=1500, help="requests of each kind alone")
    parser.add_argument("--seconds", type=float, default=30, help="how long chats are simulated")
    parser.add_argument("--rate", type=float, default=40, help="turns a second")
    parser.add_argument("--no-write", action="store_true")
    parser.add_argument("--hindsight", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.hindsight:
        asyncio.run(_hindsight(given.port, given.hindsight.read_text("utf-8")))
        return
    this_run = report.Run()
    found = asyncio.run(run(count=given.count, seconds=given.seconds, rate=given.rate))
    sys.stdout.write(json.dumps(found, indent=2) + "\n")
    if not given.no_write:
        report.write(found, this_run)


if __name__ == "__main__":
    main()
