"""`python -m tests.soak [--minutes 30]`: everything at once; leaves `RESULTS.md` and `results.json`."""

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
from redis.asyncio import Redis
from service import keyspace

from tests.processes import KEY, ApiProcess, WorkerProcess
from tests.soak import report
from tests.soak.backend import BackendProcess
from tests.soak.havoc import Havoc, Victim
from tests.soak.ledger import Ledger
from tests.soak.load import Door, Load
from tests.soak.watch import LONG_S, Pulse, Watch
from tests.support import RedisServer, ServerProcess, valkey, wait_until
from tests.turns_log import look, without_ttl

# The default of MEMORY_RECALL_DEADLINE_MS, and what a client's own processor time may add on a busy machine.
_DEADLINE_S = 2.0
_SLACK_S = 1.0
_CALLERS = 24
_SETTLED_S = 300.0
_GROWTH_MIB = 25.0
_GROWTH_FDS = 50


@dataclass
class Site:
    """All processes: two of the API, two workers, Redis, Hindsight."""

    redis: RedisServer
    hindsight: BackendProcess
    apis: list[ApiProcess]
    workers: list[WorkerProcess]

    @property
    def processes(self) -> dict[str, ServerProcess]:
        """By name."""
        ours: dict[str, ServerProcess] = {f"api {n}": api for n, api in enumerate(self.apis)}
        ours |= {f"worker {n}": worker for n, worker in enumerate(self.workers)}
        return {"redis": self.redis, "hindsight": self.hindsight, **ours}


async def _open(stack: AsyncExitStack, folder: Path) -> Site:
    redis = await stack.enter_async_context(valkey(folder / "redis"))
    hindsight = BackendProcess(folder / "hindsight")
    given = {"quiet_s": 1, "max_wait_s": 5, "retain_timeout_s": 5, "drain_s": 1, "log_level": "warning"}
    apis = [ApiProcess(folder / f"api-{n}", redis.url, hindsight.url, **given) for n in range(2)]
    workers = [WorkerProcess(folder / f"worker-{n}", redis.url, hindsight.url, **given) for n in range(2)]
    for process in (hindsight, *apis, *workers):
        stack.push_async_callback(process.stop)
        await process.start()
    return Site(redis, hindsight, apis, workers)


async def _soak(folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    rng, ledger = random.Random(given.seed), Ledger()
    async with AsyncExitStack() as stack:
        site = await _open(stack, folder)
        havoc = Havoc(
            [
                Victim("api 0", site.apis[0], ("kill", "stop")),
                Victim("worker 0", site.workers[0], ("kill", "stop", "freeze")),
                Victim("hindsight", site.hindsight, ("kill", "stop", "freeze")),
                Victim("redis", site.redis, ("kill", "stop")),
            ],
            random.Random(given.seed + 1),
            given.pace,
        )
        doors = [Door(api.url, partial(havoc.life, f"api {n}")) for n, api in enumerate(site.apis)]
        load = Load(
            doors, KEY, ledger, rng,
            users=given.users, rate=given.rate, callers=_CALLERS, deadline_s=_DEADLINE_S + _SLACK_S,
        )  # fmt: skip
        watch, pulse = Watch(site.processes), Pulse()
        is_over, all_is_over = asyncio.Event(), asyncio.Event()
        watching = asyncio.create_task(watch.run(all_is_over))
        began, told, seen = time.monotonic(), 0, 0
        parts = [asyncio.create_task(part.run(is_over)) for part in (load, havoc, pulse)]
        while (gone_s := time.monotonic() - began) < given.minutes * 60 and not any(t.done() for t in parts):
            done = sum(map(len, load.counts.latencies_ms.values()))
            late_ms = max(pulse.late_ms[seen:], default=0)
            seen = len(pulse.late_ms)
            blows = havoc.blows.total()
            _tell(f"{gone_s:5.0f} s: {done} answers, {blows} blows; clients {late_ms:.0f} ms late")
            for kind, what in ledger.breaches[told:]:
                _tell(f"        broken: {kind}: {what}")
            told = len(ledger.breaches)
            await asyncio.wait(parts, timeout=min(15.0, given.minutes * 60 - gone_s + 0.1))
        is_over.set()
        await asyncio.gather(*parts)
        took_s = time.monotonic() - began
        dead = [name for name, process in site.processes.items() if not process.is_running]
        ledger.breaches += [*havoc.breaches, *(("died by itself", name) for name in dead)]
        _tell("the load is over; waiting until everything is stored")
        settled_s = await _settle(site, ledger)
        states = ledger.check_stored(await site.hindsight.banks())
        await _check_redis(site, ledger)
        await _check_recallable(site, ledger, rng)
        all_is_over.set()
        await watching
    trends = watch.trends()
    ledger.breaches += _grown(trends)
    return report.numbers(
        given=given, took_s=took_s, settled_s=settled_s, counts=load.counts, states=states,
        blows=havoc.blows, trends=trends, breaches=ledger.breaches,
        late_ms=pulse.late_ms, load_averages=watch.load_averages,
    )  # fmt: skip


async def _settle(site: Site, ledger: Ledger) -> float:
    """Wait until nothing is on its way any more; how long that took."""
    began = time.monotonic()
    async with Redis.from_url(site.redis.url, decode_responses=True) as redis:

        async def is_quiet() -> bool:
            held = await look(redis)
            return not held.documents and not await site.hindsight.pending()

        try:
            await wait_until(is_quiet, "everything is stored", timeout_s=_SETTLED_S, poll_s=1)
        except AssertionError as exc:
            ledger.breaches.append(("never stored", str(exc)))
    return time.monotonic() - began


async def _check_redis(site: Site, ledger: Ledger) -> None:
    async with Redis.from_url(site.redis.url, decode_responses=True) as redis:
        held = await look(redis)
        ledger.breaches += [("dead letter", document) for document in held.dead]
        ledger.breaches += [("log at odds with itself", fault) for fault in held.faults()]
        lasting = await without_ttl(redis) - {keyspace.ARQ_QUEUE}
        ledger.breaches += [("key that stays for ever", key) for key in lasting]


async def _check_recallable(site: Site, ledger: Ledger, rng: random.Random) -> None:
    """Of a sample of users who have something, each is told something of it."""
    having = [user for user, turns in ledger.turns.items() if any(turn.state == "kept" for turn in turns)]
    headers = {"Authorization": f"Bearer {KEY}"}
    async with aiohttp.ClientSession(headers=headers) as session:
        for user in rng.sample(having, min(200, len(having))):
            number = next(n for n, turn in enumerate(ledger.turns[user]) if turn.state == "kept")
            asked = {
                "user_id": f"user-{user}",
                "query": f"u{user}t{number}",
                "min_score": "0",
                "fresh": "true",
            }
            async with session.post(f"{site.apis[0].url}/memory/recall", data=asked) as reply:
                texts = [memory["text"] for memory in (await reply.json())["memories"]]
            ledger.check_recall(user, texts)
            if not texts:
                ledger.breaches.append(("stored and not recalled", f"u{user}"))


def _grown(trends: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Our processes that need more and more. Hindsight's stand-in keeps everything in memory on purpose."""
    found = []
    for name, trend in trends.items():
        if not name.startswith(("api", "worker")) or trend["longest_life_s"] < LONG_S:
            continue
        before, after = trend["rss_mib_before"], trend["rss_mib_after"]
        if after > before * 1.1 + _GROWTH_MIB:
            found.append(("memory grows", f"{name}: {before} to {after} MiB"))
        before, after = trend["fds_before"], trend["fds_after"]
        if after > before + _GROWTH_FDS:
            found.append(("descriptors grow", f"{name}: {before} to {after}"))
    return found


def _tell(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    """Run it, write what was seen, and fail if a promise was broken."""
    parser = argparse.ArgumentParser(description="Does it keep its promises for half an hour?")
    parser.add_argument("--minutes", type=float, default=30, help="how long (default 30)")
    parser.add_argument("--users", type=int, default=10_000, help="how many users (default 10,000)")
    parser.add_argument("--rate", type=float, default=60, help="operations a second (default 60)")
    parser.add_argument("--pace", type=float, default=40, help="seconds between blows to one (default 40)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--note", default="", help="what else ran on the machine; goes onto the page")
    parser.add_argument("--no-write", action="store_true", help="leave the files as they are")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        found = asyncio.run(_soak(Path(folder), given))
    page = report.page(found)
    if not given.no_write:
        report.write(found)
    _tell(page)
    sys.exit(1 if found["breaches"] else 0)


if __name__ == "__main__":
    main()
