"""`/admin`: the operators' page. Who has an API key with the scope `admin` signs in with it.

Only signed-in operators get past `admin_visit`. All that changes something is a form with the visit's own
key, answered with 303 back to the page.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from service.adapters.admin_visits import AdminVisit
from service.adapters.dead_letters import DeadLetters
from service.adapters.keys import ALL_SCOPES, KeyRecord
from service.auth import Caller, note_subject
from service.errors import (
    InvalidRequest,
    KeyRefused,
    KeysUnavailable,
    ServiceError,
    TooManyRequests,
)
from service.memory import dead_letters
from service.memory.dead_letters import Action, Choice
from service.memory.keys import Keys, NewKey, RevokeKey, RotateKey
from service.memory.operation_view import Operator, Wanted
from service.policy.admin_keys import LIFETIMES
from service.policy.admin_page import key_page, overview_page, problem_page
from service.policy.admin_texts import AdminTexts
from service.policy.admin_view import Told
from service.routes.admin import note_of
from service.routes.admin_cookies import LANGUAGE, VISIT, keep
from service.routes.admin_visit import (
    asking,
    caller_with,
    check_site,
    dressed,
    form_of,
    html,
    on_form,
    on_visit,
    problem,
    query_of,
    texts_of,
)
from service.routes.payload import read_payload
from service.routes.services import Services, services_of

router = APIRouter(tags=["operation"])

_LANGUAGE_S = 365 * 86_400
_WORDS = {"replay": "replayed", "drop": "dropped"}

_Handler = Callable[[Request], Awaitable[Response]]


def _told(description: str) -> dict[str, Any]:
    return {"description": description, "content": {"text/html": {}}}


_PAGES: dict[int | str, dict[str, Any]] = {
    401: _told("Nobody has signed in: the form to do so."),
    403: _told("The key may not do that (any more)."),
    429: _told("The key has made too many requests within a minute."),
}
_REFUSALS: dict[int | str, dict[str, Any]] = {
    400: _told("The form cannot be read."),
    401: _told("Nobody has signed in, or the key is wrong: the form to do so."),
    403: _told("The form is not one of this visit, or the key may not do that."),
    404: _told("There is no such thing (any more)."),
    413: _told("The form is too large."),
    422: _told("Something in the form is missing or not allowed."),
    429: _told("Too many tries within a minute."),
    503: _told("Out of reach for now; see Retry-After."),
}
_FORM_BODY = {
    "requestBody": {"content": {"application/x-www-form-urlencoded": {"schema": {"type": "object"}}}}
}


def _form_route(path: str, summary: str, name: str) -> Callable[[_Handler], _Handler]:
    return router.post(
        path,
        operation_id=name,
        summary=summary,
        status_code=303,
        response_class=RedirectResponse,
        responses=_REFUSALS | {303: {"description": "Done; the page says what."}},
        openapi_extra=_FORM_BODY,
    )


def _key_route(path: str, summary: str, name: str) -> Callable[[_Handler], _Handler]:
    return router.post(
        path,
        operation_id=name,
        summary=summary,
        response_class=HTMLResponse,
        responses=_REFUSALS,
        openapi_extra=_FORM_BODY,
    )


@router.get(
    "/admin",
    operation_id="show_admin",
    summary="The operators' page",
    response_class=HTMLResponse,
    responses=_PAGES,
    openapi_extra={
        "parameters": [
            {"name": name, "in": "query", "required": False, "schema": schema}
            for name, schema in {
                "lang": {"type": "string", "enum": ["zh", "en"]},
                "cursor": {"type": "string"},
                "show": {"type": "string", "enum": ["yes"]},
            }.items()
        ]
    },
)
async def show(request: Request) -> Response:
    """`lang`: zh or en. `cursor`: further dead letters. `show`: yes, with what they say."""
    asked = query_of(request)

    async def step(services: Services, caller: Caller, visit: AdminVisit, texts: AdminTexts) -> Response:
        operator = _operator(services, caller)
        wanted = _wanted(asked, texts)
        shown = await services.operation.overview(
            operator, visit, wanted, note_of(caller, "/admin") if wanted.shows_text else None
        )
        return html(overview_page(texts, shown))

    reply = await on_visit(request, step, up="")
    if "lang" in asked:
        keep(reply, request, LANGUAGE, asked["lang"], _LANGUAGE_S)
    return reply


@_form_route("/admin/sign-in", "Sign in to the operators' page", "sign_in_admin")
async def sign_in(request: Request) -> Response:
    """With an API key that has the scope admin; every wrong one is refused alike."""
    services = services_of(request)
    texts = texts_of(request)
    try:
        check_site(request)
        form = await read_payload(request.scope, request.receive, services.settings.max_body_bytes)
        caller = caller_with(request, services, form.get("key"))
        proof, _ = services.operation.visits.make(caller.key_id, services.settings.admin_visit_s)
    except KeyRefused:
        # Only what is wrong counts: who shares an address, a proxy's perhaps, must not lock others out.
        try:
            if services.limits is not None:
                services.limits.take_sign_in(request.client.host if request.client else "")
        except TooManyRequests as exc:
            return dressed(problem(exc, texts))
        return dressed(asking(services, texts, up="../", is_wrong=True))
    except ServiceError as exc:
        return dressed(problem(exc, texts))
    reply = RedirectResponse("../admin", 303)
    keep(reply, request, VISIT, proof, services.settings.admin_visit_s)
    return dressed(reply)


@_form_route("/admin/sign-out", "Sign out of the operators' page", "sign_out_admin")
async def sign_out(request: Request) -> Response:
    """The proof in the browser is good no more, wherever it may have been copied to."""

    async def step(services: Services, caller: Caller, visit: AdminVisit, texts: AdminTexts) -> Response:
        del caller
        await form_of(request, services, visit)
        reply: Response = RedirectResponse("../admin", 303)
        keep(reply, request, VISIT, "", 0)
        try:
            await services.operation.visits.end(visit)
        except KeysUnavailable as exc:
            # Gone from this browser all the same.
            reply = problem(exc, texts)
            keep(reply, request, VISIT, "", 0)
        return reply

    return await on_visit(request, step, up="../")


@_form_route("/admin/replay", "Try to store dead letters again, from the page", "replay_on_page")
async def replay(request: Request) -> Response:
    """As `/admin/dead-letters/replay` does."""
    return await _settle(request, "replay")


@_form_route("/admin/drop", "Drop dead letters for good, from the page", "drop_on_page")
async def drop(request: Request) -> Response:
    """As `/admin/dead-letters/drop` does."""
    return await _settle(request, "drop")


@_form_route("/admin/revoke-key", "End a key, from the page", "revoke_key_on_page")
async def revoke_key(request: Request) -> Response:
    """As `/admin/keys/revoke` does."""

    async def step(
        services: Services, caller: Caller, form: Mapping[str, object], texts: AdminTexts
    ) -> Response:
        del texts
        record = await _keys(services, caller).revoke(RevokeKey.read(_chosen(form, "id")))
        await _refresh(request, services, record)
        return _back(Told("revoked"))

    return await on_form(request, step)


@_key_route("/admin/rotate-key", "Replace a key, from the page", "rotate_key_on_page")
async def rotate_key(request: Request) -> Response:
    """As `/admin/keys/rotate` does; the new key is shown this once."""

    async def step(
        services: Services, caller: Caller, form: Mapping[str, object], texts: AdminTexts
    ) -> Response:
        key, record = await _keys(services, caller).rotate(RotateKey.read(_chosen(form, "id")))
        await _refresh(request, services, record)
        return html(key_page(texts, key, record.name, up="../"))

    return await on_form(request, step)


@_key_route("/admin/create-key", "Make a key, from the page", "create_key_on_page")
async def create_key(request: Request) -> Response:
    """As `/admin/keys` does; the key is shown this once."""

    async def step(
        services: Services, caller: Caller, form: Mapping[str, object], texts: AdminTexts
    ) -> Response:
        days = form.get("days")
        if not isinstance(days, str) or days not in {str(one) for one in LIFETIMES}:
            raise InvalidRequest("There is no such lifetime.")
        ask = NewKey.read(
            {
                "name": form.get("name"),
                "scopes": [scope for scope in sorted(ALL_SCOPES) if form.get(f"scope_{scope}") == "yes"],
                "expires_in_s": int(days) * 86_400 or None,
            }
        )
        key, record = await _keys(services, caller).create(ask, tenant=caller.tenant)
        await _refresh(request, services, record)
        return html(key_page(texts, key, record.name, up="../"))

    return await on_form(request, step)


async def _settle(request: Request, action: Action) -> Response:
    async def step(
        services: Services, caller: Caller, form: Mapping[str, object], texts: AdminTexts
    ) -> Response:
        choice = Choice.read(_chosen(form, "ids", "all"))
        if choice.all and form.get("sure") != "yes":
            return html(problem_page(texts, "", up="../", is_unsure=True), 422)
        count = await dead_letters.settle(
            DeadLetters(services.turns),
            services.cache,
            choice,
            tenant=_operator(services, caller).tenant_seen,
            action=action,
            note=note_of(caller, f"/admin/{action}"),
        )
        return _back(Told(_WORDS[action], count))

    return await on_form(request, step)


def _operator(services: Services, caller: Caller) -> Operator:
    return Operator(caller.tenant, caller.key_id, caller.scopes, services.keys.is_seed(caller))


def _keys(services: Services, caller: Caller) -> Keys:
    return Keys(services.key_store, services.settings, tenant=caller.tenant, grantable=caller.scopes)


async def _refresh(request: Request, services: Services, record: KeyRecord) -> None:
    note_subject(request.scope, record.key_id)
    try:
        await services.key_watch.refresh()
    except KeysUnavailable:
        return  # what is done is done: this process learns of it as the others will


def _chosen(form: Mapping[str, object], *names: str) -> dict[str, object]:
    return {name: form[name] for name in names if name in form}


def _wanted(asked: Mapping[str, str], texts: AdminTexts) -> Wanted:
    cursor, count = asked.get("cursor", ""), asked.get("count", "0")
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) <= 20):
        cursor = ""
    told = None
    if asked.get("done") in texts.told:
        number = int(count) if count.isascii() and count.isdigit() and len(count) <= 9 else 0
        told = Told(asked["done"], number)
    return Wanted(cursor, asked.get("show") == "yes", told)


def _back(told: Told) -> Response:
    query = {"done": told.what} | ({"count": str(told.count)} if told.count else {})
    return RedirectResponse(f"../admin?{urlencode(query)}#told", 303)
