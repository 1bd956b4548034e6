"""Forget: everything, one conversation or one memory of a user, so that it does not come back.

What is meant may be in many places at once: waiting, frozen, dead, on its way to Hindsight, being
stored there, stored, cached. The order of the steps makes up the promise:

1. One script takes it out of the log and takes the bank's claim (`adapters/lua/forget.lua`). From here
   on every write of a worker that had the bank is refused, and the forget holds the claim until it is
   done: nothing accepted since is stored meanwhile, so that nothing new can be deleted by mistake.
2. What a worker has sent before may still reach Hindsight, even later than our own calls. Its operation
   id is known from the frozen batch, and an id can be used only once in a bank: we use it up ourselves,
   for a document that says nothing. Either ours came first and what comes later is dropped, or theirs
   did and is found in step 3. A worker that was stopped for long may have taken an older batch: it does
   not send any more, since it looks at its claim right before (`memory/hold.py`).
3. Operations that hold something of it and that nobody works on are cancelled; those that are being
   worked on cannot be stopped for sure, so that their end is awaited. So is the end of a consolidation,
   which may have read what is about to go.
4. The documents are deleted; for `all` the whole bank is, which frees the ids of step 2, so that they
   are used up once more in a new bank, together with those of forgets within the last hour: a request of
   before them may still be on its way. Then Hindsight is asked whether anything is left.
5. No cached answer from before is served any more. Only then comes the receipt.

When a step fails or takes too long the answer is 503, the log stays as step 1 has left it, and
a repetition finishes the work: the operations to look for are kept until then, and so are the ids of what
goes with one memory, which nobody could find again once the first of it is gone.

One memory is one fact or observation. The document of a fact goes with it when it holds nothing else;
otherwise the fact is overwritten and invalidated, which is all that Hindsight offers, and the turn it
was read from stays as the source of the others. An observation goes with the facts it was made from,
since it would be made again. A memory that was set aside, since a newer one has replaced it, is still there
with its words and could be taken back: its id is forgotten like any other. The id of a pending turn is that
of its document, which goes whole, with all that was extracted from it.

What is out of reach: Hindsight keeps the payloads of its operations, which nothing recalls, until its own
retention ends (`all` takes them along). A consolidation that begins between steps 3 and 4 and also reads
facts that stay may put what it has just read into its next observation, as Hindsight checks only that
some of the sources are still there.
"""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from time import monotonic

from service.adapters.cache import RecallCache
from service.adapters.hindsight import HindsightAdapter, Item
from service.adapters.hindsight_erase import HindsightEraser, Known
from service.adapters.turns import Claim, TurnsLog
from service.adapters.turns_forget import Taken, TurnsEraser
from service.errors import CacheUnavailable, ClaimLost, TurnsLogUnavailable, Unavailable
from service.memory import review
from service.memory.forget_plan import Plan
from service.memory.hold import Hold
from service.schemas_review import ForgetRequest
from service.scope import (
    BankId,
    DocumentId,
    OperationId,
    conversation_of,
    turn_of_document,
)
from service.settings import Settings

_log = logging.getLogger(__name__)

_LIMIT_S = 20.0
_FIRST_POLL_S = 0.02
_LONGEST_POLL_S = 0.5
_ROUNDS = 3
_RETRY_S = 5
_TURN_ID = re.compile(r"t-[0-9a-f]{48}")
_MEMORY_ID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_SAYS_NOTHING = "."


@dataclass(frozen=True, slots=True)
class Receipt:
    """What was removed: memories and documents of Hindsight, turns that were pending and their jobs,
    cached answers; `is_verified`: Hindsight was asked afterwards and has nothing of it."""

    memories: int = 0
    documents: int = 0
    pending: int = 0
    jobs: int = 0
    cache_entries: int = 0
    is_verified: bool = True


@dataclass(slots=True)
class _Removed:
    documents: int = 0
    memories: int = 0


class Forgetter:
    """Forgets, within `limit_s` seconds or not at all.

    A pending operation is given `patience_s` to be taken up and end by itself before it is cancelled:
    one that is taken up in the very moment in which it is cancelled would store unseen.
    """

    def __init__(
        self,
        log: TurnsLog,
        taker: TurnsEraser,
        cache: RecallCache,
        hindsight: HindsightAdapter,
        *,
        limit_s: float = _LIMIT_S,
        patience_s: float = 3.0,
    ) -> None:
        self._turns = log
        self._taker = taker
        self._cache = cache
        self._hindsight = hindsight
        self._eraser = HindsightEraser(hindsight)
        self._limit_s = limit_s
        self._patience_s = patience_s

    @classmethod
    def from_settings(
        cls, settings: Settings, log: TurnsLog, cache: RecallCache, hindsight: HindsightAdapter
    ) -> "Forgetter":
        """The parts of one process, with limits that fit the settings."""
        taker = TurnsEraser(
            log,
            mark_ttl_s=max(settings.turn_id_ttl_s, settings.repeat_window_s),
            job_ttl_s=settings.job_ttl_s,
        )
        return cls(log, taker, cache, hindsight)

    async def forget(self, request: ForgetRequest, bank: BankId) -> Receipt:
        """Forget what the request means of this bank; when it returns nothing of it is recalled again.

        What is not there, or is somebody else's, is a receipt of zeros. Raises `Unavailable` (of the
        part that failed) when that cannot be promised yet: the same request then finishes the work.
        """
        try:
            async with asyncio.timeout(self._limit_s):
                return await self._forget(request, bank)
        except (TimeoutError, ClaimLost) as exc:
            raise Unavailable(
                "This is not forgotten yet: something still works with it. Send the same request again.",
                retry_after_s=_RETRY_S,
            ) from exc
        except CacheUnavailable as exc:
            raise Unavailable(
                "This is not forgotten yet: the cache does not answer. Send the same request again.",
                retry_after_s=_RETRY_S,
            ) from exc

    async def _forget(self, request: ForgetRequest, bank: BankId) -> Receipt:
        plan = await self._plan(request, bank)
        if plan is None:
            # An earlier try may have got everything away but the cached answers.
            return Receipt(cache_entries=await self._cache.note_purge(bank))
        taken = await self._take(bank, plan)
        async with self._held(taken.claim) as hold:
            if plan.memory_id:
                await self._turns.keep_meant(bank, _meant_by(plan.memory_id), plan.ids)
            removed = _Removed()
            is_verified = await self._erase(bank, plan, taken.operations, hold, removed)
            cleared = await self._cache.note_purge(bank)
            await self._taker.end(taken.claim)
            if plan.memory_id and is_verified:
                await self._turns.drop_meant(bank, _meant_by(plan.memory_id))
                await self._turns.drop_meant(bank, review.meant_by(plan.memory_id))
        receipt = Receipt(removed.memories, removed.documents, taken.turns, taken.jobs, cleared, is_verified)
        _log.info(
            "forgotten",
            extra={
                "what": plan.kind,
                "documents": receipt.documents,
                "pending": receipt.pending,
                "is_verified": receipt.is_verified,
            },
        )
        return receipt

    async def _plan(self, request: ForgetRequest, bank: BankId) -> Plan | None:
        """What is meant; None: a memory that is not there (any more)."""
        if request.all:
            return Plan("all")
        if request.conversation_id:
            return Plan("conversation", conversation_of(bank, request.conversation_id))
        memory_id = request.memory_id
        if _TURN_ID.fullmatch(memory_id):
            return Plan("documents", documents=frozenset({DocumentId(memory_id)}))
        if not _MEMORY_ID.fullmatch(memory_id):
            return None
        known = await self._eraser.memory(bank, memory_id)
        plan = await self._plan_memory(bank, known) if known is not None else None
        # An earlier try, or a correction, was interrupted; what it has left of an observation may be the
        # sources alone.
        corrected = (await self._turns.meant(bank, review.meant_by(memory_id))).get("facts")
        if corrected:
            sources = await self._plan_facts(bank, memory_id, await self._known(bank, corrected))
            plan = sources.with_all_of(plan)
        before = await self._turns.meant(bank, _meant_by(memory_id))
        return Plan.of_ids(before, memory_id).with_all_of(plan) if before else plan

    async def _plan_memory(self, bank: BankId, known: Known) -> Plan:
        facts = await self._known(bank, known.source_ids) if known.is_observation else [known]
        return await self._plan_facts(bank, known.id, facts)

    async def _known(self, bank: BankId, ids: Sequence[str]) -> list[Known]:
        found = [await self._eraser.memory(bank, source) for source in ids]
        return [fact for fact in found if fact is not None]

    async def _plan_facts(self, bank: BankId, memory_id: str, facts: Sequence[Known]) -> Plan:
        meant = {fact.id for fact in facts}
        whole: set[DocumentId] = set()
        alone: set[str] = set()
        touched = {fact.document for fact in facts if fact.document is not None}
        for document in touched:
            if await self._eraser.facts_in(bank, document) <= meant:
                whole.add(document)
        alone = {fact.id for fact in facts if fact.document is None or fact.document not in whole}
        turns = {turn_of_document(document) for document in touched} - touched
        return Plan(
            "documents",
            None,
            frozenset(whole),
            frozenset(alone),
            frozenset(touched),
            frozenset(turns),
            memory_id,
        )

    async def _take(self, bank: BankId, plan: Plan) -> Taken:
        while True:
            taken = await self._taker.take(bank, plan.kind, plan.labels)
            if taken is not None:
                return taken
            await asyncio.sleep(_FIRST_POLL_S)  # another forget of this bank is at work

    @asynccontextmanager
    async def _held(self, claim: Claim) -> AsyncIterator[Hold]:
        try:
            async with Hold(self._turns, claim) as hold:
                yield hold
        finally:
            # Whatever was interrupted goes on at once; if Redis is away the claim ends by itself.
            with suppress(TurnsLogUnavailable):
                await asyncio.shield(asyncio.create_task(self._turns.release(claim)))

    async def _erase(
        self,
        bank: BankId,
        plan: Plan,
        operations: tuple[OperationId, ...],
        hold: Hold,
        removed: _Removed,
    ) -> bool:
        """Get everything out of Hindsight; whether it has nothing of it in the end."""
        fences = {operation: DocumentId(f"fence-{operation}") for operation in operations}
        for _ in range(_ROUNDS):
            await self._settle(bank, plan, fences, hold)
            if plan.kind == "all":
                await self._delete_bank(bank, hold, removed)
                # The ids are free again: whoever is late must not find them so.
                await self._settle(bank, plan, fences, hold)
            else:
                await self._delete(bank, plan, hold, removed)
            if await self._is_gone(bank, plan):
                return True
        return False

    async def _settle(
        self, bank: BankId, plan: Plan, fences: Mapping[OperationId, DocumentId], hold: Hold
    ) -> None:
        """Use up the operation ids, and see the end of all that may write; nothing is on its way then."""
        if fences:
            hold.check()
            await self._hindsight.make_bank(bank, None)
            await asyncio.gather(
                *(self._hindsight.retain(bank, [_fence(item)], op) for op, item in fences.items())
            )
        await self._await_end(bank, plan, fences, hold)
        await self._eraser.delete_documents(bank, list(fences.values()))

    async def _await_end(
        self, bank: BankId, plan: Plan, fences: Mapping[OperationId, DocumentId], hold: Hold
    ) -> None:
        waiting_since: dict[OperationId, float] = {}
        asks_what = plan.kind != "all"
        pause_s = _FIRST_POLL_S
        while True:
            found = await self._eraser.running(bank, asks_what=asks_what)
            running = [operation for operation in found if plan.concerns(operation, fences)]
            if not running:
                return
            for operation in running:
                since = waiting_since.setdefault(operation.id, monotonic())
                is_left = operation.status == "pending" and monotonic() - since >= self._patience_s
                if operation.is_idle or is_left:
                    hold.check()
                    await self._eraser.cancel(bank, operation.id)
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 1.5, _LONGEST_POLL_S)

    async def _delete_bank(self, bank: BankId, hold: Hold, removed: _Removed) -> None:
        documents, memories = await self._eraser.count(bank)
        await self._turns.note_bank_gone(bank)
        await hold.renew()
        await self._eraser.delete_bank(bank)
        # A worker may have noted just now that it exists.
        await self._turns.note_bank_gone(bank)
        removed.documents += documents
        removed.memories += memories

    async def _delete(self, bank: BankId, plan: Plan, hold: Hold, removed: _Removed) -> None:
        documents = [*plan.documents, *plan.turns, *await self._extracted_from(bank, plan)]
        while documents or (plan.conversation and (documents := await self._of_conversation(bank, plan))):
            hold.check()
            gone, memories = await self._eraser.delete_documents(bank, documents)
            removed.documents += gone
            removed.memories += memories
            documents = []
        for fact in plan.facts:
            hold.check()
            removed.memories += await self._eraser.blank(bank, fact)

    async def _of_conversation(self, bank: BankId, plan: Plan) -> list[DocumentId]:
        return await self._eraser.conversation(bank, plan.conversation) if plan.conversation else []

    async def _extracted_from(self, bank: BankId, plan: Plan) -> list[DocumentId]:
        """Documents of the memories that were extracted from turns which are meant."""
        found: list[DocumentId] = []
        for document in filter(_TURN_ID.fullmatch, plan.documents):
            found += await self._eraser.tagged(bank, document)
        return found

    async def _is_gone(self, bank: BankId, plan: Plan) -> bool:
        if plan.kind == "all":
            return await self._eraser.count(bank) == (0, 0)
        if plan.conversation:
            return await self._eraser.count(bank, plan.conversation) == (0, 0)
        for document in plan.documents | plan.turns:
            if await self._eraser.has_document(bank, document):
                return False
        if await self._extracted_from(bank, plan):
            return False
        return not plan.memory_id or await self._eraser.memory(bank, plan.memory_id) is None


def _meant_by(memory_id: str) -> str:
    return f"forget {memory_id.lower()}"


def _fence(document: DocumentId) -> Item:
    return Item(document_id=document, text=_SAYS_NOTHING, said_at="", context="", tags=(), metadata={})
