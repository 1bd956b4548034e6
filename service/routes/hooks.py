"""`/hooks/*`: what other servers tell us. Signatures take the place of keys."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from service import logs
from service.errors import NotFound
from service.problems import NO_STORE, JsonReply
from service.routes.bodies import ERRORS
from service.routes.payload import read_body
from service.routes.services import services_of

router = APIRouter(tags=["operation"])


@router.post(
    "/hooks/hindsight",
    operation_id="hindsight_event",
    summary="Hindsight tells that it has stored or consolidated something",
    responses={
        400: ERRORS[400],
        401: ERRORS[401] | {"description": "The signature is missing, wrong or too old."},
        404: ERRORS[401] | {"description": "MEMORY_WEBHOOK_SECRET is not set."},
        413: ERRORS[413],
        503: ERRORS[503],
    },
)
async def hindsight_event(request: Request) -> Response:
    """Signed with `X-Hindsight-Signature-V2`; every event may come twice, late and in any order."""
    services = services_of(request)
    if services.events is None:
        raise NotFound("No secret for events is set here (MEMORY_WEBHOOK_SECRET).")
    # The bytes as they came: those are signed, not what they mean.
    _, body = await read_body(request.scope, request.receive, services.settings.max_body_bytes)
    event = services.events.read(
        body,
        signature=request.headers.get("x-hindsight-signature-v2", ""),
        event_id=request.headers.get("x-hindsight-event-id", ""),
    )
    outcome = await services.events.handle(event)
    return JsonReply({"status": outcome, "request_id": logs.request_id.get()}, headers=NO_STORE)
