"""`/v1`: an OpenAI-compatible model that remembers. Errors have OpenAI's shape, whatever they are about."""

import asyncio
import contextlib
import json
import logging
from collections.abc import Coroutine, Mapping
from typing import Any, Final, TypeVar

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service import logs
from service.adapters.gateway_errors import ModelMissing
from service.auth import Caller, bank_for
from service.errors import IdentityConflict, IdentityRequired, InvalidRequest, MalformedBody, ServiceError
from service.memory.chat import Ask, Chats, ChatStream, body_checked, checked
from service.policy.chat_messages import is_chat, sound
from service.policy.chat_options import MemoryOptions
from service.problems import NO_STORE, JsonReply
from service.routes.payload import read_payload
from service.routes.services import Services, services_of
from service.scope import BankId, is_absent

_log = logging.getLogger(__name__)

_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "invalid_request_error",
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
                            "param": {"type": "string"},
                            "code": {"type": "string"},
                        },
                    }
                },
            }
        }
    }
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

T = TypeVar("T")

router = APIRouter(prefix="/v1", tags=["openai"])


@router.get(
    "/models",
    operation_id="list_models",
    summary="The models that remember",
    responses={200: _OBJECT, 401: {"description": "The API key is missing or wrong.", **_ERROR}},
)
async def models(request: Request) -> Response:
    """`memory` and the names behind it; none if none are set up."""
    services = services_of(request)
    try:
        caller = services.keys.authenticate(request.scope)
        caller.require("chat")
    except ServiceError as exc:
        return failure(exc)
    names = services.chats.gateway.names if services.chats else ()
    data = [{"id": name, "object": "model", "created": 0, "owned_by": "dify-memory"} for name in names]
    return JsonReply({"object": "list", "data": data}, headers=NO_STORE)


@router.post(
    "/chat/completions",
    operation_id="create_chat_completion",
    summary="Chat with a model that remembers",
    openapi_extra={"requestBody": {"required": True, "content": {"application/json": {"schema": _BODY}}}},
    responses={
        200: _OBJECT,
        400: {"description": "The request cannot be used.", **_ERROR},
        401: {"description": "The API key is missing or wrong.", **_ERROR},
        403: {"description": "The API key lacks the scope.", **_ERROR},
        404: {"description": "No such model.", **_ERROR},
        409: {"description": "Two identities in one request.", **_ERROR},
        429: {"description": "Too many requests, here or at the model's provider.", **_ERROR},
        503: {"description": "The model is out of reach.", **_ERROR},
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
            return EventStream(chunks, report.headers)
        answer, report = await _unless_gone(request.receive, chats.complete(ask))
        services.metrics.chats.labels(report.status).inc()
    except ServiceError as exc:
        return failure(exc)
    except ClientGone:
        return Response(status_code=499)
    return JsonReply(answer, headers={**NO_STORE, **report.headers})


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
    """Server-sent events of chunks; a client that goes away ends them at once."""

    def __init__(self, chunks: ChatStream, headers: Mapping[str, str]) -> None:
        super().__init__(
            media_type="text/event-stream", headers={**NO_STORE, "X-Accel-Buffering": "no", **headers}
        )
        del self.headers["content-length"]
        self._chunks = chunks

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
        finally:
            for task in (pumping, leaving):
                task.cancel()
            await asyncio.gather(pumping, leaving, return_exceptions=True)

    async def _pump(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        async with contextlib.aclosing(self._chunks) as chunks:
            await send(start)
            try:
                async for chunk in chunks:
                    await send(_event(json.dumps(chunk, ensure_ascii=False)))
                last = "[DONE]"
            except ServiceError as exc:
                # The status has been sent; OpenAI's clients raise what an event with an error says.
                last = json.dumps(_error_of(exc), ensure_ascii=False)
            await send(_event(last))
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _event(data: str) -> dict[str, Any]:
    return {"type": "http.response.body", "body": f"data: {data}\n\n".encode(), "more_body": True}
