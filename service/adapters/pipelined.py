"""One Redis connection that all tasks share: commands go out as they come, replies come in order.

A pool gives each task a connection of its own and pays for it with a lock, a set of objects and a
system call a command. On the recall hit path, where nothing but one `MGET` is asked, that is most of
the time. Here a command is appended to a buffer that is written once per turn of the event loop, and
hiredis takes the replies apart.

It knows no retries. A caller that gives up cancels its future, or says beforehand until when it waits,
and its reply is dropped when it comes. A server that stays silent is cut off, so that waiting futures end.
"""

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import Awaitable
from types import TracebackType
from typing import Any, Self, cast

import hiredis
from redis.exceptions import ConnectionError as RedisConnectionError

from service.adapters.redis_urls import SentinelUrl, connection_options, is_sentinel, sentinel_url, tls_of

_CONNECT_TIMEOUT_S = 2.0
# Nothing is heard for this long while something is awaited: the connection is dead.
_SILENCE_S = 1.0
_RECONNECT_PAUSE_S = 0.05
# Timers of uvloop are this coarse; one that comes early must not be set again for no time at all.
_TICK_S = 0.001
_RUN_ID = b"\nrun_id:"
_RUN_ID_BYTES = 16
# A server that does not tell its run id (a proxy, a narrow ACL).
_NAMELESS = b"-"
_DEMOTED = "READONLY"
_FORBIDDEN = "NOPERM"


class PipelinedRedis:
    """`execute` on one shared connection, made when it is needed; open as an async context manager."""

    def __init__(self, redis_url: str) -> None:
        self._sentinel: SentinelUrl | None = sentinel_url(redis_url) if is_sentinel(redis_url) else None
        self._options: dict[str, Any] = connection_options(redis_url)
        self._protocol: _Protocol | None = None
        self._connecting: asyncio.Task[_Protocol] | None = None
        self._retry_at = 0.0

    @property
    def server(self) -> bytes:
        """The run id of the server that the last reply came from: a restarted server has another.

        Valid in the turn of the event loop in which the reply was handed out: nothing can have
        reconnected by then. `-` when there was no reply yet, or the server does not tell.
        """
        return _NAMELESS if self._protocol is None else self._protocol.server

    def server_of(self, key: bytes) -> bytes:
        """`server`, of the one that has this key: here the only one."""
        del key
        return _NAMELESS if self._protocol is None else self._protocol.server

    @property
    def connection(self) -> object | None:
        """Stands for the live connection, if there is one: another connection is another object."""
        return None if self._protocol is None or self._protocol.is_lost else self._protocol

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if (connecting := self._connecting) is not None:
            connecting.cancel()
            await asyncio.wait([connecting])
        if self._protocol is not None:
            self._protocol.close()

    async def execute(self, *command: bytes) -> Any:
        """The reply to one command; raises `ConnectionError` or `hiredis.ReplyError`."""
        protocol = self._protocol
        if protocol is None or protocol.is_lost:
            protocol = await self._connected()
        return await protocol.send(command)

    async def execute_all(self, *commands: tuple[bytes, ...]) -> list[Any]:
        """The replies to commands that go out together, on one connection and with nothing between them.

        A reply that is an error stands in its place as a `hiredis.ReplyError`; raises `ConnectionError`.
        """
        protocol = self._protocol
        if protocol is None or protocol.is_lost:
            protocol = await self._connected()
        replies = await asyncio.gather(*(protocol.send(each) for each in commands), return_exceptions=True)
        for reply in replies:
            if isinstance(reply, BaseException) and not isinstance(reply, hiredis.ReplyError):
                raise reply
        return replies

    def execute_by(self, ends: float, *command: bytes) -> Awaitable[Any]:
        """`execute`, but `TimeoutError` at `ends` (the loop's time); all who wait share one timer.

        Not a coroutine: on a live connection the future itself is awaited.
        """
        protocol = self._protocol
        if protocol is None or protocol.is_lost:
            return self._connect_and_send(ends, command)
        return protocol.send(command, ends)

    async def _connect_and_send(self, ends: float, command: tuple[bytes, ...]) -> Any:
        async with asyncio.timeout_at(ends):
            protocol = await self._connected()
        return await protocol.send(command, ends)

    def post(self, *command: bytes) -> None:
        """Send a command whose reply nobody waits for; without a connection it is dropped."""
        if self._protocol is not None and not self._protocol.is_lost:
            self._protocol.send(command).cancel()

    async def ping(self) -> None:
        """One look whether it answers; raises `ConnectionError` or `hiredis.ReplyError`."""
        try:
            await self.execute(b"PING")
        except hiredis.ReplyError as exc:
            # A narrow ACL that lacks PING is an answer, too; a wrong password or a server that loads is none.
            if not str(exc).startswith(_FORBIDDEN):
                raise

    async def _connected(self) -> "_Protocol":
        """A live connection, made once however many ask for it; a refused one is not tried again at once."""
        if self._connecting is None:
            if self._loop.time() < self._retry_at:
                raise ConnectionError("the connection was refused a moment ago")
            self._connecting = asyncio.ensure_future(self._connect())
            self._connecting.add_done_callback(self._connect_done)
        # Shielded: one impatient caller must not cancel what the others wait for.
        return await asyncio.shield(self._connecting)

    def _connect_done(self, task: "asyncio.Task[_Protocol]") -> None:
        self._connecting = None
        if task.cancelled():
            return
        if task.exception() is None:
            self._protocol = task.result()
        else:
            self._retry_at = self._loop.time() + _RECONNECT_PAUSE_S

    async def _connect(self) -> "_Protocol":
        options = self._options
        async with asyncio.timeout(_CONNECT_TIMEOUT_S):
            if "path" in options:
                _, made = await self._loop.create_unix_connection(_Protocol, options["path"])
            else:
                host, port = options.get("host", "localhost"), options.get("port", 6379)
                if self._sentinel is not None:
                    host, port = await _master_of(self._sentinel)
                _, made = await self._loop.create_connection(_Protocol, host, port, ssl=tls_of(options))
            protocol = made
            try:
                if options.get("password"):
                    # Servers before Redis 6 know no user names.
                    credentials = filter(None, [options.get("username"), options["password"]])
                    await protocol.send((b"AUTH", *(text.encode() for text in credentials)))
                if options.get("db"):
                    await protocol.send((b"SELECT", str(options["db"]).encode()))
                with contextlib.suppress(hiredis.ReplyError):
                    protocol.server = _run_id(await protocol.send((b"INFO", b"server")))
            except BaseException:
                protocol.close()
                raise
        return protocol


async def _master_of(sentinel: SentinelUrl) -> tuple[str, int]:
    try:
        return await sentinel.master_address()
    except RedisConnectionError as exc:
        raise ConnectionError("no Sentinel tells where the master is") from exc


def _run_id(info: object) -> bytes:
    if not isinstance(info, bytes) or _RUN_ID not in info:
        return _NAMELESS
    return info.partition(_RUN_ID)[2].split(b"\r", 1)[0].strip()[:_RUN_ID_BYTES] or _NAMELESS


class _Protocol(asyncio.Protocol):
    """The wire: writes whole batches, matches replies to futures in order."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader()
        # Whose turn it is next, and until when each waits.
        self._waiting: deque[tuple[asyncio.Future[Any], float]] = deque()
        self._outgoing: list[bytes] = []
        self._heard_at = 0.0
        self._watch: asyncio.TimerHandle | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = math.inf
        self.is_lost = False
        self.server = _NAMELESS

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def send(self, command: tuple[bytes, ...], ends: float = math.inf) -> "asyncio.Future[Any]":
        """Queue a command; the future is its reply, or `TimeoutError` at `ends`."""
        future: asyncio.Future[Any] = self._loop.create_future()
        if self.is_lost:
            future.set_exception(ConnectionError("the connection is lost"))
            return future
        if not self._outgoing:
            self._loop.call_soon(self._flush)
        # The stub of hiredis declares a tuple of one element.
        self._outgoing.append(hiredis.pack_command(command))  # type: ignore[arg-type]
        if not self._waiting:
            # Silence counts from here: before, nothing was awaited.
            self._heard_at = self._loop.time()
        self._waiting.append((future, ends))
        if ends < self._alarm_at:
            self._set_alarm(ends)
        if self._watch is None:
            self._watch = self._loop.call_later(_SILENCE_S, self._check_silence)
        return future

    def _flush(self) -> None:
        outgoing, self._outgoing = self._outgoing, []
        if not self.is_lost:
            self._transport.write(outgoing[0] if len(outgoing) == 1 else b"".join(outgoing))

    def data_received(self, data: bytes) -> None:
        self._heard_at = self._loop.time()
        self._reader.feed(data)
        try:
            while (reply := self._reader.gets()) is not False:
                future, _ = self._waiting.popleft()
                if future.done():
                    continue
                if isinstance(reply, Exception):
                    future.set_exception(reply)
                    if str(reply).startswith(_DEMOTED):
                        # It was the master and is one no longer: the next connection finds the new one.
                        self._cut()
                        return
                else:
                    future.set_result(reply)
        except (hiredis.ProtocolError, IndexError):
            # Not Redis, or replies that nobody asked for: nothing on this connection can be trusted.
            self._cut()

    def _set_alarm(self, at: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = self._loop.call_at(at, self._end_waits)
        self._alarm_at = at

    def _end_waits(self) -> None:
        """Fail those whose time has come; the alarm is for the next of the others."""
        self._alarm, self._alarm_at = None, math.inf
        now = self._loop.time() + _TICK_S
        next_at = math.inf
        for future, ends in self._waiting:
            if future.done():
                continue
            if ends <= now:
                future.set_exception(TimeoutError("no reply in time"))
                future.exception()  # a caller that is cancelled in this very moment never asks for it
            else:
                next_at = min(next_at, ends)
        if next_at < math.inf:
            self._set_alarm(next_at)

    def _check_silence(self) -> None:
        self._watch = None
        if not self._waiting or self.is_lost:
            return
        silent_s = self._loop.time() - self._heard_at
        if silent_s >= _SILENCE_S:
            self._cut()
        else:
            self._watch = self._loop.call_later(_SILENCE_S - silent_s, self._check_silence)

    def _cut(self) -> None:
        """Lost from now on, not only when the event loop says so: nobody may write to it meanwhile."""
        self._transport.abort()
        self.connection_lost(None)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self.is_lost = True
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        waiting, self._waiting = self._waiting, deque()
        for future, _ in waiting:
            if not future.done():
                future.set_exception(ConnectionError("the connection was lost"))

    def close(self) -> None:
        """End the connection; what is awaited fails."""
        if not self.is_lost:
            self._transport.close()
            self.connection_lost(None)
