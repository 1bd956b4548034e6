"""`/me`: a person's own page, opened by a personal link (see `me_links`).

All that changes something is a form with the visit's own key, answered with 303 back to the page, so that
nothing is done twice by a reload. What went wrong is told as a page, too.
"""

import hmac
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from time import time
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse

from service import logs
from service.adapters.hindsight_erase import HindsightEraser
from service.adapters.me_links import Visit
from service.errors import FormRefused, LinkRefused, ServiceError
from service.memory import carry, review
from service.memory.me import done_with, request_of
from service.policy.html import Html
from service.policy.me_page import forget_all_page, opening_page, page, problem_page
from service.policy.me_style import HEADERS
from service.policy.me_texts import Language, Texts, language_for, texts_in
from service.policy.me_view import Done, Shown, View
from service.routes.payload import read_payload
from service.routes.services import Services, services_of
from service.schemas_review import CorrectRequest, ForgetRequest

router = APIRouter(tags=["me"])

_VISIT, _VIEW = "memory-me", "memory-me-view"
_MAX_QUERY_BYTES = 8192
_PARAMETERS = ("token", "lang")
_PAGES: dict[int | str, dict[str, Any]] = {
    status: {"description": f"{what}: a page that says so.", "content": {"text/html": {}}}
    for status, what in {
        401: "No personal link that is good",
        422: "What is asked for is not valid",
        429: "Too many requests",
        503: "Out of reach for now",
    }.items()
}
_LINES: dict[int | str, dict[str, Any]] = {
    200: {"description": "One JSON object a line.", "content": {"application/x-ndjson": {}}}
}
_DONE: dict[int | str, dict[str, Any]] = _PAGES | {
    303: {"description": "Done; the page says what."},
    400: {"description": "The form cannot be read.", "content": {"text/html": {}}},
    403: {"description": "The form is not one of this visit.", "content": {"text/html": {}}},
    404: {"description": "There is no such memory (any more).", "content": {"text/html": {}}},
    409: {"description": "The memory is not stored yet.", "content": {"text/html": {}}},
    413: {"description": "The form is too large.", "content": {"text/html": {}}},
}
_Handler = Callable[[Request], Awaitable[Response]]
_Step = Callable[[Services, Visit, View, Done | None, Texts], Awaitable[Response]]
_FormStep = Callable[[Services, Visit, Mapping[str, object], View], Awaitable[Response]]


def _page_route(path: str, summary: str, name: str) -> Callable[[_Handler], _Handler]:
    return router.get(
        path,
        operation_id=name,
        summary=summary,
        response_class=Response if path == "/me/download" else HTMLResponse,
        responses=_PAGES | (_LINES if path == "/me/download" else {}),
        openapi_extra={"parameters": [_parameter(one) for one in _PARAMETERS if path == "/me"]},
    )


def _parameter(name: str) -> dict[str, object]:
    schema: dict[str, object] = {"type": "string"} | ({"enum": ["zh", "en"]} if name == "lang" else {})
    return {"name": name, "in": "query", "required": False, "schema": schema}


def _form_route(path: str, summary: str, name: str) -> Callable[[_Handler], _Handler]:
    form = {"application/x-www-form-urlencoded": {"schema": {"type": "object"}}}
    return router.post(
        path,
        operation_id=name,
        summary=summary,
        status_code=303,
        response_class=RedirectResponse,
        responses=_DONE,
        openapi_extra={"requestBody": {"content": form}},
    )


@_page_route("/me", "What is remembered about the person whose link this is", "show_me")
async def show(request: Request) -> Response:
    """`token`: of a personal link, which leaves the address bar at once. `lang`: zh or en."""
    asked = _query_of(request)
    if "token" in asked:
        return await _open(request, asked)

    async def step(services: Services, visit: Visit, view: View, done: Done | None, texts: Texts) -> Response:
        settings = services.settings
        policy = services.policies.of(visit.tenant)
        listed = await review.list_page(
            request_of(view, visit.bank, settings.zone),
            visit.bank,
            review=services.review,
            log=services.turns,
            redaction=policy.redaction,
        )
        shown = Shown(
            view=view,
            memories=listed.memories,
            pending=listed.pending,
            pending_count=listed.pending_count,
            next_cursor=listed.next_cursor,
            kinds=services.me.kinds_of(visit),
            retention_days=policy.retention_days,
            zone=settings.zone,
            expires_s=visit.expires_s,
            form_key=visit.form_key,
            done=done,
        )
        reply = _html(page(texts, shown))
        # What was done is told once.
        _keep(reply, request, services, _VIEW, services.me.seal(visit, view), visit)
        return reply

    return await _on_visit(request, step)


@_page_route("/me/download", "The same as JSON lines", "download_me")
async def download(request: Request) -> Response:
    """An export, as a file; its last line has the type `end`."""

    async def step(services: Services, visit: Visit, view: View, done: Done | None, texts: Texts) -> Response:
        del view, done, texts
        lines = carry.export(visit.bank, review=services.review, log=services.turns)
        # What goes wrong after this can only be told by breaking off: the line `end` is missing then.
        first = await anext(lines)

        async def all_lines() -> AsyncIterator[bytes]:
            yield first
            async for some in lines:
                yield some

        day = datetime.now(services.settings.zone).date().isoformat()
        return StreamingResponse(
            all_lines(),
            media_type="application/x-ndjson",
            headers={"Content-Disposition": f'attachment; filename="memories-{day}.jsonl"'},
        )

    return await _on_visit(request, step, up="../")


@_page_route("/me/forget-all", "The warning before everything is deleted", "ask_to_forget_me")
async def ask_to_forget_all(request: Request) -> Response:
    """It has the form that does it."""

    async def step(services: Services, visit: Visit, view: View, done: Done | None, texts: Texts) -> Response:
        del services, view, done
        return _html(forget_all_page(texts, visit.form_key))

    return await _on_visit(request, step, up="../")


@_form_route("/me/view", "Choose what of it is shown", "view_me")
async def view_(request: Request) -> Response:
    """In the body, so that what somebody looks for is in no URL."""

    async def step(services: Services, visit: Visit, form: Mapping[str, object], view: View) -> Response:
        return _back(request, services, visit, services.me.view_in(visit, form, view), to="../me#results")

    return await _on_form(request, step)


@_form_route("/me/correct", "Give a memory another text", "correct_me")
async def correct(request: Request) -> Response:
    """As `/memory/correct` does."""

    async def step(services: Services, visit: Visit, form: Mapping[str, object], view: View) -> Response:
        await review.correct(
            CorrectRequest.read({"user_id": visit.bank, **_chosen(form, "memory_id", "text")}),
            visit.bank,
            review=services.review,
            eraser=HindsightEraser(services.hindsight),
            log=services.turns,
            cache=services.cache,
            redaction=services.policies.of(visit.tenant).redaction,
        )
        return _back(request, services, visit, view, Done("corrected"))

    return await _on_form(request, step)


@_form_route("/me/forget", "Delete one memory", "forget_one_of_me")
async def forget_one(request: Request) -> Response:
    """As `/memory/forget` does with a `memory_id`."""

    async def step(services: Services, visit: Visit, form: Mapping[str, object], view: View) -> Response:
        ask = ForgetRequest.read({"user_id": visit.bank, **_chosen(form, "memory_id")})
        receipt = await services.forgetter.forget(ask, visit.bank)
        done = done_with("one", receipt, logs.request_id.get(), datetime.now(UTC))
        return _back(request, services, visit, view, done)

    return await _on_form(request, step)


@_form_route("/me/forget-all", "Delete everything", "forget_me")
async def forget_all(request: Request) -> Response:
    """As `/memory/forget` does with `all`, but only if the person is sure."""

    async def step(services: Services, visit: Visit, form: Mapping[str, object], view: View) -> Response:
        if form.get("sure") != "yes":
            texts = texts_in(_language(request, view))
            return _html(forget_all_page(texts, visit.form_key, is_unsure=True), 422)
        ask = ForgetRequest.read({"user_id": visit.bank, "all": "true"})
        receipt = await services.forgetter.forget(ask, visit.bank)
        done = done_with("all", receipt, logs.request_id.get(), datetime.now(UTC))
        return _back(request, services, visit, View(view.language), done)

    return await _on_form(request, step)


@_form_route("/me/end", "End this link and all visits", "end_my_links")
async def end(request: Request) -> Response:
    """Every link of this person, on every device."""

    async def step(services: Services, visit: Visit, form: Mapping[str, object], view: View) -> Response:
        del form
        await services.me.end(visit.bank)
        reply = _back(request, services, visit, view)
        for name in (_VISIT, _VIEW):
            _keep(reply, request, services, name, "", visit)
        return reply

    return await _on_form(request, step)


async def _open(request: Request, asked: Mapping[str, str]) -> Response:
    services = services_of(request)
    language = _language(request, View())
    try:
        proof, visit = await services.me.open(asked["token"])
    except ServiceError as exc:
        return _dressed(_problem(exc, texts_in(language), ""))
    logs.bank_id.set(visit.bank)
    reply = _html(opening_page(texts_in(language)))
    _keep(reply, request, services, _VISIT, proof, visit)
    chosen = language if "lang" in asked else ""
    _keep(reply, request, services, _VIEW, services.me.seal(visit, View(chosen)), visit)
    services.me.note(visit, _route_of(request), reply.status_code)
    return _dressed(reply)


async def _on_visit(request: Request, step: _Step, *, up: str = "") -> Response:
    """The answer of a step to somebody who came by a good link; to anybody else a page that says so."""
    services = services_of(request)
    visit: Visit | None = None
    view = View()
    try:
        visit = await services.me.visit(_cookie(request, services, _VISIT))
        logs.bank_id.set(visit.bank)
        view, done = services.me.unseal(visit, _cookie(request, services, _VIEW))
        view = replace(view, language=_query_of(request).get("lang", view.language))
        reply = await step(services, visit, view, done, texts_in(_language(request, view)))
    except ServiceError as exc:
        reply = _problem(exc, texts_in(_language(request, view)), up)
    if visit is not None:
        services.me.note(visit, _route_of(request), reply.status_code)
    return _dressed(reply)


async def _on_form(request: Request, step: _FormStep) -> Response:
    """The same for a form, which has to be one of this visit's pages."""

    async def with_form(
        services: Services, visit: Visit, view: View, done: Done | None, texts: Texts
    ) -> Response:
        del done, texts
        form = await read_payload(request.scope, request.receive, services.settings.max_body_bytes)
        sent = form.get("form_key")
        if not isinstance(sent, str) or not hmac.compare_digest(
            sent.encode("utf-8", "surrogatepass"), visit.form_key.encode()
        ):
            raise FormRefused("This form was not made for this visit; open the page again.")
        return await step(services, visit, form, view)

    return await _on_visit(request, with_form, up="../")


def _chosen(form: Mapping[str, object], *names: str) -> dict[str, object]:
    """These fields; a form's line breaks are those of the text that it was shown."""
    values = {name: form.get(name, "") for name in names}
    return {
        name: value.replace("\r\n", "\n") if isinstance(value, str) else value
        for name, value in values.items()
    }


def _query_of(request: Request) -> dict[str, str]:
    """Token and language of the query string, if they are there once; whatever else there is is ignored."""
    raw = request.scope["query_string"][:_MAX_QUERY_BYTES].decode("utf-8", "replace")
    pairs = [(name, value) for name, value in parse_qsl(raw, keep_blank_values=True) if name in _PARAMETERS]
    found = dict(pairs)
    if found.get("lang", "zh") not in ("zh", "en") or len(found) != len(pairs):
        found.pop("lang", None)
    if [name for name, _ in pairs].count("token") > 1:
        found["token"] = ""  # which of two is meant must not be guessed: neither
    return found


def _language(request: Request, view: View) -> Language:
    chosen = _query_of(request).get("lang") or view.language
    if chosen in ("zh", "en"):
        return "zh" if chosen == "zh" else "en"
    return language_for(request.headers.get("accept-language", ""))


def _html(content: Html, status: int = 200) -> Response:
    return HTMLResponse(content.encode("utf-8", "replace"), status)


def _problem(error: ServiceError, texts: Texts, up: str) -> Response:
    reply = _html(problem_page(texts, error.code, up=up), error.status)
    if error.retry_after_s is not None:
        reply.headers["Retry-After"] = str(error.retry_after_s)
    if isinstance(error, LinkRefused):
        reply.headers["WWW-Authenticate"] = "PersonalLink"  # a 401 must name a way in
    return reply


def _back(
    request: Request,
    services: Services,
    visit: Visit,
    view: View,
    done: Done | None = None,
    *,
    to: str = "../me",
) -> Response:
    reply = RedirectResponse(to, 303)
    _keep(reply, request, services, _VIEW, services.me.seal(visit, view, done), visit)
    return reply


def _dressed(reply: Response) -> Response:
    reply.headers.update(HEADERS)
    return reply


def _is_https(request: Request, services: Services) -> bool:
    return request.url.scheme == "https" or services.me.url.startswith("https://")


def _cookie_name(request: Request, services: Services, name: str) -> str:
    # With this prefix browsers take it over https alone, whoever sets it.
    return f"__Secure-{name}" if _is_https(request, services) else name


def _cookie(request: Request, services: Services, name: str) -> str:
    return request.cookies.get(_cookie_name(request, services, name), "")


def _keep(reply: Response, request: Request, services: Services, name: str, value: str, visit: Visit) -> None:
    """Let the browser keep something for `/me` alone until the visit ends; an empty text: drop it."""
    reply.set_cookie(
        _cookie_name(request, services, name),
        value,
        max_age=max(0, visit.expires_s - int(time())) if value else 0,
        path=urlsplit(services.me.url).path,
        secure=_is_https(request, services),
        httponly=True,
        samesite="strict",
    )


def _route_of(request: Request) -> str:
    return str(getattr(request.scope.get("route"), "path", ""))
