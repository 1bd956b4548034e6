"""How fast is add, and what does a waiting turn cost?

`run` measures our API against one bare handler (FastAPI, a model, one pipelined `XADD` by redis-py) on the
same Redis, in rounds A B, A B …, each ratio within its round; `queue` what lies behind: jobs a second of one
worker against a Hindsight that takes no time, bytes in Redis a waiting turn, and how long it takes to find
what is due among very many that are not.
"""

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import uvicorn
from fastapi import FastAPI, Request, Response
from pydantic import BaseModel
from redis.asyncio import Redis
from service import keyspace
from service.adapters.turns import Debounce, TurnsLog
from service.adapters.turns_types import MostWaiting
from service.scope import bank_of

from tests.bench.load import Load, measure, request_bytes
from tests.bench.recall_hit import HEADERS, KEY, server
from tests.fakes.hindsight import HindsightStandIn
from tests.processes import WorkerProcess
from tests.support import RedisServer, free_port, valkey, wait_until
from tests.turns_log import add_turn

_USERS: Final = 500
_REQUESTS: Final = 20_000
_MESSAGE: Final = (
    "I live in Lisbon and can only meet after nine in the morning, since my daughter is at school."
)
_ANSWER: Final = "Noted: Lisbon, and meetings after nine. Shall I look for a slot on Thursday morning?"
_AT_ONCE: Final = 100


# --- Add against a bare handler -------------------------------------------------------------------------
class _Add(BaseModel):
    user_id: str
    user_message: str
    assistant_message: str = ""
    conversation_id: str = ""
    turn_id: str = ""


def bare(redis_url: str) -> FastAPI:
    """What one would write first: a route, a model, one `XADD`."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.redis = Redis.from_url(redis_url)
        yield
        await app.state.redis.aclose()

    app = FastAPI(lifespan=lifespan)

    @app.post("/memory/add", status_code=202)
    async def add(body: _Add, request: Request) -> Response:
        pipe = request.app.state.redis.pipeline(transaction=False)
        pipe.xadd("bench:stream", body.model_dump())
        (entry,) = await pipe.execute()
        reply = {"status": "queued", "job_id": entry.decode()}
        return Response(json.dumps(reply), status_code=202, media_type="application/json")

    return app


def _bodies(label: str) -> list[bytes]:
    """Turns of many users, each another one, as a template sends them."""
    return [
        json.dumps(
            {
                "user_id": f"bench-user-{number % _USERS}",
                "user_message": f"{_MESSAGE} {number}",
                "assistant_message": _ANSWER,
                "conversation_id": f"c-{number % (3 * _USERS)}",
                "turn_id": f"{label}-{number}",
            }
        ).encode()
        for number in range(_REQUESTS)
    ]


async def run(rounds: int, seconds: float, connections: int = 32) -> dict[str, float]:
    """Names → medians over `rounds`: ratios to the bare handler, and our own numbers."""
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        redis = await stack.enter_async_context(valkey(folder / "redis"))
        port = free_port()
        env = {
            **os.environ,
            "MEMORY_API_KEY": KEY,
            "MEMORY_PORT": str(port),
            "MEMORY_REDIS_URL": redis.url,
            # No worker takes anything away meanwhile.
            "MEMORY_HINDSIGHT_URL": "http://127.0.0.1:1",
            "MEMORY_MAX_WAITING": "10000000",
            "MEMORY_MAX_WAITING_PER_USER": "1000000",
        }
        urls = {
            "ours": await stack.enter_async_context(
                server("-m", "service.cli.main", "serve", port=port, env=env, log=folder / "api.log")
            )
        }
        port = free_port()
        argv = ("-m", "tests.bench.add", "bare", "--port", str(port), "--redis-url", redis.url)
        urls["bare"] = await stack.enter_async_context(
            server(*argv, port=port, env=os.environ, log=folder / "bare.log")
        )
        loads: dict[str, list[Load]] = {name: [] for name in urls}
        for number in range(-1, rounds):
            for name, url in urls.items():
                await redis.command("FLUSHALL")
                bodies = _bodies(f"{name}-{number}")
                wire = [request_bytes(url, "/memory/add", HEADERS, body) for body in bodies]
                load = await asyncio.to_thread(measure, url, wire, connections=connections, seconds=seconds)
                assert not load.failures, f"{name}: {load.failures} failures"
                if number >= 0:  # the round before the first warms up
                    loads[name].append(load)
    return _summary(loads)


def _summary(loads: Mapping[str, Sequence[Load]]) -> dict[str, float]:
    ours, theirs = loads["ours"], loads["bare"]
    pairs = list(zip(ours, theirs, strict=True))
    return {
        "add_vs_xadd": round(statistics.median(a.per_s / b.per_s for a, b in pairs), 3),
        "add_p95_vs_xadd": round(statistics.median(a.p95_ms / b.p95_ms for a, b in pairs), 3),
        "add_per_s": round(statistics.median(load.per_s for load in ours)),
        "xadd_per_s": round(statistics.median(load.per_s for load in theirs)),
        "add_p50_ms": round(statistics.median(load.p50_ms for load in ours), 2),
        "add_p95_ms": round(statistics.median(load.p95_ms for load in ours), 2),
        "add_p99_ms": round(statistics.median(load.p99_ms for load in ours), 2),
    }


# --- Behind it ------------------------------------------------------------------------------------------
async def queue(*, users: int = 300, turns: int = 5, many: int = 100_000) -> dict[str, float]:
    """Names → jobs a second of one worker, bytes a waiting turn, microseconds to select what is due."""
    with tempfile.TemporaryDirectory() as folder:
        async with valkey(Path(folder) / "redis") as redis:
            found = await _worker(redis, Path(folder), users, turns)
            await redis.command("FLUSHALL")
            found |= await _waiting(redis, users, turns)
            found |= await _selection(redis, many)
    return found


async def _fill(log: TurnsLog, users: int, turns: int, prefix: str = "bench") -> None:
    """As many requests of one turn each for as many users."""
    adds = [
        (bank_of("default", f"{prefix}-user-{user}"), f"User: {_MESSAGE} {turn}\nAssistant: {_ANSWER}")
        for turn in range(turns)
        for user in range(users)
    ]
    for start in range(0, len(adds), _AT_ONCE):
        await asyncio.gather(
            *(add_turn(log, bank, texts=(text,)) for bank, text in adds[start : start + _AT_ONCE])
        )


async def _worker(redis: RedisServer, folder: Path, users: int, turns: int) -> dict[str, float]:
    async with (
        HindsightStandIn(operation_delay_s=0) as hindsight,
        TurnsLog(redis.url, Debounce(0, 60, 20)) as log,
        Redis.from_url(redis.url) as client,
    ):
        await _fill(log, users, turns)
        worker = WorkerProcess(folder / "worker", redis.url, hindsight.url)
        try:
            await worker.start()

            async def is_empty() -> bool:
                return not await client.exists(keyspace.WAITING)

            await wait_until(is_empty, "the worker has stored everything", timeout_s=300, poll_s=0.01)
            ended = time.monotonic()
        finally:
            await worker.stop()
        started = min(request.at for request in hindsight.requests_for("retain"))
        stored = sum(len(bank.documents) for bank in hindsight.banks.values())
        assert stored == users * turns, stored
    return {"worker_jobs_per_s": round(users * turns / (ended - started), 1)}


async def _waiting(redis: RedisServer, users: int, turns: int) -> dict[str, float]:
    async with TurnsLog(redis.url, Debounce(600, 600, 200)) as log, Redis.from_url(redis.url) as client:
        before = (await client.info("memory"))["used_memory"]
        await _fill(log, users, turns)
        after = (await client.info("memory"))["used_memory"]
    return {"bytes_per_waiting_turn": round((after - before) / (users * turns))}


async def _selection(redis: RedisServer, many: int, due: int = 200) -> dict[str, float]:
    """Counting what is due, claiming one bank, taking its batch and letting go of it, with few banks and with
    many of which each has a turn that waits."""
    found: dict[str, float] = {}
    labels = {1_000: "1k", many: "100k" if many == 100_000 else str(many)}
    most = MostWaiting(10**6, 10**8)
    async with (
        TurnsLog(redis.url, Debounce(3600, 3600, 20), timeout_s=30, most_waiting=most) as later,
        TurnsLog(redis.url, Debounce(0, 0, 20), timeout_s=30, most_waiting=most) as log,
        Redis.from_url(redis.url, decode_responses=True) as client,
    ):
        for waiting, label in labels.items():
            await client.flushall()
            await _fill(later, waiting, 1)
            await _fill(log, due, 1, prefix="due")
            assert await client.zcard(keyspace.DUE) == waiting + due
            assert await client.get(keyspace.WAITING) == str(waiting + due)
            await wait_until(_is_quiet(client), "Redis writes no file beside its work", timeout_s=120)
            times = []
            for _ in range(due):
                started = time.perf_counter()
                assert await log.count_due()
                [claim] = await log.claim(1)
                batch = await log.take(claim, "b")
                # Put off, as while Hindsight works on it.
                await log.release(claim, retry_in_s=300)
                times.append(time.perf_counter() - started)
                assert batch is not None
            found[f"due_selection_us_{label}"] = round(statistics.median(times) * 1e6)
    few, lots = (found[f"due_selection_us_{label}"] for label in labels.values())
    return found | {"due_selection_us_100k_vs_1k": round(lots / few, 3)}


def _is_quiet(client: Redis) -> Callable[[], Awaitable[bool]]:
    async def is_quiet() -> bool:
        now = await client.info("persistence")
        return not now["aof_rewrite_in_progress"] and not now["rdb_bgsave_in_progress"]

    return is_quiet


async def _measure(rounds: int, seconds: float, *, only_add: bool) -> dict[str, float]:
    found = await run(rounds, seconds)
    return found if only_add else found | await queue()


def main() -> None:
    """Run the bare handler, the comparison with it, or everything."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", nargs="?", choices=("bare", "add", "all"), default="all")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--redis-url", default="")
    given = parser.parse_args()
    if given.what == "bare":
        uvicorn.run(
            bare(given.redis_url), host="127.0.0.1", port=given.port, log_level="warning", access_log=False
        )
        return
    rounds, seconds = int(os.environ.get("ROUNDS", "3")), float(os.environ.get("SECONDS_EACH", "2"))
    found = asyncio.run(_measure(rounds, seconds, only_add=given.what == "add"))
    sys.stdout.write(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
