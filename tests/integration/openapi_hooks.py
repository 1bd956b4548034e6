"""What schemathesis is told about the service beyond its document; loaded by it, see `test_openapi_fuzz`."""

from typing import Any

import schemathesis

# Somebody with memories, so that requests get further than to an empty bank.
USER = "anne"


@schemathesis.serializer("application/x-ndjson")
def lines(_: schemathesis.SerializationContext, value: Any) -> bytes:
    """A body of lines as it is."""
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")


@schemathesis.hook
def map_body(context: schemathesis.HookContext, body: Any) -> Any:
    """Let half of the users be one who has something to be remembered."""
    del context
    if isinstance(body, dict) and isinstance(body.get("user_id"), str) and len(body["user_id"]) % 2:
        return {**body, "user_id": USER}
    return body
