"""`GET /admin/audit`: who did what to whose memories (keys with the scope `admin`)."""

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from pydantic import AwareDatetime
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from service.auth import Caller
from service.errors import NotFound
from service.memory.audit import Wanted, export
from service.problems import NO_STORE
from service.routes.bodies import ERRORS
from service.routes.services import services_of

router = APIRouter(tags=["operation"])

_LINES = "application/x-ndjson"
_END = b'{"type": "end"}\n'
_REPLIES: dict[int | str, dict[str, Any]] = {
    200: {"description": "One JSON object a line.", "content": {_LINES: {"schema": {"type": "string"}}}},
    404: ERRORS[401] | {"description": "MEMORY_AUDIT_DAYS is 0: there is no trail."},
    **{code: ERRORS[code] for code in (401, 403, 422, 429, 503)},
}


async def _operator(request: Request) -> Caller:
    caller = services_of(request).keys.authenticate(request.scope)
    caller.require("admin")
    return caller


def _ms(moment: datetime | None) -> int | None:
    return None if moment is None else int(moment.timestamp() * 1000)


@router.get(
    "/admin/audit",
    operation_id="export_audit",
    summary="Who did what to whose memories",
    response_class=Response,
    responses=_REPLIES,
)
async def export_audit(
    caller: Annotated[Caller, Depends(_operator)],
    key_id: Annotated[str, Query(max_length=64, description="Only what the key of this id did.")] = "",
    action: Annotated[str, Query(max_length=64, description="Only this, such as /memory/forget.")] = "",
    subject: Annotated[
        str, Query(max_length=64, description="Only what was done to this bank or key, by its id.")
    ] = "",
    since: Annotated[
        AwareDatetime | None, Query(description="Only from then on, such as 2026-01-31T09:00:00Z.")
    ] = None,
    until: Annotated[AwareDatetime | None, Query(description="Only before then.")] = None,
) -> Response:
    """As JSON lines, oldest first, a second late at most; the last line is `{"type": "end"}`.

    Of this key's tenant. An event is what one key did to one user's memories (`subject`: their bank, never
    a user id) with one outcome within a second, and how often; there is no content in it.
    """
    audit = caller.guards.audit
    if audit is None:
        raise NotFound("There is no audit trail here (MEMORY_AUDIT_DAYS).")
    wanted = Wanted(caller.tenant, key_id, action, subject, _ms(since) or 0, _ms(until))
    lines = export(audit.trail, wanted)
    # What goes wrong after this can only be told by breaking off: the last line is missing then.
    first = await anext(lines, None)

    async def all_lines() -> AsyncIterator[bytes]:
        if first is not None:
            yield f"{first}\n".encode()
        async for line in lines:
            yield f"{line}\n".encode()
        yield _END

    return StreamingResponse(all_lines(), media_type=_LINES, headers=NO_STORE)
