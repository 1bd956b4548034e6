"""What each tenant's language model has cost today, in Redis, for all workers together."""

from collections.abc import Awaitable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import cast

from service import keyspace
from service.adapters.redis_client import RedisStore
from service.errors import TurnsLogUnavailable
from service.scope import turn_digest

_TTL_S = 2 * 86_400
_MICRO = 1_000_000


@dataclass(frozen=True, slots=True)
class Spent:
    """Of one tenant on one day (UTC)."""

    usd: float
    tokens: int


class Spending(RedisStore):
    """The sums in Redis; every method raises `TurnsLogUnavailable` without it."""

    _ERROR = TurnsLogUnavailable
    _SENTENCE = "The queue does not answer; try again soon."

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


def _key(tenant: str) -> str:
    return keyspace.spent(turn_digest("spent", tenant, datetime.now(UTC).strftime("%Y%m%d")))
