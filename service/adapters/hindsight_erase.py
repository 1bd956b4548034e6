"""Deleting from Hindsight: operations, documents, memories, banks.

What Hindsight 1.1.0 does, read off a real server and its source:
* An operation that is cancelled before a worker has begun with it stores nothing. Cancelling one that
  is being worked on only hides it: the worker goes on to its next checkpoint and may store. Cancelling
  the parent of a batch leaves its parts alone.
* An operation id that is known in a bank is never worked on again, whatever comes with it. Deleting the
  bank frees the id, takes pending operations along, and leaves those that are being worked on, which
  then make the bank anew and store.
* Deleting a document deletes its facts and what was derived from them. There is no way to delete one
  fact: it can be given another text and be invalidated, which is what `blank` does.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, cast

from hindsight_client_api.exceptions import ApiException
from hindsight_client_api.models.operation_response import OperationResponse
from hindsight_client_api.models.update_memory_request import UpdateMemoryRequest

from service.adapters.hindsight import HindsightAdapter
from service.adapters.hindsight_errors import vendor_errors
from service.errors import HindsightRejected
from service.scope import BankId, ConversationId, DocumentId, OperationId

_PAGE = 100
_MOST_AT_ONCE = 4
_BLANK = "(forgotten)"
_FORGOTTEN = "forgotten"
# A worker notes its progress far more often; one that is silent this long has died, and Hindsight itself
# never takes such an operation up again.
_DEAD_AFTER = timedelta(minutes=30)
# An operation that is put off at least this long is not begun while it is being cancelled.
_PUT_OFF = timedelta(seconds=2)


@dataclass(frozen=True, slots=True)
class Running:
    """An operation that is not over. `is_known` tells whether it says what it stores.

    `is_idle`: nobody works on it, nor will in the next seconds; it can be cancelled for sure.
    """

    id: OperationId
    kind: str
    status: Literal["pending", "processing"]
    is_idle: bool
    is_known: bool
    documents: frozenset[str]
    tags: frozenset[str]


@dataclass(frozen=True, slots=True)
class Known:
    """A memory as far as forgetting it goes; an observation has sources and no document.

    `is_set_aside`: taken out of what is recalled, with its words, and may be taken back.
    """

    id: str
    is_observation: bool
    document: DocumentId | None
    source_ids: tuple[str, ...]
    is_set_aside: bool = False


class HindsightEraser:
    """Deletions over an open `HindsightAdapter`.

    Each raises `HindsightUnavailable` or `HindsightRejected`, and may have had its effect then. What is
    not there any more, or never was, is no error.
    """

    def __init__(self, hindsight: HindsightAdapter) -> None:
        self._hindsight = hindsight
        self._client = hindsight.patient

    async def running(self, bank: BankId, *, asks_what: bool) -> list[Running]:
        """Operations that may still write into the bank, without the parents of others.

        `asks_what`: also what those that retain hold, which is another call for each.
        """
        found: list[Running] = []
        for status in ("pending", "processing"):
            for listed in await self._operations(bank, status):
                payload: Mapping[str, Any] | None = None
                if asks_what and listed.task_type == "retain":
                    payload = await self._payload(bank, OperationId(listed.id))
                found.append(_running(listed, cast("Any", status), payload))
        return found

    async def _operations(self, bank: BankId, status: str) -> list[OperationResponse]:
        found: list[OperationResponse] = []
        while True:
            async with vendor_errors(self._hindsight.patience_s):
                try:
                    page = await self._client.operations.list_operations(
                        bank,
                        status=status,
                        limit=_PAGE,
                        offset=len(found),
                        exclude_parents=True,
                        _request_timeout=self._hindsight.patience_s,
                    )
                except ApiException as exc:
                    if exc.status != 404:
                        raise
                    return []
            found += page.operations
            if len(page.operations) < _PAGE:
                return found

    async def _payload(self, bank: BankId, operation: OperationId) -> Mapping[str, Any] | None:
        async with vendor_errors(self._hindsight.patience_s):
            try:
                found = await self._client.operations.get_operation_status(
                    bank, operation, include_payload=True, _request_timeout=self._hindsight.patience_s
                )
            except ApiException as exc:
                if exc.status != 404:
                    raise
                return None
        return found.task_payload

    async def cancel(self, bank: BankId, operation: OperationId) -> None:
        """Cancel an operation that nobody works on."""
        async with vendor_errors(self._hindsight.patience_s):
            try:
                await self._client.operations.cancel_operation(
                    bank, operation, _request_timeout=self._hindsight.patience_s
                )
            except ApiException as exc:
                if exc.status not in (404, 409):  # 409: it has just ended
                    raise

    async def conversation(self, bank: BankId, conversation: ConversationId) -> list[DocumentId]:
        """Some documents of a conversation; none when there are none."""
        return await self.tagged(bank, conversation)

    async def tagged(self, bank: BankId, tag: str) -> list[DocumentId]:
        """Some documents with this tag; none when there are none."""
        async with vendor_errors(self._hindsight.patience_s):
            try:
                page = await self._client.documents.list_documents(
                    bank,
                    tags=[tag],
                    tags_match="all_strict",
                    limit=_PAGE,
                    _request_timeout=self._hindsight.patience_s,
                )
            except ApiException as exc:
                if exc.status != 404:
                    raise
                return []
            return [DocumentId(item.id) for item in page.items]

    async def count(self, bank: BankId, *tags: str) -> tuple[int, int]:
        """How many documents and memories the bank holds, those with all of `tags` if there are any."""
        wanted = {"tags": list(tags), "tags_match": "all_strict"} if tags else {}
        async with vendor_errors(self._hindsight.patience_s):
            try:
                documents = await self._client.documents.list_documents(
                    bank, limit=1, _request_timeout=self._hindsight.patience_s, **cast("Any", wanted)
                )
                memories = await self._client.memory.list_memories(
                    bank, limit=1, _request_timeout=self._hindsight.patience_s, **cast("Any", wanted)
                )
            except ApiException as exc:
                if exc.status != 404:
                    raise
                return 0, 0
            return documents.total, memories.total

    async def has_document(self, bank: BankId, document: DocumentId) -> bool:
        """Whether there is such a document."""
        async with vendor_errors(self._hindsight.patience_s):
            try:
                await self._client.documents.get_document(
                    bank, document, _request_timeout=self._hindsight.patience_s
                )
            except ApiException as exc:
                if exc.status != 404:
                    raise
                return False
            return True

    async def delete_document(self, bank: BankId, document: DocumentId) -> int | None:
        """Delete a document with all that was made of it; how many memories, None: there was no document."""
        async with vendor_errors(self._hindsight.patience_s):
            try:
                deleted = await self._client.documents.delete_document(
                    bank, document, _request_timeout=self._hindsight.patience_s
                )
            except ApiException as exc:
                if exc.status != 404:
                    raise
                return None
            return deleted.memory_units_deleted

    async def delete_documents(self, bank: BankId, documents: list[DocumentId]) -> tuple[int, int]:
        """Delete several, a few at a time; how many documents there were, and memories."""
        gate = asyncio.Semaphore(_MOST_AT_ONCE)

        async def delete(document: DocumentId) -> int | None:
            async with gate:
                return await self.delete_document(bank, document)

        counts = [count for count in await asyncio.gather(*map(delete, documents)) if count is not None]
        return len(counts), sum(counts)

    async def delete_bank(self, bank: BankId) -> None:
        """Delete a bank with all that is in it, its operations included."""
        async with vendor_errors(self._hindsight.patience_s):
            try:
                await self._client.banks.delete_bank(bank, _request_timeout=self._hindsight.patience_s)
            except ApiException as exc:
                if exc.status != 404:
                    raise

    async def memory(self, bank: BankId, memory_id: str) -> Known | None:
        """The memory, or None when there is none or it was forgotten."""
        async with vendor_errors(self._hindsight.patience_s):
            try:
                found = cast(
                    "Mapping[str, Any]",
                    await self._client.memory.get_memory(
                        bank, memory_id, _request_timeout=self._hindsight.patience_s
                    ),
                )
            except ApiException as exc:
                if exc.status not in (400, 404):  # 400: not in the form of an id
                    raise
                return None
            is_set_aside = found.get("state") == "invalidated"
            if is_set_aside and found.get("invalidation_reason") == _FORGOTTEN:
                return None
            document = found.get("document_id")
            return Known(
                id=memory_id,
                is_observation=found["type"] == "observation",
                document=DocumentId(document) if document else None,
                source_ids=tuple(found.get("source_memory_ids") or ()),
                is_set_aside=is_set_aside,
            )

    async def facts_in(self, bank: BankId, document: DocumentId) -> set[str]:
        """Ids of the document's facts that can be recalled."""
        found: set[str] = set()
        while True:
            async with vendor_errors(self._hindsight.patience_s):
                page = await self._client.memory.list_memories(
                    bank,
                    document_id=document,
                    limit=_PAGE,
                    offset=len(found),
                    _request_timeout=self._hindsight.patience_s,
                )
            found |= {item.id for item in page.items}
            if len(page.items) < _PAGE:
                return found

    async def blank(self, bank: BankId, fact_id: str) -> bool:
        """Take a fact's words away and the fact out of all that is recalled; False: there is no such fact.

        One that was set aside has to come back for a moment first.
        """
        change = UpdateMemoryRequest(
            text=_BLANK, context="", entities=[], state="invalidated", reason=_FORGOTTEN
        )
        try:
            await self._update(bank, fact_id, change)
        except HindsightRejected:
            # "Cannot edit an invalidated memory", or there is none any more.
            known = await self.memory(bank, fact_id)
            if known is None:
                return False
            if not known.is_set_aside:
                raise
            await self._update(bank, fact_id, UpdateMemoryRequest(state="valid"))
            await self._update(bank, fact_id, change)
        return True

    async def _update(self, bank: BankId, fact_id: str, change: UpdateMemoryRequest) -> None:
        async with vendor_errors(self._hindsight.patience_s):
            await self._client.memory.update_memory(
                bank, fact_id, change, _request_timeout=self._hindsight.patience_s
            )


def _running(
    listed: OperationResponse,
    status: Literal["pending", "processing"],
    payload: Mapping[str, Any] | None,
) -> Running:
    items = [item for item in (payload or {}).get("contents") or () if isinstance(item, dict)]
    now = datetime.now(UTC)
    if status == "pending":
        is_idle = _moment(listed.next_retry_at, now) - now > _PUT_OFF
    else:
        is_idle = now - _moment(listed.updated_at, now) > _DEAD_AFTER
    return Running(
        id=OperationId(listed.id),
        kind=listed.task_type,
        status=status,
        is_idle=is_idle,
        is_known=bool(items),
        documents=frozenset(str(item.get("document_id")) for item in items),
        tags=frozenset(str(tag) for item in items for tag in item.get("tags") or ()),
    )


def _moment(text: str | None, otherwise: datetime) -> datetime:
    if text:
        with suppress(ValueError):
            moment = datetime.fromisoformat(text)
            return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return otherwise
