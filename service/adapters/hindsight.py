"""Hindsight, through its own client: the only module that knows it.

Two clients, because the client has one time-out for everything: a quick one for the recall path
and a patient one for the worker. Both are bound to the event loop that opens them. Every call raises
`HindsightUnavailable` or `HindsightRejected` (see `hindsight_errors`).
"""

import contextlib
import hashlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Literal, Self, cast

from circuitbreaker import CircuitBreaker
from hindsight_client import Hindsight
from hindsight_client_api.exceptions import ApiException
from hindsight_client_api.models.bank_config_update import BankConfigUpdate
from hindsight_client_api.models.recall_result import RecallResult

from service.adapters.hindsight_errors import vendor_errors
from service.adapters.tracing import TracedCalls
from service.errors import HindsightRejected, HindsightUnavailable
from service.scope import BankId, DocumentId, OperationId, tenant_mark
from service.settings import Settings

Budget = Literal["low", "mid", "high"]
TagsMatch = Literal["any_strict", "all_strict"]

# Measured on Hindsight 1.1.0 without a cross-encoder: the graph and temporal arms bury the turn that
# answers (first five: 22% with them, 56% without) and take two thirds of the time.
BANK_SETTINGS: dict[str, bool] = {"enable_graph_retrieval": False, "enable_temporal_retrieval": False}
# All that `policy/bank_config` may set.
_MANAGED = ("retain_extraction_mode", "enable_observations", "entity_labels", "default_observation_scopes")
# Keeps an item word for word in a bank of any mode: no model extracts from it, nor makes observations of it
# (Hindsight has no scope that is not consolidated, but one that may hold no observation).
_VERBATIM = "verbatim"
_VERBATIM_CONFIG: dict[str, Any] = {
    "retain_strategies": {_VERBATIM: {"retain_extraction_mode": "chunks"}},
    "consolidation_strategies": [
        {"scopes": [{"tags": [_VERBATIM], "tags_match": "exact"}], "max_observations_per_scope": 0}
    ],
}


@dataclass(frozen=True, slots=True)
class Recalled:
    """One memory as Hindsight ranks it; scores are None where a stage did not see it.

    `document_id` and `metadata` are missing on observations, which are made from several documents;
    `source_tags` are the tags of each fact they were made from, where Hindsight consolidates.
    """

    id: str
    text: str
    fact_type: str
    document_id: DocumentId | None
    said_at: datetime | None
    metadata: Mapping[str, str]
    tags: tuple[str, ...]
    source_fact_ids: tuple[str, ...]
    source_tags: tuple[tuple[str, ...], ...]
    final: float | None
    semantic: float | None
    keyword: float | None
    reranker: float | None


@dataclass(frozen=True, slots=True)
class Item:
    """One document to store; `said_at` is ISO 8601 or empty for "now"."""

    document_id: DocumentId
    text: str
    said_at: str
    context: str
    tags: tuple[str, ...]
    metadata: Mapping[str, str]


OperationStatus = Literal["pending", "processing", "completed", "failed", "cancelled", "not_found"]


@dataclass(frozen=True, slots=True)
class OperationState:
    """An operation: how far it is, memories made (0 while it runs, None: not told), its times."""

    status: OperationStatus
    memories: int | None
    created_at: datetime | None
    completed_at: datetime | None


_RUNS = ("pending", "processing")
_FAILURES_TO_OPEN = 5
_OPEN_S = 5
# Patience that a caller must have had for its time-out to count, unless the usual deadline is shorter.
_FAIR_TIMEOUT_S = 0.5
_FAIR_SHARE = 0.7


class HindsightAdapter:
    """Calls to one Hindsight server; open it as an async context manager in the loop that uses it."""

    def __init__(
        self,
        url: str,
        api_key: str | None,
        *,
        recall_timeout_s: float,
        retain_timeout_s: float,
        fair_timeout_s: float = _FAIR_TIMEOUT_S,
        open_s: float = _OPEN_S,
        bank_config: Mapping[str, Any] | None = None,
        tenant_configs: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self._url = url
        self._api_key = api_key
        self._recall_timeout_s = recall_timeout_s
        self._retain_timeout_s = retain_timeout_s
        self._fair_timeout_s = fair_timeout_s
        self._open_s = open_s
        self._bank_config = dict(bank_config or {})
        self._tenant_configs = dict(tenant_configs or {})
        self._is_probing = False

    @classmethod
    def from_settings(
        cls,
        settings: Settings,
        bank_config: Mapping[str, Any] | None = None,
        tenant_configs: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> Self:
        """The server that `MEMORY_HINDSIGHT_URL` names; `bank_config` is what its banks get besides.

        `tenant_configs` has those of tenants that differ in their labels; all are of one extraction mode.
        Everything that makes banks or retains must be given the same (see `policy/bank_config`).
        """
        return cls(
            settings.hindsight_url,
            settings.hindsight_api_key.get_secret_value() if settings.hindsight_api_key else None,
            recall_timeout_s=settings.recall_deadline_max_ms / 1000,
            retain_timeout_s=settings.retain_timeout_s,
            fair_timeout_s=min(_FAIR_TIMEOUT_S, _FAIR_SHARE * settings.recall_deadline_ms / 1000),
            bank_config=bank_config,
            tenant_configs=tenant_configs,
        )

    async def __aenter__(self) -> Self:
        # One attempt: recall has a deadline to keep, and the worker has a schedule of its own.
        self._quick = Hindsight(
            self._url, self._api_key, timeout=self._recall_timeout_s, user_agent="dify-memory", max_attempts=1
        )
        self._patient = Hindsight(
            self._url, self._api_key, timeout=self._retain_timeout_s, user_agent="dify-memory", max_attempts=1
        )
        for client in (self._quick, self._patient):
            api_client = client.operations.api_client  # one for all of the client's parts
            api_client.rest_client = TracedCalls(api_client.rest_client)
        # Recall only: the worker has a schedule of its own and must see Hindsight come back.
        self._breaker = CircuitBreaker(
            _FAILURES_TO_OPEN, self._open_s, expected_exception=HindsightUnavailable, name="recall"
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._quick.aclose()
        await self._patient.aclose()

    @property
    def patient(self) -> Hindsight:
        """The vendor's client for calls that may take long; only for this package's own modules."""
        return self._patient

    @property
    def is_spared(self) -> bool:
        """Whether recalls do without Hindsight now, since it failed several times; one may try."""
        return not self._breaker.closed

    @property
    def patience_s(self) -> float:
        """Time limit of one such call."""
        return self._retain_timeout_s

    async def recall(
        self,
        bank: BankId,
        query: str,
        *,
        budget: Budget,
        max_tokens: int,
        fact_types: Sequence[str] = (),
        tags: Sequence[str] = (),
        tags_match: TagsMatch = "all_strict",
        timeout_s: float,
    ) -> list[Recalled]:
        """Memories for `query`, best first; a bank that does not exist has none.

        `max_tokens` bounds the text of the answer, `budget` how many candidates are ranked. After
        several failures in a row it is not asked for a few seconds, then by one caller at a time until
        it answers: a dead or hanging server then costs nobody but that one their deadline.
        """
        async with self._spared(timeout_s), vendor_errors(timeout_s):
            try:
                response = await self._quick.arecall(
                    bank,
                    query,
                    budget=budget,
                    max_tokens=max_tokens,
                    types=list(fact_types) or ["observation", "world", "experience"],
                    prefer_observations=True,
                    # Look-ups by id: an observation has none of the labels that tell facts' importance.
                    # Where nobody was chosen Hindsight may well make observations.
                    include_source_facts=bool(self._bank_config.get("enable_observations", True)),
                    tags=list(tags) or None,
                    tags_match=tags_match if tags else "any",
                )
            except ApiException as exc:
                if exc.status != 404:
                    raise
                return []
            sources = response.source_facts or {}
            return [_recalled(result, sources) for result in response.results]

    @asynccontextmanager
    async def _spared(self, timeout_s: float) -> AsyncIterator[None]:
        """Let the breaker decide whether the block may ask Hindsight, and learn from how it ends."""
        is_probe = not self._breaker.closed
        if self._breaker.opened or (is_probe and self._is_probing):
            raise HindsightUnavailable("Hindsight failed several times; it is left alone for a moment.")
        self._is_probing = self._is_probing or is_probe
        try:
            yield
        except HindsightUnavailable as exc:
            # A caller in a hurry proves nothing about Hindsight.
            if exc.reached or timeout_s >= self._fair_timeout_s:
                with contextlib.suppress(HindsightUnavailable), self._breaker:
                    raise
            raise
        else:
            # Only an answer closes the breaker; a caller that leaves (CancelledError) says nothing.
            self._breaker.reset()
        finally:
            if is_probe:
                self._is_probing = False

    def bank_config_id(self, tenant: str) -> str:
        """Stands for all that a tenant's banks are made with: another one makes them be made anew."""
        made_with = [tenant_mark(tenant), BANK_SETTINGS, self._config_of(tenant)]
        return hashlib.sha256(json.dumps(made_with, sort_keys=True).encode()).hexdigest()[:12]

    def _config_of(self, tenant: str) -> Mapping[str, Any]:
        return self._tenant_configs.get(tenant, self._bank_config)

    async def make_bank(self, bank: BankId, tenant: str | None, *, for_verbatim: bool = False) -> None:
        """Create the bank with the settings recall is tuned for and the tenant's configuration.

        When it exists it gets the same, and what an earlier configuration has set besides is cleared. Its
        name is made to tell the tenant (see `scope.tenant_mark`). None: whose it is is not known; what
        tells tenants apart stays as it is then. `for_verbatim`: it takes verbatim items, too (see `retain`).
        """
        config = dict(self._bank_config if tenant is None else self._config_of(tenant))
        cleared = dict.fromkeys(name for name in _MANAGED if name not in config)
        if tenant is None:
            cleared.pop("entity_labels", None)
            config.pop("entity_labels", None)
        updates = (config | cleared if config else {}) | (_VERBATIM_CONFIG if for_verbatim else {})
        async with vendor_errors(self._retain_timeout_s):
            await self._patient.acreate_bank(
                bank,
                name=None if tenant is None else tenant_mark(tenant),
                enable_graph_retrieval=BANK_SETTINGS["enable_graph_retrieval"],
                enable_temporal_retrieval=BANK_SETTINGS["enable_temporal_retrieval"],
            )
            if updates:
                # The client's own method leaves nulls out, which are what clears a value.
                await self._patient.banks.update_bank_config(
                    bank, BankConfigUpdate(updates=updates), _request_timeout=self._retain_timeout_s
                )

    async def is_bank_as_made(self, bank: BankId, tenant: str) -> bool:
        """Whether the bank is there and still extracts and ranks as `make_bank` has it.

        Hindsight may have lost it, or have been put back to what it was; a retain would then make it anew
        with Hindsight's defaults. False also where the bank's configuration cannot be looked at.
        """
        config = self._config_of(tenant)
        wanted = BANK_SETTINGS | (dict.fromkeys(_MANAGED) | dict(config) if config else {})
        try:
            async with vendor_errors(self._retain_timeout_s):
                found = await self._patient.banks.get_bank_config(
                    bank, _request_timeout=self._retain_timeout_s
                )
                overrides = found.overrides or {}
        except HindsightRejected:
            return False
        # Hindsight writes out what is in lists in its own way.
        plain = {name: value for name, value in wanted.items() if not isinstance(value, list)}
        return all(overrides.get(name) == value for name, value in plain.items())

    async def retain(
        self, bank: BankId, items: Sequence[Item], operation: OperationId, *, is_verbatim: bool = False
    ) -> None:
        """Hand `items` to Hindsight's own durable queue under `operation`.

        The same operation id in the same bank is the same operation (and its new content is
        dropped), so that a repetition after a lost answer stores nothing twice. `is_verbatim`: items are
        kept word for word whoever extracts, in a bank that was made for it.
        """
        how = {"strategy": _VERBATIM, "observation_scopes": [[_VERBATIM]]} if is_verbatim else {}
        async with vendor_errors(self._retain_timeout_s):
            await self._patient.aretain_batch(
                bank,
                [self._item(item) | how for item in items],
                retain_async=True,
                operation_id=operation,
            )

    def _item(self, item: Item) -> dict[str, Any]:
        return {
            "content": item.text,
            "timestamp": item.said_at or None,
            "context": item.context or None,
            "metadata": dict(item.metadata) or None,
            "document_id": item.document_id,
            "tags": list(item.tags),
            # The default scope would keep one observation per tag set: after a move, both cities.
            "observation_scopes": self._bank_config.get("default_observation_scopes", "shared"),
        }

    async def operation(self, bank: BankId, operation: OperationId) -> OperationStatus:
        """How far the operation is."""
        return (await self.operation_state(bank, operation)).status

    async def operation_state(self, bank: BankId, operation: OperationId) -> OperationState:
        """How far the operation is, and what it has made."""
        async with vendor_errors(self._retain_timeout_s):
            try:
                response = await self._patient.operations.get_operation_status(
                    bank, operation, _request_timeout=self._retain_timeout_s
                )
            except ApiException as exc:
                if exc.status == 404:
                    return OperationState("not_found", 0, None, None)
                raise
            made = (response.result_metadata or {}).get("unit_ids_count")
        return OperationState(
            status=cast("OperationStatus", response.status),
            memories=made if isinstance(made, int) else 0 if response.status in _RUNS else None,
            created_at=_moment(response.created_at),
            completed_at=_moment(response.completed_at),
        )

    async def memories_in(self, bank: BankId, document: DocumentId) -> int:
        """How many memories the document holds; 0 when there is no such document."""
        async with vendor_errors(self._retain_timeout_s):
            try:
                response = await self._patient.documents.get_document(
                    bank, document, _request_timeout=self._retain_timeout_s
                )
            except ApiException as exc:
                if exc.status == 404:
                    return 0
                raise
        return response.memory_unit_count

    async def check(self, timeout_s: float) -> None:
        """Prove that Hindsight and its database answer, or raise."""
        async with vendor_errors(timeout_s):
            await self._quick.monitoring.get_readiness(_request_timeout=timeout_s)


def _recalled(result: RecallResult, sources: Mapping[str, RecallResult]) -> Recalled:
    scores = result.scores
    source_ids = tuple(result.source_fact_ids or ())
    return Recalled(
        id=result.id,
        text=result.text,
        fact_type=result.type or "",
        document_id=DocumentId(result.document_id) if result.document_id else None,
        said_at=_moment(result.occurred_start) or _moment(result.mentioned_at),
        metadata=result.metadata or {},
        tags=tuple(result.tags or ()),
        source_fact_ids=source_ids,
        source_tags=tuple(tuple(sources[one].tags or ()) for one in source_ids if one in sources),
        final=scores.final if scores else None,
        semantic=scores.semantic if scores else None,
        keyword=scores.keyword if scores else None,
        reranker=scores.reranker if scores else None,
    )


def _moment(text: str | None) -> datetime | None:
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
