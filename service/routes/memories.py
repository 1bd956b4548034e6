"""`/memory/list`, `correct`, `export`, `import`, `reflect`: one user's memories, seen and put right."""

from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import parse_qsl, unquote

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from service import logs
from service.adapters.hindsight_erase import HindsightEraser
from service.auth import Caller, bank_for
from service.errors import IdentityConflict, InvalidRequest
from service.memory import carry, review
from service.problems import NO_STORE, JsonReply
from service.routes.bodies import ERRORS, body_of
from service.routes.payload import read_body, read_payload
from service.routes.services import Services, services_of
from service.schemas_review import (
    CorrectReply,
    CorrectRequest,
    ImportReply,
    ListReply,
    ListRequest,
    ReflectReply,
    ReflectRequest,
)
from service.scope import BankId

router = APIRouter(tags=["review"], responses=ERRORS)

_LINES = "application/x-ndjson"
_USER_HEADER = "x-memory-user-id"
_USER_PARAMETERS: list[dict[str, Any]] = [
    {
        "name": "X-Memory-User-Id",
        "in": "header",
        "description": "Whose memory this is about, URL-encoded: in a header, since URLs end up in logs.",
        "schema": {"type": "string"},
    },
    {
        "name": "user_id",
        "in": "query",
        "description": "The same, where no header can be sent.",
        "schema": {"type": "string"},
    },
]


@router.post(
    "/memory/list",
    operation_id="list_memories",
    summary="What is remembered about this user, newest first",
    response_model=ListReply,
    openapi_extra=body_of(ListRequest),
)
async def list_memories(request: Request) -> Response:
    """A page of memories and, on the first page, what waits to be stored."""
    services = services_of(request)
    caller = services.keys.authenticate(request.scope)
    caller.require("review")
    body = ListRequest.read(await _payload(request, services))
    bank = _bank(services, caller, request, body.user_id)
    page = await review.list_page(
        body,
        bank,
        review=services.review,
        log=services.turns,
        redaction=services.policies.of(caller.tenant).redaction,
    )
    reply = ListReply(
        memories=list(page.memories),
        pending=list(page.pending),
        pending_count=page.pending_count,
        next_cursor=page.next_cursor,
        request_id=logs.request_id.get(),
    )
    return JsonReply(reply.model_dump(), headers=NO_STORE)


@router.post(
    "/memory/correct",
    operation_id="correct_memory",
    summary="Give a memory another text",
    response_model=CorrectReply,
    responses={
        404: ERRORS[401] | {"description": "No such memory of this user."},
        409: ERRORS[401] | {"description": "Two identities in one request, or a memory not stored yet."},
    },
    openapi_extra=body_of(CorrectRequest),
)
async def correct(request: Request) -> Response:
    """From the answer on, only the new text is recalled and listed."""
    services = services_of(request)
    caller = services.keys.authenticate(request.scope)
    caller.require("review")
    body = CorrectRequest.read(await _payload(request, services))
    bank = _bank(services, caller, request, body.user_id)
    memory = await review.correct(
        body,
        bank,
        review=services.review,
        eraser=HindsightEraser(services.hindsight),
        log=services.turns,
        cache=services.cache,
        redaction=services.policies.of(caller.tenant).redaction,
    )
    reply = CorrectReply(memory=memory, request_id=logs.request_id.get())
    return JsonReply(reply.model_dump(), headers=NO_STORE)


@router.get(
    "/memory/export",
    operation_id="export_memories",
    summary="All that is remembered about one user, as JSON lines",
    response_class=Response,
    responses={200: {"description": "One JSON object a line.", "content": {_LINES: {}}}},
    openapi_extra={"parameters": _USER_PARAMETERS},
)
async def export(request: Request) -> Response:
    """Memories, then what waits to be stored; the last line has the type `end`."""
    services = services_of(request)
    caller = services.keys.authenticate(request.scope)
    caller.require("review")
    bank = _bank(services, caller, request, _user_named(request))
    lines = carry.export(bank, review=services.review, log=services.turns)
    # What goes wrong after this can only be told by breaking off: the line `end` is missing then.
    first = await anext(lines)

    async def all_lines() -> AsyncIterator[bytes]:
        yield first
        async for some in lines:
            yield some

    return StreamingResponse(all_lines(), media_type=_LINES, headers=NO_STORE)


@router.post(
    "/memory/import",
    operation_id="import_memories",
    summary="Take an export in again",
    status_code=202,
    response_model=ImportReply,
    openapi_extra={
        "parameters": _USER_PARAMETERS,
        "requestBody": {"required": True, "content": {_LINES: {"schema": {"type": "string"}}}},
    },
)
async def import_(request: Request) -> Response:
    """Lines of an export become accepted turns; repeated ones are known and stored once."""
    services = services_of(request)
    caller = services.keys.authenticate(request.scope)
    caller.require("review")
    caller.require("add")
    bank = _bank(services, caller, request, _user_named(request))
    _, body = await read_body(request.scope, request.receive, services.settings.max_body_bytes)
    policy = services.policies.of(caller.tenant)
    taken = await carry.take_in(
        body,
        tenant=caller.tenant,
        bank=bank,
        review=services.review,
        log=services.turns,
        cache=services.cache,
        settings=services.settings,
        redaction=policy.redaction,
        kinds=policy.keep.kept,
    )
    reply = ImportReply(
        accepted=taken.accepted,
        duplicate=taken.duplicate,
        skipped=taken.skipped,
        request_id=logs.request_id.get(),
    )
    return JsonReply(reply.model_dump(), status_code=202, headers=NO_STORE)


@router.post(
    "/memory/reflect",
    operation_id="reflect_on_memory",
    summary="An answer that a language model draws from this user's memories",
    response_model=ReflectReply,
    openapi_extra=body_of(ReflectRequest),
)
async def reflect(request: Request) -> Response:
    """Takes seconds; what cannot be answered is an empty text with a reason."""
    services = services_of(request)
    caller = services.keys.authenticate(request.scope)
    caller.require("recall")
    body = ReflectRequest.read(await _payload(request, services))
    bank = _bank(services, caller, request, body.user_id)
    reflected = await services.reflector.reflect(body, bank, tenant=caller.tenant)
    reply = ReflectReply(
        text=reflected.text,
        structured=dict(reflected.structured) if reflected.structured is not None else None,
        degraded=reflected.degraded,
        reason=reflected.reason,
        request_id=logs.request_id.get(),
    )
    return JsonReply(reply.model_dump(), headers=NO_STORE)


async def _payload(request: Request, services: Services) -> dict[str, object]:
    return await read_payload(request.scope, request.receive, services.settings.max_body_bytes)


def _bank(services: Services, caller: Caller, request: Request, user_id: str) -> BankId:
    bank = bank_for(caller, request.scope, user_id, allow_anonymous=services.settings.allow_anonymous_users)
    logs.bank_id.set(bank)
    return bank


def _user_named(request: Request) -> str:
    """The user id of a header or of the query, or an empty text.

    Bytes that are no UTF-8 would make different ids the same: they are refused.
    """
    try:
        query = request.scope["query_string"].decode("utf-8")
        pairs = parse_qsl(query, keep_blank_values=True, errors="strict")
        headers = request.headers.getlist(_USER_HEADER)
        if not all(map(str.isascii, headers)):
            # Raw bytes would be read as Latin-1, which is another user.
            raise InvalidRequest(f"The header {_USER_HEADER} has to be URL-encoded.")
        ids = {unquote(value, errors="strict") for value in headers}
    except ValueError as exc:
        raise InvalidRequest("The user id in the query or header is not valid UTF-8.") from exc
    ids |= {value for name, value in pairs if name == "user_id"}
    if len(ids) > 1:
        raise IdentityConflict("The request names two different users.")
    return ids.pop() if ids else ""
