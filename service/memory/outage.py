"""Whether Hindsight is there at all, so that an outage costs one question now and then, not a try per bank.

A failed call alone does not tell whose fault it was. So Hindsight is asked how it is: if it is not
well either, nothing counts against the turns, and no bank is taken until it is well again.
"""

import asyncio
import logging
import random
from time import monotonic

from service.adapters.hindsight import HindsightAdapter
from service.errors import HindsightRejected, HindsightUnavailable

_log = logging.getLogger(__name__)

_PATIENCE_S = 2.0
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 15.0


class Outage:
    """One process's view of Hindsight; starts in good faith."""

    def __init__(self, hindsight: HindsightAdapter) -> None:
        self._hindsight = hindsight
        self._asking = asyncio.Lock()
        self._pause_s = 0.0
        self._ask_again_at = 0.0

    @property
    def is_on(self) -> bool:
        """Whether Hindsight was not well when it was last asked."""
        return self._pause_s > 0

    async def is_over(self) -> bool:
        """Whether work may go on; during an outage this asks again, after pauses of 1 to 15 seconds."""
        if not self.is_on:
            return True
        if self._asking.locked():
            return False
        return await self.ask()

    async def ask(self) -> bool:
        """Whether Hindsight is well now. Those who ask at once share one question."""
        async with self._asking:
            if self.is_on and monotonic() < self._ask_again_at:
                return False
            try:
                await self._hindsight.check(_PATIENCE_S)
            except (HindsightUnavailable, HindsightRejected) as exc:
                if not self.is_on:
                    _log.warning("hindsight_away", extra={"reason": exc.detail})
                self._pause_s = min(_LONGEST_PAUSE_S, 2 * self._pause_s) or _FIRST_PAUSE_S
                self._ask_again_at = monotonic() + self._pause_s * random.uniform(0.5, 1)
                return False
            if self.is_on:
                _log.info("hindsight_back")
            self._pause_s = 0.0
            return True
