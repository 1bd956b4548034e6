"""What can be asked of the memory service, besides what must."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, TypedDict


class RecallOptions(TypedDict, total=False):
    """What a recall may say besides; the README's API has the meaning and the limits of each."""

    top_k: int
    max_chars: int
    max_total_chars: int
    kinds: Sequence[str]
    fact_types: Sequence[str]
    min_score: float
    budget: Literal["low", "mid", "high"]
    tags: Sequence[str]
    tags_match: Literal["all", "any"]
    conversation_id: str
    language: Literal["auto", "zh", "en"]
    fresh: bool
    on_error: Literal["empty", "fail"]
    timeout_ms: int


class AddOptions(TypedDict, total=False):
    """A turn: `messages`, or one or both of the other two; a `timestamp` without a zone is local time."""

    messages: Sequence[Mapping[str, Any]]
    user_message: str
    assistant_message: str
    conversation_id: str
    turn_id: str
    timestamp: datetime | str
    tags: Sequence[str]
    metadata: Mapping[str, str]


class ForgetOptions(TypedDict, total=False):
    """Exactly one of them."""

    memory_id: str
    conversation_id: str
    all: bool


class ListOptions(TypedDict, total=False):
    """Which memories, and from where on."""

    kinds: Sequence[str]
    query: str
    limit: int
    cursor: str
    include_superseded: bool


class ReflectOptions(TypedDict, total=False):
    """What else bears on the question, the answer's form (a JSON Schema), and which memories count."""

    context: str
    response_schema: Mapping[str, Any]
    kinds: Sequence[str]
    fact_types: Sequence[str]
    tags: Sequence[str]
    tags_match: Literal["all", "any"]
    budget: Literal["low", "mid", "high"]
    timeout_ms: int
