"""One try to store some turns: what to send, sending it, and following Hindsight's operation to its end.

What a failure means: refused (4xx) is final; answered badly, or an operation that failed, counts against the
turns; no answer, or any failure while Hindsight is not well, never does. Known memories that cannot be looked
up although Hindsight is well are done without: then new ones outdate nothing. A slow operation is left to
itself, to be looked at again.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from time import monotonic
from typing import Literal

from service.adapters.hindsight import HindsightAdapter
from service.adapters.tracing import span
from service.adapters.turns import Batch, Claim, Turn, TurnsLog
from service.errors import (
    HindsightRejected,
    HindsightUnavailable,
    LlmMisconfigured,
    LlmNotAsked,
    LlmRejected,
    LlmUnavailable,
)
from service.memory.extract import Extractor, Prepared
from service.memory.hold import Hold
from service.memory.outage import Outage
from service.memory.turn_items import turn_item
from service.metrics import Metrics
from service.scope import BankId, OperationId, operation_of

_FIRST_POLL_S = 0.02
_LONGEST_POLL_S = 1.0
_NOT_LOOKED_UP_RETRY_S = 10

Verdict = Literal["final", "counts", "passes", "runs"]


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why turns are not stored yet: their own fault for good, perhaps, not at all, or still running.

    `is_failure` False: nothing was tried, so that it is no failed try. `retry_after_s`: no sooner than that.
    `is_stored`: they are, and only what has to be done afterwards is not.
    """

    verdict: Verdict
    reason: str
    is_failure: bool = True
    retry_after_s: int = 0
    needs_new_id: bool = False
    is_processing: bool = False
    is_stored: bool = False


class Attempts:
    """Tries at storing turns; whoever asks holds the bank and decides what a `Trouble` leads to.

    `max_attempts`: tries that count; in the first half of them known memories have to be looked up. `stuck_s`
    and `follow_s`: how long Hindsight may work on an operation, and how long that is followed closely.
    """

    def __init__(
        self,
        log: TurnsLog,
        hindsight: HindsightAdapter,
        metrics: Metrics,
        outage: Outage,
        *,
        max_attempts: int,
        stuck_s: float,
        follow_s: float,
    ) -> None:
        self._turns = log
        self._hindsight = hindsight
        self._metrics = metrics
        self._outage = outage
        self._max_attempts = max_attempts
        self._stuck_s = stuck_s
        self._follow_s = follow_s

    async def prepare(
        self, claim: Claim, batch: Batch, group: Sequence[Turn], extractor: Extractor
    ) -> Prepared | Trouble:
        """What to store of `group`, the first turns of `batch` or all; or why that cannot be said yet.

        Raises what Redis raises.
        """
        verbatim = [
            turn_item(batch.turns, place, turn.conversation, _accepted_at(turn))
            for place, turn in enumerate(group)
        ]
        looks_up = True
        while True:
            try:
                return await extractor.prepare(claim, batch, group, verbatim, looks_up=looks_up)
            except LlmRejected as exc:
                return Trouble("final", exc.detail)
            except (LlmUnavailable, LlmMisconfigured) as exc:
                # A day without a budget must not use up the tries of the day after.
                is_failure = not isinstance(exc, LlmNotAsked)
                if not is_failure:
                    await self._turns.note_resting(claim.bank, exc.code, exc.retry_after_s or 0)
                return Trouble("passes", exc.detail, is_failure, exc.retry_after_s or 0)
            except (HindsightUnavailable, HindsightRejected) as exc:
                trouble = await self._not_looked_up(claim.bank, batch, exc)
                if trouble is not None or not looks_up:
                    return trouble or Trouble("passes", exc.detail, is_failure=False)
                # New memories that leave outdated ones be are worth more than none.
                looks_up = False

    async def _not_looked_up(
        self, bank: BankId, batch: Batch, exc: HindsightUnavailable | HindsightRejected
    ) -> Trouble | None:
        """What it means that known memories could not be looked up; None: go on without them.

        It is no failed try of the language model, which has not been asked.
        """
        is_well = await self._outage.ask()
        if isinstance(exc, HindsightRejected):
            if is_well and await self._is_welcome(bank, operation_of(batch.id)):
                return None
        elif is_well and exc.reached:
            if batch.attempts >= max(1, self._max_attempts // 2):
                return None
            return Trouble("counts", exc.detail, is_failure=False)
        return Trouble("passes", exc.detail, is_failure=False, retry_after_s=_NOT_LOOKED_UP_RETRY_S)

    async def send(
        self,
        bank: BankId,
        hold: Hold,
        batch: Batch,
        prepared: Prepared,
        tenant: str | None,
        extractor: Extractor,
    ) -> Trouble | None:
        """Store a group under its operation id and follow it to its end; None when it is stored.

        Raises `ClaimLost` before anything is sent that another worker may be sending, and what Redis raises.
        """
        if not prepared.items and not prepared.superfluous:
            return None  # nothing worth keeping was said
        parts = [str(batch.round)] + ([batch.turns[0].document_id] if batch.is_solo else [])
        operation = operation_of(batch.id, *parts)
        is_stored = False
        try:
            if batch.looks == 0 and prepared.items:
                with span("make bank", "client"):
                    await self._make_bank(bank, tenant)
                # A forget takes the claim away first: a worker that was stopped meanwhile must not send.
                hold.check()
                await self._hindsight.retain(bank, prepared.items, operation)
            trouble = await self._follow(bank, hold, batch, operation) if prepared.items else None
            if trouble is None:
                hold.check()
                is_stored = True
                if not await extractor.finish(bank, prepared, operation):
                    trouble = Trouble("runs", "Hindsight is still storing the same words.")
        except HindsightRejected as exc:
            if await self._outage.ask() and await self._is_welcome(bank, operation):
                return Trouble("final", exc.detail, is_stored=is_stored)
            return Trouble("passes", exc.detail)
        except HindsightUnavailable as exc:
            is_well = await self._outage.ask()
            verdict: Verdict = "counts" if is_well and exc.reached else "passes"
            return Trouble(verdict, exc.detail, is_stored=is_stored)
        return trouble

    async def _make_bank(self, bank: BankId, tenant: str | None) -> None:
        """Have the bank as its tenant's policy wants it; a look at it while nothing has changed.

        That we have made it is not enough: Hindsight may have lost it since.
        """
        if tenant is None:
            await self._hindsight.make_bank(bank, None)
            return
        config_id = self._hindsight.bank_config_id(tenant)
        is_made = await self._turns.is_bank_made(bank, config_id)
        if not is_made or not await self._hindsight.is_bank_as_made(bank, tenant):
            await self._hindsight.make_bank(bank, tenant)
            await self._turns.note_bank_made(bank, config_id)

    async def _is_welcome(self, bank: BankId, operation: OperationId) -> bool:
        """Whether Hindsight takes harmless questions: if not, our key is wrong and not the turn."""
        try:
            await self._hindsight.operation(bank, operation)
        except (HindsightRejected, HindsightUnavailable):
            return False
        return True

    async def _follow(self, bank: BankId, hold: Hold, batch: Batch, operation: OperationId) -> Trouble | None:
        ends = monotonic() + (self._follow_s if batch.looks == 0 else 0)
        pause_s = _FIRST_POLL_S
        while True:
            if batch.looks == 0:
                await asyncio.sleep(pause_s)
            hold.check()
            status = await self._hindsight.operation(bank, operation)
            self._metrics.operation_polls.labels(status).inc()
            if status == "completed":
                return None
            if status in ("failed", "cancelled", "not_found"):
                return Trouble("counts", f"Hindsight's operation ended as {status}.", needs_new_id=True)
            if monotonic() >= ends:
                break
            pause_s = min(pause_s * 1.5, _LONGEST_POLL_S)
        is_processing = status == "processing"
        age_ms = batch.loaded_ms - batch.processing_ms
        if is_processing and batch.processing_ms and age_ms >= self._stuck_s * 1000:
            return Trouble("counts", "Hindsight has worked on it for too long.", needs_new_id=True)
        return Trouble("runs", "Hindsight is still working on it.", is_processing=is_processing)


def _accepted_at(turn: Turn) -> str:
    # "now" would be the time of storing, hours after a night without a worker.
    return datetime.fromtimestamp(turn.accepted_ms / 1000, UTC).isoformat()
