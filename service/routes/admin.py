"""`/admin/*`: for whoever runs the service (keys with the scope `admin`)."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from starlette.requests import Request
from starlette.responses import Response

from service import logs
from service.adapters.dead_letters import DeadLetters
from service.auth import Caller
from service.memory import dead_letters
from service.memory.dead_letters import Choice, DeadLettersReply, DoneReply, Note
from service.problems import NO_STORE, JsonReply
from service.routes.bodies import ERRORS
from service.routes.payload import read_payload
from service.routes.services import services_of

router = APIRouter(prefix="/admin", tags=["operation"], responses=ERRORS)

_NONE_SUCH: dict[int | str, dict[str, Any]] = {
    404: ERRORS[401] | {"description": "No such dead letters of this key's tenant."}
}
_DONE = 200
_CHOICE_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            kind: {"schema": Choice.model_json_schema()}
            for kind in ("application/json", "application/x-www-form-urlencoded")
        },
    }
}


def note_of(caller: Caller, action: str) -> Note | None:
    """Writes down whose turns a caller has read or decided about; None without an audit trail."""
    audit = caller.guards.audit
    if audit is None:
        return None
    # As an event of the tenant whose user it is, which need not be the caller's (see `/admin`).
    return lambda letter: audit.note(
        letter.tenant or caller.tenant, caller.key_id, action, letter.bank, _DONE
    )


async def _operator(request: Request) -> Caller:
    caller = services_of(request).keys.authenticate(request.scope)
    caller.require("admin")
    return caller


@router.get(
    "/dead-letters",
    operation_id="list_dead_letters",
    summary="Turns that could not be stored",
    response_model=DeadLettersReply,
)
async def list_dead_letters(
    request: Request,
    caller: Annotated[Caller, Depends(_operator)],
    cursor: Annotated[str, Query(max_length=20, description="next_cursor of the page before.")] = "",
    limit: Annotated[int, Query(ge=1, le=1000, description="About how many.")] = 100,
    show: Annotated[bool, Query(description="true: with what was said; needs the scope review.")] = False,
) -> Response:
    """Of this key's tenant, with the reason of each."""
    if show:
        caller.require("review")
    found = await dead_letters.page(
        DeadLetters(services_of(request).turns),
        tenant=caller.tenant,
        cursor=cursor,
        limit=limit,
        shows_text=show,
        note=note_of(caller, "/admin/dead-letters") if show else None,
    )
    return JsonReply(found.model_dump(), headers=NO_STORE)


@router.post(
    "/dead-letters/replay",
    operation_id="replay_dead_letters",
    summary="Try to store dead letters again",
    response_model=DoneReply,
    responses=_NONE_SUCH,
    openapi_extra=_CHOICE_BODY,
)
async def replay_dead_letters(request: Request, caller: Annotated[Caller, Depends(_operator)]) -> Response:
    """They go back into their conversations in order, and their jobs are queued again; can be repeated."""
    return await _settle(request, caller, "replay")


@router.post(
    "/dead-letters/drop",
    operation_id="drop_dead_letters",
    summary="Drop dead letters for good",
    response_model=DoneReply,
    responses=_NONE_SUCH,
    openapi_extra=_CHOICE_BODY,
)
async def drop_dead_letters(request: Request, caller: Annotated[Caller, Depends(_operator)]) -> Response:
    """Their jobs stay failed."""
    return await _settle(request, caller, "drop")


async def _settle(request: Request, caller: Caller, action: dead_letters.Action) -> Response:
    services = services_of(request)
    choice = Choice.read(await read_payload(request.scope, request.receive, services.settings.max_body_bytes))
    count = await dead_letters.settle(
        DeadLetters(services.turns),
        services.cache,
        choice,
        tenant=caller.tenant,
        action=action,
        note=note_of(caller, f"/admin/dead-letters/{action}"),
    )
    return JsonReply({"count": count, "request_id": logs.request_id.get()}, headers=NO_STORE)
