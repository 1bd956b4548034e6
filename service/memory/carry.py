"""Carrying memories away and back: an export as JSON lines, and its import.

A line is one memory with all that means something elsewhere, too:
`{"type": "memory" | "observation" | "pending", "text", "kind", "said_at", "tags", "metadata",
"conversation"}`; the last line is `{"type": "end", "memories", "pending"}`, so that a file that was cut
off shows. `conversation` is a digest that only shows which lines belong together; back in the same
user's memory it is that conversation again, so that it can be forgotten as one.

An import is an add: each line becomes an accepted turn and takes the same way. Observations are left out
of it, since they are made of the other lines. A line is known by its digest: a repeated import, or one
that broke off, stores nothing twice. Lines are read oldest first, whatever their order in the file.
"""

import asyncio
import contextlib
import json
import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeGuard

from service.adapters.cache import RecallCache
from service.adapters.hindsight_review import HindsightReview, StoredMemory
from service.adapters.turns import NewTurn, Turn, TurnsLog
from service.errors import CacheUnavailable, InvalidRequest, TooLarge
from service.memory.review import conversation_tag, is_conversation_tag, own_tags, said_at, walk
from service.policy.content import clean, strip_blocks
from service.policy.kinds import KIND_TAG, kind_of
from service.policy.redaction import RedactionPolicy, redact, redact_all, redact_map
from service.policy.sentences import split_long
from service.schemas import MAX_METADATA, MAX_TAG_CHARS, MAX_TAGS, AddRequest
from service.scope import (
    BankId,
    ConversationId,
    JobId,
    conversation_of,
    document_of,
    turn_digest,
)
from service.settings import Settings

_DOCUMENT_CHARS = 8_000
_MAX_LINES = 20_000
_PAGE = 200


@dataclass(frozen=True, slots=True)
class Imported:
    """Lines that were taken, that were known already, and that hold nothing to import."""

    accepted: int
    duplicate: int
    skipped: int


@dataclass(frozen=True, slots=True)
class _Line:
    text: str
    said_at: str
    tags: tuple[str, ...]
    metadata: Mapping[str, str]
    conversation: str
    digest: str


async def export(bank: BankId, *, review: HindsightReview, log: TurnsLog) -> AsyncIterator[bytes]:
    """The lines of one user's export, newest first; a page of memories is held at a time.

    The first item comes once both sources have answered, so that errors before it can still be told.
    """
    # The log first: a turn that is stored meanwhile is then seen in both, and left out here below.
    waiting = {turn.document_id: turn for turn in await log.pending(bank)}
    count = 0
    async for rows in walk(review, bank, page=_PAGE):
        for row in rows:
            if row.document_id is not None:
                waiting.pop(row.document_id, None)
        count += len(rows)
        yield b"".join(_encode(_fields_of(row)) for row in rows)
    if waiting:
        yield b"".join(_encode(_fields_of_pending(turn)) for turn in waiting.values())
    yield _encode({"type": "end", "memories": count, "pending": len(waiting)})


def _fields_of(memory: StoredMemory) -> dict[str, object]:
    return {
        "type": "observation" if memory.is_derived else "memory",
        "text": memory.text,
        "kind": kind_of(memory.tags),
        "said_at": memory.said_at.isoformat(),
        "tags": list(own_tags(memory.tags)),
        "metadata": dict(memory.metadata),
        "conversation": conversation_tag(memory.tags) or "",
    }


def _fields_of_pending(turn: Turn) -> dict[str, object]:
    return {
        "type": "pending",
        "text": turn.text,
        "kind": kind_of(turn.tags),
        "said_at": said_at(turn),
        "tags": list(own_tags(turn.tags)),
        "metadata": dict(turn.metadata),
        "conversation": turn.conversation,
    }


def _encode(fields: Mapping[str, object]) -> bytes:
    return json.dumps(fields, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


async def take_in(
    body: bytes,
    *,
    tenant: str,
    bank: BankId,
    log: TurnsLog,
    cache: RecallCache,
    settings: Settings,
    redaction: RedactionPolicy,
) -> Imported:
    """Accept the lines of an export, redacted like any add; when this returns they survive any crash.

    Raises `InvalidRequest` or `TooLarge` naming the first bad line (nothing was accepted then), and what
    `TurnsLog.accept` raises when the log is full or away: the lines before were accepted, and the same
    body may be sent again.
    """
    # In a thread: redacting a whole body takes a while, and recalls have deadlines.
    lines, skipped = await asyncio.to_thread(_read, body, settings.max_turn_chars, redaction)
    lines.sort(key=lambda line: datetime.fromisoformat(line.said_at) if line.said_at else datetime.now(UTC))
    accepted = duplicate = 0
    try:
        for line in lines:
            status = await _accept(line, tenant=tenant, bank=bank, log=log, settings=settings)
            accepted += status == "queued"
            duplicate += status == "duplicate"
    finally:
        if accepted:
            # Without it, recalls that are cached show the turns when they expire.
            with contextlib.suppress(CacheUnavailable):
                await cache.note_write(bank)
    return Imported(accepted, duplicate, skipped)


async def _accept(line: _Line, *, tenant: str, bank: BankId, log: TurnsLog, settings: Settings) -> str:
    is_known = is_conversation_tag(line.conversation)
    conversation = ConversationId(line.conversation) if is_known else conversation_of(bank, "")
    turn = turn_digest("import", line.digest)
    status, _ = await log.accept(
        job_id=JobId(uuid.uuid4().hex),
        seen=turn_digest("import", bank, line.digest),
        seen_ttl_s=settings.turn_id_ttl_s,
        tenant=tenant,
        bank=bank,
        conversation=conversation,
        turns=[
            NewTurn(
                document_id=document_of(bank, conversation, turn, part),
                text=text,
                said_at=line.said_at,
                tags=line.tags,
                metadata=line.metadata,
            )
            for part, text in enumerate(split_long(line.text, _DOCUMENT_CHARS))
        ],
    )
    return status


def _read(body: bytes, max_chars: int, redaction: RedactionPolicy) -> tuple[list[_Line], int]:
    raw = body.split(b"\n")
    if len(raw) > _MAX_LINES:
        raise InvalidRequest(f"One import takes at most {_MAX_LINES} lines; send the file in parts.")
    lines: list[_Line] = []
    skipped = 0
    for number, encoded in enumerate(raw, 1):
        if not encoded.strip():
            continue
        try:
            fields = json.loads(encoded)
        except (ValueError, RecursionError):
            fields = None
        if not isinstance(fields, dict):
            raise _bad_line(number, "is not a JSON object")
        if fields.get("type") in ("end", "observation"):
            skipped += fields["type"] == "observation"
            continue
        if fields.get("type") not in ("memory", "pending"):
            raise _bad_line(number, 'has none of the types "memory", "pending", "observation" and "end"')
        text = fields.get("text")
        if isinstance(text, str) and len(text) > max_chars:
            raise TooLarge(f"Line {number} is too long: a memory may have at most {max_chars} characters.")
        line = _line(fields, number, redaction)
        if line.text:
            lines.append(line)
        else:
            skipped += 1
    return lines, skipped


def _bad_line(number: int, what: str) -> InvalidRequest:
    return InvalidRequest(f"Line {number} {what}; send an export as it was made.")


def _line(fields: Mapping[str, object], number: int, redaction: RedactionPolicy) -> _Line:
    text, conversation, kind = fields.get("text"), fields.get("conversation", ""), fields.get("kind")
    tags, metadata = fields.get("tags", []), fields.get("metadata", {})
    if not isinstance(text, str) or not isinstance(conversation, str) or not isinstance(kind, str | None):
        raise _bad_line(number, "has a text, kind or conversation that is none")
    if not _are_short_texts(tags):
        raise _bad_line(number, "has tags that are no short texts")
    if not isinstance(metadata, dict) or len(metadata) > MAX_METADATA:
        raise _bad_line(number, "has metadata that is no object of short texts")
    # One reader for times and metadata, the one that adds have.
    try:
        checked = AddRequest.read(
            {"user_id": "-", "timestamp": fields.get("said_at", ""), "metadata": metadata or None}
        )
        moment, facts = checked.said_at, checked.metadata_map
    except InvalidRequest as exc:
        raise _bad_line(number, "has a said_at or metadata that is not valid") from exc
    kept_tags, _ = redact_all((clean(tag) for tag in tags if not is_conversation_tag(tag)), redaction)
    if kind and not redact(kind, redaction).total:
        kept_tags = (*kept_tags, KIND_TAG + clean(kind)[:MAX_TAG_CHARS])
    kept_facts, _ = redact_map({clean(name): clean(value) for name, value in facts.items()}, redaction)
    said = redact(strip_blocks(clean(text)), redaction).text.strip()
    return _Line(
        text=said,
        said_at=moment,
        tags=kept_tags,
        metadata=kept_facts,
        conversation=conversation,
        digest=turn_digest(said, moment, conversation, *kept_tags),
    )


def _are_short_texts(values: object) -> TypeGuard[list[str]]:
    return (
        isinstance(values, list)
        and len(values) <= MAX_TAGS
        and all(isinstance(value, str) and len(value) <= MAX_TAG_CHARS for value in values)
    )
