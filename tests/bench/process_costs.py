"""What needs no stack: identical misses at once, Redis alone, and what the API's process costs to start."""

import asyncio
import json
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

from tests.fakes.hindsight import HindsightStandIn
from tests.support import serve, valkey

_AT_ONCE = 64
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
