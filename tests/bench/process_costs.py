"""What needs no stack: identical misses at once, Redis alone, and what the API's process costs to start."""

import asyncio
import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import uvloop
from service.adapters.pipelined import PipelinedRedis
from service.app import create_app
from service.settings import Settings

from tests.bench.recall_hit import server_process
from tests.fakes.hindsight import HindsightStandIn
from tests.support import free_port, serve, valkey

_AT_ONCE = 64
_RECALLS = 50
_KEY = "bench-key-0123456789"
_IMPORT = """
import json, resource, sys, time
started = time.perf_counter()
import service.app
seconds = time.perf_counter() - started
peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"s": seconds, "mib": peak_kib / 1024, "litellm": "litellm" in sys.modules}))
"""


def imports() -> dict[str, float]:
    """How long importing the API takes and how much memory the process has then."""
    done = subprocess.run([sys.executable, "-c", _IMPORT], capture_output=True, check=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return {
        "api_import_s": round(found["s"], 2),
        "api_import_peak_mib": round(found["mib"], 1),
        "api_imports_litellm": int(found["litellm"]),
    }


async def identical_misses(folder: Path) -> dict[str, float]:
    """How often Hindsight (the stand-in) is asked when 64 clients ask the same new question at once."""
    async with valkey(folder / "misses") as redis, HindsightStandIn() as hindsight:
        settings = Settings.model_validate(
            {"api_key": _KEY, "redis_url": redis.url, "hindsight_url": hindsight.url}
        )
        async with (
            serve(create_app(settings)) as url,
            httpx.AsyncClient(
                base_url=url,
                headers={"Authorization": f"Bearer {_KEY}"},
                timeout=30,
                trust_env=False,
                limits=httpx.Limits(max_connections=_AT_ONCE),
            ) as client,
        ):
            asked = {"user_id": "bench", "query": "The same question from everybody"}
            hindsight.fail("recall", "slow", seconds=0.5)
            replies = await asyncio.gather(
                *(client.post("/memory/recall", json=asked) for _ in range(_AT_ONCE))
            )
        assert all(reply.status_code == 200 and not reply.json()["degraded"] for reply in replies)
        calls = len(hindsight.requests_for("recall"))
    return {f"identical_misses_{_AT_ONCE}_backend_calls": calls}


async def serving(folder: Path) -> dict[str, float]:
    """What a model that needs litellm costs a process that also serves recall and add.

    Seconds until it answers, MiB that it keeps, and the slowest recall (ms) of the first seconds, with and
    without such a model; with it, also the seconds until litellm is loaded.
    """
    found: dict[str, float] = {}
    async with valkey(folder / "serving") as redis, HindsightStandIn() as hindsight:
        for name, model in (("api", ""), ("api_with_litellm", "openai/bench")):
            env = {key: value for key, value in os.environ.items() if not key.startswith("MEMORY_")} | {
                "MEMORY_API_KEY": _KEY,
                "MEMORY_PORT": str(port := free_port()),
                "MEMORY_REDIS_URL": redis.url,
                "MEMORY_HINDSIGHT_URL": hindsight.url,
            }
            if model:
                # Nobody is there: a chat is answered, with an error, as soon as litellm is loaded.
                env |= {"MEMORY_GATEWAY_MODEL": model, "MEMORY_GATEWAY_BASE_URL": "http://127.0.0.1:1/v1"}
                env |= {"MEMORY_GATEWAY_DIRECT": "false", "MEMORY_GATEWAY_API_KEY": _KEY}
            serve_api = ("-m", "service.cli.main", "serve")
            started = time.perf_counter()
            async with (
                server_process(*serve_api, port=port, env=env, log=folder / f"{name}.log") as (url, pid),
                httpx.AsyncClient(
                    base_url=url, headers={"Authorization": f"Bearer {_KEY}"}, timeout=120, trust_env=False
                ) as client,
            ):
                found[f"{name}_start_s"] = time.perf_counter() - started
                body = {"model": "memory", "messages": [{"role": "user", "content": "hello"}]}
                loading = asyncio.create_task(client.post("/v1/chat/completions", json=body))
                slowest_s = 0.0
                for number in itertools.count():
                    asked = time.perf_counter()
                    reply = await client.post(
                        "/memory/recall", json={"user_id": "bench", "query": f"Question {number}"}
                    )
                    assert reply.status_code == 200
                    slowest_s = max(slowest_s, time.perf_counter() - asked)
                    if loading.done() and number >= _RECALLS:
                        break
                assert loading.result().status_code == (503 if model else 404)
                if model:
                    found[f"{name}_loaded_s"] = time.perf_counter() - started
                found[f"{name}_recall_ms_max"] = slowest_s * 1000
                found[f"{name}_rss_mib"] = rss_mib(pid)
    return {name: round(value, 1) for name, value in found.items()}


def rss_mib(pid: int) -> float:
    """The memory of a process that is in RAM."""
    status = Path(f"/proc/{pid}/status").read_text("ascii")
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


async def redis_alone(folder: Path, seconds: float) -> dict[str, float]:
    """MGETs of three keys a second by 32 tasks of one bare client: what the look-up itself could do."""
    async with valkey(folder / "alone") as redis:
        return {"redis_mget_per_s": round(await asyncio.to_thread(uvloop.run, _mgets(redis.url, seconds)))}


async def _mgets(url: str, seconds: float) -> float:
    async with PipelinedRedis(url) as redis:
        await redis.execute(b"SET", b"bench:c", b"x" * 1000)
        ends = time.perf_counter() + seconds

        async def ask() -> int:
            count = 0
            while time.perf_counter() < ends:
                await redis.execute(b"MGET", b"bench:a", b"bench:b", b"bench:c")
                count += 1
            return count

        return sum(await asyncio.gather(*(ask() for _ in range(32)))) / seconds
