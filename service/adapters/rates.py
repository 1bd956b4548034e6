"""Counts of requests by minute, in Redis, for all processes together."""

from collections.abc import Sequence
from typing import NamedTuple

from service import keyspace
from service.adapters.redis_client import RedisStore
from service.errors import CacheUnavailable
from service.scope import turn_digest

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


class RateCounters(RedisStore):
    """The counts in Redis; raises `CacheUnavailable` without it: a count may be lost."""

    _ERROR = CacheUnavailable
    _SENTENCE = "The counts cannot be reached."
    _RETRY_AFTER_S = None

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


def _key(subject: str, window: int) -> str:
    return keyspace.rate(turn_digest("rate", subject, str(window)))
