"""What each tenant's language model has cost today, in Redis, for all workers together.

A sum that is broken is nothing, and is begun anew: else nothing more of that tenant could be stored that day.
"""

from collections.abc import Awaitable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import cast

from redis.exceptions import ResponseError

from service import keyspace
from service.adapters import counters
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
            try:
                usd, tokens = await cast(
                    "Awaitable[list[str | None]]", self._redis.hmget(_key(tenant), ["micro_usd", "tokens"])
                )
            except ResponseError as exc:
                if not counters.is_no_hash(exc):
                    raise
                usd = tokens = None
        return Spent(counters.value_of(usd) / _MICRO, counters.value_of(tokens))

    async def note(self, tenant: str, *, usd: float, tokens: int) -> None:
        """Add what one call has cost."""
        counts = {"micro_usd": round(usd * _MICRO), "tokens": tokens}
        async with self._errors():
            # What was paid for has to be stored: to ask again would cost as much again. One script is all or
            # nothing by itself, and a full Redis 7 queues nothing in a transaction.
            pipe = self._redis.pipeline(transaction=False)
            counters.add(pipe, _key(tenant), counts, ttl_s=_TTL_S, although_full=True)
            await pipe.execute()


def _key(tenant: str) -> str:
    return keyspace.spent(turn_digest("spent", tenant, datetime.now(UTC).strftime("%Y%m%d")))
