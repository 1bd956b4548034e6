"""The page `/me` in a browser: opened by a link, read, searched, corrected, deleted, taken away, closed."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect
from service.scope import bank_of, conversation_of

from tests.browser.conftest import Watched, open_page, reach
from tests.fakes.hindsight import HindsightStandIn
from tests.integration.conftest import Api, Workshop
from tests.integration.me_world import make_link

pytestmark = pytest.mark.anyio

ANNE = bank_of("default", "anne")
_NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
WORDS = {
    "en": {
        "title": "What is remembered about you",
        "query": "Words",
        "show": "Show",
        "kind": "Kind",
        "likes": "Likes and wishes",
        "all": "Show everything",
        "waiting": "Not processed yet (1)",
        "correct": "Correct",
        "new": "What it should say",
        "save": "Save",
        "saved": "Your correction is saved.",
        "delete": "Delete",
        "for_good": "Delete for good",
        "deleted": "It is deleted.",
        "receipt": "Receipt",
        "download": "Download everything",
        "delete_all": "Delete everything …",
        "warning": "This cannot be undone.",
        "sure": "I understand that everything is deleted for good.",
        "all_now": "Delete everything for good",
        "all_done": "Everything is deleted.",
        "nothing": "Nothing is remembered about you.",
        "end": "Close this page on every device",
        "end_now": "Close now",
    },
    "zh": {
        "title": "关于您的记忆",
        "query": "关键词",
        "show": "查找",
        "kind": "类别",
        "likes": "喜好与要求",
        "all": "显示全部",
        "waiting": "尚未处理（1）",
        "correct": "更正",
        "new": "应改为",
        "save": "保存",
        "saved": "更正已保存。",
        "delete": "删除",
        "for_good": "永久删除",
        "deleted": "已删除。",
        "receipt": "回执",
        "download": "下载全部",
        "delete_all": "删除全部……",
        "warning": "此操作无法撤销。",
        "sure": "我明白全部内容将被永久删除。",
        "all_now": "永久删除全部",
        "all_done": "全部已删除。",
        "nothing": "没有关于您的记忆。",
        "end": "在所有设备上关闭此页面",
        "end_now": "立即关闭",
    },
}
BOTH = pytest.mark.parametrize("language", ["en", "zh"])


def put(stand_in: HindsightStandIn, text: str, hours: int, kind: str, **fields: object) -> None:
    moment = (_NOON + timedelta(hours=hours)).isoformat()
    tags = [f"memory_type:{kind}", conversation_of(ANNE, f"talk {hours // 24}")]
    stand_in.add_memory(ANNE, text, mentioned_at=moment, tags=tags, **fields)


def remember(stand_in: HindsightStandIn) -> None:
    """Five memories in two languages, one of them long."""
    put(stand_in, "Anne lives in Hangzhou with her two cats.", 0, "user_profile")
    put(stand_in, "她喜欢喝龙井茶，不喜欢太甜的东西。", 5, "preference", metadata={"importance": "0.8"})
    put(stand_in, "Anne wants short answers with the result first.", 26, "preference")
    put(stand_in, "Anne prepares a talk on bees for the 12th of May in Suzhou. " * 4, 30, "task_state")
    put(stand_in, "安妮对花生过敏。", 50, "user_profile", metadata={"importance": "0.95"})


async def open_link(watched: Watched, api: Api) -> None:
    """Open a link the way a person does, and wait until it has led on."""
    link = await make_link(api, "anne")
    await watched.page.goto(link)
    await watched.page.wait_for_url("**/me")
    assert "token" not in watched.page.url


@BOTH
async def test_a_person_walks_through_the_page(
    browser: Browser,
    api: Api,
    workshop: Workshop,
    stand_in: HindsightStandIn,
    folder: Path,
    language: str,
) -> None:
    words = WORDS[language]
    remember(stand_in)
    await api.add("anne", "下周三我去苏州。" if language == "zh" else "I go to Suzhou next Wednesday.")
    async with open_page(browser, api, language) as watched:
        page = watched.page
        await open_link(watched, api)
        await expect(page.get_by_role("heading", level=1)).to_have_text(words["title"])
        await expect(page.get_by_role("heading", name=words["waiting"])).to_be_visible()
        memories = page.locator("section[aria-labelledby=memories] li")
        await expect(memories).to_have_count(5)
        await watched.check(f"me-{language}-1-all")

        await page.get_by_label(words["query"], exact=True).fill("Anne")
        await page.get_by_label(words["kind"], exact=True).select_option(words["likes"])
        await page.get_by_role("button", name=words["show"], exact=True).click()
        await expect(memories).to_have_count(1)
        assert "Anne" not in page.url
        await watched.check(f"me-{language}-2-found")

        await memories.first.locator("summary", has_text=words["correct"]).click()
        await page.get_by_label(words["new"]).fill("Anne wants long answers.")
        await watched.shoot(f"me-{language}-3-correcting")
        await page.get_by_role("button", name=words["save"]).click()
        await expect(page.get_by_role("status")).to_contain_text(words["saved"])
        await expect(page.get_by_role("status")).to_be_focused()
        await expect(memories.first.locator(".words")).to_have_text("Anne wants long answers.")

        await page.get_by_role("button", name=words["all"]).click()
        await expect(memories).to_have_count(5)
        await memories.first.locator("summary", has_text=words["delete"]).click()
        await watched.shoot(f"me-{language}-4-about-to-delete")
        await memories.first.get_by_role("button", name=words["for_good"]).click()
        await expect(page.get_by_role("status")).to_contain_text(words["deleted"])
        await expect(page.get_by_role("heading", name=words["receipt"])).to_be_visible()
        await expect(memories).to_have_count(4)
        await watched.check(f"me-{language}-5-receipt")

        async with page.expect_download() as waiting:
            await page.get_by_role("link", name=words["download"]).click()
        download = await waiting.value
        await download.save_as(folder / "memories.jsonl")
        lines = (folder / "memories.jsonl").read_text("utf-8").splitlines()
        assert json.loads(lines[-1])["type"] == "end"
        assert len(lines) >= 5

        await page.get_by_role("link", name=words["delete_all"]).click()
        await expect(page.get_by_text(words["warning"])).to_be_visible()
        await watched.check(f"me-{language}-6-warning")
        await page.get_by_label(words["sure"]).check()
        await page.get_by_role("button", name=words["all_now"]).click()
        await expect(page.get_by_role("status")).to_contain_text(words["all_done"])
        await expect(page.get_by_text(words["nothing"])).to_be_visible()
        await expect(memories).to_have_count(0)
        await watched.check(f"me-{language}-7-all-deleted")

        await page.locator("summary", has_text=words["end"]).click()
        await page.get_by_role("button", name=words["end_now"]).click()
        await expect(page.get_by_role("alert")).to_be_visible()
        await watched.check(f"me-{language}-8-closed")


@BOTH
async def test_it_fits_a_phone_in_the_dark(
    browser: Browser, api: Api, stand_in: HindsightStandIn, language: str
) -> None:
    remember(stand_in)
    await api.add("anne", "I said this just now.")
    async with open_page(browser, api, language, is_phone=True, is_dark=True) as watched:
        await open_link(watched, api)
        await watched.shoot(f"me-{language}-9-phone-dark")
        await watched.page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
        await watched.check()


async def test_reading_and_deleting_work_without_scripts_and_by_keyboard(
    browser: Browser, api: Api, stand_in: HindsightStandIn
) -> None:
    remember(stand_in)
    async with open_page(browser, api, scripts=False) as watched:
        page = watched.page
        await open_link(watched, api)
        memories = page.locator("section[aria-labelledby=memories] li")
        await expect(memories).to_have_count(5)
        await page.keyboard.press("Tab")
        await expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
        await page.keyboard.press("Enter")
        await reach(page, memories.first.locator("summary", has_text="Delete"))
        await page.keyboard.press("Enter")
        await reach(page, memories.first.get_by_role("button", name="Delete for good"))
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("status")).to_contain_text("It is deleted.")
        await expect(memories).to_have_count(4)
        await reach(page, page.get_by_role("link", name="Delete everything …"))
        await page.keyboard.press("Enter")
        await reach(page, page.get_by_label("I understand that everything is deleted for good."))
        await page.keyboard.press("Space")
        await reach(page, page.get_by_role("button", name="Delete everything for good"))
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("status")).to_contain_text("Everything is deleted.")
        await expect(memories).to_have_count(0)


async def test_the_language_is_switched_by_hand_and_stays(
    browser: Browser, api: Api, stand_in: HindsightStandIn
) -> None:
    remember(stand_in)
    async with open_page(browser, api, "zh") as watched:
        page = watched.page
        await open_link(watched, api)
        await page.get_by_role("link", name="English").click()
        await expect(page.get_by_role("heading", level=1)).to_have_text("What is remembered about you")
        await page.get_by_role("link", name="Delete everything …").click()
        await expect(page.get_by_role("heading", level=1)).to_have_text("Delete everything?")
        await page.get_by_role("link", name="中文").click()
        await expect(page.get_by_role("heading", level=1)).to_have_text("关于您的记忆")


@pytest.mark.parametrize(
    "text", ["<script>document.title='x'</script>", "<img src=x onerror=document.title='x'>"]
)
async def test_what_was_said_never_becomes_part_of_the_page(
    browser: Browser, api: Api, stand_in: HindsightStandIn, text: str
) -> None:
    put(stand_in, text, 0, "preference")
    async with open_page(browser, api) as watched:
        await open_link(watched, api)
        await expect(watched.page.locator("p.words")).to_have_text(text)
        await expect(watched.page).to_have_title("What is remembered about you")
