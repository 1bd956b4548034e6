"""A claim of a bank that is kept alive while it is worked under, and that knows when it is lost."""

import asyncio
from time import monotonic
from types import TracebackType
from typing import Self

from service.adapters.turns import Claim, TurnsLog
from service.errors import ClaimLost, TurnsLogUnavailable


class Hold:
    """Keeps `claim` alive until the block ends; open it as an async context manager.

    The log refuses whoever has lost a claim, but Hindsight knows nothing of claims. So what is sent
    there has to be asked about here first: by this process's own clock, which goes on while the
    process is stopped, and counted from before each renewal was asked for.
    """

    def __init__(self, log: TurnsLog, claim: Claim) -> None:
        self._log = log
        self._claim = claim
        self._ends = claim.asked_at + log.claim_s

    async def __aenter__(self) -> Self:
        self._keeper = asyncio.create_task(self._keep())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._keeper.cancel()
        await asyncio.wait([self._keeper])

    def check(self) -> None:
        """Raise `ClaimLost` unless the claim is ours for sure; ask right before anything is changed."""
        if monotonic() >= self._ends:
            raise ClaimLost("Somebody else may have this bank.")

    async def renew(self) -> None:
        """Start the claim's time anew; raises `ClaimLost` or `TurnsLogUnavailable`."""
        asked_at = monotonic()
        try:
            await self._log.renew(self._claim)
        except ClaimLost:
            self._ends = 0.0
            raise
        self._ends = asked_at + self._log.claim_s

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(self._log.claim_s / 3)
            try:
                await self.renew()
            except ClaimLost:
                return  # the next check or write ends the work
            except TurnsLogUnavailable:
                continue  # Redis may be back before the claim ends
