"""Memories as Dify's *external knowledge*: its request, whose memory it asks for, its records.

Dify sends no user with such a request. The only way to say whose memory is meant is a metadata
condition written by hand (`user_id` `is` `{{#sys.user_id#}}`); without exactly one user there are no
records, never somebody's (a key that is good for one user only names that user itself). A knowledge base
that answers anything but 200 breaks the chat that asks, so that whatever can be answered with fewer
records is; `reason` then says why.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel, Field

from service.memory.recall_reader import normalised
from service.policy.block import language_of
from service.schemas import RecallRequest

# Dify gives up after five seconds, the way there and back included.
DEADLINE_MS: Final = 4000
_MOST_RECORDS: Final = 50
_DEFAULT_RECORDS: Final = 5
# Only what says "this very one" may name a user; `contains` or `start with` would name several.
_EQUALS: Final = frozenset({"is", "=", "in"})
# For filters that only ever narrow, Dify's word for "has this one among others".
_HAS: Final = _EQUALS | {"contains"}


class KnowledgeRecord(BaseModel):
    """One memory as Dify's retrieval reads it; `score` is 0–1, `metadata` never null."""

    content: str
    score: float
    title: str
    metadata: dict[str, str | bool] = Field(
        description="memory_id, kind, created_at, pending: what is known."
    )


class KnowledgeReply(BaseModel):
    """Reply of `POST /dify/knowledge/retrieval`; `reason` is empty unless records may be missing."""

    records: list[KnowledgeRecord]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class KnowledgeQuestion:
    """What a request asks for: `user_id` is empty when none is named.

    `reason` says why nothing can be asked: no query, several users, or a condition that is not understood.
    """

    query: str
    user_id: str
    reason: str = ""
    top_k: int = _DEFAULT_RECORDS
    score_threshold: float = 0.0
    kinds: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()

    def recall_request(self, deadline_ms: int) -> RecallRequest:
        """The same as a recall that answers within `deadline_ms`; raises `InvalidRequest` as any recall."""
        return RecallRequest.read(
            {
                "user_id": self.user_id,
                "query": self.query,
                "top_k": self.top_k,
                # Dify sends 0.0 for "no threshold"; the server's own floor holds then.
                "min_score": self.score_threshold if self.score_threshold > 0 else -1,
                "kinds": ",".join(self.kinds),
                "tags": ",".join(self.tags),
                "timeout_ms": min(deadline_ms, DEADLINE_MS),
            }
        )


def question_in(payload: Mapping[str, object]) -> KnowledgeQuestion:
    """The question in a request's body; an empty body (Dify's check of an address) asks nothing.

    What cannot be understood about the number of records or their score is as good as not said; what
    cannot be understood about whose memory or which memories are meant leaves nothing to find.
    """
    query = payload.get("query")
    if not isinstance(query, str) or not query.strip():
        return KnowledgeQuestion("", "", "query_required")
    setting = payload.get("retrieval_setting")
    setting = setting if isinstance(setting, Mapping) else {}
    user_id, kinds, tags, reason = _conditions_in(payload.get("metadata_condition"))
    return KnowledgeQuestion(
        query=query,
        user_id=user_id,
        reason=reason,
        top_k=int(_number(setting.get("top_k"), 1, _MOST_RECORDS, _DEFAULT_RECORDS)),
        score_threshold=_number(setting.get("score_threshold"), 0.0, 1.0, 0.0),
        kinds=kinds,
        tags=tags,
    )


def records_of(body: bytes, query: str) -> dict[str, Any]:
    """A recall's reply (JSON) as Dify's records; `query` decides the language of their titles."""
    recalled = json.loads(body)
    title = "记忆" if language_of(normalised(query)) == "zh" else "Memory"
    records = []
    for memory in recalled["memories"]:
        known = {"memory_id": memory["id"], "kind": memory["kind"], "created_at": memory["created_at"]}
        record = KnowledgeRecord(
            content=memory["text"],
            score=min(1.0, max(0.0, memory["score"] or 0.0)),
            title=f"{title} {memory['created_at'][:10]}" if memory["created_at"] else title,
            # Dify's retrieval breaks on a null in its place.
            metadata={name: value for name, value in known.items() if value} | {"pending": memory["pending"]},
        )
        records.append(record)
    return KnowledgeReply(records=records, reason=recalled["reason"]).model_dump()


def _conditions_in(condition: object) -> tuple[str, tuple[str, ...], tuple[str, ...], str]:
    """User id (or none), kinds, tags, and why nothing can be asked."""
    if not isinstance(condition, Mapping) or not condition.get("conditions"):
        return "", (), (), ""
    items = condition["conditions"]
    if not isinstance(items, Sequence) or not all(isinstance(item, Mapping) for item in items):
        return "", (), (), "condition_not_understood"
    # "or" beside the user would mean: this user's memories or anybody's that …
    if str(condition.get("logical_operator") or "and").lower() != "and" and len(items) > 1:
        return "", (), (), "condition_not_understood"
    users: set[str] = set()
    kinds: list[str] = []
    tags: list[str] = []
    for item in items:
        operator = str(item.get("comparison_operator")).strip().lower()
        values = _values(item.get("value"))
        match _name(item.get("name")):
            case "user_id" if operator in _EQUALS:
                users |= set(values) or {""}
            case "kind" if operator in _HAS and not kinds and values:
                kinds += values
            case "tag" | "tags" if operator in _HAS and len(values) == 1:
                tags += values
            case _:
                return "", (), (), "condition_not_understood"
    if len(users) > 1:
        return "", (), (), "identity_conflict"
    return users.pop() if users else "", tuple(kinds), tuple(tags), ""


def _name(name: object) -> str:
    """A condition's field; older versions of Dify send it in a list."""
    if isinstance(name, list) and len(name) == 1:
        name = name[0]
    return name if isinstance(name, str) else ""


def _values(value: object) -> list[str]:
    """The values of a condition as texts; what is no text or number is none."""
    values = value if isinstance(value, list) else [value]
    texts = [str(item) for item in values if isinstance(item, str | int) and not isinstance(item, bool)]
    return texts if len(texts) == len(values) else []


def _number(value: object, least: float, most: float, default: float) -> float:
    """A number within its range, however it is written; the default for what is none."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return default
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return default
    return min(most, max(least, number)) if number == number else default
