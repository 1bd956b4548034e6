"""Who is on the operators' page: the visit that a request belongs to, and that a form is one of its own.

The browser of who has signed in holds a signed proof that names the key's id; whether that key is still good
is asked at every request, so that a revoked one is out within seconds.
"""

import hmac
from collections.abc import Awaitable, Callable, Mapping
from urllib.parse import parse_qsl, urlsplit

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from service.adapters.admin_visits import AdminVisit, refused
from service.auth import Caller
from service.errors import FormRefused, KeyRefused, ScopeMissing, ServiceError, TooManyRequests
from service.policy.admin_page import problem_page, sign_in_page
from service.policy.admin_style import HEADERS
from service.policy.admin_texts import AdminTexts, texts_in
from service.policy.html import Html
from service.policy.me_texts import language_for
from service.routes.admin_cookies import LANGUAGE, VISIT, kept
from service.routes.payload import read_payload
from service.routes.services import Services, services_of

_MAX_QUERY_BYTES = 1024

Step = Callable[[Services, Caller, AdminVisit, AdminTexts], Awaitable[Response]]
FormStep = Callable[[Services, Caller, Mapping[str, object], AdminTexts], Awaitable[Response]]


async def on_visit(request: Request, step: Step, *, up: str) -> Response:
    """The answer of a step to an operator who has signed in; to anybody else the form to do so."""
    services = services_of(request)
    texts = texts_of(request)
    try:
        visit = services.operation.visits.read(kept(request, VISIT))
        caller = _caller_of(request, services, visit)
        if not await services.operation.is_open(visit):
            raise refused()
        reply = await step(services, caller, visit, texts)
    except KeyRefused:
        reply = asking(services, texts, up=up)
    except ServiceError as exc:
        reply = problem(exc, texts)
    return dressed(reply)


async def on_form(request: Request, step: FormStep) -> Response:
    """`on_visit` for a form, which has to be one of this visit's pages."""

    async def with_form(services: Services, caller: Caller, visit: AdminVisit, texts: AdminTexts) -> Response:
        return await step(services, caller, await form_of(request, services, visit), texts)

    return await on_visit(request, with_form, up="../")


async def form_of(request: Request, services: Services, visit: AdminVisit) -> dict[str, object]:
    """The fields of a form of this visit; raises `FormRefused` for any other."""
    check_site(request)
    form = await read_payload(request.scope, request.receive, services.settings.max_body_bytes)
    sent = form.get("form_key")
    if not isinstance(sent, str) or not hmac.compare_digest(
        sent.encode("utf-8", "surrogatepass"), visit.form_key.encode()
    ):
        raise FormRefused("This form was not made for this visit; open the page again.")
    return form


def check_site(request: Request) -> None:
    """Raise `FormRefused` for what a browser says is sent from another site.

    Over plain http browsers tell only the origin, and older ones nothing. The page's referrer policy makes
    them tell it for its own forms: `null` is another site's.
    """
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise FormRefused("This form comes from another site.")
    origin = request.headers.get("origin")
    settings = services_of(request).settings
    # A proxy may change the host; the addresses of the settings are what browsers see.
    known = {urlsplit(url).netloc for url in (settings.me_url, settings.public_url) if url}
    if origin is not None and urlsplit(origin).netloc not in (known | {request.headers.get("host", "")}) - {
        ""
    }:
        raise FormRefused("This form comes from another site.")


def caller_with(request: Request, services: Services, key: object) -> Caller:
    """Who has this key; raises `KeyRefused` alike for every one that does not open the page."""
    if not isinstance(key, str):
        raise refused()
    try:
        caller = services.keys.admit(request.scope, key)
        caller.require("admin")
    except (ScopeMissing, TooManyRequests) as exc:
        # What else a key may do, or that it is one at all, is nobody's business here.
        raise refused() from exc
    return caller


def _caller_of(request: Request, services: Services, visit: AdminVisit) -> Caller:
    caller = services.keys.resume(request.scope, visit.key_id)
    caller.require("admin")
    return caller


def query_of(request: Request) -> dict[str, str]:
    """The first of each parameter; whatever else there is is ignored."""
    raw = request.scope["query_string"][:_MAX_QUERY_BYTES].decode("utf-8", "replace")
    found: dict[str, str] = {}
    for name, value in parse_qsl(raw, keep_blank_values=True):
        found.setdefault(name, value)
    if found.get("lang") not in ("zh", "en"):
        found.pop("lang", None)
    return found


def texts_of(request: Request) -> AdminTexts:
    """In the language that was asked for, now or before, else in the browser's."""
    chosen = query_of(request).get("lang") or request.cookies.get(LANGUAGE, "")
    if chosen in ("zh", "en"):
        return texts_in("zh" if chosen == "zh" else "en")
    return texts_in(language_for(request.headers.get("accept-language", "")))


def html(content: Html, status: int = 200) -> Response:
    """A page as a response."""
    return HTMLResponse(content.encode("utf-8", "replace"), status)


def problem(error: ServiceError, texts: AdminTexts) -> Response:
    """A page that says what went wrong."""
    reply = html(problem_page(texts, error.code, up="../"), error.status)
    if error.retry_after_s is not None:
        reply.headers["Retry-After"] = str(error.retry_after_s)
    return reply


def asking(services: Services, texts: AdminTexts, *, up: str, is_wrong: bool = False) -> Response:
    """The form to sign in; `is_wrong`: with what was sent nobody gets in."""
    is_off = not services.operation.visits.can_sign
    reply = html(sign_in_page(texts, up=up, is_wrong=is_wrong, is_off=is_off), 401)
    reply.headers["WWW-Authenticate"] = "ApiKey"  # a 401 must name a way in
    return reply


def dressed(reply: Response) -> Response:
    """With the headers that every answer of the page has."""
    reply.headers.update(HEADERS)
    return reply
