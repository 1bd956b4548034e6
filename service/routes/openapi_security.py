"""What the OpenAPI document of the whole API says about keys: which operations want one, and where it goes.

Dify has a document of its own, without this: it asks for the key itself (see `policy/dify_document`).
"""

from collections.abc import Mapping
from typing import Any, Final

_NAME: Final = "key"
_SCHEME: Final = {
    "type": "http",
    "scheme": "bearer",
    "description": "An API key of this service (MEMORY_API_KEY, or one that `dify-memory keys` has made). "
    "Also taken as the header X-API-Key.",
}
# Signed by Hindsight, not by a key of ours.
_OTHERWISE: Final = frozenset({"/hooks/hindsight"})
_REFUSALS: Final = ("401", "403")


def with_security(document: dict[str, Any]) -> dict[str, Any]:
    """The document itself, in which now every operation that wants an API key says so.

    The pages want none: people come there by a cookie of a visit, which no program has to know about.
    """
    document.setdefault("components", {})["securitySchemes"] = {_NAME: _SCHEME}
    for path, operations in document["paths"].items():
        for operation in operations.values():
            wants = path not in _OTHERWISE and _refuses_in_json(operation)
            operation["security"] = [{_NAME: []}] if wants else []
    return document


def _refuses_in_json(operation: Mapping[str, Any]) -> bool:
    """Whether it documents what a missing key is answered, and not by a page."""
    replies = [operation["responses"][code] for code in _REFUSALS if code in operation["responses"]]
    return any("application/json" in reply.get("content", {}) for reply in replies)
