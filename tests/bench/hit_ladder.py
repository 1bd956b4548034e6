"""Where a hit's processor time goes: servers that do more and more of what a hit takes, one after the other.

What a server's process used, user and system, by `/proc/<pid>/stat`, divided by the requests it
answered: unlike requests a second, that hardly changes with what else the machine is doing.
"""

import asyncio
import contextlib
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.bench.load import measure, request_bytes
from tests.bench.recall_hit import HEADERS, KEY, body_of, fill, server_process, store, unseen
from tests.fakes.hindsight import HindsightStandIn
from tests.support import free_port, valkey

_USER: Final = "bench-user-0"
_KEY: Final = "bench:body"
_UNSEEN: Final = 40_000
_CONNECTIONS: Final = 32


async def run(rounds: int, seconds: float) -> dict[str, float]:
    """Rung → µs of processor time a request, the median of `rounds`."""
    used: dict[str, list[float]] = {}
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        redis = await stack.enter_async_context(valkey(folder / "redis"))
        cache = await stack.enter_async_context(valkey(folder / "cache", aof=False))
        hindsight = await stack.enter_async_context(HindsightStandIn())
        port = free_port()
        env = {
            **os.environ,
            "MEMORY_API_KEY": KEY,
            "MEMORY_PORT": str(port),
            "MEMORY_REDIS_URL": redis.url,
            "MEMORY_CACHE_REDIS_URL": cache.url,
            "MEMORY_HINDSIGHT_URL": hindsight.url,
            "MEMORY_MIN_SCORE": "0",
            "MEMORY_CACHE_TTL_S": "3600",
        }
        argv = ("-m", "service.cli.main", "serve")
        ours = await stack.enter_async_context(
            server_process(*argv, port=port, env=env, log=folder / "api.log")
        )
        reply = await fill(ours[0], [_USER])
        await store(cache.url, reply)
        (folder / "body.json").write_bytes(reply)
        rungs: dict[str, tuple[str, int]] = {}
        for app, key in (("raw", ""), ("body", ""), ("look_up", _KEY)):
            port = free_port()
            options = ("--port", str(port), "--body", str(folder / "body.json"), "--redis-url", cache.url)
            rungs[app] = await stack.enter_async_context(
                server_process(
                    "-m", "tests.bench.references", app, *options, "--key", key,
                    port=port, env=os.environ, log=folder / f"{app}.log",
                )
            )  # fmt: skip
        rungs |= {"hit": ours, "hit_unseen_bytes": ours}
        for turn in range(rounds):
            for name, (url, pid) in rungs.items():
                bodies = [body_of(_USER)]
                if name == "hit_unseen_bytes":
                    bodies = [unseen(_USER, turn, number) for number in range(_UNSEEN)]
                wire = [request_bytes(url, "/memory/recall", HEADERS, body) for body in bodies]
                before_s = _cpu_s(pid)
                load = await asyncio.to_thread(measure, url, wire, connections=_CONNECTIONS, seconds=seconds)
                assert not load.failures, f"{name}: {load.failures} failures"
                answered = load.per_s * seconds
                used.setdefault(name, []).append((_cpu_s(pid) - before_s) / answered * 1e6)
    return {f"cpu_us_{name}": round(statistics.median(values), 1) for name, values in used.items()}


def _cpu_s(pid: int) -> float:
    # After the name in parentheses: user and system time are the 14th and 15th field of proc(5).
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    sys.stdout.write(f"{asyncio.run(run(rounds=3, seconds=2))}\n")
