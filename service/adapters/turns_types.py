"""What the turns log takes and gives: plain data, and how it is written in Redis."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Literal, cast

from service.adapters.counters import value_of
from service.scope import BankId, ConversationId, DocumentId, JobId

JobStatus = Literal["queued", "waiting", "retaining", "done", "failed", "cancelled"]


@dataclass(frozen=True, slots=True)
class NewTurn:
    """One document to be: `text` is what is stored, `said_at` ISO 8601 or empty for "now".

    `trace` is the traceparent of the request that brought it, empty if that is not traced.
    """

    document_id: DocumentId
    text: str
    said_at: str = ""
    tags: tuple[str, ...] = ()
    metadata: Mapping[str, str] | None = None
    trace: str = ""


@dataclass(frozen=True, slots=True)
class Turn:
    """An accepted turn; `number` orders all turns, `accepted_ms` is Unix milliseconds."""

    document_id: DocumentId
    number: int
    accepted_ms: int
    job_id: JobId
    conversation: ConversationId
    text: str
    said_at: str
    tags: tuple[str, ...]
    metadata: dict[str, str]
    trace: str = ""


@dataclass(frozen=True, slots=True)
class Batch:
    """Turns of one conversation on their way to Hindsight; there is always at least one.

    `attempts` counts tries that count against the turns, `tries` all failed ones in a row, `looks`
    how often the running operation was looked at in vain. `round` grows when an operation ended
    badly and has to be started under a new id; `is_solo` says that each turn goes alone, to find
    the one that is to blame. `processing_ms` is when the operation was first seen being worked on
    (0: not yet), `loaded_ms` when the log answered this; both are the log's clock. `prepared` is what
    was made of turns of the batch on an earlier try, empty if nothing was.
    """

    id: str
    conversation: ConversationId
    turns: tuple[Turn, ...]
    attempts: int = 0
    tries: int = 0
    looks: int = 0
    round: int = 0
    is_solo: bool = False
    processing_ms: int = 0
    loaded_ms: int = 0
    prepared: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to work on a bank until the claim ends; `asked_at` is when this process asked for it.

    By the process's own monotonic clock, before Redis started the claim's time: counted from there,
    a claim seems to end a little sooner here than it does.
    """

    bank: BankId
    token: str
    asked_at: float = field(default_factory=monotonic, compare=False)


@dataclass(frozen=True, slots=True)
class Job:
    """State of the storing of one request; times are Unix milliseconds, None: not yet.

    `memories_kept` is None where it is not known how many there are of some turn that is stored.
    """

    job_id: JobId
    tenant: str
    bank: BankId
    status: JobStatus
    memories_kept: int | None
    reason: str
    accepted_ms: int
    finished_ms: int | None


@dataclass(frozen=True, slots=True)
class LogState:
    """Health of the log: seconds the oldest due bank is overdue, banks waiting, dead letters, heartbeat.

    `oldest_batch_s` is for how many seconds the oldest batch has been on its way, `oldest_turn_s` for how
    many a turn has waited to be put into one (where none goes first); both at the last sweep's look.
    """

    overdue_s: float
    oldest_batch_s: float
    oldest_turn_s: float
    waiting_banks: int
    dead_letters: int
    is_worker_alive: bool


@dataclass(frozen=True, slots=True)
class Debounce:
    """When a conversation is due: quiet for `quiet_s`, or after `max_wait_s`, or with `max_turns` turns."""

    quiet_s: float
    max_wait_s: float
    max_turns: int

    @property
    def arguments(self) -> tuple[int, int, int]:
        """Quiet ms, longest wait ms, most turns, as the scripts take them."""
        return int(self.quiet_s * 1000), int(self.max_wait_s * 1000), self.max_turns


@dataclass(frozen=True, slots=True)
class MostWaiting:
    """How many turns may wait to be stored: of one bank, and of all together."""

    of_bank: int = 1_000
    of_all: int = 200_000


def payload_of(turn: NewTurn) -> str:
    """What a turn says, as the log keeps it."""
    body = {
        "text": turn.text,
        "at": turn.said_at,
        "tags": turn.tags,
        "meta": dict(turn.metadata or {}),
        **({"trace": turn.trace} if turn.trace else {}),
    }
    return json.dumps(body, ensure_ascii=False, separators=(",", ":"))


def turn_of(document_id: str, value: str) -> Turn:
    """A turn as `accept.lua` has written it."""
    number, accepted_ms, job_id, conversation, payload = value.split("\n", 4)
    body = json.loads(payload)
    return Turn(
        document_id=DocumentId(document_id),
        number=int(number),
        accepted_ms=int(accepted_ms),
        job_id=JobId(job_id),
        conversation=ConversationId(conversation),
        text=body["text"],
        said_at=body["at"],
        tags=tuple(body["tags"]),
        metadata=body["meta"],
        trace=body.get("trace", ""),
    )


def batch_of(flat_fields: Sequence[str], flat_turns: Sequence[str], now_ms: int) -> Batch:
    """A batch as `take.lua` answers it: its fields, then document ids and turns, both flat."""
    fields = dict(zip(flat_fields[::2], flat_fields[1::2], strict=True))
    return Batch(
        id=fields["id"],
        conversation=ConversationId(fields["conversation"]),
        turns=tuple(turn_of(d, value) for d, value in zip(flat_turns[::2], flat_turns[1::2], strict=True)),
        attempts=int(fields["attempts"]),
        tries=int(fields["tries"]),
        looks=int(fields["looks"]),
        round=int(fields["round"]),
        is_solo=fields["solo"] == "1",
        processing_ms=int(fields["processing_ms"]),
        loaded_ms=now_ms,
        prepared=fields.get("prepared", ""),
    )


def job_of(job_id: JobId, fields: Mapping[str, str]) -> Job | None:
    """A job as the scripts have written it; None when `fields` are those of no job (any more).

    Counts that somebody has broken are 0.
    """
    if "status" not in fields:
        return None
    finished = fields.get("finished_ms")
    return Job(
        job_id=job_id,
        tenant=fields["tenant"],
        bank=BankId(fields["bank"]),
        status=cast("JobStatus", fields["status"]),
        memories_kept=None if "kept_unknown" in fields else value_of(fields.get("kept")),
        reason=fields.get("reason", ""),
        accepted_ms=int(fields["accepted_ms"]),
        finished_ms=int(finished) if finished else None,
    )
