"""Retention: what was said too long ago is deleted, by the policy of whose memory it is.

Age counts from when it was said, never from when it was stored or imported. A document goes with all that
was made of it; Hindsight drops the observations that rest on it and derives anew those that have other
facts left. A turn that waits to be stored is never deleted, however old, before it has been stored.

A kind with a retention of its own goes sooner than the rest, and never later, also what was set aside (a
fact that a newer one has superseded). Its facts go with their document, unless there is something else in
it: then the fact is overwritten and invalidated, as one that is forgotten (see `memory/forget`), and the turn
it was read from goes with all the rest.

A bank tells its tenant by a mark (see `scope.tenant_mark`), which it gets when a turn is stored; one that
was not written to since there are marks is `MEMORY_TENANT`'s. It is asked for right before its memories are
looked at. Nothing of a bank goes whose mark is no tenant's that is known here, by `MEMORY_TENANT`, the policy
file or a key: it may be another installation's. Banks whose id has not our form are other applications'.

A round a day, at a quiet time: all banks are read into a list, then bank after bank is worked off. Every
run does a bounded part of it and notes how far it has got; deleting twice is harmless.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, tzinfo
from time import monotonic

from service.adapters.cache import RecallCache
from service.adapters.hindsight_erase import HindsightEraser
from service.adapters.hindsight_review import HindsightReview, StoredMemory
from service.adapters.keys import KeyStore
from service.adapters.retention_plan import Place, RetentionPlan
from service.adapters.turns import TurnsLog
from service.memory.policies import Policies
from service.policy.kinds import KIND_TAG
from service.policy.tenant_policy import TenantPolicy
from service.scope import BANK_PREFIX, BankId, DocumentId, turn_of_document

_log = logging.getLogger(__name__)

# When a round begins, in MEMORY_TIMEZONE.
_QUIET = timedelta(hours=3, minutes=37)
_RUN_S = 40.0
_LEASE_S = 58.0
_BANKS_PAGE = 500
_PAGE = 100
# What `HindsightEraser.blank` leaves has no words any more.
_FORGOTTEN = "forgotten"

_Note = Callable[[Place], Awaitable[None]]
# Told of each bank that something was deleted of, with the tenant's name.
Deleted = Callable[[str, BankId], object]


@dataclass(frozen=True, slots=True)
class Expired:
    """What was deleted, or would be: banks with something too old, documents, memories."""

    banks: int = 0
    documents: int = 0
    memories: int = 0

    def __add__(self, other: "Expired") -> "Expired":
        return Expired(
            self.banks + other.banks,
            self.documents + other.documents,
            self.memories + other.memories,
        )

    @property
    def of_one_bank(self) -> "Expired":
        """The same, all of it being one bank's."""
        return replace(self, banks=1 if self.documents or self.memories else 0)


@dataclass(frozen=True, slots=True)
class _Swept:
    """What became of one bank: `is_whole`: all of it was looked at; `mark`: None if the bank is gone."""

    mark: str | None
    done: Expired
    is_whole: bool
    is_known: bool = True


@dataclass(frozen=True, slots=True)
class _Parts:
    review: HindsightReview
    eraser: HindsightEraser
    log: TurnsLog
    cache: RecallCache


class Retention:
    """Deletes what is older than its tenant's policy allows."""

    def __init__(
        self,
        review: HindsightReview,
        eraser: HindsightEraser,
        log: TurnsLog,
        cache: RecallCache,
        *,
        policies: Policies,
        keys: KeyStore | None = None,
        zone: tzinfo = UTC,
        run_s: float = _RUN_S,
        deleted: Deleted | None = None,
    ) -> None:
        """Tenants that have a key in `keys` are known, besides those of `policies`."""
        self._parts = _Parts(review, eraser, log, cache)
        self._review = review
        self._policies = policies
        self._keys = keys
        self._zone = zone
        self._run_s = run_s
        self._deleted = deleted

    async def work(self, plan: RetentionPlan, now: datetime) -> Expired:
        """Do a part of today's round, for some seconds; nothing once it is over, or if another worker does.

        The very first run only marks today as done, so that a new installation waits for its first
        night. Raises what Hindsight, Redis, the keys and the cache raise; the next run goes on where this
        one was.
        """
        if self._policies.keep_for_ever:
            return Expired()
        today = (now.astimezone(self._zone) - _QUIET).date().isoformat()
        async with plan.leased(_LEASE_S) as is_ours:
            if not is_ours or not await self._is_open(plan, today):
                return Expired()
            done = await self._work_off(plan, await self._known(), now)
        if done.banks:
            _log.info("retention_done", extra={"documents": done.documents, "memories": done.memories})
        return done

    async def _is_open(self, plan: RetentionPlan, today: str) -> bool:
        """Whether there is something left of today's round, which is begun if need be."""
        state = await plan.round()
        if state.day != today:
            await plan.begin(today, is_over=not state.day)
            return bool(state.day)
        return not state.is_over

    async def _known(self) -> Policies:
        if self._keys is None:
            return self._policies
        _, records = await self._keys.load()
        return self._policies.knowing({record.grant.tenant for record in records})

    async def _work_off(self, plan: RetentionPlan, policies: Policies, now: datetime) -> Expired:
        ends = monotonic() + self._run_s
        done = Expired()
        unknown = 0
        if not await self._list(plan, ends):
            return done
        while (place := await plan.next()) is not None:
            swept = await self._bank(policies, place, now, ends=ends, note=plan.note)
            done += swept.done
            unknown += not swept.is_known
            if swept.is_whole:
                await plan.finish(place.bank)
            if monotonic() >= ends:
                break
        else:
            await plan.end()
        if unknown:
            _log.warning("retention_leaves_unknown_tenants", extra={"banks": unknown})
        return done

    async def sweep(self, now: datetime, *, is_dry: bool) -> Mapping[str, Expired]:
        """All of it at once, without a plan, by the tenants' marks; a dry run only counts.

        Marks of tenants that are not known are among them, with nothing.
        """
        done: dict[str, Expired] = {}
        policies = await self._known()
        offset = 0
        while not self._policies.keep_for_ever:
            banks, seen = await self._review.banks(limit=_BANKS_PAGE, offset=offset, prefix=BANK_PREFIX)
            for bank in banks:
                swept = await self._bank(policies, Place(bank.id), now, is_dry=is_dry)
                if swept.mark is not None:
                    done[swept.mark] = done.get(swept.mark, Expired()) + swept.done
            if seen < _BANKS_PAGE:
                break
            offset += seen
        return done

    async def _list(self, plan: RetentionPlan, ends: float) -> bool:
        """Read all banks unless this round has them; False: time was up before.

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
            places = [Place(bank.id) for bank in banks]
            await plan.add(places, listed=offset, is_listed=is_listed)
        return True

    async def _bank(
        self,
        policies: Policies,
        place: Place,
        now: datetime,
        *,
        ends: float = float("inf"),
        note: _Note | None = None,
        is_dry: bool = False,
    ) -> _Swept:
        """Delete what is too old in one bank, by the policy of whose it is at this moment."""
        mark = await self._review.mark_of(place.bank)
        if mark is None:
            return _Swept(None, Expired(), is_whole=True)
        policy = policies.of_mark(mark)
        if policy is None:
            return _Swept(mark, Expired(), is_whole=True, is_known=False)
        sweep = _BankSweep(self._parts, policy, place, now, ends=ends, note=note, is_dry=is_dry)
        try:
            is_whole = await sweep.run()
        finally:
            # Also what was deleted before something went wrong.
            if self._deleted is not None and sweep.has_deleted:
                self._deleted(policies.tenant_of(mark) or mark, place.bank)
        return _Swept(mark, sweep.done.of_one_bank, is_whole)


class _BankSweep:
    """Deletes what is too old in one bank, from `place` on; a dry one only counts. `done`: what it was."""

    def __init__(
        self,
        parts: _Parts,
        policy: TenantPolicy,
        place: Place,
        now: datetime,
        *,
        ends: float,
        note: _Note | None,
        is_dry: bool,
    ) -> None:
        self._parts = parts
        self._policy = policy
        self._place = place
        self._now = now
        self._ends = ends
        self._note = note
        self._is_dry = is_dry
        self.done = Expired()
        # Documents of expired facts: a dry run meets those of facts that were set aside and of others twice.
        self._counted: set[DocumentId] = set()

    @property
    def has_deleted(self) -> bool:
        """Whether anything has gone for good."""
        return not self._is_dry and self.done != Expired()

    async def run(self) -> bool:
        """Whether all of the bank was looked at before `ends`."""
        if self._policy.retention_days and not await self._documents(
            self._before(self._policy.retention_days)
        ):
            return False
        for kind, days in self._policy.expiring.items():
            for is_set_aside in (False, True):
                if not await self._kind(KIND_TAG + kind, self._before(days), is_set_aside=is_set_aside):
                    return False
        return True

    def _before(self, days: int) -> datetime:
        return self._now - timedelta(days=days)

    async def _documents(self, cutoff: datetime) -> bool:
        """Delete the documents that were said before."""
        kept = self._place.kept
        while True:
            page = await self._parts.review.documents(self._place.bank, limit=_PAGE, offset=kept)
            old = [document for document in page if document.said_at < cutoff]
            waiting = await self._waiting() if old else frozenset()
            old = [document for document in old if turn_of_document(document.id) not in waiting]
            if old:
                async with self._purged():
                    await self._delete([document.id for document in old])
                self._count(len(old), sum(document.memories for document in old))
            kept += len(page) if self._is_dry else len(page) - len(old)
            is_whole = len(page) < _PAGE
            if self._note is not None and not is_whole:
                await self._note(replace(self._place, kept=kept))
            if is_whole or monotonic() >= self._ends:
                return is_whole

    async def _kind(self, tag: str, cutoff: datetime, *, is_set_aside: bool) -> bool:
        """Delete the facts of a kind that were said before, those that are recalled or those set aside."""
        kept = 0
        while True:
            page = await self._parts.review.memories(
                self._place.bank,
                before=cutoff,
                tags=[tag],
                is_set_aside=is_set_aside,
                limit=_PAGE,
                offset=kept,
            )
            left_list = await self._facts([fact for fact in page if _has_words(fact)], tag, cutoff)
            kept += len(page) if self._is_dry else len(page) - left_list
            is_whole = len(page) < _PAGE
            if is_whole or monotonic() >= self._ends:
                return is_whole

    async def _facts(self, facts: Sequence[StoredMemory], tag: str, cutoff: datetime) -> int:
        """Delete facts; how many of them are not listed any more. Those of turns that wait stay.

        So do those that go anyway, which a dry run has counted with their documents.
        """
        waiting = await self._waiting() if facts else frozenset()
        by_document: dict[DocumentId, list[StoredMemory]] = {}
        for fact in facts:
            document = fact.document_id or DocumentId("")
            if turn_of_document(document) not in waiting and not self._goes_anyway(fact):
                by_document.setdefault(document, []).append(fact)
        if not by_document:
            return 0
        whole: list[DocumentId] = []
        alone: list[StoredMemory] = []
        memories = left_list = 0
        for document, expired in by_document.items():
            inside = await self._inside(document) if document else expired
            if document and all(tag in fact.tags and fact.said_at < cutoff for fact in inside):
                whole.append(document)
                memories += len(inside) if document not in self._counted else 0
                left_list += len(expired)
            else:
                alone += expired
                memories += len(expired)
                # What is set aside stays on the list of it, without its words.
                left_list += sum(fact.why_set_aside is None for fact in expired)
        async with self._purged():
            await self._delete(whole)
            for fact in alone:
                if not self._is_dry:
                    await self._parts.eraser.blank(self._place.bank, fact.id)
        self._count(len(set(whole) - self._counted), memories)
        self._counted.update(whole)
        return left_list

    async def _inside(self, document: DocumentId) -> list[StoredMemory]:
        """All facts of a document that have their words, also those that were set aside."""
        found: list[StoredMemory] = []
        for is_set_aside in (False, True):
            offset = 0
            while True:
                page = await self._parts.review.memories(
                    self._place.bank,
                    document=document,
                    is_set_aside=is_set_aside,
                    limit=_PAGE,
                    offset=offset,
                )
                found += [fact for fact in page if _has_words(fact)]
                offset += len(page)
                if len(page) < _PAGE:
                    break
        return found

    def _goes_anyway(self, fact: StoredMemory) -> bool:
        """Whether a dry run has counted it with its document."""
        days = self._policy.retention_days
        return self._is_dry and bool(days) and fact.said_at < self._before(days)

    async def _waiting(self) -> frozenset[DocumentId]:
        """Turns that are not stored for good; asked after what is looked at, so that none is missed."""
        return frozenset(turn.document_id for turn in await self._parts.log.pending(self._place.bank))

    async def _delete(self, documents: list[DocumentId]) -> None:
        if not self._is_dry:
            await self._parts.eraser.delete_documents(self._place.bank, documents)

    @asynccontextmanager
    async def _purged(self) -> AsyncIterator[None]:
        """Around a deletion: no answer from before it is served any more."""
        if self._is_dry:
            yield
            return
        # Proves that the cache answers before anything goes; the one that counts comes after.
        await self._parts.cache.note_purge(self._place.bank)
        yield
        await self._parts.cache.note_purge(self._place.bank)

    def _count(self, documents: int, memories: int) -> None:
        self.done += Expired(0, documents, memories)


def _has_words(memory: StoredMemory) -> bool:
    """Whether it is a fact, and one whose words were not taken away."""
    return not memory.is_derived and memory.why_set_aside != _FORGOTTEN
