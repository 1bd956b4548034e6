"""The worker's half of add: accepted turns → Hindsight, exactly once and in order.

One frozen batch per bank at a time, one operation id per batch and round, so that a lost reply, a
redelivery or a second worker repeats the same operation instead of storing twice. A batch is
forgotten only when Hindsight says `completed`.

What a failure leads to (`attempt` says what it means): after `max_attempts` that count the turns go on
one by one, then to the dead letters, as one that is refused does at once; what does not count is tried
for ever. A slow operation is looked at again later, so that no bank holds a slot for longer than about
20 seconds.
"""

import asyncio
import logging
import random
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from time import monotonic
from typing import Literal

from service import logs
from service.adapters.cache import RecallCache
from service.adapters.hindsight import HindsightAdapter
from service.adapters.tracing import span
from service.adapters.turns import Batch, Claim, Turn, TurnsLog
from service.errors import (
    CacheUnavailable,
    ClaimLost,
    HindsightRejected,
    HindsightUnavailable,
    ServiceError,
    TurnsLogUnavailable,
)
from service.memory.attempt import Attempts, Trouble
from service.memory.extract import ExtractOptions, Prepared
from service.memory.extractors import Extractors
from service.memory.hold import Hold
from service.memory.outage import Outage
from service.memory.policies import Policies
from service.metrics import Metrics
from service.scope import BankId, DocumentId

_log = logging.getLogger(__name__)

# How long one worker slot goes on from bank to bank, stays with one bank, and with one try.
_SHIFT_S = 5.0
_BANK_S = 2.0
_TRY_S = 20.0
_LONGEST_LOOK_S = 10.0
_LONGEST_BACKOFF_S = 300.0
_OUTAGE_RETRY_S = 2.0
_COUNT_S = 5.0
_COUNTS_AT_ONCE = 5


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
        self._attempts = Attempts(
            log,
            hindsight,
            metrics,
            self._outage,
            max_attempts=options.max_attempts,
            stuck_s=options.stuck_s,
            follow_s=options.follow_s,
        )
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
        kept: Mapping[DocumentId, int | None] | None = None
        tenant = await self._tenant_of(batch)
        extractor = self._extractors.of(tenant)
        try:
            prepared = await self._attempts.prepare(claim, batch, group, extractor)
            if isinstance(prepared, Prepared):
                kept = prepared.kept
                async with asyncio.timeout(_TRY_S):
                    trouble = await self._attempts.send(claim.bank, hold, batch, prepared, tenant, extractor)
            else:
                trouble = prepared
        except TimeoutError:
            await self._outage.ask()
            trouble = Trouble("passes", "Hindsight does not answer in time.")
        except ServiceError:
            raise
        except Exception:  # noqa: BLE001 - a fault of ours that one turn shows must not come back for ever
            _log.error("store_crashed", exc_info=True)
            trouble = Trouble("counts", "Storing this failed on our side.")
        if trouble is not None and trouble.is_stored and self._is_over(batch, trouble):
            # The memories are stored and can be recalled: that what they replace stays is no dead letter.
            _log.warning("store_left_unfinished", extra={"turns": len(group), "reason": trouble.reason})
            trouble = None
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

    async def _count(self, bank: BankId, group: Sequence[Turn]) -> Mapping[DocumentId, int | None]:
        """Memories made of each turn; None where it cannot be had now, as it is information only."""
        kept: dict[DocumentId, int | None] = {turn.document_id: None for turn in group}
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
        self, claim: Claim, batch: Batch, group: Sequence[Turn], trouble: Trouble, tenant: str | None
    ) -> float | None:
        """Note what happened; None: go on at once, else seconds until the next try."""
        if trouble.verdict == "runs":
            since_ms = (batch.processing_ms or batch.loaded_ms) if trouble.is_processing else 0
            looked = replace(batch, looks=batch.looks + 1, processing_ms=since_ms)
            await self._turns.postpone(claim, looked, job_status="retaining", reason=trouble.reason)
            return min(_LONGEST_LOOK_S, 2.0**batch.looks)

        attempts = batch.attempts + (trouble.verdict == "counts")
        is_over = self._is_over(batch, trouble)
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

    def _is_over(self, batch: Batch, trouble: Trouble) -> bool:
        """Whether no further try is worth it."""
        attempts = batch.attempts + (trouble.verdict == "counts")
        return trouble.verdict == "final" or attempts >= self._options.max_attempts

    async def _settle(
        self,
        claim: Claim,
        batch: Batch,
        kept: Mapping[DocumentId, int | None],
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
