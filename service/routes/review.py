"""`/memory/forget`: what somebody wants to be gone is gone when this has answered."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from service import logs
from service.auth import bank_for
from service.problems import NO_STORE, JsonReply
from service.routes.bodies import ERRORS, body_of
from service.routes.payload import read_payload
from service.routes.services import services_of
from service.schemas_review import ForgetReply, ForgetRequest, Forgotten

router = APIRouter(tags=["review"], responses=ERRORS)


@router.post(
    "/memory/forget",
    operation_id="forget_memory",
    summary="Forget one memory, one conversation or everything of this user",
    response_model=ForgetReply,
    openapi_extra=body_of(ForgetRequest),
)
async def forget(request: Request) -> Response:
    """Nothing of it is recalled again; a memory that is not there is a receipt of zeros."""
    services = services_of(request)
    caller = services.keys.authenticate(request.scope)
    caller.require("forget")
    body = ForgetRequest.read(
        await read_payload(request.scope, request.receive, services.settings.max_body_bytes)
    )
    bank = bank_for(
        caller, request.scope, body.user_id, allow_anonymous=services.settings.allow_anonymous_users
    )
    logs.bank_id.set(bank)
    receipt = await services.forgetter.forget(body, bank)
    reply = ForgetReply(
        forgotten=Forgotten(
            memories=receipt.memories,
            documents=receipt.documents,
            pending=receipt.pending,
            jobs=receipt.jobs,
            cache_entries=receipt.cache_entries,
        ),
        verified=receipt.is_verified,
        request_id=logs.request_id.get(),
    )
    return JsonReply(reply.model_dump(), headers=NO_STORE)
