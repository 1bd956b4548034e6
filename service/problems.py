"""Error → response, the only place that does it.

Bodies are `{"error": {"code", "message", "request_id"}}` with `application/json`, since Dify parses
no other type (dify-contract: problem+json arrives as text).
"""

import json
from collections.abc import Iterable, Mapping

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from service import logs
from service.errors import InvalidRequest, MethodNotAllowed, NotFound, ServiceError


class JsonReply(Response):
    """JSON whose bytes equal Python's `json.dumps(obj, ensure_ascii=False)`.

    In a Dify agent the text and the parsed JSON of a reply are both put into the prompt unless the
    text is exactly that rendering.
    """

    media_type = "application/json"

    def render(self, content: object) -> bytes:
        """`content` as UTF-8."""
        return json.dumps(content, ensure_ascii=False).encode("utf-8")


NO_STORE = {"Cache-Control": "no-store"}
# Of every reply: nobody keeps it, takes it for something else than it says, or tells where it was read.
SAFE_HEADERS = (
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
)


def safe(headers: Iterable[tuple[bytes, bytes]], *more: tuple[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    """ASGI headers with `more`, and with each of `SAFE_HEADERS` that they do not have in their own words."""
    found = list(headers)
    names = {name for name, _ in found}
    return [*found, *(header for header in SAFE_HEADERS if header[0] not in names), *more]


def problem(error: ServiceError) -> JsonReply:
    """The response for `error`."""
    headers = dict(NO_STORE)
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(error.retry_after_s)
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JsonReply(body_of(error), status_code=error.status, headers=headers)


def body_of(error: ServiceError) -> Mapping[str, object]:
    """The body for `error`, with the current request's id."""
    return {
        "error": {"code": error.code, "message": error.detail, "request_id": logs.request_id.get()},
    }


async def on_service_error(_: Request, exc: Exception) -> Response:
    """FastAPI handler for our own errors."""
    if not isinstance(exc, ServiceError):
        raise exc
    return problem(exc)


async def on_unforeseen(_: Request, exc: Exception) -> Response:
    """FastAPI handler for what no route foresaw; its text may quote input and is not told."""
    del exc
    return problem(ServiceError("Something went wrong on our side."))


async def on_http_exception(_: Request, exc: Exception) -> Response:
    """FastAPI handler for what the router itself refuses: unknown paths, wrong methods."""
    if not isinstance(exc, HTTPException):
        raise exc
    if exc.status_code == 404:
        return problem(NotFound("There is no such path; see /openapi.json."))
    error: ServiceError = (
        MethodNotAllowed("This path does not take that method; see /openapi.json.")
        if exc.status_code == 405
        else InvalidRequest("The request cannot be read.")
    )
    reply = problem(error)
    reply.status_code = exc.status_code
    reply.headers.update(exc.headers or {})
    return reply


async def on_invalid_parameters(_: Request, exc: Exception) -> Response:
    """FastAPI handler for path and query parameters of the wrong type."""
    del exc  # its text quotes the input
    return problem(InvalidRequest("A parameter in the path or the query is not valid."))
