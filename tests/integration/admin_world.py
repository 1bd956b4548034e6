"""A browser without scripts on the page `/admin`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.parse import urljoin

import httpx
from redis.asyncio import Redis
from service.adapters.usage import UsageStore
from service.memory.usage import last_days, last_hours
from service.scope import bank_of
from service.settings import Settings

from tests.fakes.hindsight import HindsightStandIn
from tests.integration.conftest import KEY, Api, Workshop
from tests.integration.me_world import check_locked_down
from tests.pages import Page
from tests.turns_log import add_turn, pass_time


@dataclass
class AdminBrowser:
    """Goes where forms and redirects lead; keeps cookies the way a browser does."""

    client: httpx.AsyncClient
    at: str = "/admin"
    replies: list[httpx.Response] = field(default_factory=list)

    async def get(self, path: str = "/admin") -> Page:
        """Go somewhere; every answer is proven to be locked down."""
        self.at = urljoin(self.at, path)
        return await self._see(await self.client.get(self.at))

    async def send(self, page: Page, action: str, button: str = "", **fields: str) -> Page:
        """Fill in a form of a page, and see where it leads."""
        form = page.form(action, button)
        assert form.method == "post"
        return await self.post(form.action, form.fields | fields)

    async def post(self, action: str, fields: dict[str, str], **headers: str) -> Page:
        """Send a form."""
        self.at = urljoin(self.at, action)
        return await self._see(await self.client.post(self.at, data=fields, headers=headers))

    async def _see(self, reply: httpx.Response, place: str = "") -> Page:
        self.replies.append(reply)
        # Its forms tell where they come from, and it links to nobody else.
        check_locked_down(reply, referrer="same-origin")
        for cookie in reply.headers.get_list("set-cookie"):
            assert "HttpOnly" in cookie
            assert "SameSite=strict" in cookie
        if reply.status_code == 303:
            self.at, _, place = urljoin(self.at, reply.headers["location"]).partition("#")
            return await self._see(await self.client.get(self.at), place)
        page = Page(reply.text)
        page.check(place)
        return page

    async def sign_in(self, key: str = KEY) -> Page:
        """Sign in with a key."""
        return await self.send(await self.get("/admin"), "admin/sign-in", key=key)

    @property
    def status(self) -> int:
        """Of the last answer."""
        return self.replies[-1].status_code


@asynccontextmanager
async def stranger_to(api: Api, language: str = "en") -> AsyncIterator[AdminBrowser]:
    """A browser that has not signed in."""
    headers = {"Accept-Language": language}
    async with httpx.AsyncClient(base_url=api.url, headers=headers, timeout=30) as client:
        yield AdminBrowser(client)


@asynccontextmanager
async def operator_of(api: Api, key: str = KEY, language: str = "en") -> AsyncIterator[AdminBrowser]:
    """A browser that has."""
    async with stranger_to(api, language) as browser:
        await browser.sign_in(key)
        assert browser.status == 200
        yield browser


async def kill_turns(
    settings: Settings, workshop: Workshop, stand_in: HindsightStandIn, *texts: str, user: str = "anne"
) -> None:
    """Turns that Hindsight refuses for good: they become dead letters."""
    for text in texts:
        await add_turn(workshop.log, bank_of("default", user), texts=(text,))
    stand_in.fail("retain", "status", status=422)
    async with Redis.from_url(settings.redis_url, decode_responses=True) as redis:
        for _ in range(len(texts) + 2):
            await pass_time(redis)
            await workshop.work()
    stand_in.heal()


async def make_usage(settings: Settings) -> None:
    """A day and a month of two tenants, the same at every run but for the hour it ends with."""
    now = datetime.now(UTC)
    async with UsageStore.from_settings(settings) as store:
        for number, moment in enumerate([*last_days(now, 30)[:-1], *last_hours(now, 24)]):
            busy = (20 + (number * 7) % 13 * 9) * (1 if number > 28 else 15)
            counts = {
                ("recall_hit", "default"): busy * 8,
                ("recall_miss", "default"): busy * 2,
                ("recall_degraded", "default"): number % 5,
                ("turn_queued", "default"): busy * 3,
                ("turn_stored", "default"): busy * 3 - number % 4,
                ("chat_tokens", "default"): busy * 2_500,
                ("llm_tokens", "default"): busy * 900,
                ("llm_micro_usd", "default"): busy * 1_350,
                ("recall_hit", "acme"): busy,
                ("recall_miss", "acme"): busy // 2,
                ("turn_queued", "acme"): busy,
                ("turn_stored", "acme"): busy,
                ("recall_le_0", ""): busy * 6,
                ("recall_le_2", ""): busy * 2,
                ("recall_le_6", ""): busy,
                ("recall_le_7", ""): busy // 2,
                ("recall_le_8", ""): number % 3,
            }
            await store.add({moment: counts})
