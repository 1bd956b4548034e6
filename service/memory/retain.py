"""Add: what a caller sent becomes accepted turns, at once and without waiting for Hindsight.

A turn is known by its words and, if the caller gives one, its `turn_id`. With a `turn_id`, a
repetition is recognised for `turn_id_ttl_s`; without, for `repeat_window_s`, since the same words
said again later in a conversation are a new turn. The words count even with a `turn_id`: two add
nodes of one workflow run share the run's id, and neither may swallow the other.
"""

import json
import logging
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from time import time
from typing import Literal

from service import logs
from service.adapters.cache import RecallCache
from service.adapters.turns import NewTurn, TurnsLog
from service.errors import (
    CacheUnavailable,
    HindsightRejected,
    HindsightUnavailable,
    InvalidRequest,
    TooLarge,
    TurnsLogUnavailable,
)
from service.memory.fallback import Fallback
from service.memory.policies import Policies
from service.memory.redacting import off_loop
from service.policy.content import (
    Message,
    Turn,
    UnreadableMessages,
    clean,
    read_messages,
    render_parts,
    split_turns,
    strip_blocks,
)
from service.policy.redaction import RedactionPolicy, redact_all, redact_map, redact_messages
from service.schemas import AddRequest
from service.scope import BankId, JobId, conversation_of, document_of, is_reserved_tag, turn_digest
from service.settings import Settings

_log = logging.getLogger(__name__)

# One document; Hindsight cuts longer ones into chunks where it likes, we cut at sentences.
_DOCUMENT_CHARS = 8_000


@dataclass(frozen=True, slots=True)
class Accepted:
    """What became of a request: messages kept and dropped, passages masked or cut.

    `job_id` is empty when nothing was kept.
    """

    status: Literal["queued", "duplicate", "skipped"]
    job_id: str
    accepted: int
    skipped: int
    redacted: int
    searchable_now: bool


async def accept(
    request: AddRequest,
    *,
    tenant: str,
    bank: BankId,
    log: TurnsLog,
    cache: RecallCache,
    fallback: Fallback | None,
    settings: Settings,
    policies: Policies,
) -> Accepted:
    """Write the request's turns to the log; when this returns they survive any crash.

    When the log is away they go to Hindsight through `fallback`, if there is one. Raises
    `InvalidRequest` for messages that cannot be read, `TooLarge` for more than `max_request_turns`
    turns or a turn of more than `max_turn_chars` characters, `TooManyWaiting` when so many turns wait
    that no more are taken, `TurnsLogUnavailable` when nothing can take them for sure.
    """
    redaction = policies.of(tenant).redaction
    messages, skipped = _messages_of(request)
    if not messages:
        return Accepted("skipped", "", 0, skipped, 0, False)
    spoken = split_turns(messages)
    if any(sum(len(one.text) for one in turn.messages) > settings.max_turn_chars for turn in spoken):
        raise TooLarge(f"One turn may hold at most {settings.max_turn_chars} characters.")
    if len(spoken) > settings.max_request_turns:
        raise TooLarge(
            f"One request may hold at most {settings.max_request_turns} turns; send the rest in others."
        )

    # Before anything is made of the words: what is sensitive reaches no digest and no queue.
    kept, redacted = await _redact(messages, redaction)
    skipped += len(messages) - len(kept)
    if not kept:
        return Accepted("skipped", "", 0, skipped, redacted, False)
    if redacted:
        messages, spoken = kept, split_turns(kept)
    own = [tag for tag in map(clean, request.tag_list) if tag and not is_reserved_tag(tag)]
    given = {clean(name): clean(text) for name, text in request.metadata_map.items()}
    (tags, in_tags), (metadata, in_metadata) = await off_loop(
        sum(map(len, (*own, *given, *given.values()))),
        lambda: (redact_all(own, redaction), redact_map(given, redaction)),
    )
    # Once more: what a sentence that is dropped leaves behind may be such a tag.
    tags = tuple(tag for tag in tags if not is_reserved_tag(tag))
    redacted += in_tags + in_metadata

    said_at = request.said_at
    words = json.dumps([[m.role, m.text] for m in messages], ensure_ascii=False) + said_at
    # A bucket of the window, so that the same words after the window are another document.
    identity = (
        ("id", request.turn_id, words)
        if request.turn_id
        else ("words", words, str(int(time()) // settings.repeat_window_s))
    )
    conversation = conversation_of(bank, request.conversation_id)
    turn = turn_digest(*identity)
    job_id = JobId(uuid.uuid4().hex)
    logs.job_id.set(job_id)
    turns = [
        NewTurn(
            document_of(bank, conversation, turn, part),
            text,
            said_at,
            tags,
            metadata,
            logs.traceparent.get(),
        )
        for part, text in enumerate(_documents(spoken))
    ]
    try:
        status, known = await log.accept(
            job_id=job_id,
            seen=turn_digest(conversation, *identity[:2])
            if not request.turn_id
            else turn_digest(conversation, *identity),
            seen_ttl_s=settings.turn_id_ttl_s if request.turn_id else settings.repeat_window_s,
            tenant=tenant,
            bank=bank,
            conversation=conversation,
            turns=turns,
        )
    except TurnsLogUnavailable as exc:
        if fallback is None:
            raise
        try:
            sent = await fallback.send(tenant, bank, conversation, turns)
        except (HindsightUnavailable, HindsightRejected) as trouble:
            raise exc from trouble
        _log.warning("turns_sent_directly", extra={"turns": len(turns), "status": sent.status})
        await _note_write(cache, bank)
        # Nobody shows what waits in Hindsight's own queue.
        return Accepted(sent.status, sent.job_id, len(messages), skipped, redacted, False)
    is_visible = status == "duplicate" or log.has_epochs or await _note_write(cache, bank)
    return Accepted(status, known, len(messages), skipped, redacted, is_visible)


async def _redact(messages: Sequence[Message], policy: RedactionPolicy) -> tuple[list[Message], int]:
    """Messages with something left, and how many passages were masked or cut."""
    chars = sum(len(message.text) for message in messages)
    return await off_loop(chars, lambda: redact_messages(messages, policy))


async def _note_write(cache: RecallCache, bank: BankId) -> bool:
    """Make cached answers old; False when they stay: those then show the turn when they expire."""
    try:
        await cache.note_write(bank)
    except CacheUnavailable:
        return False
    return True


def _messages_of(request: AddRequest) -> tuple[list[Message], int]:
    """Clean messages without our own memory block, and how many were dropped."""
    said = {"user": request.user_message, "assistant": request.assistant_message}
    raw: object = [{"role": role, "content": text} for role, text in said.items() if text]
    if not _is_nothing(request.messages):
        if raw:
            raise InvalidRequest("Send either messages or user_message and assistant_message, not both.")
        raw = request.messages
    try:
        messages, skipped = read_messages(raw)
    except UnreadableMessages as exc:
        raise InvalidRequest(str(exc)) from exc
    kept: list[Message] = []
    for message in messages:
        text = strip_blocks(message.text).strip()
        if text:
            kept.append(Message(message.role, text))
        else:
            skipped += 1
    return kept, skipped


def _is_nothing(messages: object) -> bool:
    return (
        messages is None
        or messages == []
        or (isinstance(messages, str) and messages.strip() in ("", "null", "None", "[]"))
    )


def _documents(turns: Sequence[Turn]) -> list[str]:
    return [part for turn in turns for part in render_parts(turn, _DOCUMENT_CHARS)]
