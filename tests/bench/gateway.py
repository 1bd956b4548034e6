"""What does a model cost when it is asked through us: before its first token, and for each one after?

One run, one machine: the same fake model asked directly and through `/v1`, in turn, with an answer of the
memory in the cache. Differences and ratios are taken within a round, then their median.
"""

import asyncio
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from tests.bench.load import request_bytes
from tests.bench.recall_hit import HEADERS, KEY, fill, server
from tests.fakes.hindsight import HindsightStandIn
from tests.support import free_port, valkey

_USER = "bench-user-0"
_QUERY = "Where do I live, what do I do for work, and when can I meet in the morning?"
_TOKEN = b'" token"'
_END = b"data: [DONE]"
_WARM_UP = 20


@dataclass(frozen=True)
class Shape:
    """Streams at once, pieces of each, milliseconds between two of them."""

    streams: int
    pieces: int
    pause_ms: int


def _request(url: str, shape: Shape) -> bytes:
    body = {
        "model": "memory",
        "stream": True,
        "user": _USER,
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": _QUERY}],
        "max_tokens": shape.pieces,
        "seed": shape.pause_ms,
        # A turn that is remembered changes what is known of the user: the next answer would be no hit.
        "memory": {"store": False, "conversation_id": "c-1"},
    }
    return request_bytes(url, "/v1/chat/completions", HEADERS, json.dumps(body).encode())


class Connection:
    """One connection, kept alive, over which one stream after another is asked for."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def ask(self, request: bytes) -> tuple[float, int]:
        """Seconds until the first token, and the number of tokens."""
        started = time.perf_counter()
        self._writer.write(request)
        first_s = 0.0
        seen = end = b""
        tokens = 0
        while True:
            piece = await self._reader.read(65_536)
            assert piece, "The connection was closed."
            if not first_s and _TOKEN in piece:
                first_s = time.perf_counter() - started
            # The end of a token may come with the next piece.
            seen = seen[-len(_TOKEN) + 1 :] + piece
            tokens += seen.count(_TOKEN)
            end = (end + piece)[-64:]
            if end.endswith(b"0\r\n\r\n"):
                assert _END in end, end
                return first_s, tokens


@contextlib.asynccontextmanager
async def connected(url: str) -> AsyncIterator[Connection]:
    """A connection to a server."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        yield Connection(reader, writer)
    finally:
        writer.close()


async def first_token_ms(urls: Sequence[str], questions: int) -> list[float]:
    """The median for each of the servers, asked in turn."""
    shape = Shape(1, 1, 0)
    times: list[list[float]] = [[] for _ in urls]
    async with contextlib.AsyncExitStack() as stack:
        connections = [await stack.enter_async_context(connected(url)) for url in urls]
        for number in range(questions):
            for url, connection, found in zip(urls, connections, times, strict=True):
                first_s, tokens = await connection.ask(_request(url, shape))
                assert tokens == 1
                if number >= _WARM_UP:
                    found.append(first_s * 1000)
    return [statistics.median(found) for found in times]


async def tokens_per_s(url: str, shape: Shape) -> float:
    """Tokens a second of all streams together."""
    async with contextlib.AsyncExitStack() as stack:
        connections = [await stack.enter_async_context(connected(url)) for _ in range(shape.streams)]
        request = _request(url, shape)
        started = time.perf_counter()
        answers = await asyncio.gather(*(connection.ask(request) for connection in connections))
        took_s = time.perf_counter() - started
    assert all(tokens == shape.pieces for _, tokens in answers)
    return shape.streams * shape.pieces / took_s


async def run(rounds: int, *, is_quick: bool = False) -> dict[str, float]:
    """Names → medians over the rounds."""
    shapes = {
        "gateway_stream_ratio": (Shape(16, 20 if is_quick else 400, 5), "ours"),
        "gateway_stream_ratio_c64": (Shape(64, 10 if is_quick else 100, 20), "ours"),
        "gateway_stream_ratio_unpaced": (Shape(1, 200 if is_quick else 5_000, 0), "ours"),
        "gateway_stream_ratio_unpaced_c16": (Shape(16, 50 if is_quick else 500, 0), "ours"),
        # 50 tokens a second each, as many models answer; litellm takes half a millisecond for each of them.
        "gateway_litellm_stream_ratio": (Shape(16, 10 if is_quick else 100, 20), "litellm"),
    }
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        redis = await stack.enter_async_context(valkey(folder / "redis"))
        cache = await stack.enter_async_context(valkey(folder / "cache", aof=False))
        hindsight = await stack.enter_async_context(HindsightStandIn())
        port = free_port()
        model = await stack.enter_async_context(
            server(
                "-m", "tests.bench.gateway_upstream", "--port", str(port),
                port=port, env=os.environ, log=folder / "model.log",
            )
        )  # fmt: skip
        urls = {"model": model}
        for name, is_direct in (("ours", "true"), ("litellm", "false")):
            port = free_port()
            env = os.environ | {
                "MEMORY_API_KEY": KEY,
                "MEMORY_PORT": str(port),
                "MEMORY_REDIS_URL": redis.url,
                "MEMORY_CACHE_REDIS_URL": cache.url,
                "MEMORY_HINDSIGHT_URL": hindsight.url,
                "MEMORY_MIN_SCORE": "0",
                "MEMORY_CACHE_TTL_S": "3600",
                "MEMORY_GATEWAY_MODEL": "openai/bench",
                "MEMORY_GATEWAY_API_KEY": "bench-upstream-key",
                "MEMORY_GATEWAY_BASE_URL": f"{model}/v1",
                "MEMORY_GATEWAY_DIRECT": is_direct,
            }
            urls[name] = await stack.enter_async_context(
                server("-m", "service.cli.main", "serve", port=port, env=env, log=folder / f"{name}.log")
            )
        await fill(urls["ours"], [_USER])
        for url in urls.values():
            # litellm is still being loaded, which would take longer than a connection may be idle.
            await tokens_per_s(url, Shape(1, 1, 0))
        return await _measured(urls, shapes, rounds, questions=40 if is_quick else 220)


async def _measured(
    urls: dict[str, str], shapes: dict[str, tuple[Shape, str]], rounds: int, questions: int
) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        direct, ours, litellm = await first_token_ms(list(urls.values()), questions)
        found.setdefault("gateway_first_token_ms_upstream", []).append(direct)
        found.setdefault("gateway_first_token_ms", []).append(ours)
        found.setdefault("gateway_first_token_added_ms", []).append(ours - direct)
        found.setdefault("gateway_litellm_first_token_added_ms", []).append(litellm - direct)
        for name, (shape, one) in shapes.items():
            per_s = {url: await tokens_per_s(urls[url], shape) for url in ("model", one)}
            found.setdefault(name, []).append(per_s[one] / per_s["model"])
            found.setdefault(name.replace("_ratio", "_per_s"), []).append(per_s[one])
    return {name: round(statistics.median(values), 3) for name, values in found.items()}


if __name__ == "__main__":
    numbers = asyncio.run(run(rounds=int(os.environ.get("ROUNDS", "3"))))
    sys.stdout.write(json.dumps(numbers, indent=2) + "\n")
