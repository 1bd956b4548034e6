"""Does the worker of this container live, and reach its Redis? Exit status 0 if it does.

By that worker's own heartbeat: other workers of the same Redis neither help it nor harm it.
"""

import asyncio
import sys

from service.adapters.vitals import Vitals
from service.errors import TurnsLogUnavailable
from service.settings import Settings

_TIMEOUT_S = 4


async def is_well(url: str) -> bool:
    """Whether it gave a sign of life in the last seconds; `url` is whatever MEMORY_REDIS_URL may be."""
    try:
        async with asyncio.timeout(_TIMEOUT_S), Vitals(url, timeout_s=_TIMEOUT_S) as vitals:
            return await vitals.is_worker_here()
    except (TurnsLogUnavailable, OSError):
        return False


if __name__ == "__main__":
    sys.exit(0 if asyncio.run(is_well(Settings().redis_url)) else 1)
