"""The page `/admin` in a browser: signed in, read, acted on, signed out; in both languages."""

import pytest
from playwright.async_api import Browser, expect
from service.settings import Settings

from tests.browser.conftest import Watched, open_page, reach
from tests.fakes.hindsight import HindsightStandIn
from tests.integration.admin_world import kill_turns, make_usage
from tests.integration.conftest import KEY, Api, Workshop
from tests.integration.edge import checked
from tests.support import RedisServer

pytestmark = pytest.mark.anyio

WORDS = {
    "en": {
        "title": "Memory service",
        "key": "API key",
        "sign_in": "Sign in",
        "wrong": "This is no key that opens this page.",
        "panels": ["Now", "Usage", "Tenants", "Dead letters", "Health", "API keys", "Policy in force"],
        "replay": "Replay",
        "drop": "Drop",
        "drop_now": "Drop for good",
        "replayed": "Dead letters put back: 1.",
        "dropped": "Dead letters dropped: 1.",
        "show": "Show what was said",
        "revoke": "Revoke",
        "revoke_now": "Revoke for good",
        "revoked": "The key is revoked.",
        "none": "There are none",
        "rotate": "Rotate",
        "rotate_now": "Make the new key",
        "back": "Back to the overview",
        "sign_out": "Sign out",
    },
    "zh": {
        "title": "记忆服务",
        "key": "API 密钥",
        "sign_in": "登录",
        "wrong": "这不是可以打开此页面的密钥。",
        "panels": ["当前状况", "用量", "租户", "死信", "健康状况", "API 密钥", "当前策略"],
        "replay": "重新投递",
        "drop": "丢弃",
        "drop_now": "永久丢弃",
        "replayed": "已重新投递 1 条死信。",
        "dropped": "已丢弃 1 条死信。",
        "show": "显示内容",
        "revoke": "吊销",
        "revoke_now": "永久吊销",
        "revoked": "密钥已吊销。",
        "none": "没有死信",
        "rotate": "轮换",
        "rotate_now": "创建新密钥",
        "back": "返回概览",
        "sign_out": "退出登录",
    },
}
BOTH = pytest.mark.parametrize("language", ["en", "zh"])


async def sign_in(watched: Watched, language: str, key: str = KEY) -> None:
    words = WORDS[language]
    await watched.page.goto("/admin")
    await watched.page.get_by_label(str(words["key"])).fill(key)
    await watched.page.get_by_role("button", name=str(words["sign_in"])).click()


async def make_keys(api: Api) -> None:
    for name, scopes in (("Dify, sales bot", "recall,add"), ("Review team", "review,forget")):
        fields = {"name": name, "scopes": scopes, "expires_in_s": 86_400 * 30}
        checked(await api.client.post("/admin/keys", json=fields), 201)


@BOTH
async def test_an_operator_walks_through_the_page(
    browser: Browser,
    api: Api,
    settings: Settings,
    workshop: Workshop,
    stand_in: HindsightStandIn,
    language: str,
) -> None:
    words = WORDS[language]
    await make_usage(settings)
    await make_keys(api)
    await kill_turns(settings, workshop, stand_in, "my locker code is quokka", "my cat is called Miez")
    async with open_page(browser, api, language) as watched:
        page = watched.page
        await page.goto("/admin")
        await watched.check(f"admin-{language}-1-sign-in")
        await sign_in(watched, language, "not-the-key-0123456789")
        await expect(page.get_by_role("alert")).to_have_text(str(words["wrong"]))
        await watched.check(f"admin-{language}-2-wrong-key")
        await sign_in(watched, language)
        await expect(page.get_by_role("heading", level=1)).to_have_text(str(words["title"]))
        assert await page.get_by_role("heading", level=2).all_text_contents() == words["panels"]
        await expect(page.get_by_role("figure")).to_have_count(4)
        await expect(page.locator("svg")).to_have_count(4)
        await expect(page.locator("#letters ~ ul > li")).to_have_count(2)
        await expect(page.get_by_text("quokka")).to_have_count(0)
        await watched.check(f"admin-{language}-3-overview")
        await page.get_by_role("link", name=str(words["show"])).click()
        await expect(page.get_by_text("quokka")).to_have_count(1)
        await page.goto("/admin")

        letter = page.locator("#letters ~ ul > li").first
        await letter.locator("summary", has_text=str(words["replay"])).click()
        await letter.get_by_role("button", name=str(words["replay"])).click()
        await expect(page.get_by_role("status")).to_have_text(str(words["replayed"]))
        letter = page.locator("#letters ~ ul > li").first
        await letter.locator("summary", has_text=str(words["drop"])).click()
        await watched.check(f"admin-{language}-4-about-to-drop")
        await letter.get_by_role("button", name=str(words["drop_now"])).click()
        await expect(page.get_by_role("status")).to_have_text(str(words["dropped"]))
        await expect(page.get_by_text(str(words["none"]))).to_be_visible()

        row = page.get_by_role("row").filter(has_text="Review team")
        await row.locator("summary", has_text=str(words["revoke"])).click()
        await row.get_by_role("button", name=str(words["revoke_now"])).click()
        await expect(page.get_by_role("status")).to_have_text(str(words["revoked"]))
        await watched.check(f"admin-{language}-5-key-revoked")

        row = page.get_by_role("row").filter(has_text="Dify, sales bot")
        await row.locator("summary", has_text=str(words["rotate"])).click()
        await row.get_by_role("button", name=str(words["rotate_now"])).click()
        shown = page.locator("code")
        await expect(shown).to_have_count(1)
        key = await shown.text_content()
        assert key
        said = {"user_id": "u", "query": "hello"}
        checked(await api.stranger.post("/memory/recall", data=said, headers={"X-API-Key": key}), 200)
        # It is checked as it is, and its picture is kept without the key.
        await watched.check()
        await shown.evaluate("one => one.textContent = 'dm_…'")
        await watched.shoot(f"admin-{language}-7-new-key")
        await page.get_by_role("link", name=str(words["back"])).click()
        # The old one is good for one more day.
        await expect(page.get_by_role("row").filter(has_text="Dify, sales bot")).to_have_count(2)
        assert key not in await page.content()

        await page.get_by_role("button", name=str(words["sign_out"])).click()
        await expect(page.get_by_label(str(words["key"]))).to_be_visible()
        await page.goto("/admin")
        await expect(page.get_by_label(str(words["key"]))).to_be_visible()


@BOTH
async def test_it_fits_a_phone_in_the_dark(
    browser: Browser,
    api: Api,
    settings: Settings,
    workshop: Workshop,
    stand_in: HindsightStandIn,
    language: str,
) -> None:
    await make_usage(settings)
    await make_keys(api)
    await kill_turns(settings, workshop, stand_in, "my locker code is quokka")
    async with open_page(browser, api, language, is_phone=True, is_dark=True) as watched:
        await sign_in(watched, language)
        await expect(watched.page.locator("svg")).to_have_count(4)
        # What is folded is looked at, too.
        await watched.page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
        await watched.check(f"admin-{language}-6-phone-dark")


async def test_all_of_it_works_without_scripts_and_by_keyboard(
    browser: Browser, api: Api, settings: Settings, workshop: Workshop, stand_in: HindsightStandIn
) -> None:
    await kill_turns(settings, workshop, stand_in, "my locker code is quokka")
    async with open_page(browser, api, scripts=False) as watched:
        page = watched.page
        await page.goto("/admin")
        await page.get_by_label("API key").focus()
        await page.keyboard.type(KEY)
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("button", name="Sign out")).to_be_visible()
        await page.wait_for_load_state()
        await page.keyboard.press("Tab")
        await expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
        summary = page.locator("summary", has_text="Make a key")
        await reach(page, summary)
        await page.keyboard.press("Enter")
        await page.keyboard.press("Tab")
        await page.keyboard.type("A bot")
        button = page.get_by_role("button", name="Make the key")
        await reach(page, button)
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", level=1)).to_have_text("The new key")
        key = await page.locator("code").text_content()
        assert key
        reply = await api.stranger.post(
            "/memory/recall", data={"user_id": "u", "query": "hello"}, headers={"X-API-Key": key}
        )
        checked(reply, 200)
        await page.get_by_role("link", name="Back to the overview").click()
        await expect(page.get_by_role("row").filter(has_text="A bot")).to_be_visible()
        assert key not in await page.content()


async def test_the_language_is_switched_by_hand_and_stays(browser: Browser, api: Api) -> None:
    async with open_page(browser, api, "zh") as watched:
        page = watched.page
        await sign_in(watched, "zh")
        await page.get_by_role("link", name="English").click()
        await expect(page.get_by_role("heading", level=1)).to_have_text("Memory service")
        await page.get_by_role("link", name="Refresh").click()
        await expect(page.get_by_role("heading", level=1)).to_have_text("Memory service")
        await page.get_by_role("button", name="Sign out").click()
        await expect(page.get_by_role("button", name="Sign in")).to_be_visible()


async def test_while_redis_is_away_the_page_says_so(
    browser: Browser, api: Api, redis_server: RedisServer
) -> None:
    async with open_page(browser, api) as watched:
        await sign_in(watched, "en")
        await redis_server.stop()
        try:
            await watched.page.reload()
            await expect(watched.page.get_by_text("Something essential does not work")).to_be_visible()
            await watched.check("admin-en-8-redis-away")
        finally:
            await redis_server.start()
