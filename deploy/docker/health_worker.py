"""Does a worker take work from the Redis of this container's settings? Exit status 0 if one does.

The heartbeat is common to all workers of one Redis: it tells that at least one lives.
"""

import sys

from redis import Redis
from redis.exceptions import RedisError
from service import keyspace
from service.settings import Settings

_TIMEOUT_S = 4


def has_worker(url: str) -> bool:
    """Whether a heartbeat of the last seconds is there."""
    try:
        with Redis.from_url(url, socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S) as redis:
            return bool(redis.exists(keyspace.ARQ_HEALTH))
    except (RedisError, OSError):
        return False


if __name__ == "__main__":
    sys.exit(0 if has_worker(Settings().redis_url) else 1)
