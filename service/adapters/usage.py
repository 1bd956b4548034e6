"""What all processes together have counted, by hour and by day, in Redis.

A number of one tenant is a field `what:tenant` of the hour's and of the day's hash. Adding is not repeated
by itself, but a caller who gets an error cannot know whether it was done: a count may then be added twice.
Counts that are broken are none, and are begun anew.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime

from redis.exceptions import ResponseError

from service import keyspace
from service.adapters import counters
from service.adapters.redis_client import RedisStore
from service.errors import CacheUnavailable
from service.scope import turn_digest

# What was counted, of which tenant → how often.
Counts = Mapping[tuple[str, str], int]

HOURS_KEPT = 72
DAYS_KEPT = 100


class UsageStore(RedisStore):
    """The counts; every method raises `CacheUnavailable` without Redis. Moments are in UTC."""

    _ERROR = CacheUnavailable
    _SENTENCE = "The counts cannot be reached."
    _RETRY_AFTER_S = None

    async def add(self, hours: Mapping[datetime, Counts]) -> None:
        """Add counts to their hours and days, all in one round trip."""
        async with self._errors():
            pipe = self._redis.pipeline(transaction=True)
            for moment, counts in hours.items():
                for key, ttl_s in (
                    (_hour(moment), HOURS_KEPT * 3600),
                    (_day(moment), DAYS_KEPT * 86_400),
                ):
                    fields = {f"{what}:{tenant}": count for (what, tenant), count in counts.items()}
                    counters.add(pipe, key, fields, ttl_s=ttl_s)
            await pipe.execute()

    async def hours(self, moments: Sequence[datetime]) -> list[dict[tuple[str, str], int]]:
        """What was counted in each of these hours."""
        return await self._read([_hour(moment) for moment in moments])

    async def days(self, moments: Sequence[datetime]) -> list[dict[tuple[str, str], int]]:
        """What was counted on each of these days."""
        return await self._read([_day(moment) for moment in moments])

    async def _read(self, keys: Sequence[str]) -> list[dict[tuple[str, str], int]]:
        async with self._errors():
            pipe = self._redis.pipeline(transaction=False)
            for key in keys:
                pipe.hgetall(key)
            found: list[dict[str, str] | Exception] = await pipe.execute(raise_on_error=False)
            return [_counts(fields) for fields in found]


def _counts(fields: Mapping[str, str] | Exception) -> dict[tuple[str, str], int]:
    if isinstance(fields, Exception):
        if isinstance(fields, ResponseError) and counters.is_no_hash(fields):
            return {}
        raise fields
    counts: dict[tuple[str, str], int] = {}
    for name, count in fields.items():
        what, _, tenant = name.partition(":")
        counts[what, tenant] = counters.value_of(count)
    return counts


def _hour(moment: datetime) -> str:
    return keyspace.usage(turn_digest("usage-hour", moment.strftime("%Y%m%d%H")))


def _day(moment: datetime) -> str:
    return keyspace.usage(turn_digest("usage-day", moment.strftime("%Y%m%d")))
