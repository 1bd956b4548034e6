"""What the memory service answers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Memory:
    """One memory; `score` and `importance` are 0 to 1 or None, times ISO 8601, `pending` not yet stored."""

    id: str
    text: str
    kind: str | None
    score: float | None
    importance: float | None
    created_at: str | None
    pending: bool


@dataclass(frozen=True, slots=True)
class Recall:
    """`context` is the block for a prompt, `""` if nothing is known; a `degraded` answer has a `reason`."""

    context: str
    memories: tuple[Memory, ...]
    count: int
    filtered_count: int
    cached: bool
    stale: bool
    degraded: bool
    reason: str
    request_id: str


@dataclass(frozen=True, slots=True)
class Added:
    """What became of a turn: messages `accepted` and `skipped`, passages `redacted`; `skipped` has no job."""

    status: Literal["queued", "duplicate", "skipped"]
    job_id: str
    accepted: int
    skipped: int
    redacted: int
    searchable_now: bool
    request_id: str


@dataclass(frozen=True, slots=True)
class Job:
    """How the storing of a turn stands; times are ISO 8601, `memories_kept` is None if it is not known."""

    job_id: str
    status: Literal["queued", "waiting", "retaining", "done", "failed", "cancelled"]
    memories_kept: int | None
    reason: str
    accepted_at: str
    finished_at: str | None


@dataclass(frozen=True, slots=True)
class Forgotten:
    """How much was removed; `verified`: the store was asked afterwards and has nothing of it."""

    memories: int
    documents: int
    pending: int
    jobs: int
    cache_entries: int
    verified: bool
    request_id: str


@dataclass(frozen=True, slots=True)
class Page:
    """Memories, newest first; `pending_count` turns wait to be stored, `next_cursor` is `""` at the end."""

    memories: tuple[Memory, ...]
    pending_count: int
    next_cursor: str
    request_id: str


@dataclass(frozen=True, slots=True)
class Exported:
    """One line of an export; `conversation` only tells which lines belong together."""

    type: Literal["memory", "observation", "pending"]
    text: str
    kind: str | None
    said_at: str
    tags: tuple[str, ...]
    metadata: Mapping[str, str]
    conversation: str


@dataclass(frozen=True, slots=True)
class Reflection:
    """An answer drawn from memory; `structured` is there if a schema was given and kept to."""

    text: str
    structured: Mapping[str, Any] | None
    degraded: bool
    reason: str
    request_id: str
