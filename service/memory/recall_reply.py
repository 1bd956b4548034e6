"""The bytes a recall is answered with. What was stored stays as it is; what differs is put behind it."""

import json
from typing import Literal, NamedTuple

from service import logs

_JSON = "application/json"
_TEXT = "text/plain; charset=utf-8"

Outcome = Literal["hit", "miss", "stale", "degraded", "no_words", "gone"]

# Formatted by itself: a hit has no time for `json.dumps`.
_HIT = b', "cached": true, "stale": false, "degraded": false, "reason": "", "request_id": "%b"}'


class Reply(NamedTuple):
    """The bytes to answer with, their media type, and how they came about (for metrics)."""

    body: bytes
    media_type: str
    outcome: Outcome


def hit(body: bytes, *, as_text: bool) -> Reply:
    """The reply that the cache holds."""
    if as_text:
        return Reply(body, _TEXT, "hit")
    return Reply(body[:-1] + _HIT % logs.request_id.get().encode(), _JSON, "hit")


def reply(body: bytes, outcome: Outcome, *, as_text: bool, reason: str = "") -> Reply:
    """A reply that was computed, or stands in for one that was not; `body` is from `answer.encode`."""
    if as_text:
        return Reply(body, _TEXT, outcome)
    flags = {
        "cached": outcome == "stale",
        "stale": outcome == "stale",
        "degraded": outcome in ("stale", "degraded"),
        "reason": reason,
        "request_id": logs.request_id.get(),
    }
    return Reply(body[:-1] + b", " + json.dumps(flags, ensure_ascii=False)[1:].encode(), _JSON, outcome)
