"""What is too old in one bank goes, or is counted (see `memory/retention` for the rules and the round).

Whose the bank is was noted when all banks were listed, and by that it is looked through. It is asked anew,
which costs far more, right before something goes, and nothing does if it tells another tenant by then.

A fact is never older than its document, and goes with it: kinds are not looked for in a bank whose documents
are all too young for them.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from time import monotonic

from service.adapters.cache import RecallCache
from service.adapters.hindsight_erase import HindsightEraser
from service.adapters.hindsight_review import HindsightReview, StoredDocument, StoredMemory
from service.adapters.retention_plan import Place
from service.adapters.turns import TurnsLog
from service.memory.retention_marks import Marks
from service.policy.kinds import KIND_TAG
from service.policy.tenant_policy import TenantPolicy
from service.scope import DocumentId, turn_of_document

_DOCUMENTS_PAGE = 500
_PAGE = 100
# A document that does not tell when it was said counts from when it was stored, after its facts were said.
_SLACK = timedelta(days=1)
# What `HindsightEraser.blank` leaves has no words any more.
_FORGOTTEN = "forgotten"
_UNKNOWN = datetime.min.replace(tzinfo=UTC)
_NEVER = datetime.max.replace(tzinfo=UTC)

Note = Callable[[Place], Awaitable[None]]


class ChangedHands(Exception):
    """The bank tells another tenant than when it was listed, or is gone; nothing has gone since."""


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
class Parts:
    """What a sweep works with."""

    review: HindsightReview
    eraser: HindsightEraser
    log: TurnsLog
    cache: RecallCache


class BankSweep:
    """Deletes what is too old in one bank, from `place` on; a dry one only counts. `done`: what it was.

    `policy` is the tenant's whose the bank is by `place.mark`. That is asked anew before anything goes.
    """

    def __init__(
        self,
        parts: Parts,
        marks: Marks,
        policy: TenantPolicy,
        place: Place,
        now: datetime,
        *,
        ends: float,
        note: Note | None,
        is_dry: bool,
    ) -> None:
        self._parts = parts
        self._marks = marks
        self._policy = policy
        self._place = place
        self._now = now
        self._ends = ends
        self._note = note
        self._is_dry = is_dry
        self.done = Expired()
        self._oldest = _UNKNOWN
        # Documents of expired facts: a dry run meets those of facts that were set aside and of others twice.
        self._counted: set[DocumentId] = set()

    @property
    def has_deleted(self) -> bool:
        """Whether anything has gone for good."""
        return not self._is_dry and self.done != Expired()

    async def run(self) -> bool:
        """Whether all of the bank was looked at before `ends`. Raises `ChangedHands`."""
        days = self._policy.retention_days
        if days and not await self._documents(self._before(days)):
            return False
        return await self._kinds()

    def _before(self, days: int) -> datetime:
        return self._now - timedelta(days=days)

    async def _documents(self, cutoff: datetime) -> bool:
        """Delete the documents that were said before, some at a time; False: not all were looked at."""
        kept = self._place.kept
        oldest = _NEVER if not kept else _UNKNOWN
        while True:
            page = await self._parts.review.documents(self._place.bank, limit=_DOCUMENTS_PAGE, offset=kept)
            is_last = len(page) < _DOCUMENTS_PAGE
            for begin in range(0, len(page), _PAGE):
                stay = await self._step(page[begin : begin + _PAGE], cutoff)
                kept += len(stay)
                oldest = min((oldest, *(document.said_at for document in stay)))
                is_whole = is_last and begin + _PAGE >= len(page)
                if self._note is not None and not is_whole:
                    await self._note(replace(self._place, kept=kept))
                if not is_whole and monotonic() >= self._ends:
                    return False
            if is_last:
                self._oldest = oldest
                return True

    async def _step(self, documents: list[StoredDocument], cutoff: datetime) -> list[StoredDocument]:
        """Delete those that were said before; those that stay. A dry run lets all stay."""
        old = [document for document in documents if document.said_at < cutoff]
        waiting = await self._waiting() if old else frozenset()
        gone = {document.id: document for document in old if turn_of_document(document.id) not in waiting}
        if gone:
            async with self._purged():
                await self._delete(list(gone))
            self._count(len(gone), sum(document.memories for document in gone.values()))
        return [document for document in documents if self._is_dry or document.id not in gone]

    async def _kinds(self) -> bool:
        """Delete the facts of kinds that go sooner than the rest; False: not all were looked at."""
        cutoffs = {KIND_TAG + kind: self._before(days) for kind, days in self._policy.expiring.items()}
        cutoffs = {tag: cutoff for tag, cutoff in cutoffs.items() if self._oldest < cutoff + _SLACK}
        lists = [is_set_aside for is_set_aside in (False, True) if await self._has_any(cutoffs, is_set_aside)]
        for tag, cutoff in cutoffs.items():
            for is_set_aside in lists:
                if not await self._kind(tag, cutoff, is_set_aside=is_set_aside):
                    return False
        return True

    async def _has_any(self, cutoffs: Mapping[str, datetime], is_set_aside: bool) -> bool:
        """Whether it is worth looking for each kind: False only if there is nothing of any."""
        if len(cutoffs) < 2:
            return bool(cutoffs)
        found = await self._parts.review.memories(
            self._place.bank,
            before=max(cutoffs.values()),
            tags=list(cutoffs),
            is_set_aside=is_set_aside,
            limit=1,
        )
        return bool(found)

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
        """Around a deletion: the bank is whose it was, and no answer from before is served any more."""
        if self._is_dry:
            yield
            return
        await self._ask_whose()
        # Proves that the cache answers before anything goes; the one that counts comes after.
        await self._parts.cache.note_purge(self._place.bank)
        yield
        await self._parts.cache.note_purge(self._place.bank)

    async def _ask_whose(self) -> None:
        """Raise `ChangedHands` unless the bank is still whose it was when it was listed."""
        if await self._marks.of(self._place.bank) != self._place.mark:
            raise ChangedHands

    def _count(self, documents: int, memories: int) -> None:
        self.done += Expired(0, documents, memories)


def _has_words(memory: StoredMemory) -> bool:
    """Whether it is a fact, and one whose words were not taken away."""
    return not memory.is_derived and memory.why_set_aside != _FORGOTTEN
