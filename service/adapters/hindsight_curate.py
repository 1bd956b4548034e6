"""Hindsight's side of what is kept: facts of a document, taking a fact out of what is recalled, and back.

Facts about Hindsight 1.1.0 this rests on: an invalidated fact is not recalled, listed or consolidated any
more and its observations go, but it can be made valid again; observations themselves cannot be changed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from hindsight_client_api.exceptions import ApiException
from hindsight_client_api.models.update_memory_request import UpdateMemoryRequest

from service.adapters.hindsight import HindsightAdapter
from service.adapters.hindsight_errors import vendor_errors
from service.scope import BankId, DocumentId

_PAGE = 100


@dataclass(frozen=True, slots=True)
class StoredFact:
    """One valid fact, with what it was labelled with; `is_derived`: an observation, made of others."""

    id: str
    text: str
    tags: tuple[str, ...]
    metadata: Mapping[str, str]
    is_derived: bool = False
    document_id: DocumentId | None = None


@dataclass(frozen=True, slots=True)
class SetAside:
    """One fact that was taken out of what is recalled; `at` is ISO 8601, as Hindsight writes it."""

    id: str
    text: str
    tags: tuple[str, ...]
    reason: str
    at: str


class HindsightCurate:
    """Calls over an open `HindsightAdapter`; each raises `HindsightUnavailable` or `HindsightRejected`."""

    def __init__(self, hindsight: HindsightAdapter) -> None:
        self._hindsight = hindsight

    async def facts_of(self, bank: BankId, document: DocumentId) -> list[StoredFact]:
        """The valid facts of a document."""
        found: list[StoredFact] = []
        while True:
            page = await self._page(bank, document_id=document, limit=_PAGE, offset=len(found))
            found += page
            if len(page) < _PAGE:
                return [fact for fact in found if not fact.is_derived]

    async def newest(self, bank: BankId, most: int) -> list[StoredFact]:
        """The facts that were stored last, newest first."""
        return [fact for fact in await self._page(bank, limit=most) if not fact.is_derived]

    async def _page(self, bank: BankId, **filters: Any) -> list[StoredFact]:
        async with vendor_errors(self._hindsight.patience_s):
            try:
                page = await self._hindsight.patient.alist_memories(bank, state="valid", **filters)
            except ApiException as exc:
                if exc.status != 404:
                    raise
                return []
            return [
                StoredFact(
                    item.id,
                    item.text or "",
                    tuple(item.tags or ()),
                    {name: str(value) for name, value in (item.metadata or {}).items()},
                    item.fact_type == "observation",
                    DocumentId(item.document_id) if item.document_id else None,
                )
                for item in page.items
            ]

    async def invalidate(self, bank: BankId, fact_id: str, reason: str) -> None:
        """Take a fact out of everything that is recalled; `reason` holds no content. Harmless when gone."""
        async with vendor_errors(self._hindsight.patience_s):
            try:
                await self._hindsight.patient.memory.update_memory(
                    bank,
                    fact_id,
                    UpdateMemoryRequest(state="invalidated", reason=reason),
                    _request_timeout=self._hindsight.patience_s,
                )
            except ApiException as exc:
                if exc.status != 404:
                    raise

    async def set_aside(self, bank: BankId, *, limit: int, offset: int) -> list[SetAside]:
        """A page of the facts that were taken out of what is recalled, newest first."""
        async with vendor_errors(self._hindsight.patience_s):
            try:
                page = await self._hindsight.patient.alist_memories(
                    bank, state="invalidated", limit=limit, offset=offset
                )
            except ApiException as exc:
                if exc.status != 404:
                    raise
                return []
            return [
                SetAside(
                    item.id,
                    item.text or "",
                    tuple(item.tags or ()),
                    item.invalidation_reason or "",
                    item.invalidated_at or "",
                )
                for item in page.items
            ]

    async def why_set_aside(self, bank: BankId, fact_id: str) -> str | None:
        """Why a fact was taken out of what is recalled; None: it was not, or there is none."""
        found = await self._fact(bank, fact_id)
        if found is None or found["state"] != "invalidated":
            return None
        return str(found.get("invalidation_reason") or "")

    async def text_of(self, bank: BankId, fact_id: str) -> str | None:
        """What a fact says now; None: there is none."""
        found = await self._fact(bank, fact_id)
        return None if found is None else str(found.get("text") or "")

    async def _fact(self, bank: BankId, fact_id: str) -> Mapping[str, Any] | None:
        """A fact as Hindsight has it, valid or set aside; None: there is none."""
        async with vendor_errors(self._hindsight.patience_s):
            try:
                return cast(
                    "Mapping[str, Any]",
                    await self._hindsight.patient.memory.get_memory(
                        bank, fact_id, _request_timeout=self._hindsight.patience_s
                    ),
                )
            except ApiException as exc:
                if exc.status not in (400, 404):
                    raise
                return None

    async def restore(self, bank: BankId, fact_id: str) -> None:
        """Let a fact be recalled again; harmless when it is, or when it is gone."""
        async with vendor_errors(self._hindsight.patience_s):
            try:
                await self._hindsight.patient.memory.update_memory(
                    bank,
                    fact_id,
                    UpdateMemoryRequest(state="valid"),
                    _request_timeout=self._hindsight.patience_s,
                )
            except ApiException as exc:
                if exc.status != 404:
                    raise
