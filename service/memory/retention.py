"""Retention: what was said longer ago than `MEMORY_RETENTION_DAYS` is deleted.

Age counts from when it was said, never from when it was stored or imported. A document goes with all that
was made of it; Hindsight drops the observations that rest on it and derives anew those that have other
facts left. A turn that waits to be stored is never deleted, however old, before it has been stored.

A round a day, at a quiet time: the ids of all banks are read into a list, then bank after bank is worked
off. Every run does a bounded part of it and notes how far it has got; deleting twice is harmless.
"""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from time import monotonic

from service.adapters.cache import RecallCache
from service.adapters.hindsight_erase import HindsightEraser
from service.adapters.hindsight_review import HindsightReview
from service.adapters.retention_plan import RetentionPlan
from service.adapters.turns import TurnsLog
from service.scope import BankId

_log = logging.getLogger(__name__)

BANK_PREFIX = "u-"
# When a round begins, in MEMORY_TIMEZONE.
_QUIET = timedelta(hours=3, minutes=37)
_RUN_S = 40.0
_LEASE_S = 58.0
_BANKS_PAGE = 500
_DOCUMENTS_PAGE = 100


@dataclass(frozen=True, slots=True)
class Expired:
    """What was deleted, or would be: banks with something too old, documents, memories made of them."""

    banks: int = 0
    documents: int = 0
    memories: int = 0

    def __add__(self, other: "Expired") -> "Expired":
        return Expired(
            self.banks + other.banks,
            self.documents + other.documents,
            self.memories + other.memories,
        )


class Retention:
    """Deletes what is older than `days`; 0 keeps everything."""

    def __init__(
        self,
        review: HindsightReview,
        eraser: HindsightEraser,
        log: TurnsLog,
        cache: RecallCache,
        *,
        days: int,
        zone: tzinfo = UTC,
        run_s: float = _RUN_S,
    ) -> None:
        self._review = review
        self._eraser = eraser
        self._turns = log
        self._cache = cache
        self._days = days
        self._zone = zone
        self._run_s = run_s

    async def work(self, plan: RetentionPlan, now: datetime) -> Expired:
        """Do a part of today's round, for some seconds; nothing once it is over, or if another worker does.

        The very first run only marks today as done, so that a new installation waits for its first
        night. Raises what Hindsight, Redis and the cache raise; the next run goes on where this one was.
        """
        if not self._days:
            return Expired()
        today = (now.astimezone(self._zone) - _QUIET).date().isoformat()
        async with plan.leased(_LEASE_S) as is_ours:
            if not is_ours or not await self._is_open(plan, today):
                return Expired()
            done = await self._work_off(plan, now)
        if done.documents:
            _log.info("retention_done", extra={"documents": done.documents, "memories": done.memories})
        return done

    async def _is_open(self, plan: RetentionPlan, today: str) -> bool:
        """Whether there is something left of today's round, which is begun if need be."""
        state = await plan.round()
        if state.day != today:
            await plan.begin(today, is_over=not state.day)
            return bool(state.day)
        return not state.is_over

    async def _work_off(self, plan: RetentionPlan, now: datetime) -> Expired:
        ends = monotonic() + self._run_s
        done = Expired()
        if not await self._list(plan, ends):
            return done
        while (found := await plan.next()) is not None:
            bank, kept = found
            expired, is_whole = await self._expire(
                bank, self._cutoff(now), kept=kept, ends=ends, note=_noting(plan, bank)
            )
            done += expired
            if is_whole:
                await plan.finish(bank)
            if monotonic() >= ends:
                return done
        await plan.end()
        return done

    async def sweep(self, now: datetime, *, is_dry: bool) -> Expired:
        """All of it at once, without a plan; a dry run only counts."""
        done = Expired()
        if not self._days:
            return done
        offset = 0
        while True:
            banks, seen = await self._review.banks(limit=_BANKS_PAGE, offset=offset, prefix=BANK_PREFIX)
            for bank in banks:
                expired, _ = await self._expire(bank, self._cutoff(now), is_dry=is_dry)
                done += expired
            if seen < _BANKS_PAGE:
                return done
            offset += seen

    def _cutoff(self, now: datetime) -> datetime:
        return now - timedelta(days=self._days)

    async def _list(self, plan: RetentionPlan, ends: float) -> bool:
        """Read the ids of all banks unless this round has them; False: time was up before.

        The pages are in the order of the last write. A bank that is written to meanwhile moves to the
        front and shows nothing twice that would do harm; one that slips by is seen tomorrow.
        """
        state = await plan.round()
        offset, is_listed = state.listed, state.is_listed
        while not is_listed:
            if monotonic() >= ends:
                return False
            banks, seen = await self._review.banks(limit=_BANKS_PAGE, offset=offset, prefix=BANK_PREFIX)
            offset += seen
            is_listed = seen < _BANKS_PAGE
            await plan.add(banks, listed=offset, is_listed=is_listed)
        return True

    async def _expire(
        self,
        bank: BankId,
        cutoff: datetime,
        *,
        kept: int = 0,
        ends: float = float("inf"),
        note: Callable[[int], Awaitable[None]] | None = None,
        is_dry: bool = False,
    ) -> tuple[Expired, bool]:
        """Delete what was said before `cutoff`; what it was, and whether all of the bank was looked at."""
        done = Expired()
        while True:
            page = await self._review.documents(bank, limit=_DOCUMENTS_PAGE, offset=kept)
            old = [document for document in page if document.said_at < cutoff]
            if old:
                # After the page: what is in it and not in the log any more has been stored for good.
                waiting = {turn.document_id for turn in await self._turns.pending(bank)}
                old = [document for document in old if document.id not in waiting]
            if old:
                if not is_dry:
                    # Proves that the cache answers before anything goes; the one that counts comes after.
                    await self._cache.note_purge(bank)
                    await self._eraser.delete_documents(bank, [document.id for document in old])
                    await self._cache.note_purge(bank)
                done += Expired(0 if done.banks else 1, len(old), sum(document.memories for document in old))
            kept += len(page) if is_dry else len(page) - len(old)
            if len(page) < _DOCUMENTS_PAGE:
                return done, True
            if note is not None:
                await note(kept)
            if monotonic() >= ends:
                return done, False


def _noting(plan: RetentionPlan, bank: BankId) -> Callable[[int], Awaitable[None]]:
    async def note(kept: int) -> None:
        await plan.note(bank, kept)

    return note
