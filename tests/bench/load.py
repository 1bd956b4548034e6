"""A load generator that costs little: raw asyncio protocols, one request in flight a connection."""

import asyncio
import multiprocessing
import re
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import cast
from urllib.parse import urlsplit

import uvloop

_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


@dataclass(frozen=True)
class Load:
    """What a run measured: requests a second, latencies in ms, answers that were not 2xx."""

    per_s: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    failures: int


def request_bytes(url: str, path: str, headers: dict[str, str], body: bytes) -> bytes:
    """An HTTP/1.1 POST as it goes over the wire."""
    parts = urlsplit(url)
    lines = [f"POST {path} HTTP/1.1", f"Host: {parts.netloc}", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class _Connection(asyncio.Protocol):
    def __init__(self, requests: Sequence[bytes], start: int, until: float, latencies: list[float]) -> None:
        self._requests = requests
        self._next = start
        self._until = until
        self._latencies = latencies
        self._buffer = b""
        self.failures = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is not a subclass
        self._send()

    def _send(self) -> None:
        self._sent_at = time.perf_counter()
        self._transport.write(self._requests[self._next % len(self._requests)])
        self._next += 1

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, rest = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return
        match = _LENGTH.search(head)
        assert match is not None, "An answer without a length."
        if len(rest) < int(match[1]):
            return
        now = time.perf_counter()
        self._latencies.append(now - self._sent_at)
        if head[9:10] != b"2":
            self.failures += 1
        self._buffer = rest[int(match[1]) :]
        if now >= self._until:
            self._transport.close()
            if not self.done.done():
                self.done.set_result(None)
        else:
            self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(exc or ConnectionError("the server closed the connection"))


async def _drive(host: str, port: int, requests: Sequence[bytes], connections: int, seconds: float) -> Load:
    loop = asyncio.get_running_loop()
    latencies: list[float] = []
    started = time.perf_counter()
    protocols: list[_Connection] = []
    for number in range(connections):
        start = number * max(1, len(requests) // connections)
        _, protocol = await loop.create_connection(
            lambda start=start: _Connection(requests, start, started + seconds, latencies),  # type: ignore[misc]
            host,
            port,
        )
        protocols.append(protocol)
    await asyncio.gather(*(protocol.done for protocol in protocols))
    took_s = time.perf_counter() - started
    ordered = sorted(latencies)
    percentiles = statistics.quantiles(ordered, n=100, method="inclusive")
    return Load(
        per_s=len(ordered) / took_s,
        p50_ms=percentiles[49] * 1000,
        p95_ms=percentiles[94] * 1000,
        p99_ms=percentiles[98] * 1000,
        failures=sum(protocol.failures for protocol in protocols),
    )


def _child(
    pipe: Connection, host: str, port: int, requests: Sequence[bytes], connections: int, seconds: float
) -> None:
    pipe.send(uvloop.run(_drive(host, port, requests, connections, seconds)))


def measure(url: str, requests: Sequence[bytes], *, connections: int, seconds: float) -> Load:
    """Drive `url` with `requests`, in turn, over that many connections, from a process of its own."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=_child, args=(theirs, parts.hostname, parts.port, list(requests), connections, seconds)
    )
    process.start()
    # Only the child may hold its end: a child that dies has to be the end of the waiting for it.
    theirs.close()
    try:
        load: Load = ours.recv()
    except EOFError as error:
        raise ChildProcessError("the process that makes the load died; it says why on stderr") from error
    finally:
        process.join()
    return load
