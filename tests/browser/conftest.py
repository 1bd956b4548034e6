"""Debian's Chromium on the pages of the API that ships: real Redis, a stand-in for Hindsight.

Every page is watched: it may log nothing, ask no other host for anything, break none of its own rules.
"""

import os
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.async_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Locator,
    Page,
    Request,
    async_playwright,
    expect,
)
from service.settings import Settings

from tests.fakes.hindsight import HindsightStandIn
from tests.integration.conftest import Api, api, run_api, settings_for, stand_in, workshop
from tests.integration.me_world import SECRET
from tests.support import RedisServer

__all__ = ["api", "run_api", "stand_in", "workshop"]

ARTEFACTS = Path(__file__).parent / "artefacts"
_PATIENCE_MS = 30_000  # on a busy machine; a page that is there is seen at once
_CANDIDATES = ("chromium", "chromium-browser", "google-chrome")
_AXE = (files("axe_playwright_python") / "axe.min.js").read_text("utf-8")
# An answer of ours that refuses something is logged by the browser as such.
_REFUSED = re.compile(r"Failed to load resource: the server responded with a status of 4\d\d")


def chromium() -> str:
    """The browser of this machine, never one that a test would have to download."""
    named = os.environ.get("CHROMIUM", "")
    found = next(filter(None, map(shutil.which, [named, *_CANDIDATES] if named else _CANDIDATES)), None)
    assert found, "No Chromium was found: apt-get install chromium (or name one in CHROMIUM)."
    return found


@dataclass
class Watched:
    """A page and what happened on it that should not have."""

    page: Page
    origin: str
    trouble: list[str] = field(default_factory=list)

    def on_console(self, message: ConsoleMessage) -> None:
        """A page of ours has no scripts: what is logged is a complaint of the browser's."""
        if not _REFUSED.match(message.text):
            self.trouble.append(f"console: {message.text}")

    def on_request(self, request: Request) -> None:
        """Nothing is asked of anybody else."""
        if not request.url.startswith((self.origin, "about:", "data:")):
            self.trouble.append(f"request: {urlsplit(request.url).netloc}")

    async def shoot(self, name: str) -> None:
        """Keep a picture of the whole page."""
        ARTEFACTS.mkdir(exist_ok=True)
        await self.page.screenshot(path=ARTEFACTS / f"{name}.png", full_page=True)

    async def check(self, name: str = "") -> None:
        """What axe finds serious or critical is a fault; so is a page wider than its window."""
        await self.page.evaluate(_AXE)
        found: dict[str, Any] = await self.page.evaluate("axe.run({resultTypes: ['violations']})")
        faults = [
            f"{one['id']} ({one['impact']}): {[node['target'] for node in one['nodes']][:5]}"
            for one in found["violations"]
            if one["impact"] in ("serious", "critical")
        ]
        assert not faults, faults
        width = await self.page.evaluate(
            "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
        )
        assert width[0] <= width[1], f"the page is {width[0]} wide in a window of {width[1]}"
        if name:
            await self.shoot(name)


@pytest.fixture(scope="session")
async def browser(anyio_backend: str) -> AsyncIterator[Browser]:
    """One browser for all tests; each has contexts of its own."""
    async with async_playwright() as playwright:
        expect.set_options(timeout=_PATIENCE_MS)
        # Chromium refuses its sandbox to root; it only ever sees our own pages here.
        running = await playwright.chromium.launch(
            executable_path=chromium(), args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield running
        await running.close()


@pytest.fixture
async def settings(redis_server: RedisServer, stand_in: HindsightStandIn) -> Settings:
    """With links and tokens; the server is emptied."""
    await redis_server.command("FLUSHALL")
    return settings_for(
        redis_server.url, stand_in.url, token_keys=f"a:{SECRET}", timezone="Asia/Shanghai", retention_days=90
    )


@asynccontextmanager
async def open_page(
    browser: Browser,
    api: Api,
    language: str = "en",
    *,
    scripts: bool = True,
    is_phone: bool = False,
    is_dark: bool = False,
) -> AsyncIterator[Watched]:
    """A page of a visitor of its own; at the end nothing may have gone wrong on it."""
    context: BrowserContext = await browser.new_context(
        base_url=api.url,
        locale="zh-CN" if language == "zh" else "en-GB",
        java_script_enabled=scripts,
        viewport={"width": 390, "height": 844} if is_phone else {"width": 1280, "height": 900},
        is_mobile=is_phone,
        has_touch=is_phone,
        color_scheme="dark" if is_dark else "light",
        accept_downloads=True,
    )
    context.set_default_timeout(_PATIENCE_MS)
    try:
        page = await context.new_page()
        watched = Watched(page, api.url)
        page.on("console", watched.on_console)
        page.on("pageerror", lambda error: watched.trouble.append(f"script: {error}"))
        context.on("request", watched.on_request)
        yield watched
        assert not watched.trouble, watched.trouble
    finally:
        await context.close()


async def reach(page: Page, target: Locator) -> None:
    """Press Tab until something has the focus, as somebody without a mouse does."""
    for _ in range(80):
        if await target.evaluate("one => one === document.activeElement"):
            return
        await page.keyboard.press("Tab")
    raise AssertionError("The Tab key does not lead there.")
