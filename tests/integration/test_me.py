"""The page `/me`, walked through like a person without scripts does."""

import base64
import hashlib
import json
import re
from datetime import UTC, datetime, timedelta

import pytest
from service.scope import bank_of, conversation_of
from service.settings import Settings

from tests.fakes.hindsight import HindsightStandIn
from tests.integration.conftest import Api, Workshop, run_api, settings_for
from tests.integration.me_world import SECRET, browser_of, make_link, visit
from tests.support import RedisServer

pytestmark = pytest.mark.anyio
_NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
ANNE = bank_of("default", "anne")


@pytest.fixture
async def settings(redis_server: RedisServer, stand_in: HindsightStandIn) -> Settings:
    await redis_server.command("FLUSHALL")
    return settings_for(redis_server.url, stand_in.url, token_keys=f"a:{SECRET}", retention_days=30)


def put(stand_in: HindsightStandIn, text: str, hours: int = 0, user: str = "anne", **fields: object) -> str:
    """A memory said that many hours after noon; its id."""
    moment = (_NOON + timedelta(hours=hours)).isoformat()
    return stand_in.add_memory(bank_of("default", user), text, mentioned_at=moment, **fields).id


async def test_the_link_opens_the_page_and_leaves_the_address_bar(api: Api) -> None:
    async with browser_of(api) as browser:
        link = await make_link(api, "anne")
        opening = await browser.get(link)
        # The page goes on by itself: what a strict cookie is set on is no redirect, which would lack it.
        (refresh,) = [one for one in opening.all("meta") if "http-equiv" in one.attributes]
        assert refresh.attributes["content"] == "0; url=me"
        assert browser.status == 200
        token = link.partition("=")[2]
        assert token not in browser.replies[-1].text
        assert all(token not in cookie for cookie in browser.replies[-1].headers.get_list("set-cookie"))
        page = await browser.get()
        assert page.all("h1")[0].text == "What is remembered about you"
        assert "Nothing is remembered about you." in page.text
        assert "deleted by itself after 30 days" in page.text
        assert token not in page.source


async def test_all_that_is_remembered_is_shown_by_date_with_kind_and_origin(
    api: Api, stand_in: HindsightStandIn, workshop: Workshop
) -> None:
    talk = conversation_of(ANNE, "talk")
    put(stand_in, "Anne keeps bees.", 0, tags=["memory_type:user_profile", "hobby", talk])
    put(stand_in, "Anne likes tea.", 5, metadata={"importance": "0.8"}, tags=["memory_type:preference"])
    source = put(stand_in, "Anne lives in Hangzhou.", 24)
    put(stand_in, "Anne lives in Shanghai.", 25, type="observation", source_fact_ids=[source])
    await api.add("anne", "I said this just now.")
    async with visit(api, "anne") as browser:
        page = await browser.get()
        assert page.words == [
            "User: I said this just now.",
            "Anne lives in Shanghai.",
            "Anne likes tea.",
            "Anne keeps bees.",
        ]
        assert [one.text for one in page.all("h3")] == ["2 March 2026", "1 March 2026"]
        assert [one.text for one in page.all("h2")][1] == "Not processed yet (1)"
        for said in (
            "Kind: About you",
            "Kind: Likes and wishes",
            f"From conversation {talk[2:8]} at 1 March 2026 12:00",
            "Labels: hobby",
            "Importance: 0.8 of 1",
            "Summed up from a statement of yours at 2 March 2026 13:00",
        ):
            assert said in page.text
        page = await browser.send(page, "me/view", "Show", superseded="yes")
        assert "Anne lives in Hangzhou." in page.words


async def test_it_is_searched_by_words_kind_and_day_without_any_of_it_in_a_url(
    api: Api, stand_in: HindsightStandIn
) -> None:
    put(stand_in, "安妮喜欢龙井茶。", 0, tags=["memory_type:preference"])
    put(stand_in, "Anne likes TEA.", 48, tags=["memory_type:preference"])
    put(stand_in, "Anne sells tea.", 49, tags=["memory_type:user_profile"])
    async with visit(api, "anne") as browser:
        page = await browser.get()
        page = await browser.send(page, "me/view", "Show", query="tea")
        assert page.words == ["Anne sells tea.", "Anne likes TEA."]
        assert page.form("me/view", "Show").fields["query"] == "tea"
        page = await browser.send(page, "me/view", "Show", kind="preference")
        assert page.words == ["Anne likes TEA."]
        page = await browser.send(page, "me/view", "Show", query="")
        assert page.words == ["Anne likes TEA.", "安妮喜欢龙井茶。"]
        page = await browser.send(page, "me/view", "Show", until="2026-03-02")
        assert page.words == ["安妮喜欢龙井茶。"]
        assert page.all("p", "words")[0].attributes["lang"] == "zh"
        # It is still what is looked at after a reload, and until something else is asked for.
        assert (await browser.get()).words == ["安妮喜欢龙井茶。"]
        page = await browser.send(page, "me/view", "Show", until="2026-03-01", query="coffee")
        assert "Nothing here matches" in page.text
        page = await browser.send(page, "me/view", "Show everything")
        assert len(page.words) == 3
        assert all(reply.request.url.path == "/me" for reply in browser.replies if reply.is_success)
        assert not any("tea" in str(reply.request.url) for reply in browser.replies)


async def test_older_memories_are_pages_away(api: Api, stand_in: HindsightStandIn) -> None:
    for number in range(45):
        put(stand_in, f"fact {number}", number)
    async with visit(api, "anne") as browser:
        page = await browser.get()
        seen = page.words
        for _ in range(2):
            page = await browser.send(page, "me/view", "Older memories")
            seen += page.words
        assert seen == [f"fact {number}" for number in reversed(range(45))]
        assert "Older memories" not in page.source
        page = await browser.send(page, "me/view", "Back to the newest")
        assert page.words[0] == "fact 44"


async def test_a_memory_is_corrected(api: Api, stand_in: HindsightStandIn) -> None:
    put(stand_in, "Anne lives in Hangzhou.")
    async with visit(api, "anne") as browser:
        page = await browser.get()
        assert page.form("me/correct").fields["text"] == "Anne lives in Hangzhou."
        page = await browser.send(page, "me/correct", text="Anne lives in Shanghai.\r\nSince May.")
        assert browser.replies[-2].status_code == 303
        assert page.words == ["Anne lives in Shanghai.\nSince May."]
        assert "Your correction is saved." in page.all("div", "done")[0].text
        assert page.all("div", "done")[0].attributes["role"] == "status"
        # Told once.
        assert not (await browser.get()).all("div", "done")
        page = await browser.send(page, "me/correct", text="   ")
        assert browser.status == 422
        assert page.all("div", "problem")[0].attributes["role"] == "alert"
    assert (
        (await api.recall("anne", "Where does Anne live?"))
        .json()["memories"][0]["text"]
        .startswith("Anne lives in Shanghai")
    )


async def test_one_memory_is_deleted_with_a_receipt(
    api: Api, stand_in: HindsightStandIn, workshop: Workshop
) -> None:
    await api.add("anne", "I keep bees.")
    await workshop.work()
    put(stand_in, "Anne likes tea.", 1)
    async with visit(api, "anne") as browser:
        page = await browser.get()
        assert page.words == ["User: I keep bees.", "Anne likes tea."]
        form = page.form("me/forget")
        after = await browser.send(page, "me/forget")
        assert after.words == ["Anne likes tea."]
        assert "It is deleted." in after.text
        terms = dict(
            zip([one.text for one in after.all("dt")], [one.text for one in after.all("dd")], strict=True)
        )
        assert terms["Memories deleted"] == terms["Stored statements deleted"] == "1"
        assert terms["Checked afterwards"] == "yes, nothing of it is left"
        assert terms["Number"] == browser.replies[-2].headers["x-request-id"]
        # The same form again, from another tab: gone is gone.
        again = await browser.send(page, "me/forget", **form.fields)
        assert "It was deleted already." in again.text
    assert not (await api.recall("anne", "bees")).json()["memories"][1:]


async def test_what_waits_can_be_deleted(api: Api, workshop: Workshop, stand_in: HindsightStandIn) -> None:
    await api.add("anne", "I keep bees.")
    async with visit(api, "anne") as browser:
        page = await browser.send(await browser.get(), "me/forget")
        assert page.words == []
        assert "Unprocessed statements deleted1" in page.text
        await workshop.work()
        assert (await browser.get()).words == []


async def test_everything_is_deleted_only_by_who_is_sure(
    api: Api, stand_in: HindsightStandIn, workshop: Workshop
) -> None:
    put(stand_in, "Anne keeps bees.")
    put(stand_in, "Bert keeps ducks.", user="bert")
    await api.add("anne", "I like tea.")
    async with visit(api, "anne") as browser:
        page = await browser.get()
        assert "me/forget-all" in [one.attributes["href"] for one in page.all("a")]
        warning = await browser.get("me/forget-all")
        assert "This cannot be undone." in warning.text
        assert warning.all("input")[-1].attributes.keys() >= {"required"}
        unsure = await browser.send(warning, "forget-all")
        assert browser.status == 422
        assert "Nothing was deleted" in unsure.text
        assert len((await browser.get("/me")).words) == 2
        await browser.get("/me/forget-all")
        page = await browser.send(warning, "forget-all", sure="yes")
        assert browser.replies[-2].status_code == 303
        assert "Everything is deleted." in page.text
        assert "Receipt" in page.text
        assert page.words == []
        await workshop.work()
        assert (await browser.get()).words == []
    assert stand_in.banks[bank_of("default", "bert")].texts == ["Bert keeps ducks."]


async def test_everything_can_be_taken_away(api: Api, stand_in: HindsightStandIn) -> None:
    put(stand_in, "安妮养蜜蜂")
    async with visit(api, "anne") as browser:
        reply = await browser.client.get("/me/download")
        assert re.fullmatch(
            r'attachment; filename="memories-\d{4}-\d\d-\d\d\.jsonl"', reply.headers["content-disposition"]
        )
        assert reply.headers["cache-control"] == "no-store"
        lines = [json.loads(line) for line in reply.text.splitlines()]
        assert [line["type"] for line in lines] == ["memory", "end"]
        assert lines[0]["text"] == "安妮养蜜蜂"
        assert reply.content == (await api.client.get("/memory/export", params={"user_id": "anne"})).content


async def test_the_language_is_the_browsers_until_another_is_chosen(
    api: Api, stand_in: HindsightStandIn
) -> None:
    put(stand_in, "Anne keeps bees.", tags=["memory_type:user_profile"])
    async with visit(api, "anne", "zh-CN,zh;q=0.9,en;q=0.8") as browser:
        page = await browser.get()
        assert page.elements[0].attributes["lang"] == "zh-CN"
        assert page.all("h1")[0].text == "关于您的记忆"
        assert "类别：个人情况" in page.text
        assert [one.text for one in page.all("h3")] == ["2026年3月1日"]
        page = await browser.get("me?lang=en")
        assert page.all("h1")[0].text == "What is remembered about you"
        # Chosen once, it stays.
        assert (await browser.get("/me/forget-all")).all("h1")[0].text == "Delete everything?"
        page = await browser.send(await browser.get("/me"), "me/view", "Show", query="bees")
        assert page.all("h1")[0].text == "What is remembered about you"
        assert (await browser.get("me?lang=xx")).elements[0].attributes["lang"] == "en"


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>",
        "</textarea></p></main><img src=x onerror=alert(1)>",
        '" onfocus="alert(1)" autofocus x="',
        "{form_key} {style} {0} {{#sys.user_id#}}",
        "&lt;b&gt; &amp;amp;",
        "'><style>*{display:none}</style>",
        "\u202eright to left\u202c",
    ],
)
async def test_no_text_becomes_markup(api: Api, stand_in: HindsightStandIn, text: str) -> None:
    put(stand_in, text, tags=["memory_type:preference", text])
    async with visit(api, "anne") as browser:
        page = await browser.get()
        assert page.words == [text]
        assert page.form("me/correct").fields["text"] == text
        assert f"Labels: {text}" in page.text
        page = await browser.send(page, "me/view", "Show", query=text)
        assert page.form("me/view", "Show").fields["query"] == text


async def test_the_one_style_is_the_one_allowed(api: Api) -> None:
    async with visit(api, "anne") as browser:
        page = await browser.get()
        (style,) = page.all("style")
        digest = base64.b64encode(hashlib.sha256(style.text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in browser.replies[-1].headers["content-security-policy"]
        assert "url(" not in style.text
        assert "@import" not in style.text


async def test_a_page_behind_a_proxy_with_a_path_of_its_own(
    redis_server: RedisServer, stand_in: HindsightStandIn
) -> None:
    settings = settings_for(
        redis_server.url, stand_in.url, token_keys=f"a:{SECRET}", me_url="https://example.com/memory/"
    )
    async with run_api(settings) as api:
        reply = await api.client.post("/admin/me-links", json={"user_id": "anne"})
        url = reply.json()["url"]
        assert url.startswith("https://example.com/memory/me?token=")
        opened = await api.stranger.get("/me?" + url.partition("?")[2])
        cookies = opened.headers.get_list("set-cookie")
        assert len(cookies) == 2
        for cookie in cookies:
            assert cookie.startswith("__Secure-memory-me")
            assert "Path=/memory/me;" in cookie
            assert "Secure" in cookie


async def test_when_hindsight_is_away_the_page_says_so(api: Api, stand_in: HindsightStandIn) -> None:
    put(stand_in, "Anne keeps bees.")
    async with visit(api, "anne") as browser:
        page = await browser.get()
        stand_in.fail("memories", "close")
        problem = await browser.get()
        assert browser.status == 503
        assert browser.replies[-1].headers["retry-after"]
        assert "cannot be reached now" in problem.text
        assert "Hindsight" not in problem.source
        stand_in.heal()
        assert (await browser.get()).words == page.words
