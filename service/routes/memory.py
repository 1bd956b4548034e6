"""`/memory/*`: the routes that Dify calls."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query
from pydantic import BeforeValidator
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope

from service import logs
from service.auth import Caller, bank_for
from service.memory import jobs_view, retain
from service.memory.asked import name_of
from service.memory.recall_reply import Reply
from service.problems import NO_STORE, JsonReply
from service.routes.bodies import ERRORS, body_of
from service.routes.payload import decode, read_body, read_payload
from service.routes.services import Services, services_of
from service.schemas import AddReply, AddRequest, ErrorReply, JobReply, RecallReply, RecallRequest
from service.scope import BankId, is_absent

router = APIRouter(tags=["memory"], responses=ERRORS)


async def _authenticated(request: Request) -> Caller:
    # A dependency is asked before the parameters are read: without a key there is nothing but a 401.
    return services_of(request).keys.authenticate(request.scope)


def _seconds(value: object) -> object:
    return 0 if isinstance(value, str) and is_absent(value) else value


@router.post(
    "/memory/recall",
    operation_id="recall_memory",
    summary="What is remembered about this user that bears on the query",
    response_model=RecallReply,
    responses={
        200: {
            "description": "What is remembered; with format=text only the block for the prompt.",
            "content": {"text/plain": {"schema": {"type": "string"}}},
        }
    },
    openapi_extra=body_of(RecallRequest),
)
async def recall(request: Request) -> Response:
    """Answers by its deadline and never breaks the chat: a memory out of reach is an empty answer."""
    reply = await recall_reply(services_of(request), request.scope, request.receive)
    return Response(reply.body, media_type=reply.media_type, headers=NO_STORE)


async def recall_reply(services: Services, scope: Scope, receive: Receive) -> Reply:
    """Key, scope, body, bank, use case: what the route and the fast lane both do."""
    caller = services.keys.authenticate(scope)
    caller.require("recall")
    content_type, raw = await read_body(scope, receive, services.settings.max_body_bytes)

    def read() -> tuple[RecallRequest, BankId]:
        body = RecallRequest.read(decode(content_type.decode("latin-1"), raw))
        return body, bank_for(
            caller, scope, body.user_id, allow_anonymous=services.settings.allow_anonymous_users
        )

    is_plain = caller.is_plain
    name = name_of(caller.key_id, content_type, scope["query_string"], raw) if is_plain else b""
    reply = await services.recaller.recall_read(read, name, receive, tenant=caller.tenant)
    services.metrics.note_recall(reply.outcome, caller.tenant)
    return reply


@router.post(
    "/memory/add",
    operation_id="add_memory",
    summary="Remember a turn of the conversation",
    status_code=202,
    response_model=AddReply,
    responses={
        200: {"model": AddReply, "description": "There was nothing to keep."},
        429: {"model": ErrorReply, "description": "Too many turns wait to be stored; see Retry-After."},
    },
    openapi_extra=body_of(AddRequest),
)
async def add(request: Request) -> Response:
    """Answers at once; the turn is safe from then on and stored in the background."""
    return await add_reply(services_of(request), request.scope, request.receive)


async def add_reply(services: Services, scope: Scope, receive: Receive) -> JsonReply:
    """Key, scope, body, bank, use case: what the route and the fast lane both do."""
    caller = services.keys.authenticate(scope)
    caller.require("add")
    body = AddRequest.read(await read_payload(scope, receive, services.settings.max_body_bytes))
    bank = bank_for(caller, scope, body.user_id, allow_anonymous=services.settings.allow_anonymous_users)
    logs.bank_id.set(bank)
    accepted = await retain.accept(
        body,
        tenant=caller.tenant,
        bank=bank,
        log=services.turns,
        cache=services.cache,
        fallback=services.fallback if services.settings.has_fallback else None,
        settings=services.settings,
        policies=services.policies,
    )
    services.metrics.note_turn(accepted.status, caller.tenant)
    return JsonReply(
        {
            "status": accepted.status,
            "job_id": accepted.job_id,
            "accepted": accepted.accepted,
            "skipped": accepted.skipped,
            "redacted": accepted.redacted,
            "searchable_now": accepted.searchable_now,
            "request_id": logs.request_id.get(),
        },
        status_code=200 if accepted.status == "skipped" else 202,
        headers=NO_STORE,
    )


@router.get(
    "/memory/jobs/{job_id}",
    operation_id="memory_job",
    summary="What became of a turn",
    response_model=JobReply,
    responses={404: ERRORS[401] | {"description": "No such job of this key's tenant."}},
)
async def job(
    request: Request,
    caller: Annotated[Caller, Depends(_authenticated)],
    job_id: str,
    wait_s: Annotated[
        float,
        BeforeValidator(_seconds),
        Query(
            ge=0, le=30, allow_inf_nan=False, description="Answer when the job has ended, or after this long."
        ),
    ] = 0,
) -> Response:
    """Follows the storing of one request to its end."""
    caller.require("add")
    services = services_of(request)
    found = await jobs_view.look_up(
        job_id,
        tenant=caller.tenant,
        bank=caller.bank,
        wait_s=wait_s,
        is_leaving=lambda: request.app.state.is_draining,
        log=services.turns,
        fallback=services.fallback,
    )
    return JsonReply(found.model_dump(), headers=NO_STORE)
