"""Where a hit's time goes: the steps that every hit takes in our own code, one by one, in this process."""

import json
import timeit
from collections.abc import Callable
from typing import Any

from service.auth import KeyRing
from service.memory.recall_reader import normalised
from service.metrics import Metrics
from service.routes.payload import decode
from service.schemas import RecallRequest
from service.scope import bank_of, checked_user_id
from service.settings import Settings

_KEY = "bench-key-0123456789"
_QUERY = "Where do I live, what do I do for work, and when can I meet in the morning?"


def run(repeats: int = 5, number: int = 5_000) -> dict[str, float]:
    """Step → µs, the fastest of `repeats`: what the step takes when nothing gets in its way."""
    keys = KeyRing.from_settings(Settings.model_validate({"api_key": _KEY}))
    metrics = Metrics()
    body = json.dumps({"user_id": "bench-user-0", "query": _QUERY, "conversation_id": "c-1"}).encode()
    fields = decode("application/json", body)
    headers = [(b"host", b"x"), (b"content-length", b"100"), (b"authorization", f"Bearer {_KEY}".encode())]
    scope: dict[str, Any] = {"headers": headers, "query_string": b""}
    steps: dict[str, Callable[[], object]] = {
        "key": lambda: keys.authenticate(scope),
        "json": lambda: decode("application/json", body),
        "model": lambda: RecallRequest.read(fields),
        "bank": lambda: bank_of("default", checked_user_id("bench-user-0")),
        "query": lambda: normalised(_QUERY),
        "counting": lambda: metrics.note_request("/memory/recall", 200, 0.001),
    }
    found: dict[str, float] = {}
    for name, step in steps.items():
        fastest_s = min(timeit.repeat(step, number=number, repeat=repeats))
        found[f"hit_step_us_{name}"] = round(fastest_s / number * 1e6, 2)
    return found
