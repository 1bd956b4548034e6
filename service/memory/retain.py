"""Add: what a caller sent becomes accepted turns, at once and without waiting for Hindsight.

A turn is known by its words and, if the caller gives one, its `turn_id`. With a `turn_id`, a
repetition is recognised for `turn_id_ttl_s`; without, for `repeat_window_s`, since the same words
said again later in a conversation are a new turn. The words count even with a `turn_id`: two add
nodes of one workflow run share the run's id, and neither may swallow the other.
"""

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from time import time
from typing import Literal

from service import logs
from service.adapters.cache import RecallCache
from service.adapters.turns import NewTurn, TurnsLog
from service.errors import CacheUnavailable, InvalidRequest, TooLarge
from service.policy.content import (
    Message,
    UnreadableMessages,
    clean,
    read_messages,
    render_parts,
    split_turns,
    strip_blocks,
)
from service.schemas import AddRequest
from service.scope import BankId, JobId, conversation_of, document_of, turn_digest
from service.settings import Settings

# One document; Hindsight cuts longer ones into chunks where it likes, we cut at sentences.
_DOCUMENT_CHARS = 8_000


@dataclass(frozen=True, slots=True)
class Accepted:
    """What became of a request: messages kept and dropped; `job_id` is empty when nothing was kept."""

    status: Literal["queued", "duplicate", "skipped"]
    job_id: str
    accepted: int
    skipped: int
    searchable_now: bool


async def accept(
    request: AddRequest, *, tenant: str, bank: BankId, log: TurnsLog, cache: RecallCache, settings: Settings
) -> Accepted:
    """Write the request's turns to the log; when this returns they survive any crash.

    Raises `InvalidRequest` for messages that cannot be read, `TooLarge` for a turn over
    `max_turn_chars`, `TurnsLogUnavailable` when the log cannot be written.
    """
    messages, skipped = _messages_of(request)
    if not messages:
        return Accepted("skipped", "", 0, skipped, False)
    if sum(len(message.text) for message in messages) > settings.max_turn_chars:
        raise TooLarge(f"One request may hold at most {settings.max_turn_chars} characters of messages.")

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
    status, known = await log.accept(
        job_id=job_id,
        seen=turn_digest(conversation, *identity[:2])
        if not request.turn_id
        else turn_digest(conversation, *identity),
        seen_ttl_s=settings.turn_id_ttl_s if request.turn_id else settings.repeat_window_s,
        tenant=tenant,
        bank=bank,
        conversation=conversation,
        turns=[
            NewTurn(
                document_id=document_of(bank, conversation, turn, part),
                text=text,
                said_at=said_at,
                tags=tuple(filter(None, map(clean, request.tag_list))),
                metadata={clean(name): clean(text) for name, text in request.metadata_map.items()},
            )
            for part, text in enumerate(_documents(messages))
        ],
    )
    is_visible = True
    if status == "queued":
        try:
            await cache.note_write(bank)
        except CacheUnavailable:
            # The turn is safe; recalls that are cached show it when they expire.
            is_visible = False
    return Accepted(status, known, len(messages), skipped, is_visible)


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


def _documents(messages: Sequence[Message]) -> list[str]:
    return [part for turn in split_turns(messages) for part in render_parts(turn, _DOCUMENT_CHARS)]
