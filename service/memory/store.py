"""The worker's half of add: accepted turns → Hindsight, exactly once and in order.

One frozen batch per bank at a time, one operation id per batch and round, so that a lost reply, a
redelivery or a second worker repeats the same operation instead of storing twice. A batch is
forgotten only when Hindsight says `completed`.

What a failure means: refused (4xx) is final; answered badly, or an operation that failed, counts,
and after `max_attempts` the turns go on one by one, then to the dead letters; no answer, or any
failure while Hindsight is not well, never counts. Known memories that cannot be looked up although
Hindsight is well are done without: then new ones outdate nothing. A slow operation is left to itself
and looked at again, so that no bank holds a slot for longer than about 20 seconds.
"""

import asyncio
import logging
import random
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from time import monotonic
from typing import Literal

from service import logs
from service.adapters.cache import RecallCache
from service.adapters.hindsight import HindsightAdapter, Item
from service.adapters.tracing import span
from service.adapters.turns import Batch, Claim, Turn, TurnsLog
from service.errors import (
    CacheUnavailable,
    ClaimLost,
    HindsightRejected,
    HindsightUnavailable,
    LlmMisconfigured,
    LlmNotAsked,
    LlmRejected,
    LlmUnavailable,
    ServiceError,
    TurnsLogUnavailable,
)
from service.memory.extract import ExtractOptions, Extractor, Prepared
from service.memory.extractors import Extractors
from service.memory.hold import Hold
from service.memory.outage import Outage
from service.memory.policies import Policies
from service.metrics import Metrics
from service.scope import BankId, DocumentId, OperationId, operation_of

_log = logging.getLogger(__name__)

# Context helps extraction to resolve "it" and "there"; two short turns do.
_CONTEXT_TURNS = 2
_CONTEXT_CHARS = 600
# How long one worker slot goes on from bank to bank, stays with one bank, and with one try.
_SHIFT_S = 5.0
_BANK_S = 2.0
_TRY_S = 20.0
_FIRST_POLL_S = 0.02
_LONGEST_POLL_S = 1.0
_LONGEST_LOOK_S = 10.0
_LONGEST_BACKOFF_S = 300.0
_OUTAGE_RETRY_S = 2.0
_NOT_LOOKED_UP_RETRY_S = 10
_COUNT_S = 5.0
_COUNTS_AT_ONCE = 5

Verdict = Literal["final", "counts", "passes", "runs"]


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """`max_attempts`: tries that count; `job_ttl_s`: how long ended jobs are known.

    `stuck_s`: how long Hindsight may say that it is processing an operation before it is started
    anew under another id (Hindsight forgets operations of a worker that died under another name).
    `follow_s`: how long a running operation is followed closely; after that it is looked at now and then.
    """

    max_attempts: int
    job_ttl_s: int
    stuck_s: float = 1800.0
    follow_s: float = 5.0


@dataclass(frozen=True, slots=True)
class _Trouble:
    """Why turns are not stored yet: their own fault for good, perhaps, not at all, or still running.

    `is_failure` False: nothing was tried, so that it is no failed try. `retry_after_s`: no sooner than that.
    """

    verdict: Verdict
    reason: str
    is_failure: bool = True
    retry_after_s: int = 0
    needs_new_id: bool = False
    is_processing: bool = False


class Storer:
    """Stores what waits in one bank at a time."""

    def __init__(
        self,
        log: TurnsLog,
        cache: RecallCache,
        hindsight: HindsightAdapter,
        metrics: Metrics,
        options: StoreOptions,
        extractors: Extractors | None = None,
    ) -> None:
        self._cache = cache
        self._turns = log
        self._hindsight = hindsight
        self._metrics = metrics
        self._options = options
        self._outage = Outage(hindsight)
        self._extractors = extractors or Extractors(log, hindsight, metrics, ExtractOptions(), Policies())

    @property
    def is_hindsight_away(self) -> bool:
        """Whether nothing is taken now because Hindsight is not well."""
        return self._outage.is_on

    async def work(self) -> bool:
        """Store what is due, bank after bank, for some seconds; whether there may be more.

        Raises `TurnsLogUnavailable` when Redis is away.
        """
        ends = monotonic() + _SHIFT_S
        while await self._outage.is_over():
            claims = await self._turns.claim(1)
            if not claims:
                return False
            await self.drain(claims[0])
            if monotonic() >= ends:
                return True
        return False

    async def drain(self, claim: Claim) -> None:
        """Store what is due in the claimed bank, for some seconds at most, then give the bank back.

        Returns quietly when another worker took the bank over. Raises `TurnsLogUnavailable` when
        Redis is away; the claim then ends by itself and the bank is handed out again.
        """
        logs.bank_id.set(claim.bank)
        async with Hold(self._turns, claim) as hold:
            try:
                retry_in_s = await self._drain(claim, hold)
            except ClaimLost:
                _log.warning("claim_lost", extra={"token": claim.token})
                return
            except asyncio.CancelledError:
                # The worker is told to stop: the next one need not wait for the claim's end.
                # In a task of its own: below Python 3.11.3, redis-py's time-outs let a cancellation that is
                # under way out again and nothing would be sent.
                with suppress(TurnsLogUnavailable):
                    await asyncio.create_task(self._turns.release(claim))
                raise
        await self._turns.release(claim, retry_in_s=retry_in_s)

    async def _drain(self, claim: Claim, hold: Hold) -> float:
        """Work until nothing is due or time is up; seconds until the batch that is left is tried again."""
        ends = monotonic() + _BANK_S
        while True:
            batch = await self._turns.take(claim, uuid.uuid4().hex)
            if batch is None:
                return 0
            with self._span(batch):
                retry_in_s = await self._store(claim, hold, batch)
            if retry_in_s is not None:
                return retry_in_s
            if monotonic() >= ends:
                return 0

    async def _store(self, claim: Claim, hold: Hold, batch: Batch) -> float | None:
        """Store one batch, or the first turn of a solo one; None: go on, else seconds until the next try."""
        group = batch.turns[:1] if batch.is_solo else batch.turns
        started = monotonic()
        kept: dict[DocumentId, int] | None = None
        tenant = await self._tenant_of(batch)
        extractor = self._extractors.of(tenant)
        try:
            prepared = await self._prepare(claim, batch, group, extractor)
            if isinstance(prepared, Prepared):
                kept = prepared.kept
                async with asyncio.timeout(_TRY_S):
                    trouble = await self._try(claim.bank, hold, batch, prepared, tenant, extractor)
            else:
                trouble = prepared
        except TimeoutError:
            await self._outage.ask()
            trouble = _Trouble("passes", "Hindsight does not answer in time.")
        except ServiceError:
            raise
        except Exception:  # noqa: BLE001 - a fault of ours that one turn shows must not come back for ever
            _log.error("store_crashed", exc_info=True)
            trouble = _Trouble("counts", "Storing this failed on our side.")
        if trouble is not None:
            return await self._fail(claim, batch, group, trouble, tenant)
        if kept is None:
            kept = await self._count(claim.bank, group)
        await self._settle(claim, batch, kept, "done", "")
        self._note_stored(batch, group, started)
        self._metrics.note_usage("turn_stored", tenant or "", len(group))
        return None

    def _note_stored(self, batch: Batch, group: Sequence[Turn], started: float) -> None:
        took_s = monotonic() - started
        # When a turn was accepted and when the batch was loaded are the log's clock.
        ages_s = [(batch.loaded_ms - turn.accepted_ms) / 1000 + took_s for turn in group]
        self._metrics.note_stored(ages_s, took_s)

    @contextmanager
    def _span(self, batch: Batch) -> Iterator[None]:
        """One try at a batch: it goes on with the trace of its first turn and is linked to each turn's."""
        traces = [turn.trace for turn in batch.turns if turn.trace]
        with span("store batch", "consumer", parent=traces[0] if traces else "", links=traces) as made:
            made.note(memory__turns=len(batch.turns), memory__tries=batch.tries, memory__looks=batch.looks)
            yield

    async def _tenant_of(self, batch: Batch) -> str | None:
        """Whose a batch is; None when its job is not known any more, as after three months without Hindsight.

        All turns of a bank are one tenant's.
        """
        job = await self._turns.job(batch.turns[0].job_id)
        return (job.tenant or None) if job else None

    async def _prepare(
        self, claim: Claim, batch: Batch, group: Sequence[Turn], extractor: Extractor
    ) -> Prepared | _Trouble:
        """What to store of `group`, or why that cannot be said yet."""
        verbatim = _items(group, batch.turns)
        looks_up = True
        while True:
            try:
                return await extractor.prepare(claim, batch, group, verbatim, looks_up=looks_up)
            except LlmRejected as exc:
                return _Trouble("final", exc.detail)
            except (LlmUnavailable, LlmMisconfigured) as exc:
                # A day without a budget must not use up the tries of the day after.
                is_failure = not isinstance(exc, LlmNotAsked)
                if not is_failure:
                    await self._turns.note_resting(claim.bank, exc.code, exc.retry_after_s or 0)
                return _Trouble("passes", exc.detail, is_failure, exc.retry_after_s or 0)
            except (HindsightUnavailable, HindsightRejected) as exc:
                trouble = await self._not_looked_up(claim.bank, batch, exc)
                if trouble is not None or not looks_up:
                    return trouble or _Trouble("passes", exc.detail, is_failure=False)
                # New memories that leave outdated ones be are worth more than none.
                looks_up = False

    async def _not_looked_up(
        self, bank: BankId, batch: Batch, exc: HindsightUnavailable | HindsightRejected
    ) -> _Trouble | None:
        """What it means that known memories could not be looked up; None: go on without them.

        It is no failed try of the language model, which has not been asked.
        """
        is_well = await self._outage.ask()
        if isinstance(exc, HindsightRejected):
            if is_well and await self._is_welcome(bank, operation_of(batch.id)):
                return None
        elif is_well and exc.reached:
            if batch.attempts >= max(1, self._options.max_attempts // 2):
                return None
            return _Trouble("counts", exc.detail, is_failure=False)
        return _Trouble("passes", exc.detail, is_failure=False, retry_after_s=_NOT_LOOKED_UP_RETRY_S)

    async def _try(
        self,
        bank: BankId,
        hold: Hold,
        batch: Batch,
        prepared: Prepared,
        tenant: str | None,
        extractor: Extractor,
    ) -> _Trouble | None:
        """Store a group under its operation id and follow it to its end; None when it is stored."""
        if not prepared.items and not prepared.superfluous:
            return None  # nothing worth keeping was said
        parts = [str(batch.round)] + ([batch.turns[0].document_id] if batch.is_solo else [])
        operation = operation_of(batch.id, *parts)
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
                if not await extractor.finish(bank, prepared):
                    trouble = _Trouble("runs", "Hindsight is still storing the same words.")
        except HindsightRejected as exc:
            if await self._outage.ask() and await self._is_welcome(bank, operation):
                return _Trouble("final", exc.detail)
            return _Trouble("passes", exc.detail)
        except HindsightUnavailable as exc:
            is_well = await self._outage.ask()
            return _Trouble("counts" if is_well and exc.reached else "passes", exc.detail)
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

    async def _follow(
        self, bank: BankId, hold: Hold, batch: Batch, operation: OperationId
    ) -> _Trouble | None:
        ends = monotonic() + (self._options.follow_s if batch.looks == 0 else 0)
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
                return _Trouble("counts", f"Hindsight's operation ended as {status}.", needs_new_id=True)
            if monotonic() >= ends:
                break
            pause_s = min(pause_s * 1.5, _LONGEST_POLL_S)
        is_processing = status == "processing"
        age_ms = batch.loaded_ms - batch.processing_ms
        if is_processing and batch.processing_ms and age_ms >= self._options.stuck_s * 1000:
            return _Trouble("counts", "Hindsight has worked on it for too long.", needs_new_id=True)
        return _Trouble("runs", "Hindsight is still working on it.", is_processing=is_processing)

    async def _count(self, bank: BankId, group: Sequence[Turn]) -> dict[DocumentId, int]:
        """Memories made of each turn; a count that cannot be had now is 0, it is information only."""
        kept = {turn.document_id: 0 for turn in group}
        left = list(kept)

        async def count_some() -> None:
            # A document that cannot be counted is likely not the only one: its counter ends there.
            with suppress(HindsightUnavailable, HindsightRejected):
                while left:
                    document = left.pop()
                    kept[document] = await self._hindsight.memories_in(bank, document)

        with suppress(TimeoutError):
            async with asyncio.timeout(_COUNT_S):
                await asyncio.gather(*(count_some() for _ in range(min(_COUNTS_AT_ONCE, len(left)))))
        return kept

    async def _fail(
        self, claim: Claim, batch: Batch, group: Sequence[Turn], trouble: _Trouble, tenant: str | None
    ) -> float | None:
        """Note what happened; None: go on at once, else seconds until the next try."""
        if trouble.verdict == "runs":
            since_ms = (batch.processing_ms or batch.loaded_ms) if trouble.is_processing else 0
            looked = replace(batch, looks=batch.looks + 1, processing_ms=since_ms)
            await self._turns.postpone(claim, looked, job_status="retaining", reason=trouble.reason)
            return min(_LONGEST_LOOK_S, 2.0**batch.looks)

        attempts = batch.attempts + (trouble.verdict == "counts")
        is_over = trouble.verdict == "final" or attempts >= self._options.max_attempts
        is_away = self._outage.is_on
        _log.warning(
            "store_failed",
            extra={"attempts": attempts, "turns": len(group), "is_final": is_over, "reason": trouble.reason},
        )
        if is_over and len(group) == 1:
            await self._settle(claim, batch, {group[0].document_id: 0}, "failed", trouble.reason)
            self._metrics.note_turn("dead", tenant or "")
            return None
        failed = replace(
            batch,
            attempts=attempts,
            tries=batch.tries + (trouble.is_failure and not is_away),
            looks=0,
            round=batch.round + trouble.needs_new_id,
            processing_ms=0,
        )
        if is_over:
            # One of them is to blame; alone, the others go through.
            failed = replace(failed, attempts=0, tries=0, is_solo=True)
        await self._turns.postpone(claim, failed, job_status="waiting", reason=trouble.reason)
        if is_over:
            return None
        if is_away:
            return _OUTAGE_RETRY_S
        return max(_backoff_s(failed.tries), min(_LONGEST_BACKOFF_S, trouble.retry_after_s))

    async def _settle(
        self,
        claim: Claim,
        batch: Batch,
        kept: dict[DocumentId, int],
        outcome: Literal["done", "failed"],
        reason: str,
    ) -> None:
        # Before the log, so that a worker that dies behind it leaves no answer from before in the cache;
        # and after it, for answers that were computed in between and show the turn as pending.
        await self._note_write(claim.bank)
        await self._turns.settle(
            claim, batch, kept, outcome=outcome, reason=reason, job_ttl_s=self._options.job_ttl_s
        )
        await self._note_write(claim.bank)

    async def _note_write(self, bank: BankId) -> None:
        try:
            await self._cache.note_write(bank)
        except CacheUnavailable:
            self._metrics.cache_failures.inc()


def _backoff_s(tries: int) -> float:
    """Exponential, with jitter so that many banks do not come back together."""
    return random.uniform(0.5, 1) * min(_LONGEST_BACKOFF_S, 2.0 ** min(tries + 1, 10))


def _items(group: Sequence[Turn], batch_turns: Sequence[Turn]) -> list[Item]:
    return [
        Item(
            document_id=turn.document_id,
            text=turn.text,
            # "now" would be the time of storing, hours after a night without a worker.
            said_at=turn.said_at or datetime.fromtimestamp(turn.accepted_ms / 1000, UTC).isoformat(),
            context=_context(turn, batch_turns),
            tags=(*turn.tags, turn.conversation),
            metadata=turn.metadata,
        )
        for turn in group
    ]


def _context(turn: Turn, batch_turns: Sequence[Turn]) -> str:
    position = batch_turns.index(turn)
    before = batch_turns[max(0, position - _CONTEXT_TURNS) : position]
    return "\n".join(earlier.text[:_CONTEXT_CHARS] for earlier in before)
