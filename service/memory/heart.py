"""A worker's sign of life: every two seconds, from its event loop, to whoever asks how the queue is."""

import asyncio
from contextlib import suppress
from types import TracebackType
from typing import Self

from service.adapters.vitals import Vitals, new_worker
from service.errors import TurnsLogUnavailable
from service.metrics import Metrics

_EVERY_S = 2.0


class Heart:
    """Beats while it is open; a Redis that is away is tried again at the next beat."""

    def __init__(self, vitals: Vitals, metrics: Metrics, *, every_s: float = _EVERY_S) -> None:
        self._vitals = vitals
        self._metrics = metrics
        self._every_s = every_s
        self._worker = new_worker()

    async def __aenter__(self) -> Self:
        """Begin."""
        self._beating = asyncio.create_task(self._beat())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop, and say so."""
        self._beating.cancel()
        with suppress(asyncio.CancelledError):
            await self._beating
        with suppress(TurnsLogUnavailable):
            await self._vitals.leave(self._worker)

    async def _beat(self) -> None:
        said = 0
        while True:
            stored = self._metrics.stored_turns
            with suppress(TurnsLogUnavailable):
                await self._vitals.beat(self._worker, has_stored=stored > said)
                said = stored
            await asyncio.sleep(self._every_s)
