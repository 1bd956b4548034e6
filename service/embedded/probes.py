"""Asking a child over its own protocol whether it is there, with nothing but sockets.

Every probe answers within `PROBE_TIMEOUT_S` and turns every failure to answer into False.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

PROBE_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class Address:
    """Where a server listens: a unix socket, or a host and port."""

    socket: Path | None = None
    host: str = "127.0.0.1"
    port: int = 0


@contextlib.asynccontextmanager
async def _connection(address: Address) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    if address.socket is not None:
        reader, writer = await asyncio.open_unix_connection(address.socket)
    else:
        reader, writer = await asyncio.open_connection(address.host, address.port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def _ask(address: Address, request: bytes, is_complete: Callable[[bytes], bool]) -> bytes:
    """The reply as far as it is needed; what there is of it, or nothing, if it does not come in time."""
    reply = b""
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S), _connection(address) as (reader, writer):
            writer.write(request)
            await writer.drain()
            while not is_complete(reply):
                chunk = await reader.read(1024)
                if not chunk:
                    break
                reply += chunk
    except (OSError, TimeoutError):
        return b""
    return reply


async def accepts(address: Address) -> bool:
    """Whether anything accepts a connection."""
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S), _connection(address):
            return True
    except (OSError, TimeoutError):
        return False


async def http_status(url: str) -> int:
    """Status of `GET url` (plain http), 0 if there is no HTTP reply."""
    parts = urlsplit(url)
    address = Address(host=parts.hostname or "127.0.0.1", port=parts.port or 80)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    request = f"GET {target} HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n\r\n"
    words = (await _ask(address, request.encode("ascii"), lambda reply: b"\n" in reply)).split(b" ", 2)
    if len(words) > 1 and words[0].startswith(b"HTTP/") and words[1][:3].isdigit():
        return int(words[1][:3])
    return 0


async def redis_says(address: Address, password: str | None) -> bytes:
    """Last line of a Redis-compatible server's reply to PING: `+PONG`, `-LOADING …`; empty if silent."""
    commands = ([f"AUTH {password}"] if password else []) + ["PING"]
    request = "".join(f"{command}\r\n" for command in commands).encode("ascii")
    reply = await _ask(address, request, lambda reply: reply.count(b"\n") >= len(commands))
    return reply.strip().rpartition(b"\n")[2]


async def postgres_says(address: Address, user: str, database: str) -> bytes:
    """First byte of PostgreSQL's reply to a login: `R` it takes logins, `E` not (yet); empty if silent."""
    body = b"\x00\x03\x00\x00" + b"".join(
        word.encode("ascii") + b"\x00" for word in ("user", user, "database", database)
    )
    packet = (len(body) + 5).to_bytes(4, "big") + body + b"\x00"
    return (await _ask(address, packet, bool))[:1]
