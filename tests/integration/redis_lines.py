"""What goes over the connections to Redis: heard, or lost on its way."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Self

from redis.asyncio import Redis

from tests.support import wait_until


class SilentLine:
    """A way to Redis whose connections lose everything from one moment on, as behind a lost router."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._open: list[asyncio.Event] = []

    @asynccontextmanager
    async def open(self) -> AsyncIterator[str]:
        """Its address."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        try:
            yield f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0"
        finally:
            server.close()

    def fall_silent(self) -> None:
        """Connections that are open stay so, and nothing comes through; new ones work."""
        for is_lost in self._open:
            is_lost.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._target)
        is_lost = asyncio.Event()
        self._open.append(is_lost)
        ways = ((reader, up_writer), (up_reader, writer))
        try:
            async with asyncio.TaskGroup() as both:
                for source, target in ways:
                    both.create_task(self._pass_on(source, target, is_lost))
        finally:
            for end in (writer, up_writer):
                end.close()
                with suppress(OSError):
                    await end.wait_closed()

    async def _pass_on(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, is_lost: asyncio.Event
    ) -> None:
        with suppress(ConnectionError):
            while data := await source.read(1 << 16):
                if not is_lost.is_set():
                    target.write(data)
                    await target.drain()
            target.close()


class Heard:
    """The commands that clients have sent to Redis, without those that scripts call."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self.commands: list[str] = []

    async def __aenter__(self) -> Self:
        is_listening = asyncio.Event()

        async def listen() -> None:
            async with self._redis.monitor() as monitor:
                is_listening.set()
                async for heard in monitor.listen():
                    if heard["client_type"] != "lua":
                        self.commands.append(heard["command"])

        self._task = asyncio.create_task(listen())
        await is_listening.wait()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def until(self, mark: str) -> list[str]:
        """Everything up to a command that says `mark`, which is sent now."""
        await self._redis.echo(mark)
        await wait_until(lambda: self.commands and mark in self.commands[-1], "all is heard")
        return self.commands[:-1]
