"""Counts of requests by minute, in Redis, for all processes together."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import NamedTuple, Self

from redis.asyncio import Redis
from redis.exceptions import RedisError

from service import keyspace
from service.errors import CacheUnavailable
from service.scope import turn_digest
from service.settings import Settings

WINDOW_S = 60
# The window itself, the next one (which still looks back at it), and some difference between clocks.
_TTL_S = 3 * WINDOW_S


class Told(NamedTuple):
    """What one process has counted of a subject in window `window` since it told last."""

    subject: str
    window: int
    requests: int


class Total(NamedTuple):
    """Of all processes: the count of that window and of the one before."""

    now: int
    before: int


class RateCounters:
    """Open it as an async context manager; raises `CacheUnavailable` without Redis: a count may be lost."""

    def __init__(self, redis_url: str, *, timeout_s: float = 1.0) -> None:
        self._url = redis_url
        self._timeout_s = timeout_s

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """Kept where accepted turns are, which every process reaches."""
        return cls(settings.redis_url)

    async def __aenter__(self) -> Self:
        self._redis: Redis = Redis.from_url(
            self._url,
            decode_responses=True,
            socket_timeout=self._timeout_s,
            socket_connect_timeout=self._timeout_s,
            health_check_interval=15,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._redis.aclose()

    async def tell(self, told: Sequence[Told]) -> list[Total]:
        """Add counts and learn the totals, all in one round trip; one total for each told, in order."""
        async with self._errors():
            pipe = self._redis.pipeline(transaction=False)
            for subject, window, count in told:
                key = _key(subject, window)
                pipe.incrby(key, count)
                pipe.expire(key, _TTL_S)
                pipe.get(_key(subject, window - 1))
            replies = await pipe.execute()
        return [
            Total(int(now), int(before or 0)) for now, before in zip(replies[::3], replies[2::3], strict=True)
        ]

    @asynccontextmanager
    async def _errors(self) -> AsyncIterator[None]:
        try:
            yield
        except (RedisError, OSError, TimeoutError) as exc:
            raise CacheUnavailable("The counts cannot be reached.") from exc


def _key(subject: str, window: int) -> str:
    return keyspace.rate(turn_digest("rate", subject, str(window)))
