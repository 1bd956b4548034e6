"""`/v1`: an OpenAI-compatible model that remembers. Errors have OpenAI's shape, whatever they are about."""

import asyncio
import contextlib
import json
import logging
from collections.abc import Coroutine, Mapping
from typing import Any, Final, TypeVar

from fastapi import APIRouter
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service import logs
from service.adapters.gateway_errors import ModelMissing
from service.auth import Caller, bank_for
from service.errors import (
    IdentityConflict,
    IdentityRequired,
    InvalidRequest,
    MalformedBody,
    MethodNotAllowed,
    NotFound,
    ServiceError,
)
from service.memory.chat import Ask, Chats, ChatStream, body_checked, checked
from service.memory.chat_report import Report
from service.policy.chat_messages import is_chat, sound
from service.policy.chat_options import MemoryOptions
from service.problems import NO_STORE, JsonReply
from service.problems import on_http_exception as elsewhere
from service.routes.payload import read_payload
from service.routes.services import Services, services_of
from service.scope import BankId, is_absent

_log = logging.getLogger(__name__)

_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "invalid_request_error",
    405: "invalid_request_error",
    409: "invalid_request_error",
    413: "invalid_request_error",
    422: "invalid_request_error",
    429: "rate_limit_error",
}
_NOT_SET_UP: Final = (
    "No model is set up behind /v1: the operator has to set MEMORY_GATEWAY_MODEL or "
    "MEMORY_GATEWAY_MODELS_FILE."
)
_ERROR: dict[str, Any] = {
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "properties": {
                    "error": {
                        "type": "object",
                        "properties": {
                            "message": {"type": "string"},
                            "type": {"type": "string"},
                            "param": {"type": ["string", "null"]},
                            "code": {"type": "string"},
                        },
                    }
                },
            }
        }
    }
}
_REFUSALS: dict[int | str, dict[str, Any]] = {
    401: {"description": "The API key is missing or wrong.", **_ERROR},
    403: {"description": "The API key lacks the scope.", **_ERROR},
    429: {"description": "Too many requests.", **_ERROR},
}
_OBJECT: dict[str, Any] = {"content": {"application/json": {"schema": {"type": "object"}}}}
_BODY: dict[str, Any] = {
    "type": "object",
    "required": ["model", "messages"],
    "properties": {
        "model": {"type": "string", "description": "memory, or a name of GET /v1/models."},
        "messages": {"type": "array", "items": {"type": "object"}},
        "stream": {"type": "boolean", "default": False},
        "user": {"type": "string", "description": "Whose memory it is; without it there is none."},
        "memory": {
            "type": "object",
            "description": "Options of the memory; each also as a header X-Memory-<Name>.",
            "properties": {
                name: {"description": field.description} for name, field in MemoryOptions.model_fields.items()
            },
        },
    },
    "additionalProperties": True,
}
_DONE: Final = b"data: [DONE]\n\n"
_END: Final = {"type": "http.response.body", "body": b"", "more_body": False}

# A client that does not read must not hold up a server that leaves.
_FAREWELL_S: Final = 1.0

T = TypeVar("T")

router = APIRouter(prefix="/v1", tags=["openai"])


@router.get(
    "/models",
    operation_id="list_models",
    summary="The models that remember",
    responses={200: _OBJECT, **_REFUSALS},
)
async def models(request: Request) -> Response:
    """`memory` and the names behind it; none if none are set up."""
    try:
        data = [_model(name) for name in _names(request)]
    except ServiceError as exc:
        return failure(exc)
    return JsonReply({"object": "list", "data": data}, headers=NO_STORE)


@router.get(
    "/models/{model:path}",
    operation_id="get_model",
    summary="One of the models that remember",
    responses={200: _OBJECT, **_REFUSALS, 404: {"description": "No such model.", **_ERROR}},
)
async def one_model(request: Request, model: str) -> Response:
    """The model, if there is one of that name; names may hold slashes."""
    try:
        if model not in _names(request):
            raise ModelMissing("There is no model of that name; GET /v1/models lists those there are.")
    except ServiceError as exc:
        return failure(exc)
    return JsonReply(_model(model), headers=NO_STORE)


def _names(request: Request) -> tuple[str, ...]:
    """What may be asked for; raises `KeyRefused` or `ScopeMissing`."""
    services = services_of(request)
    services.keys.authenticate(request.scope).require("chat")
    return services.chats.gateway.names if services.chats else ()


def _model(name: str) -> Mapping[str, object]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "dify-memory"}


@router.post(
    "/chat/completions",
    operation_id="create_chat_completion",
    summary="Chat with a model that remembers",
    openapi_extra={"requestBody": {"required": True, "content": {"application/json": {"schema": _BODY}}}},
    responses={
        200: _OBJECT,
        400: {"description": "The request cannot be used.", **_ERROR},
        **_REFUSALS,
        404: {"description": "No such model.", **_ERROR},
        409: {"description": "Two identities in one request.", **_ERROR},
        413: {"description": "Too large.", **_ERROR},
        429: {"description": "Too many requests, here or at the model's provider.", **_ERROR},
        503: {"description": "The model is out of reach.", **_ERROR},
        504: {"description": "The model does not answer in time.", **_ERROR},
    },
)
async def completions(request: Request) -> Response:
    """Streamed and not; memory trouble never fails it, headers `X-Memory-*` tell of it."""
    services = services_of(request)
    try:
        caller = services.keys.authenticate(request.scope)
        caller.require("chat")
        chats = services.chats
        if chats is None:
            raise ModelMissing(_NOT_SET_UP)
        ask = await _ask(services, chats, caller, request)
        if ask.body.get("stream"):
            chunks, report = await _unless_gone(request.receive, chats.stream(ask))
            services.metrics.chats.labels(report.status).inc()
            return EventStream(chunks, report)
        answer, report = await _unless_gone(request.receive, chats.complete(ask))
        services.metrics.chats.labels(report.status).inc()
    except ServiceError as exc:
        return failure(exc)
    except ClientGone:
        return Response(status_code=499)
    headers = {**NO_STORE, **report.headers}
    return Response(_json(answer), media_type="application/json", headers=headers)


async def _ask(services: Services, chats: Chats, caller: Caller, request: Request) -> Ask:
    payload = await read_payload(request.scope, request.receive, services.settings.gateway_max_body_bytes)
    try:
        payload = sound(payload)
    except ValueError as exc:
        raise MalformedBody("The JSON is nested too deeply.") from exc
    model = chats.gateway.model_of(payload.get("model"))
    messages = payload.get("messages")
    if not is_chat(messages):
        raise InvalidRequest("The field messages must be a list of messages with a role and content.")
    if payload.get("stream") not in (True, False, None):
        raise InvalidRequest("The field stream must be true or false.")
    body_checked(payload)
    said = MemoryOptions.read(payload.get("memory"), request.scope["headers"])
    options = checked(said.over(chats.rules.for_key(caller.key_id)))
    bank, reason = _bank(services, caller, request.scope, payload.get("user"), said)
    if bank is not None:
        logs.bank_id.set(bank)
    body = {name: value for name, value in payload.items() if name != "memory"}
    return Ask(body, messages, model, options, caller.tenant, bank, reason)


def _bank(
    services: Services, caller: Caller, scope: Scope, user: object, options: MemoryOptions
) -> tuple[BankId | None, str]:
    """Whose memory, or why nobody's. Two different people in one request are refused."""
    if user is not None and not isinstance(user, str):
        raise InvalidRequest("The field user must be a text.")
    if caller.identity == "signed":
        # Dify's provider puts an id of its own into `user`: a token beside it is what counts.
        named = options.user_token or user or ""
    else:
        if options.user_token:
            raise IdentityConflict("This API key does not take user tokens; make one that is signed.")
        names = {name for name in (user, options.user_id) if name and not is_absent(name)}
        if len(names) > 1:
            raise IdentityConflict("user and memory.user_id name two different users.")
        named = next(iter(names), "")
    anonymous = services.settings.allow_anonymous_users
    if anonymous and not named and isinstance(user, str):
        named = user
    if not named and caller.identity != "bound":
        return None, "no_user"
    try:
        return bank_for(caller, scope, named, allow_anonymous=anonymous), ""
    except IdentityRequired as exc:
        # No memory is safe for whoever it is; a chat that fails is not what they came for.
        return None, exc.code


async def on_http_exception(request: Request, exc: Exception) -> Response:
    """FastAPI handler for what the router itself refuses, under `/v1` in OpenAI's shape."""
    if not isinstance(exc, HTTPException) or not request.scope["path"].startswith("/v1/"):
        return await elsewhere(request, exc)
    said = "; here are POST /v1/chat/completions and GET /v1/models alone."
    error: ServiceError = (
        MethodNotAllowed(f"This path does not take that method{said}")
        if exc.status_code == 405
        else NotFound(f"There is no such path{said}")
        if exc.status_code == 404
        else InvalidRequest("The request cannot be read.")
    )
    reply = failure(error)
    reply.status_code = exc.status_code
    reply.headers.update(exc.headers or {})
    return reply


def failure(error: ServiceError) -> JsonReply:
    """An error as OpenAI writes it."""
    status = 400 if error.status == 422 else error.status
    headers = dict(NO_STORE)
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(error.retry_after_s)
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JsonReply(_error_of(error), status_code=status, headers=headers)


def _error_of(error: ServiceError) -> Mapping[str, object]:
    status = 400 if error.status == 422 else error.status
    said = {
        "message": error.detail,
        "type": _TYPES.get(status, "api_error"),
        "param": None,
        "code": error.code,
    }
    return {"error": said}


class ServerLeaving(ServiceError):
    """This process ends before the answer does."""

    status = 503
    code = "server_leaving"


class ClientGone(Exception):
    """Nobody waits for the answer any more."""


async def _unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled when the client goes away; then raises `ClientGone`."""
    working = asyncio.ensure_future(work)
    left = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({working, left}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGone
        return working.result()
    finally:
        for task in (working, left):
            task.cancel()
        await asyncio.gather(working, left, return_exceptions=True)


class EventStream(Response):
    """Server-sent events of chunks; a client that goes away ends them at once, and so does a server that
    leaves: the last event says so then, as an error.

    What becomes of the turn is known when the headers are long gone: a comment before the end says it,
    which clients pass over: `: memory {"stored":"queued","job_id":"…"}`.
    """

    def __init__(self, chunks: ChatStream, report: Report) -> None:
        headers = {**NO_STORE, "X-Accel-Buffering": "no", **report.headers}
        super().__init__(media_type="text/event-stream", headers=headers)
        del self.headers["content-length"]
        self._chunks = chunks
        self._report = report
        self._has_started = False
        self._has_ended = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send them."""
        del scope
        pumping = asyncio.create_task(self._pump(send))
        leaving = asyncio.create_task(_gone(receive))
        try:
            await asyncio.wait({pumping, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if pumping.done():
                pumping.result()
            else:
                _log.info("client_left_mid_stream")
        except asyncio.CancelledError:
            # Only a server that leaves cancels: whoever reads must not take what there is for the whole.
            pumping.cancel()
            await asyncio.gather(pumping, return_exceptions=True)
            if not await self._take_leave(send):
                raise
        finally:
            for task in (pumping, leaving):
                task.cancel()
            await asyncio.gather(pumping, leaving, return_exceptions=True)
            await self._chunks.aclose()

    async def _take_leave(self, send: Send) -> bool:
        """End the answer with an error; False if it could not be."""
        if not self._has_started or self._has_ended:
            return False
        _log.info("stream_cut_off")
        error = ServerLeaving("The server is being restarted; send the request again.", retry_after_s=1)
        with contextlib.suppress(OSError):
            async with asyncio.timeout(_FAREWELL_S):
                await send(_part(_event(_error_of(error))))
                await send(_END)
            return True
        return False

    async def _pump(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        self._has_started = True
        await send(start)
        try:
            async for several in self._chunks:
                await send(_part(*map(_event, several)))
            last = b": memory %b\n\n%b" % (_json(self._report.of_turn), _DONE)
        except ServiceError as exc:
            # The status has been sent; OpenAI's clients raise what an event with an error says.
            last = _event(_error_of(exc))
        except Exception:  # noqa: BLE001 - the outermost edge of an answer whose status has been sent
            _log.error("stream_failed", exc_info=True)
            last = _event(_error_of(ServiceError("Something went wrong on our side.")))
        await self._chunks.aclose()
        self._has_ended = True
        await send(_part(last))
        await send(_END)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _json(value: object) -> bytes:
    try:
        return to_json(value)  # many times as fast as the standard library's
    except ValueError:
        return json.dumps(value).encode()  # which can write half a character, as a model may send it


def _event(value: object) -> bytes:
    return b"data: %b\n\n" % _json(value)


def _part(*events: bytes) -> dict[str, Any]:
    return {"type": "http.response.body", "body": b"".join(events), "more_body": True}
