"""How the log of accepted turns speaks to its Redis: scripts by name, one time limit, one error.

Every script may be run again when its reply was lost, so that a call whose connection broke is repeated once.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from importlib.resources import files
from types import TracebackType
from typing import Any, Self

from hiredis import HiredisError
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff
from redis.commands.core import AsyncScript
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ReadOnlyError, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from service.adapters.pipelined import PipelinedRedis
from service.adapters.redis_urls import open_client
from service.adapters.turns_scripts import SharedScripts
from service.errors import ClaimLost, TurnsLogUnavailable

_SCRIPTS = (
    "accept",
    "claim",
    "count_due",
    "renew",
    "take",
    "postpone",
    "settle",
    "release",
    "rearm",
    "pull_back",
    "measure",
    "counters",
    "recount",
    "number",
    "prepared",
    "wake",
    "letters_page",
    "letters_find",
    "revive",
    "drop",
    "forget",
    "forget_end",
)


def script_text(name: str) -> str:
    """The script of this name with what all of them share in front of it."""
    folder = files("service.adapters") / "lua"
    return (folder / "common.lua").read_text("utf-8") + (folder / f"{name}.lua").read_text("utf-8")


class TurnsRedis:
    """The log's connections; open it as an async context manager.

    What runs a script raises `TurnsLogUnavailable` when Redis does not answer within `timeout_s`; the effect
    may or may not have happened then.
    """

    client: Redis

    def __init__(self, url: str, timeout_s: float) -> None:
        self._url = url
        self._timeout_s = timeout_s

    async def __aenter__(self) -> Self:
        self.client = open_client(
            self._url,
            decode_responses=True,
            socket_timeout=self._timeout_s,
            socket_connect_timeout=self._timeout_s,
            # Scripts are safe to repeat; one quick repetition rides out a closed idle connection, and a
            # master that is one no longer.
            retry=Retry(ExponentialBackoff(cap=0.2, base=0.02), 1),
            retry_on_error=[RedisConnectionError, ReadOnlyError],
            health_check_interval=15,
        )
        self._shared = await PipelinedRedis(self._url).__aenter__()
        self._on_shared = SharedScripts(self._shared)
        self._scripts: dict[str, AsyncScript] = {
            name: self.client.register_script(script_text(name)) for name in _SCRIPTS
        }
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._shared.__aexit__(kind, error, trace)
        await self.client.aclose()

    async def run(self, name: str, keys: Sequence[str], args: Sequence[str | int | float]) -> Any:
        """What the script of this name answers."""
        async with self.errors():
            return await self._scripts[name](keys=keys, args=args)

    async def run_held(self, name: str, keys: Sequence[str], args: Sequence[str | int | float]) -> Any:
        """The same for a script that takes a claim; `ClaimLost` when that is no longer the newest."""
        reply = await self.run(name, keys, args)
        if reply == "lost":
            raise ClaimLost("Another worker has this bank.")
        return reply

    async def run_in_time(
        self, name: str, keys: Sequence[str], args: Callable[[int], Sequence[str | int | float]]
    ) -> list[str]:
        """The same on the connection that all tasks share, never done after this has given up.

        `args` gets the server's time in ms from which on the script must do nothing (see `turns_scripts`).
        """
        # Before the limit's own clock starts: the server never goes on after that has run out.
        ends = asyncio.get_running_loop().time() + self._timeout_s
        async with self.errors():
            return await self._on_shared.run(self._scripts[name], keys, args, ends=ends)

    @asynccontextmanager
    async def errors(self) -> AsyncIterator[None]:
        """One time limit for all that is done in the block, and `TurnsLogUnavailable` for what goes wrong."""
        try:
            # The client's own limit is one per step (connect, send, read, repeat); this is one for all.
            async with asyncio.timeout(self._timeout_s):
                yield
        except (RedisConnectionError, RedisTimeoutError, OSError, TimeoutError) as exc:
            raise TurnsLogUnavailable("The queue does not answer; try again soon.", retry_after_s=5) from exc
        except (RedisError, HiredisError) as exc:
            # Out of memory, read-only, loading: nothing was written, and it can pass.
            raise TurnsLogUnavailable(
                "The queue cannot take writes now; try again soon.", retry_after_s=15
            ) from exc
