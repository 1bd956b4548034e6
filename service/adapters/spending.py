"""What each tenant's language model has cost today, in Redis, for all workers together."""

from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import Self, cast

from redis.asyncio import Redis
from redis.exceptions import RedisError

from service import keyspace
from service.errors import TurnsLogUnavailable
from service.scope import turn_digest
from service.settings import Settings

_TTL_S = 2 * 86_400
_MICRO = 1_000_000


@dataclass(frozen=True, slots=True)
class Spent:
    """Of one tenant on one day (UTC)."""

    usd: float
    tokens: int


class Spending:
    """Open it as an async context manager; every method raises `TurnsLogUnavailable` without Redis."""

    def __init__(self, redis_url: str, *, timeout_s: float = 2.0) -> None:
        self._url = redis_url
        self._timeout_s = timeout_s

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """Kept where accepted turns are: it must not be evicted."""
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

    async def today(self, tenant: str) -> Spent:
        """What `tenant` has spent since midnight UTC."""
        async with self._errors():
            usd, tokens = await cast(
                "Awaitable[list[str | None]]", self._redis.hmget(_key(tenant), ["micro_usd", "tokens"])
            )
        return Spent(int(usd or 0) / _MICRO, int(tokens or 0))

    async def note(self, tenant: str, *, usd: float, tokens: int) -> None:
        """Add what one call has cost."""
        key = _key(tenant)
        async with self._errors():
            pipe = self._redis.pipeline(transaction=True)
            pipe.hincrby(key, "micro_usd", round(usd * _MICRO))
            pipe.hincrby(key, "tokens", tokens)
            pipe.expire(key, _TTL_S)
            await pipe.execute()

    @asynccontextmanager
    async def _errors(self) -> AsyncIterator[None]:
        try:
            yield
        except (RedisError, OSError, TimeoutError) as exc:
            raise TurnsLogUnavailable("The queue does not answer; try again soon.", retry_after_s=5) from exc


def _key(tenant: str) -> str:
    return keyspace.spent(turn_digest("spent", tenant, datetime.now(UTC).strftime("%Y%m%d")))
