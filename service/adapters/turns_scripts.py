"""Scripts on the connection that all tasks share: for every add, a third of the work of redis-py's pool.

What is on its way cannot be called back: a server that hangs, or a network that does, may run a command long
after its caller was told that nothing came of it, and even after a forget that came later. Each call
therefore carries the time from which on the script must do nothing, by the server's own clock.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hiredis import ReplyError
from redis.commands.core import AsyncScript

from service.adapters.pipelined import PipelinedRedis

# What a script answers when its time is over.
LATE = "late"
# Clocks drift apart; this often they are compared.
_COMPARE_S = 30.0
# A clock that was set is noticed by the first call that comes too late by it.
_MOST_TRIES = 2


@dataclass(frozen=True, slots=True)
class _Clock:
    """The server's clock: what it showed, at most, when ours showed `at` (the loop's time, in s)."""

    connection: object
    at: float
    server_ms: int

    def ms(self, at: float) -> int:
        """What the server's clock will show then, or a little less."""
        return self.server_ms + int((at - self.at) * 1000)


class SharedScripts:
    """Runs repeatable scripts on a shared connection, each within its caller's time and never after it."""

    def __init__(self, redis: PipelinedRedis) -> None:
        self._redis = redis
        self._clock: _Clock | None = None

    async def run(
        self,
        script: AsyncScript,
        keys: Sequence[str],
        args: Callable[[int], Sequence[str | int | float]],
        *,
        ends: float,
    ) -> list[str]:
        """The texts that `script` answers. `args` gets the server's time in ms from which on it must answer
        `late` and do nothing: that is `ends`, the loop's time at which the caller gives up.

        Raises `ConnectionError`, `hiredis.ReplyError` or, when there is no more time, `TimeoutError`.
        """
        for _ in range(_MOST_TRIES):
            try:
                reply = await self._run(script, keys, args, ends)
            except ConnectionError:
                # A closed idle connection, most likely: one quick repetition, as the log's other client does.
                reply = await self._run(script, keys, args, ends)
            if reply[0] != LATE:
                return reply
            self._clock = None
        raise TimeoutError("there was no time left")

    async def _run(
        self,
        script: AsyncScript,
        keys: Sequence[str],
        args: Callable[[int], Sequence[str | int | float]],
        ends: float,
    ) -> list[str]:
        clock = await self._compared()
        rest = (str(part).encode() for part in (len(keys), *keys, *args(clock.ms(ends))))
        call = (b"EVALSHA", script.sha.encode(), *rest)
        try:
            reply = await self._redis.execute(*call)
        except ReplyError as exc:
            if not str(exc).startswith("NOSCRIPT"):
                raise
            await self._redis.execute(b"SCRIPT", b"LOAD", str(script.script).encode())
            reply = await self._redis.execute(*call)
        return [part.decode() for part in reply]

    async def _compared(self) -> _Clock:
        """The clock of the server at the other end of the connection; another connection, another server."""
        now = asyncio.get_running_loop().time()
        clock = self._clock
        if clock is None or clock.connection is not self._redis.connection or now - clock.at > _COMPARE_S:
            seconds, micros = await self._redis.execute(b"TIME")
            # It was read before now: counted from now on, it is never ahead of the server.
            now = asyncio.get_running_loop().time()
            clock = _Clock(self._redis.connection, now, int(seconds) * 1000 + int(micros) // 1000)
            self._clock = clock
        return clock
