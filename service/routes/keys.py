"""`/admin/keys` and `/admin/user-tokens`: who may call, and for whom (keys with the scope `admin`)."""

import contextlib
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from service import logs
from service.adapters.keys import KeyRecord
from service.auth import Caller, bank_for, note_subject
from service.errors import KeysUnavailable, NotFound
from service.memory.keys import (
    ExpireKey,
    KeyDoneReply,
    Keys,
    KeysReply,
    NewKey,
    NewKeyReply,
    NewToken,
    RevokeKey,
    RotateKey,
    TokenReply,
    described,
    moment,
)
from service.problems import NO_STORE, JsonReply
from service.routes.bodies import ERRORS
from service.routes.payload import read_payload
from service.routes.services import services_of

router = APIRouter(prefix="/admin", tags=["operation"], responses=ERRORS)

_NO_SUCH_KEY: dict[int | str, dict[str, Any]] = {
    404: ERRORS[401] | {"description": "No such key of this key's tenant."}
}


def _body_of(model: type[BaseModel]) -> dict[str, Any]:
    schema = {"schema": model.model_json_schema()}
    kinds = ("application/json", "application/x-www-form-urlencoded")
    return {"requestBody": {"required": True, "content": dict.fromkeys(kinds, schema)}}


async def _operator(request: Request) -> Caller:
    caller = services_of(request).keys.authenticate(request.scope)
    caller.require("admin")
    return caller


def _keys(request: Request, caller: Caller) -> Keys:
    services = services_of(request)
    return Keys(services.key_store, services.settings, tenant=caller.tenant, grantable=caller.scopes)


async def _payload(request: Request) -> dict[str, object]:
    return await read_payload(request.scope, request.receive, services_of(request).settings.max_body_bytes)


async def _done(request: Request, record: KeyRecord, *, key: str = "") -> Response:
    note_subject(request.scope, record.key_id)
    # What is done is done, and a new key is shown only now: other processes learn of it as this one will.
    with contextlib.suppress(KeysUnavailable):
        await services_of(request).key_watch.refresh()
    said = described(record) | ({"key": key} if key else {}) | {"request_id": logs.request_id.get()}
    return JsonReply(said, status_code=201 if key else 200, headers=NO_STORE)


@router.get(
    "/keys", operation_id="list_keys", summary="The keys of this key's tenant", response_model=KeysReply
)
async def list_keys(request: Request, caller: Annotated[Caller, Depends(_operator)]) -> Response:
    """Those that were made, ended ones too; never the keys themselves."""
    found = [described(record) for record in await _keys(request, caller).all()]
    return JsonReply({"keys": found, "request_id": logs.request_id.get()}, headers=NO_STORE)


@router.post(
    "/keys",
    operation_id="create_key",
    summary="Make a key",
    status_code=201,
    response_model=NewKeyReply,
    openapi_extra=_body_of(NewKey),
)
async def create_key(request: Request, caller: Annotated[Caller, Depends(_operator)]) -> Response:
    """For this key's tenant, with no more than its scopes; the key is shown this once."""
    key, record = await _keys(request, caller).create(
        NewKey.read(await _payload(request)), tenant=caller.tenant
    )
    return await _done(request, record, key=key)


@router.post(
    "/keys/rotate",
    operation_id="rotate_key",
    summary="Replace a key",
    status_code=201,
    response_model=NewKeyReply,
    responses=_NO_SUCH_KEY,
    openapi_extra=_body_of(RotateKey),
)
async def rotate_key(request: Request, caller: Annotated[Caller, Depends(_operator)]) -> Response:
    """A new key that may do the same; the old one is good for a while longer."""
    key, record = await _keys(request, caller).rotate(RotateKey.read(await _payload(request)))
    return await _done(request, record, key=key)


@router.post(
    "/keys/expire",
    operation_id="expire_key",
    summary="Let a key end at some time",
    response_model=KeyDoneReply,
    responses=_NO_SUCH_KEY,
    openapi_extra=_body_of(ExpireKey),
)
async def expire_key(request: Request, caller: Annotated[Caller, Depends(_operator)]) -> Response:
    """Sooner or later than before; a key that has ended stays so."""
    return await _done(request, await _keys(request, caller).expire(ExpireKey.read(await _payload(request))))


@router.post(
    "/keys/revoke",
    operation_id="revoke_key",
    summary="End a key",
    response_model=KeyDoneReply,
    responses=_NO_SUCH_KEY,
    openapi_extra=_body_of(RevokeKey),
)
async def revoke_key(request: Request, caller: Annotated[Caller, Depends(_operator)]) -> Response:
    """At once in this process, within seconds in every other, and for good; can be repeated."""
    return await _done(request, await _keys(request, caller).revoke(RevokeKey.read(await _payload(request))))


@router.post(
    "/user-tokens",
    operation_id="create_user_token",
    summary="Make a user token",
    status_code=201,
    response_model=TokenReply,
    responses={404: ERRORS[401] | {"description": "MEMORY_TOKEN_KEYS is not set."}},
    openapi_extra=_body_of(NewToken),
)
async def create_user_token(request: Request, caller: Annotated[Caller, Depends(_operator)]) -> Response:
    """What a flow passes as `user_id` with a key whose identity is `signed`."""
    services = services_of(request)
    tokens = caller.guards.tokens
    if tokens is None:
        raise NotFound("No keys for user tokens are set here (MEMORY_TOKEN_KEYS).")
    ask = NewToken.read(await _payload(request))
    bank = bank_for(
        caller, request.scope, ask.user_id, allow_anonymous=services.settings.allow_anonymous_users
    )
    logs.bank_id.set(bank)
    token = tokens.make(caller.tenant, bank, ask.ttl_s)
    return JsonReply(
        {
            "token": token.text,
            "expires_at": moment(token.expires_s),
            "request_id": logs.request_id.get(),
        },
        status_code=201,
        headers=NO_STORE,
    )
