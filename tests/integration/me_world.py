"""A browser without scripts on the page `/me`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import urljoin, urlsplit

import httpx

from tests.integration.conftest import Api
from tests.integration.edge import checked
from tests.pages import Page

SECRET = "a-secret-of-more-than-32-characters"


async def make_link(api: Api, user: str, ttl_s: int = 600) -> str:
    """The path and query of a link that an operator makes."""
    reply = await api.client.post("/admin/me-links", json={"user_id": user, "ttl_s": ttl_s})
    url = urlsplit(checked(reply, 201)["url"])
    assert url.path == "/me"
    return f"{url.path}?{url.query}"


@dataclass
class Browser:
    """Goes where forms and redirects lead; keeps cookies the way a browser does."""

    client: httpx.AsyncClient
    at: str = "/me"
    replies: list[httpx.Response] = field(default_factory=list)

    async def get(self, path: str = "/me", **headers: str) -> Page:
        """Go somewhere; every answer is proven to be locked down."""
        self.at = urljoin(self.at, path)
        return await self._see(await self.client.get(self.at, headers=headers))

    async def send(self, page: Page, action: str, button: str = "", **fields: str) -> Page:
        """Fill in a form of a page, and see where it leads."""
        form = page.form(action, button)
        assert form.method == "post"
        self.at = urljoin(self.at, form.action)
        return await self._see(await self.client.post(self.at, data=form.fields | fields))

    async def _see(self, reply: httpx.Response, place: str = "") -> Page:
        self.replies.append(reply)
        check_headers(reply)
        if reply.status_code == 303:
            self.at, _, place = urljoin(self.at, reply.headers["location"]).partition("#")
            assert self.at == "/me"
            return await self._see(await self.client.get(self.at), place)
        page = Page(reply.text)
        page.check(place)
        return page

    @property
    def status(self) -> int:
        """Of the last answer."""
        return self.replies[-1].status_code


def check_headers(reply: httpx.Response) -> None:
    """What every answer under `/me` has to carry."""
    check_locked_down(reply)
    for cookie in reply.headers.get_list("set-cookie"):
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert "Path=/me" in cookie


def check_locked_down(reply: httpx.Response, referrer: str = "no-referrer") -> None:
    """What every answer of a page has to carry."""
    policy = reply.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert reply.headers["x-frame-options"] == "DENY"
    assert reply.headers["referrer-policy"] == referrer
    assert reply.headers["cache-control"] == "no-store"
    assert reply.headers["x-content-type-options"] == "nosniff"


@asynccontextmanager
async def browser_of(api: Api, language: str = "en") -> AsyncIterator[Browser]:
    """A browser that has not been here yet."""
    headers = {"Accept-Language": language}
    async with httpx.AsyncClient(base_url=api.url, headers=headers, timeout=30) as client:
        yield Browser(client)


@asynccontextmanager
async def visit(api: Api, user: str, language: str = "en") -> AsyncIterator[Browser]:
    """A browser that has opened a link of that user's."""
    async with browser_of(api, language) as browser:
        await browser.get(await make_link(api, user))
        yield browser
