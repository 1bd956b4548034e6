"""How the Hindsight stand-in finds things: recall by shared words, lists by filters.

The score is a cosine over words: Latin words in lower case and pairs of neighbouring CJK characters. A
memory that shares nothing with the query does not surface, as under a real similarity floor.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from tests.fakes.hindsight_store import FACT_TYPES, Bank, Document, Json, Memory, Refused
from tests.fakes.words import is_cjk, similarity, words

_TOP_SCORE = 1.1

Row = TypeVar("Row", Memory, Document)


@dataclass
class _Hit:
    memory: Memory
    semantic: float | None
    keyword: float | None


def keyword_score(query: str, text: str) -> float | None:
    """A tenth for each shared Latin word; None without one, which is always so in Chinese."""
    shared = [word for word in words(query) & words(text) if not is_cjk(word)]
    return len(shared) / 10 if shared else None


def tags_fit(wanted: Sequence[str] | None, have: Sequence[str], match: str) -> bool:
    """Whether tags pass a filter; `any` and `all` let untagged rows through."""
    if not wanted:
        return True
    wants, has = set(wanted), set(have)
    if not has:
        return match in ("any", "all")
    if match == "exact":
        return wants == has
    return bool(wants & has) if match.startswith("any") else wants <= has


def token_count(text: str) -> int:
    """Roughly what a tokenizer would count."""
    return len(words(text)) or 1


def recall(bank: Bank, request: Json) -> Json:
    """The body of a recall reply for a request that has passed validation."""
    types = request["types"] or list(FACT_TYPES)
    if wrong := [name for name in types if name not in FACT_TYPES]:
        names = ", ".join(sorted(FACT_TYPES))
        raise Refused(422, f"Invalid fact type(s): {', '.join(wrong)}. Must be one of: {names}")
    floors = request["min_scores"] or {}
    found = [
        row
        for memory in bank.memories.values()
        if memory.state == "valid"
        and memory.type in types
        and tags_fit(request["tags"], memory.tags, request["tags_match"])
        and (row := _scored(bank, memory, request["query"], floors)) is not None
    ]
    # Newest first among equals: the sort is stable.
    found.reverse()
    found.sort(key=lambda row: row.semantic or 0.0, reverse=True)
    prefers = request["prefer_observations"]
    if prefers or (prefers is None and bank.setting("recall_prefer_observations")):
        covered = {source for row in found for source in row.memory.source_fact_ids}
        found = [row for row in found if row.memory.id not in covered]
    results: list[Json] = []
    tokens_left = request["max_tokens"]
    for rank, row in enumerate(found):
        final = _TOP_SCORE * (1 - rank / (len(found) + 1))
        tokens = token_count(row.memory.text)
        if tokens <= tokens_left and final >= (floors.get("final") or 0):
            tokens_left -= tokens
            results.append(_result(row, final))
    return {
        "results": results,
        "trace": None,
        "entities": None,
        "chunks": None,
        "source_facts": None,
        "source_facts_truncated": None,
    }


def _scored(bank: Bank, memory: Memory, query: str, floors: Json) -> _Hit | None:
    semantic: float | None = similarity(query, memory.text)
    keyword = keyword_score(query, memory.text) if bank.setting("enable_text_search") else None
    if not semantic or semantic < (floors.get("semantic") or 0):
        semantic = None
    if keyword is not None and keyword < (floors.get("keyword") or 0):
        keyword = None
    return None if semantic is None and keyword is None else _Hit(memory, semantic, keyword)


def _result(hit: _Hit, final: float) -> Json:
    memory = hit.memory
    is_observation = memory.type == "observation"
    return {
        "id": memory.id,
        "text": memory.text,
        "type": memory.type,
        "entities": memory.entities or None,
        "context": memory.context,
        "occurred_start": memory.occurred_start,
        "occurred_end": memory.occurred_end,
        "mentioned_at": memory.mentioned_at,
        "document_id": None if is_observation else memory.document_id,
        "metadata": None if is_observation else memory.metadata,
        "chunk_id": None if is_observation else memory.chunk_id,
        "tags": memory.tags,
        "source_fact_ids": memory.source_fact_ids or None,
        "scores": {
            "final": final,
            "reranker": None,
            "semantic": hit.semantic,
            "keyword": hit.keyword,
        },
        "attachments": None,
    }


def list_memories(bank: Bank, query: Json) -> Json:
    """The body of a memory list, newest first."""
    state = query.get("state") or "valid"
    pattern = _like(query.get("q") or "")
    rows = [
        memory
        for memory in bank.memories.values()
        if memory.state == state
        and query.get("type") in (None, memory.type)
        and query.get("document_id") in (None, memory.document_id)
        and (pattern.search(memory.text) or pattern.search(memory.context))
        and tags_fit(query.get("tags"), memory.tags, query.get("tags_match") or "any")
    ]
    rows = _in_window(rows, query, default_axis="mentioned_at")
    return _page([_list_item(memory) for memory in rows], query)


def _like(query: str) -> re.Pattern[str]:
    """A search of SQL's ILIKE: `%` and `_` are patterns unless a backslash stands before them."""
    parts = re.findall(r"\\.|.", query, re.DOTALL)
    wild = {"%": ".*", "_": "."}
    pattern = "".join(wild.get(part) or re.escape(part[-1]) for part in parts)
    return re.compile(pattern, re.DOTALL | re.IGNORECASE)


def _list_item(memory: Memory) -> Json:
    return {
        "id": memory.id,
        "text": memory.text,
        "context": memory.context,
        "date": memory.occurred_start or memory.mentioned_at or memory.created_at,
        "fact_type": memory.type,
        "document_id": memory.document_id,
        "mentioned_at": memory.mentioned_at,
        "occurred_start": memory.occurred_start,
        "occurred_end": memory.occurred_end,
        "entities": ", ".join(memory.entities),
        "chunk_id": memory.chunk_id,
        "proof_count": max(1, len(memory.source_fact_ids)),
        "tags": memory.tags,
        "metadata": memory.metadata or {},
        "consolidated_at": None,
        "consolidation_failed_at": None,
        "state": memory.state,
        "invalidation_reason": memory.invalidation_reason,
        "invalidated_at": memory.invalidated_at,
        "edited_at": memory.edited_at,
        "updated_at": memory.updated_at,
        "source_memory_ids": memory.source_fact_ids,
    }


def observation_body(bank: Bank, memory: Memory) -> Json:
    """What `GET` adds for an observation: the facts it rests on."""
    sources = [bank.memories[source] for source in memory.source_fact_ids]
    keys = ("id", "text", "type", "context", "occurred_start", "mentioned_at")
    return {
        "history": [],
        "source_memory_ids": memory.source_fact_ids,
        "source_memories": [{key: getattr(source, key) for key in keys} for source in sources],
    }


def memory_body(memory: Memory) -> Json:
    """One memory as `GET` and `PATCH` answer it."""
    return {
        "id": memory.id,
        "text": memory.text,
        "context": memory.context,
        "date": memory.occurred_start or memory.mentioned_at or memory.created_at,
        "type": memory.type,
        "mentioned_at": memory.mentioned_at,
        "occurred_start": memory.occurred_start,
        "occurred_end": memory.occurred_end,
        "entities": memory.entities,
        "document_id": memory.document_id,
        "chunk_id": memory.chunk_id,
        "tags": memory.tags,
        "metadata": memory.metadata or {},
        "observation_scopes": memory.observation_scopes,
        "state": memory.state,
        "invalidation_reason": memory.invalidation_reason,
        "invalidated_at": memory.invalidated_at,
        "edited_at": memory.edited_at,
        "consolidated_at": None,
        "consolidation_failed_at": None,
    }


def list_documents(bank: Bank, query: Json) -> Json:
    """The body of a document list, last written first."""
    needle = (query.get("q") or "").lower()
    rows = [
        document
        for document in bank.documents.values()
        if tags_fit(query.get("tags"), document.tags, query.get("tags_match") or "any_strict")
        and (not needle or _matched_fields(document, needle))
    ]
    rows = _in_window(rows, query, default_axis="updated_at")
    items = [
        {
            "id": document.id,
            "bank_id": bank.id,
            "content_hash": document.content_hash,
            "created_at": document.created_at,
            "updated_at": document.updated_at,
            "text_length": len(document.text),
            "memory_unit_count": len(bank.memories_of(document.id)),
            "retain_params": document.retain_params,
            "document_metadata": document.item.get("metadata") or None,
            "tags": document.tags,
            "matched_fields": _matched_fields(document, needle) if needle else [],
        }
        for document in rows
    ]
    return {**_page(items, query), "total_is_estimate": False}


def _matched_fields(document: Document, needle: str) -> list[str]:
    fields = {"id": document.id, "original_text": document.text}
    return [name for name, value in fields.items() if needle in value.lower()]


def document_body(bank: Bank, document: Document) -> Json:
    """One document as `GET` answers it."""
    memories = bank.memories_of(document.id)
    return {
        "id": document.id,
        "bank_id": bank.id,
        "original_text": document.text,
        "content_hash": document.content_hash,
        "created_at": document.created_at,
        "updated_at": document.updated_at,
        "memory_unit_count": len(memories),
        "nodes_by_fact_type": {kind: sum(m.type == kind for m in memories) for kind in FACT_TYPES},
        "tags": document.tags,
        "document_metadata": document.item.get("metadata") or None,
        "retain_params": document.retain_params,
        "observation_scopes": document.item.get("observation_scopes"),
        "attachments": None,
    }


def instant(text: str, name: str) -> datetime:
    """An ISO 8601 date or time, UTC unless it says otherwise."""
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        raise Refused(400, f"Invalid {name}: {text!r} is not an ISO-8601 datetime.") from None
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)


def _in_window(rows: Iterable[Row], query: Json, default_axis: str) -> list[Row]:
    start, end = query.get("start_date"), query.get("end_date")
    has_window = bool(start or end)
    axis = query.get("time_field") or ("created_at" if has_window else default_axis)

    def at(row: Row) -> datetime:
        value = getattr(row, axis)
        return instant(value, axis) if value else datetime.min.replace(tzinfo=UTC)

    kept = list(rows)
    if has_window or query.get("time_field"):
        kept = [row for row in kept if getattr(row, axis)]
    if start:
        kept = [row for row in kept if at(row) >= instant(start, "start_date")]
    if end:
        kept = [row for row in kept if at(row) < instant(end, "end_date")]
    if has_window or query.get("time_field"):
        kept.sort(key=lambda row: row.id)
    else:
        kept.reverse()
    return sorted(kept, key=at, reverse=True)


def _page(items: list[Any], query: Json) -> Json:
    limit, offset = query["limit"], query["offset"]
    return {"items": items[offset : offset + limit], "total": len(items), "limit": limit, "offset": offset}
