"""Carrying memories away and back: an export as JSON lines, and its import.

A line is one memory with all that means something elsewhere, too:
`{"type": "memory" | "observation" | "pending", "text", "kind", "said_at", "tags", "metadata",
"conversation"}`; the last line is `{"type": "end", "memories", "pending"}`, so that a file that was cut
off shows. `conversation` is a digest that only shows which lines belong together; back in the same
user's memory it is that conversation again, so that it can be forgotten as one.

An import is an add: each line becomes an accepted turn and takes the same way. It takes more of a line than
an add would, since what was stored may have grown: by our own metadata, and by masks, which are longer than
what they hide. Observations are left out of it, since they are made of the other lines. A line is known by
its digest: what the user still has, or an import before has brought, is not stored twice. Lines are read
oldest first, whatever their order in the file.
"""

import asyncio
import contextlib
import json
import uuid
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from service.adapters.cache import RecallCache
from service.adapters.hindsight_review import HindsightReview, StoredMemory
from service.adapters.turns import NewTurn, Turn, TurnsLog
from service.errors import CacheUnavailable, InvalidRequest, TooLarge
from service.memory.review import conversation_tag, is_conversation_tag, own_tags, said_at, walk
from service.policy.content import clean, strip_blocks
from service.policy.kinds import IMPORTANCE, KIND_TAG, PARTIAL, SUBJECT, kind_of
from service.policy.redaction import RedactionPolicy, redact, redact_all, redact_map
from service.policy.redaction_types import KINDS
from service.policy.sentences import split_long
from service.schemas import MAX_METADATA, MAX_METADATA_CHARS, MAX_TAG_CHARS, MAX_TAGS, AddRequest
from service.scope import (
    BankId,
    ConversationId,
    JobId,
    conversation_of,
    document_of,
    is_reserved_tag,
    turn_digest,
    turn_of_document,
)
from service.settings import Settings

_DOCUMENT_CHARS = 8_000
_MAX_LINES = 20_000
_PAGE = 200
# The most that redaction can make of one character.
_GROWTH: Final = max(len(f"[{kind}]") for kind in KINDS)
_OUR_METADATA: Final = frozenset({IMPORTANCE, SUBJECT, PARTIAL})


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
    identity: str


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
                waiting.pop(turn_of_document(row.document_id), None)
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
    review: HindsightReview,
    log: TurnsLog,
    cache: RecallCache,
    settings: Settings,
    redaction: RedactionPolicy,
    kinds: Collection[str],
) -> Imported:
    """Accept the lines of an export, redacted like any add; when this returns they survive any crash.

    A line of none of `kinds` comes in without one, and none with a tag that only the service gives.
    Raises `InvalidRequest` or `TooLarge` naming the first bad line, and an error of the backend's when it
    cannot be asked what the user has (nothing was accepted then), and what `TurnsLog.accept` raises when the
    log is full or away: the lines before were accepted, and the same body may be sent again.
    """
    # In a thread: redacting a whole body takes a while, and recalls have deadlines.
    max_chars = max(settings.max_turn_chars, _GROWTH * _DOCUMENT_CHARS)
    kept = frozenset(kinds)
    lines, skipped = await asyncio.to_thread(_read, body, max_chars, redaction, kept)
    given = len(lines)
    if lines:
        has = await _digests(bank, review, log, redaction, kept)
        lines = [line for line in lines if line.identity not in has]
    lines.sort(key=lambda line: datetime.fromisoformat(line.said_at) if line.said_at else datetime.now(UTC))
    accepted, duplicate = 0, given - len(lines)
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


async def _digests(
    bank: BankId, review: HindsightReview, log: TurnsLog, redaction: RedactionPolicy, kinds: frozenset[str]
) -> set[str]:
    """By which digests the lines would be known that an export of this moment had."""

    def digests(lines: Sequence[Mapping[str, object]]) -> set[str]:
        found = set()
        for number, fields in enumerate(lines, 1):
            with contextlib.suppress(InvalidRequest):  # what others have put there comes in as it always did
                found.add(_line(fields, number, redaction, kinds).identity)
        return found

    # The log first, as for an export.
    has = await asyncio.to_thread(digests, [_fields_of_pending(turn) for turn in await log.pending(bank)])
    async for rows in walk(review, bank, page=_PAGE):
        fields = [_fields_of(row) for row in rows if not row.is_derived]
        has |= await asyncio.to_thread(digests, fields)
    return has


async def _accept(line: _Line, *, tenant: str, bank: BankId, log: TurnsLog, settings: Settings) -> str:
    is_known = is_conversation_tag(line.conversation)
    conversation = ConversationId(line.conversation) if is_known else conversation_of(bank, "")
    turn = turn_digest("import", line.identity)
    status, _ = await log.accept(
        job_id=JobId(uuid.uuid4().hex),
        seen=turn_digest("import", bank, line.identity),
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


def _read(
    body: bytes, max_chars: int, redaction: RedactionPolicy, kinds: frozenset[str]
) -> tuple[list[_Line], int]:
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
        line = _line(fields, number, redaction, kinds)
        if line.text:
            lines.append(line)
        else:
            skipped += 1
    return lines, skipped


def _bad_line(number: int, what: str) -> InvalidRequest:
    return InvalidRequest(f"Line {number} {what}; send an export as it was made.")


def _line(
    fields: Mapping[str, object], number: int, redaction: RedactionPolicy, kinds: frozenset[str]
) -> _Line:
    text, conversation, kind = fields.get("text"), fields.get("conversation", ""), fields.get("kind")
    if not isinstance(text, str) or not isinstance(conversation, str) or not isinstance(kind, str | None):
        raise _bad_line(number, "has a text, kind or conversation that is none")
    # One reader for times, the one that adds have.
    try:
        moment = AddRequest.read({"user_id": "-", "timestamp": fields.get("said_at", "")}).said_at
    except InvalidRequest as exc:
        raise _bad_line(number, "has a said_at that is not valid") from exc
    tags = _tags(fields.get("tags", []), number, redaction)
    metadata = _metadata(fields.get("metadata", {}), number, redaction)
    if kind in kinds:
        tags = (*tags, f"{KIND_TAG}{kind}")
    said = redact(strip_blocks(clean(text)), redaction).text.strip()
    labels = json.dumps([sorted(tags), sorted(metadata.items())])
    return _Line(
        text=said,
        said_at=moment,
        tags=tags,
        metadata=metadata,
        conversation=conversation,
        identity=turn_digest(said, moment, conversation, labels),
    )


def _tags(given: object, number: int, redaction: RedactionPolicy) -> tuple[str, ...]:
    """The tags to keep; lengths are those of what is kept, so that its export comes in again."""
    wrong = _bad_line(number, "has tags that are no short texts")
    if not isinstance(given, list) or not all(isinstance(tag, str) for tag in given):
        raise wrong
    own = [tag for tag in map(clean, given) if not is_reserved_tag(tag)]
    if len(own) > MAX_TAGS:
        raise wrong
    kept, _ = redact_all(own, redaction)
    if any(len(tag) > _GROWTH * MAX_TAG_CHARS for tag in kept):
        raise wrong
    # Once more: what a sentence that is dropped leaves behind may be such a tag.
    return tuple(tag for tag in kept if not is_reserved_tag(tag))


def _metadata(given: object, number: int, redaction: RedactionPolicy) -> dict[str, str]:
    """The metadata to keep, as text → text; our own entries do not count."""
    wrong = _bad_line(number, "has metadata that is no object of short texts")
    if not isinstance(given, dict) or len(given.keys() - _OUR_METADATA) > MAX_METADATA:
        raise wrong
    if not all(isinstance(value, str | int | float) for value in given.values()):
        raise wrong
    texts = {
        clean(name): clean(value if isinstance(value, str) else json.dumps(value))
        for name, value in given.items()
    }
    kept, _ = redact_map(texts, redaction)
    if any(len(name) > MAX_TAG_CHARS for name in kept):
        raise wrong
    if any(len(text) > _GROWTH * MAX_METADATA_CHARS for text in kept.values()):
        raise wrong
    return kept
