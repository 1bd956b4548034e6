"""`/admin/me-links`: links to people's own pages (keys with the scope `admin`)."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from service import logs
from service.auth import Caller, bank_for
from service.memory.keys import moment
from service.memory.me import EndLinks, LinkReply, LinksEndedReply, NewLink
from service.problems import NO_STORE, JsonReply
from service.routes.bodies import ERRORS
from service.routes.payload import read_payload
from service.routes.services import services_of
from service.scope import BankId

router = APIRouter(prefix="/admin/me-links", tags=["operation"], responses=ERRORS)


def _body_of(model: type[BaseModel]) -> dict[str, Any]:
    schema = {"schema": model.model_json_schema()}
    kinds = ("application/json", "application/x-www-form-urlencoded")
    return {"requestBody": {"required": True, "content": dict.fromkeys(kinds, schema)}}


async def _operator(request: Request) -> Caller:
    caller = services_of(request).keys.authenticate(request.scope)
    caller.require("admin")
    return caller


async def _payload(request: Request) -> dict[str, object]:
    return await read_payload(request.scope, request.receive, services_of(request).settings.max_body_bytes)


def _bank(request: Request, caller: Caller, user_id: str) -> BankId:
    allows = services_of(request).settings.allow_anonymous_users
    bank = bank_for(caller, request.scope, user_id, allow_anonymous=allows)
    logs.bank_id.set(bank)
    return bank


@router.post(
    "",
    operation_id="create_me_link",
    summary="Make a link to a person's own page (also needs the scopes review and forget)",
    status_code=201,
    response_model=LinkReply,
    responses={404: ERRORS[401] | {"description": "MEMORY_TOKEN_KEYS is not set."}},
    openapi_extra=_body_of(NewLink),
)
async def create_me_link(request: Request, caller: Annotated[Caller, Depends(_operator)]) -> Response:
    """Whoever has it sees and can delete that person's memories until it ends: give it to them alone."""
    # The link can do as much as these; nobody hands out what they may not do themselves.
    for scope in ("review", "forget"):
        caller.require(scope)
    ask = NewLink.read(await _payload(request))
    bank = _bank(request, caller, ask.user_id)
    me = services_of(request).me
    link = await me.make(caller.tenant, bank, ask.ttl_s)
    said = {
        "url": me.address_of(link),
        "expires_at": moment(link.expires_s),
        "request_id": logs.request_id.get(),
    }
    return JsonReply(said, status_code=201, headers=NO_STORE)


@router.post(
    "/end",
    operation_id="end_me_links",
    summary="End all links to a person's own page",
    response_model=LinksEndedReply,
    openapi_extra=_body_of(EndLinks),
)
async def end_me_links(request: Request, caller: Annotated[Caller, Depends(_operator)]) -> Response:
    """From the answer on, in every process, those who came by one see nothing any more; can be repeated."""
    bank = _bank(request, caller, EndLinks.read(await _payload(request)).user_id)
    await services_of(request).me.end(bank)
    return JsonReply({"status": "ended", "request_id": logs.request_id.get()}, headers=NO_STORE)
