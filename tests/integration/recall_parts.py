"""What the tests of recall share: texts that bear on the query, a look into Redis, a gate on its wire."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Literal

import hiredis
import httpx
from redis.asyncio import Redis
from service.scope import BankId, bank_of

from tests.fakes.hindsight import HindsightStandIn
from tests.fakes.hindsight_store import Memory
from tests.support import wait_until

QUERY = "which harbour restaurant serves grilled sardines with lemon"


def bank(user: str) -> BankId:
    """The bank of a user of the tests' tenant."""
    return bank_of("default", user)


def stored(marker: str) -> str:
    """A text that answers the query, with a word to know it by."""
    return f"{QUERY} {marker}"


def said(marker: str) -> str:
    """Another such text: it shares words with the query, and few with `stored`."""
    return f"{marker} told me that grilled sardines at the harbour come from Portugal"


def remember(stand_in: HindsightStandIn, user: str, marker: str) -> Memory:
    """Put `stored(marker)` into Hindsight by hand: nobody is told."""
    return stand_in.add_memory(bank(user), stored(marker))


def texts(reply: httpx.Response) -> list[str]:
    """The texts of a recall's memories."""
    assert reply.status_code == 200, reply.text
    return [memory["text"] for memory in reply.json()["memories"]]


def how(reply: httpx.Response) -> dict[str, Any]:
    """What a recall says of itself, without its id."""
    body = reply.json()
    return {name: body[name] for name in ("cached", "stale", "degraded", "reason")}


HIT = {"cached": True, "stale": False, "degraded": False, "reason": ""}
MISS = {"cached": False, "stale": False, "degraded": False, "reason": ""}


async def commands(redis: Redis) -> dict[str, int]:
    """How often each command was run since `CONFIG RESETSTAT`."""
    stats = await redis.info("commandstats")
    counts = {name.removeprefix("cmdstat_"): entry["calls"] for name, entry in stats.items()}
    return {name: calls for name, calls in counts.items() if not name.startswith(("config", "info"))}


async def keys_of(redis: Redis, kind: str) -> list[str]:
    """The names of the keys of one kind: `recall`, `lease`, `write`, `purge`."""
    return sorted([key async for key in redis.scan_iter(match=f"mem:{kind}:*", count=1000)])


@dataclass
class _Hold:
    command: bytes
    after: bool
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    released: asyncio.Event = field(default_factory=asyncio.Event)


class Gate:
    """A proxy in front of Redis that stops the next command of a kind, before or after the server runs it."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._holds: list[_Hold] = []
        self._wires: set[asyncio.Task[Any]] = set()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[str]:
        """Listen; gives the URL for a client."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        async with server:
            yield f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0"
            self.let_go()
            for wire in self._wires:
                wire.cancel()
            await asyncio.gather(*self._wires, return_exceptions=True)

    @contextmanager
    def hold(self, command: str, *, after: bool) -> Iterator[_Hold]:
        """Stop the next such command; `reached` tells that it is there. Released at the end of the block."""
        hold = _Hold(command.encode(), after)
        self._holds.append(hold)
        try:
            yield hold
        finally:
            hold.released.set()
            if hold in self._holds:
                self._holds.remove(hold)

    def let_go(self) -> None:
        """Release everything."""
        for hold in self._holds:
            hold.released.set()
        self._holds.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._wires.add(task)
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._target)
        commands, replies = hiredis.Reader(), _Replies(up_reader)
        try:
            while data := await reader.read(1 << 16):
                commands.feed(data)
                while (command := commands.gets()) is not False:
                    hold = self._hold_for(command[0])
                    if hold is not None and not hold.after:
                        hold.reached.set()
                        await hold.released.wait()
                    up_writer.write(hiredis.pack_command(tuple(command)))
                    reply = await replies.next()
                    if hold is not None and hold.after:
                        hold.reached.set()
                        await hold.released.wait()
                    writer.write(reply)
        except (OSError, EOFError):
            pass
        finally:
            self._wires.discard(task)
            for end in (writer, up_writer):
                end.close()
                with suppress(OSError):
                    await end.wait_closed()

    def _hold_for(self, command: bytes) -> _Hold | None:
        for hold in self._holds:
            if hold.command == command.upper():
                self._holds.remove(hold)
                return hold
        return None


class ReplyGate:
    """A proxy in front of an HTTP server that holds requests or replies while `is_open` is not set."""

    def __init__(self, port: int, *, holds: Literal["request", "reply"]) -> None:
        self._target = port
        self._holds = holds
        self.is_open = asyncio.Event()
        self.is_open.set()
        self.reached = asyncio.Event()
        self._wires: set[asyncio.Task[Any]] = set()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[str]:
        """Listen; gives the URL for a client."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        async with server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            for wire in self._wires:
                wire.cancel()
            await asyncio.gather(*self._wires, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._wires.add(task)
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._target)
        try:
            await asyncio.gather(
                self._pass_on(reader, up_writer, is_held=self._holds == "request"),
                self._pass_on(up_reader, writer, is_held=self._holds == "reply"),
            )
        finally:
            self._wires.discard(task)
            for end in (writer, up_writer):
                end.close()
                with suppress(OSError):
                    await end.wait_closed()

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_held: bool
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                if is_held and not self.is_open.is_set():
                    self.reached.set()
                    await self.is_open.wait()
                writer.write(data)
            writer.close()


class _Replies:
    """Whole replies as raw bytes."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader

    async def next(self) -> bytes:
        raw = b""
        parser = hiredis.Reader()
        while True:
            data = await self._reader.read(1 << 16)
            if not data:
                raise EOFError
            raw += data
            parser.feed(data)
            if parser.gets() is not False:
                return raw


async def reached(hold: _Hold) -> None:
    """Wait until the held command is there."""
    await wait_until(hold.reached.is_set, f"{hold.command.decode()} is held", 5, 0.001)
