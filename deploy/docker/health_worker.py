"""Does a worker take work from the Redis of this container's settings? Exit status 0 if one does.

The heartbeat is common to all workers of one Redis: it tells that at least one lives.
"""

import asyncio
import sys

from redis.exceptions import RedisError
from service import keyspace
from service.adapters.redis_urls import open_client
from service.settings import Settings

_TIMEOUT_S = 4


async def has_worker(url: str) -> bool:
    """Whether a heartbeat of the last seconds is there; `url` is whatever MEMORY_REDIS_URL may be."""
    client = open_client(url, socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S)
    try:
        async with asyncio.timeout(_TIMEOUT_S), client:
            return bool(await client.exists(keyspace.ARQ_HEALTH))
    except (RedisError, OSError, TimeoutError):
        return False


if __name__ == "__main__":
    sys.exit(0 if asyncio.run(has_worker(Settings().redis_url)) else 1)
