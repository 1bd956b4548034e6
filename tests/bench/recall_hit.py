"""How fast is an answer from the cache?

One run, one machine: our API, a raw ASGI app that answers the same bytes, FastAPI with redis-py. Rounds
go A B C, A B C …, and each ratio is taken within its round, so that a machine that gets slower
meanwhile does not look like a result.
"""

import asyncio
import contextlib
import json
import os
import statistics
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import cast

import httpx
from prometheus_client.parser import text_string_to_metric_families
from redis.asyncio import Redis
from service.app import create_app
from service.memory.asked import Asked
from service.routes.services import Services
from service.schemas import RecallRequest
from service.scope import bank_of
from service.settings import Settings

from tests.bench.load import Load, measure, request_bytes
from tests.fakes.hindsight import HindsightStandIn
from tests.support import ServerProcess, free_port, valkey

KEY = "bench-key-0123456789"
HEADERS = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
_STORED = "bench:body"
# Of very many users, as many are asked for, spread evenly; all of them are in the cache.
_MOST_ASKED = 10_000
_COPIES_AT_ONCE = 200
# More than a process knows again, so that each of them is new to it whenever it comes.
_UNSEEN = 40_000
_MEMORIES = (
    "I live in Lisbon and work as a backend engineer on payment systems, mostly in Go.",
    "My daughter started school in September and I can only meet after nine in the morning.",
    "I am allergic to peanuts, please never suggest a restaurant without checking for that.",
    "For the marathon in October I run four times a week and rest on Mondays and Fridays.",
    "Answer in short bullet points, I read your messages on my phone on the train to work.",
)
_QUERY = "Where do I live, what do I do for work, and when can I meet in the morning?"


@contextlib.asynccontextmanager
async def server(*argv: str, port: int, env: Mapping[str, str], log: Path) -> AsyncIterator[str]:
    """A server process of this interpreter; its base URL."""
    async with server_process(*argv, port=port, env=env, log=log) as (url, _):
        yield url


@contextlib.asynccontextmanager
async def server_process(
    *argv: str, port: int, env: Mapping[str, str], log: Path
) -> AsyncIterator[tuple[str, int]]:
    """`server` with its process id."""
    url = f"http://127.0.0.1:{port}"

    async def answers() -> bool:
        async with httpx.AsyncClient() as client:
            reply = await client.get(f"{url}/health/live")
        return reply.status_code < 500

    process = ServerProcess([sys.executable, *argv], log_path=log, is_ready=answers, env=env)
    await process.start()
    try:
        yield url, process.pid
    finally:
        await process.stop()


def body_of(user: str) -> bytes:
    """A recall as a template sends it."""
    return json.dumps({"user_id": user, "query": _QUERY, "conversation_id": "c-1"}).encode()


def unseen(user: str, turn: int, number: int) -> bytes:
    """The same question in bytes of its own: white space around and inside a JSON object means nothing."""
    before, after = divmod(number, 200)
    return b" " * before + b"{" + b" " * turn + body_of(user).removeprefix(b"{") + b" " * after


async def fill(url: str, users: Sequence[str]) -> bytes:
    """Give each user memories and a cached answer; the reply of the last one, from the cache."""
    reply = b""
    async with httpx.AsyncClient(base_url=url, headers=HEADERS, timeout=30) as client:
        for user in users:
            for number, text in enumerate(_MEMORIES):
                added = await client.post(
                    "/memory/add", json={"user_id": user, "user_message": text, "turn_id": str(number)}
                )
                assert added.status_code == 202, added.text
            await client.post("/memory/recall", content=body_of(user))
            cached = await client.post("/memory/recall", content=body_of(user))
            assert cached.json()["cached"], cached.text
            assert cached.json()["count"], cached.text
            reply = cached.content
    return reply


async def copy(settings: Settings, user: str, others: Sequence[str]) -> None:
    """Give the others the cached answer that `user` has, in the cache's own format.

    `settings` are the server's: they are part of the names of answers.
    """
    app = create_app(settings)
    async with app.router.lifespan_context(app) as state:
        services = cast("dict[str, Services]", state)["services"]
        cache = services.cache
        ends = asyncio.get_running_loop().time() + 600

        def asked(name: str) -> Asked:
            request = RecallRequest.read(json.loads(body_of(name)))
            found = services.recaller.asked_of(request, bank_of(settings.tenant, name), settings.tenant)
            assert found is not None
            return found

        body = (await cache.find_at(asked(user).address, ends)).current
        assert body is not None, "The first user has no cached answer."

        async def give(other: str) -> None:
            there = asked(other)
            epochs = await cache.epochs(there.bank, ends)
            assert await cache.publish(there.bank, there.key, epochs, body, 3600, ends)

        for start in range(0, len(others), _COPIES_AT_ONCE):
            await asyncio.gather(*(give(other) for other in others[start : start + _COPIES_AT_ONCE]))


async def outcomes(url: str) -> dict[str, float]:
    """How many recalls have ended in which way."""
    async with httpx.AsyncClient() as client:
        text = (await client.get(f"{url}/metrics")).text
    return {
        sample.labels["outcome"]: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "memory_recalls_total"
    }


async def run(rounds: int, seconds: float, connections: Sequence[int], users: int = 1) -> dict[str, float]:
    """Names → medians over `rounds`: ratios of requests a second unless the name has a unit."""
    results: dict[str, float] = {}
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        redis = await stack.enter_async_context(valkey(folder / "redis"))
        # As in the local stack: accepted turns are on the disk, cached answers in memory alone.
        cache = await stack.enter_async_context(valkey(folder / "cache", aof=False))
        hindsight = await stack.enter_async_context(HindsightStandIn())
        port = free_port()
        own = {
            "MEMORY_API_KEY": KEY,
            "MEMORY_PORT": str(port),
            "MEMORY_REDIS_URL": redis.url,
            "MEMORY_CACHE_REDIS_URL": cache.url,
            "MEMORY_HINDSIGHT_URL": hindsight.url,
            "MEMORY_MIN_SCORE": "0",
            "MEMORY_CACHE_TTL_S": "3600",
        }
        env = os.environ | own
        ours = await stack.enter_async_context(
            server("-m", "service.cli.main", "serve", port=port, env=env, log=folder / "api.log")
        )
        names = [f"bench-user-{number}" for number in range(users)]
        reply = await fill(ours, names[:1])
        if users > 1:
            given = {name.removeprefix("MEMORY_").lower(): value for name, value in own.items()}
            # A second writer is patient: nobody waits for it.
            await copy(Settings.model_validate(given | {"cache_patience_ms": 5000}), names[0], names[1:])
        before = await outcomes(ours)
        await store(cache.url, reply)
        (folder / "body.json").write_bytes(reply)
        urls = {"ours": ours}
        for app in ("raw", "fastapi"):
            port = free_port()
            argv = ("-m", "tests.bench.references", app, "--port", str(port), "--redis-url", cache.url)
            urls[app] = await stack.enter_async_context(
                server(
                    *argv, "--body", str(folder / "body.json"), "--key", _STORED,
                    port=port, env=os.environ, log=folder / f"{app}.log",
                )
            )  # fmt: skip
        if users == 1:
            urls["unseen"] = ours
        for many in connections:
            loads: dict[str, list[Load]] = {name: [] for name in urls}
            for turn in range(rounds):
                for name, url in urls.items():
                    bodies = [body_of(user) for user in names[:: max(1, users // _MOST_ASKED)]]
                    if name == "unseen":
                        bodies = [unseen(names[0], turn, number) for number in range(_UNSEEN)]
                    wire = [request_bytes(url, "/memory/recall", HEADERS, body) for body in bodies]
                    load = await asyncio.to_thread(measure, url, wire, connections=many, seconds=seconds)
                    assert not load.failures, f"{name}: {load.failures} failures"
                    loads[name].append(load)
            results |= _summary(loads, many)
        after = await outcomes(ours)
        asked = sum(after.values()) - sum(before.values())
        hits = after["hit"] - before["hit"]
        assert hits >= 0.999 * asked, f"Only {hits} of {asked} were answered from the cache."
    return results


def _summary(loads: Mapping[str, Sequence[Load]], connections: int) -> dict[str, float]:
    ours = loads["ours"]

    def ratio(reference: str, name: str = "ours") -> float:
        pairs = zip(loads[name], loads[reference], strict=True)
        return round(statistics.median(a.per_s / b.per_s for a, b in pairs), 3)

    found = {
        f"recall_hit_vs_raw_asgi_c{connections}": ratio("raw"),
        f"recall_hit_vs_fastapi_redis_c{connections}": ratio("fastapi"),
        f"recall_hit_per_s_c{connections}": round(statistics.median(load.per_s for load in ours)),
        f"recall_hit_p50_ms_c{connections}": round(statistics.median(load.p50_ms for load in ours), 3),
        f"recall_hit_p99_ms_c{connections}": round(statistics.median(load.p99_ms for load in ours), 3),
        f"raw_asgi_per_s_c{connections}": round(statistics.median(load.per_s for load in loads["raw"])),
    }
    if "unseen" in loads:
        found[f"recall_hit_unseen_bytes_vs_raw_asgi_c{connections}"] = ratio("raw", "unseen")
    return found


async def store(url: str, body: bytes) -> None:
    """Put the reply where the references look for it."""
    redis = Redis.from_url(url)
    await redis.set(_STORED, body)
    await redis.aclose()


if __name__ == "__main__":
    found = asyncio.run(run(rounds=int(os.environ.get("ROUNDS", "3")), seconds=2, connections=(32,)))
    sys.stdout.write(json.dumps(found, indent=2) + "\n")
