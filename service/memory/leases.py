"""One process computes an answer, the others wait for what it publishes.

A lease lives a second and is prolonged while its holder works, so that a holder that dies frees it by
itself. (Within a process, `Flights` does the same for tasks.)
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from service.adapters.cache import LEASE_RENEWAL_S, RecallCache, token
from service.errors import CacheUnavailable
from service.metrics import Metrics
from service.scope import BankId

_POLL_S = 0.02


class Leases:
    """The leases of one process."""

    def __init__(self, cache: RecallCache, metrics: Metrics) -> None:
        self._cache = cache
        self._metrics = metrics

    @contextlib.asynccontextmanager
    async def held(self, bank: BankId, key: str, ends: float) -> AsyncIterator[bytes | None]:
        """Hold the lease of the answer cached at `key`; or wait for who has it, and give what they published.

        Waits until `ends` (the loop's time) at most. Without a cache there is nothing to hold.
        """
        holder = token()
        keeper: asyncio.Task[None] | None = None
        try:
            published, is_ours = await self._await(bank, key, holder, ends)
            if is_ours and published is None:
                keeper = asyncio.create_task(self._keep(bank, key, holder))
            yield published
        finally:
            if keeper is not None:
                keeper.cancel()
            self._cache.release_lease(bank, key, holder)

    async def _await(self, bank: BankId, key: str, holder: bytes, ends: float) -> tuple[bytes | None, bool]:
        """What another process has published, and whether the lease is ours."""
        loop = asyncio.get_running_loop()
        has_waited = False
        try:
            while loop.time() < ends:
                is_ours = await self._cache.lease(bank, key, holder)
                if has_waited:
                    found = await self._cache.find(bank, key, ends)
                    if found.current is not None:
                        return found.current, is_ours
                if is_ours:
                    return None, True
                has_waited = True
                await asyncio.sleep(_POLL_S)
        except CacheUnavailable:
            self._metrics.cache_failures.inc()
        return None, False

    async def _keep(self, bank: BankId, key: str, holder: bytes) -> None:
        while True:
            await asyncio.sleep(LEASE_RENEWAL_S)
            self._cache.renew_lease(bank, key, holder)
