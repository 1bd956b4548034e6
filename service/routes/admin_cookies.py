"""What the browser keeps for the page `/admin`: the proof of a visit, and the language."""

from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from service.routes.services import services_of

VISIT, LANGUAGE = "memory-admin", "memory-admin-language"


def _is_https(request: Request) -> bool:
    if request.url.scheme == "https":
        return True
    # Behind a proxy that is not trusted to say so: the addresses of the settings do.
    settings = services_of(request).settings
    host = request.headers.get("host", "")
    return any(
        known.scheme == "https" and known.netloc == host
        for known in map(urlsplit, (settings.me_url or "", settings.public_url or ""))
    )


def _cookie_name(request: Request, name: str) -> str:
    # With this prefix browsers take it over https alone, whoever sets it.
    return f"__Secure-{name}" if _is_https(request) and name == VISIT else name


def kept(request: Request, name: str) -> str:
    """What was kept; an empty text: nothing."""
    return request.cookies.get(_cookie_name(request, name), "")


def keep(reply: Response, request: Request, name: str, value: str, max_age_s: int) -> None:
    """Let the browser keep something; an empty text: drop it.

    Without a path it goes to the folder of what has set it, `/admin` behind whatever path a proxy puts
    before it: only what lies in that folder may set the visit.
    """
    reply.set_cookie(
        _cookie_name(request, name),
        value,
        max_age=max_age_s,
        path=None,
        secure=_is_https(request),
        httponly=True,
        samesite="strict",
    )
