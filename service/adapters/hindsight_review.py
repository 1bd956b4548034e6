"""Hindsight's side of review: reading, correcting and reasoning over what one bank holds.

Facts about Hindsight 1.1.0 this rests on, read off a real server: a list with a time axis is ordered by
that axis, then by id, and `end_date` is exclusive; its search also looks into the context a memory was said
in, and takes `%` and `_` for patterns; changing a fact's text makes a new embedding and drops the
observations built on it, which come anew; an observation itself cannot be changed; asking a bank that does
not exist a question makes that bank.
"""

import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple, cast

from hindsight_client_api.exceptions import ApiException
from hindsight_client_api.models.document_list_item import DocumentListItem
from hindsight_client_api.models.memory_unit_list_item import MemoryUnitListItem
from hindsight_client_api.models.mental_model_trigger_input_tag_groups_inner import (
    MentalModelTriggerInputTagGroupsInner as AnyTagGroup,
)
from hindsight_client_api.models.reflect_include_options import ReflectIncludeOptions
from hindsight_client_api.models.reflect_request import ReflectRequest
from hindsight_client_api.models.tag_group_leaf import TagGroupLeaf
from hindsight_client_api.models.update_memory_request import UpdateMemoryRequest

from service.adapters.hindsight import Budget, HindsightAdapter, TagsMatch
from service.adapters.hindsight_errors import vendor_errors
from service.errors import LanguageModelMissing
from service.scope import BankId, DocumentId, is_bank_id, is_tenant_mark

# Tags, and how a memory's own have to fit them.
TagGroup = tuple[Sequence[str], TagsMatch]
FactType = Literal["world", "experience", "observation"]


@dataclass(frozen=True, slots=True)
class StoredMemory:
    """One memory as it is kept; `said_at` is when it was said, `source_ids` what an observation rests on.

    `why_set_aside`: why it was taken out of what is recalled; None: it was not.
    """

    id: str
    text: str
    fact_type: str
    document_id: DocumentId | None
    said_at: datetime
    tags: tuple[str, ...]
    metadata: Mapping[str, str]
    source_ids: tuple[str, ...]
    why_set_aside: str | None = None

    @property
    def is_derived(self) -> bool:
        """Whether it was made from other memories, which hold what it says, too."""
        return self.fact_type == "observation"


@dataclass(frozen=True, slots=True)
class StoredBank:
    """One bank; `mark` tells whose it is (see `scope.tenant_mark`), empty if it does not tell."""

    id: BankId
    mark: str


@dataclass(frozen=True, slots=True)
class StoredDocument:
    """One document without its text; `said_at` is when it was said, or stored if it does not tell."""

    id: DocumentId
    said_at: datetime
    memories: int


class Source(NamedTuple):
    """A fact that an observation rests on."""

    id: str
    said_at: datetime


@dataclass(frozen=True, slots=True)
class Reflection:
    """An answer in words, and in the form that was asked for (None: not asked, or the model failed at it).

    `source_ids` are the memories it rests on, as far as Hindsight tells.
    """

    text: str
    structured: Mapping[str, Any] | None
    source_ids: tuple[str, ...] = ()


class HindsightReview:
    """Review calls over an open `HindsightAdapter`.

    Each raises `HindsightUnavailable` or `HindsightRejected`. A bank that does not exist is empty.
    """

    def __init__(self, hindsight: HindsightAdapter) -> None:
        self._hindsight = hindsight

    async def memories(
        self,
        bank: BankId,
        *,
        fact_type: FactType | None = None,
        before: datetime | None = None,
        query: str = "",
        tags: Sequence[str] = (),
        document: DocumentId | None = None,
        is_set_aside: bool = False,
        limit: int = 100,
        offset: int = 0,
    ) -> list[StoredMemory]:
        """Memories said before a moment (exclusive), newest first, those of one moment by id.

        `tags`: any of them. `query` is looked for in the text and in its context, without regard to case.
        `is_set_aside`: those that were taken out of what is recalled, and no others.
        """
        async with vendor_errors(self._hindsight.patience_s):
            try:
                page = await self._hindsight.patient.alist_memories(
                    bank,
                    type=fact_type,
                    search_query=_literal(query) or None,
                    time_field="mentioned_at",
                    end_date=before.isoformat() if before else None,
                    limit=limit,
                    offset=offset,
                    tags=list(tags) or None,
                    tags_match="any_strict" if tags else None,
                    document_id=document,
                    state="invalidated" if is_set_aside else "valid",
                )
            except ApiException as exc:
                if exc.status != 404:
                    raise
                return []
            return [_memory(item) for item in page.items]

    async def sources(self, bank: BankId, memory_id: str) -> list[Source] | None:
        """What an observation rests on, oldest first; for a fact nothing; None: there is no such memory."""
        async with vendor_errors(self._hindsight.patience_s):
            try:
                found = cast(
                    "Mapping[str, Any]",
                    await self._hindsight.patient.memory.get_memory(
                        bank, memory_id, _request_timeout=self._hindsight.patience_s
                    ),
                )
            except ApiException as exc:
                if exc.status != 404:
                    raise
                return None
            if found.get("state") == "invalidated":
                return None
            sources = [
                Source(source["id"], _moment(source.get("mentioned_at")))
                for source in found.get("source_memories") or ()
            ]
        return sorted(sources, key=lambda source: source.said_at)

    async def correct(self, bank: BankId, fact_id: str, text: str) -> StoredMemory | None:
        """Give a fact another text; what was derived from it goes. None: there is no such fact."""
        async with vendor_errors(self._hindsight.patience_s):
            try:
                changed = await self._hindsight.patient.memory.update_memory(
                    bank,
                    fact_id,
                    UpdateMemoryRequest(text=text),
                    _request_timeout=self._hindsight.patience_s,
                )
            except ApiException as exc:
                if exc.status != 404:
                    raise
                return None
            return _memory_of(cast("Mapping[str, Any]", changed))

    async def documents(self, bank: BankId, *, limit: int, offset: int) -> list[StoredDocument]:
        """A page of the bank's documents, last written first."""
        async with vendor_errors(self._hindsight.patience_s):
            try:
                page = await self._hindsight.patient.documents.list_documents(
                    bank, limit=limit, offset=offset, _request_timeout=self._hindsight.patience_s
                )
            except ApiException as exc:
                if exc.status != 404:
                    raise
                return []
            return [_document(item) for item in page.items]

    async def banks(self, *, limit: int, offset: int, prefix: str) -> tuple[list[StoredBank], int]:
        """Banks of ours on one page whose id begins with `prefix`, and how many banks of any name it held."""
        async with vendor_errors(self._hindsight.patience_s):
            page = await self._hindsight.patient.banks.list_banks(
                q=prefix, limit=limit, offset=offset, _request_timeout=self._hindsight.patience_s
            )
            found = [
                StoredBank(BankId(bank.bank_id), bank.name if bank.name and is_tenant_mark(bank.name) else "")
                for bank in page.banks
            ]
        ours = [bank for bank in found if is_bank_id(bank.id) and bank.id.startswith(prefix)]
        return ours, len(found)

    async def reflect(
        self,
        bank: BankId,
        query: str,
        *,
        budget: Budget,
        response_schema: Mapping[str, Any] | None,
        timeout_s: float,
        tag_groups: Sequence[TagGroup] = (),
        fact_types: Sequence[str] = (),
    ) -> Reflection:
        """Let Hindsight's language model answer `query` from the bank; several calls of the model.

        Only memories whose tags fit each of the groups are looked at, and only those of the fact types.
        Raises `LanguageModelMissing` when Hindsight has none.
        """
        request = ReflectRequest(
            query=query,
            budget=cast("Any", budget),
            response_schema=dict(response_schema) if response_schema else None,
            fact_types=list(fact_types) or None,
            tag_groups=[AnyTagGroup(TagGroupLeaf(tags=list(tags), match=match)) for tags, match in tag_groups]
            or None,
            include=ReflectIncludeOptions(facts={}),
        )
        async with vendor_errors(timeout_s):
            try:
                reply = await self._hindsight.patient.memory.reflect(
                    bank, request, _request_timeout=timeout_s
                )
            except ApiException as exc:
                if exc.status != 400:
                    raise
                raise LanguageModelMissing(
                    "This memory has no language model, so that it cannot reason; "
                    "set MEMORY_LLM_MODEL and restart, or use recall."
                ) from exc
        facts = (reply.based_on.memories if reply.based_on else None) or ()
        return Reflection(
            reply.text, reply.structured_output, tuple(fact.id for fact in facts if fact.id is not None)
        )


def _literal(query: str) -> str:
    """`query` for Hindsight's pattern search, to be found as it is."""
    return query.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


def _memory(item: MemoryUnitListItem) -> StoredMemory:
    return StoredMemory(
        id=item.id,
        text=item.text or "",
        fact_type=item.fact_type or "",
        document_id=DocumentId(item.document_id) if item.document_id else None,
        said_at=_moment(item.mentioned_at),
        tags=tuple(item.tags or ()),
        metadata={name: str(value) for name, value in (item.metadata or {}).items()},
        source_ids=tuple(item.source_memory_ids or ()),
        why_set_aside=(item.invalidation_reason or "") if item.state == "invalidated" else None,
    )


def _memory_of(body: Mapping[str, Any]) -> StoredMemory:
    return StoredMemory(
        id=str(uuid.UUID(body["id"])),
        text=body["text"],
        fact_type=body["type"],
        document_id=DocumentId(body["document_id"]) if body["document_id"] else None,
        said_at=_moment(body["mentioned_at"]),
        tags=tuple(body["tags"] or ()),
        metadata=body["metadata"] or {},
        source_ids=(),
    )


def _document(item: DocumentListItem) -> StoredDocument:
    said_at = (item.retain_params or {}).get("event_date")
    return StoredDocument(
        id=DocumentId(item.id),
        said_at=_moment(said_at if isinstance(said_at, str) else item.created_at),
        memories=item.memory_unit_count or 0,
    )


def _moment(text: str | None) -> datetime:
    """What Hindsight wrote as a time, in UTC; one that cannot be read is now, which is never too old."""
    moment = datetime.now(UTC)
    with suppress(ValueError):
        moment = datetime.fromisoformat(text) if text else moment
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
