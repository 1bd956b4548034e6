"""Request body → dict, within limits, the same way for every route.

JSON and `application/x-www-form-urlencoded`, the two bodies that Dify sends. Two values of one
field are refused: which of two user ids counts must never be left to a parser.
"""

import asyncio
import contextlib
import json
import types
from collections.abc import Generator
from typing import Any
from urllib.parse import parse_qsl

from starlette.types import Message, Receive, Scope

from service.errors import MalformedBody, TooLarge

_MAX_FIELDS = 64
_READ_TIMEOUT_S = 15


async def read_payload(scope: Scope, receive: Receive, max_bytes: int) -> dict[str, object]:
    """The fields of an ASGI request's body; raises `MalformedBody` or `TooLarge`. An empty body has none."""
    content_type, body = await read_body(scope, receive, max_bytes)
    return decode(content_type.decode("latin-1"), body)


async def read_body(scope: Scope, receive: Receive, max_bytes: int) -> tuple[bytes, bytes]:
    """Content type and body as they came; raises `MalformedBody` or `TooLarge`."""
    content_type = declared = b""
    for name, value in scope["headers"]:
        if name == b"content-type":
            content_type = value
        elif name == b"content-length":
            declared = value
    if declared.isdigit() and int(declared) > max_bytes:
        raise TooLarge(f"The body may have at most {max_bytes} bytes.")
    # Most bodies have arrived by now and are handed over without a wait; only a wait needs a timer.
    steps = receive().__await__()
    message: Message | None = None
    awaited: object = None
    try:
        awaited = next(steps)
    except StopIteration as at_once:
        message = at_once.value
    if message is not None and not message.get("more_body"):
        return content_type, _chunk(message, max_bytes)
    try:
        async with asyncio.timeout(_READ_TIMEOUT_S):
            if message is None:
                message = await _rest_of(steps, awaited)
            chunks = [_chunk(message, max_bytes)]
            size = len(chunks[0])
            while message.get("more_body"):
                message = await receive()
                chunks.append(_chunk(message, max_bytes, size))
                size += len(chunks[-1])
    except TimeoutError as exc:
        raise MalformedBody("The body did not arrive in time.") from exc
    return content_type, b"".join(chunks)


@types.coroutine
def _rest_of(steps: Generator[object, Any, Message], awaited: object) -> Generator[object, Any, Message]:
    """Await what has run up to a wait for `awaited`, in the same task."""
    with contextlib.closing(steps):
        yield awaited
        return (yield from steps)


def _chunk(message: Message, max_bytes: int, before: int = 0) -> bytes:
    if message["type"] == "http.disconnect":
        raise MalformedBody("The body did not arrive whole.")
    chunk: bytes = message.get("body", b"")
    if before + len(chunk) > max_bytes:
        raise TooLarge(f"The body may have at most {max_bytes} bytes.")
    return chunk


def decode(content_type: str, body: bytes) -> dict[str, object]:
    """Fields of a body of that content type; without a usable type, JSON is tried."""
    if not body.strip():
        return {}
    kind = content_type.split(";", 1)[0].strip().lower()
    if kind == "application/x-www-form-urlencoded":
        return _decode_form(body)
    if "json" in kind or kind in ("", "text/plain", "application/octet-stream"):
        return _decode_json(body)
    raise MalformedBody("Send JSON or application/x-www-form-urlencoded.")


def _decode_form(body: bytes) -> dict[str, object]:
    try:
        pairs = parse_qsl(
            body.decode("ascii"), keep_blank_values=True, max_num_fields=_MAX_FIELDS, errors="strict"
        )
    except UnicodeDecodeError:
        # Raw UTF-8 without percent-encoding: common in hand-written clients, and unambiguous.
        try:
            pairs = parse_qsl(
                body.decode("utf-8"), keep_blank_values=True, max_num_fields=_MAX_FIELDS, errors="strict"
            )
        except ValueError as exc:
            raise MalformedBody("The form is not valid UTF-8 or has too many fields.") from exc
    except ValueError as exc:
        raise MalformedBody("The form is not valid UTF-8 or has too many fields.") from exc
    return _unique(pairs)


def _decode_json(body: bytes) -> dict[str, object]:
    try:
        data = _JSON.decode(str(body, "utf-8").removeprefix("\ufeff"))
    except RecursionError as exc:
        raise MalformedBody("The JSON is nested too deeply.") from exc
    except ValueError as exc:
        raise MalformedBody("The body is not valid JSON.") from exc
    if not isinstance(data, dict):
        raise MalformedBody("The body must be a JSON object.")
    return data


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise MalformedBody("The body has two values for one field.")
    return fields


def _no_constant(_: str) -> object:
    raise ValueError("NaN and Infinity are not JSON")


# Made once: `json.loads` with arguments builds a decoder for every call.
_JSON = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant)
