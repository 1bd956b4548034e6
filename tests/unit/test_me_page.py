"""The page `/me` as text: both languages whole, nothing escapes the escaping, colours that can be read."""

import re
from dataclasses import fields
from datetime import UTC
from string import Formatter
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from service.policy.html import NOTHING, Html, fill, join
from service.policy.kinds import DEFAULT_KINDS, Kind
from service.policy.me_page import forget_all_page, opening_page, page, problem_page
from service.policy.me_style import HEADERS, STYLE
from service.policy.me_texts import EN, ZH, Texts, language_for, texts_in
from service.policy.me_view import Done, Shown, View, day_of, kind_name, moment_of
from service.schemas_review import ListedMemory, PendingMemory

from tests.pages import Page

BOTH = pytest.mark.parametrize("texts", [EN, ZH], ids=lambda texts: texts.lang)


def memory(text: str, **changes: Any) -> ListedMemory:
    fields: dict[str, Any] = {
        "id": "0" * 8, "text": text, "kind": None, "score": None, "importance": None,
        "created_at": "2026-03-01T12:00:00+00:00", "pending": False, "type": "fact", "tags": [],
        "conversation": "", "source_ids": [],
    }  # fmt: skip
    return ListedMemory(**fields | changes)


def shown(**changes: Any) -> Shown:
    fields: dict[str, Any] = {
        "view": View(), "memories": [], "pending": [], "pending_count": 0, "next_cursor": "",
        "kinds": DEFAULT_KINDS, "retention_days": 90, "zone": UTC,
        "expires_s": 1_800_000_000, "form_key": "k",
    }  # fmt: skip
    return Shown(**fields | changes)


def placeholders(text: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(text) if name}


@pytest.mark.parametrize("name", [field.name for field in fields(Texts)])
def test_both_languages_say_the_same_things(name: str) -> None:
    english, chinese = getattr(EN, name), getattr(ZH, name)
    if isinstance(english, str):
        assert english
        assert chinese
        assert placeholders(english) == placeholders(chinese)
    elif isinstance(english, tuple):
        assert len(english) == len(chinese) > 0
    else:
        assert english.keys() == chinese.keys()
    said = [english] if isinstance(english, str) else [*getattr(english, "values", english.__iter__)()]
    assert not any(re.search(r"[\u3400-\u9fff]", text) for text in said)
    meant = [chinese] if isinstance(chinese, str) else [*getattr(chinese, "values", chinese.__iter__)()]
    if name not in ("lang", "importance"):
        assert all(re.search(r"[\u3400-\u9fff]", text) for text in meant), name


@BOTH
def test_a_full_page_is_well_made(texts: Texts) -> None:
    full = shown(
        view=View(query="x", kind="preference", until="2026-03-01", has_superseded=True, cursor="c"),
        memories=[
            memory("one", kind="preference", importance=0.5, tags=["a", "b"], conversation="c-" + "0" * 48),
            memory("two", type="observation", source_ids=["1", "2"]),
            memory("three", created_at="2026-02-01T12:00:00+00:00"),
        ],
        pending=[PendingMemory(id="t-1", text="waits", created_at="2026-03-02T00:00:00Z")],
        pending_count=7,
        next_cursor="next",
        kinds=(*DEFAULT_KINDS, Kind("pets", "Animals", "动物", retention_days=10)),
        done=Done("all", "2026-03-02T00:00:00+00:00", "n", 1, 2, 3, 4, 5, is_verified=False),
    )
    made = Page(page(texts, full))
    made.check()
    assert made.words == ["waits", "one", "two", "three"]
    assert texts.waiting_more.format(shown=1) in made.text
    assert texts.not_verified in made.text
    assert kind_name(texts, full.kinds, "pets") == ("Animals" if texts is EN else "动物")
    assert texts.kind_kept_for.format(kind=kind_name(texts, full.kinds, "pets"), days=10) in made.text
    assert {form.button for form in made.forms} >= {texts.show, texts.show_all, texts.older, texts.newest}
    # Each button and each summary says what it is about.
    for one in [*made.all("summary"), *made.all("button", "danger")]:
        assert "aria-describedby" in one.attributes or one.text == texts.end


@BOTH
def test_the_small_pages_are_well_made(texts: Texts) -> None:
    for made in (
        page(texts, shown()),
        page(texts, shown(done=Done("corrected"))),
        forget_all_page(texts, "k"),
        forget_all_page(texts, "k", is_unsure=True),
        opening_page(texts),
        *(problem_page(texts, code, up="../") for code in (*texts.problems, "internal_error")),
    ):
        Page(made).check()


@pytest.mark.parametrize(
    "moment", ["", "soon", "0001-01-01T00:00:00+00:00", "9999-12-31T23:59:59-12:00", "2026-01-02"]
)
def test_any_moment_can_be_shown(moment: str) -> None:
    for zone in (UTC, ZoneInfo("Asia/Shanghai"), ZoneInfo("America/New_York")):
        made = Page(page(EN, shown(memories=[memory("x", created_at=moment)], zone=zone)))
        made.check()
    assert day_of(EN, "2026-01-02T20:00:00Z", ZoneInfo("Asia/Shanghai")) == "3 January 2026"
    assert moment_of(ZH, "2026-01-02T20:05:00Z", UTC) == "2026年1月2日 20:05"
    assert moment_of(EN, None, UTC) == ""


def test_half_a_character_does_not_break_the_page() -> None:
    made = page(EN, shown(memories=[memory("half \ud83d a character")]))
    assert Page(made.encode("utf-8", "replace").decode()).words == ["half ? a character"]


def test_what_is_filled_in_is_escaped_unless_it_is_html() -> None:
    assert fill("<p>{text}</p>", text="<b>&\"'{x}") == "<p>&lt;b&gt;&amp;&quot;&#x27;{x}</p>"
    assert fill("<p>{text}</p>", text=fill("<b>{x}</b>", x="<")) == "<p><b>&lt;</b></p>"
    assert join([Html("<i>"), fill("{x}", x=1), NOTHING]) == "<i>\n1\n"
    with pytest.raises(KeyError):
        fill("{missing}")
    # Joined with a plain text it is a plain text again.
    assert fill("{x}", x=Html("<b>") + "<script>") == "&lt;b&gt;&lt;script&gt;"


@pytest.mark.parametrize(
    ("wish", "language"),
    [
        ("", "en"),
        ("zh-CN,zh;q=0.9,en;q=0.8", "zh"),
        ("en-US,en;q=0.9,zh;q=0.8", "en"),
        ("zh", "zh"),
        ("ZH-tw", "zh"),
        ("zh-Hant-HK;q=0.7", "zh"),
        ("fr, zh;q=0.2", "zh"),
        ("de", "en"),
        ("*", "en"),
        ("zh;q=0", "en"),
        ("en;q=0.1, zh; q = 0.2", "zh"),
        ("zh;q=nonsense", "en"),
        ("zh" * 5000, "en"),
        (",;,q=", "en"),
    ],
)
def test_the_browser_says_which_language(wish: str, language: str) -> None:
    assert language_for(wish) == language
    assert texts_in("zh") is ZH
    assert texts_in("en") is EN


def _luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize(
    ("front", "back", "least"),
    [
        ("text", "back", 4.5), ("faint", "back", 4.5), ("link", "back", 4.5), ("danger", "back", 4.5),
        ("on-button", "button", 4.5), ("on-danger", "danger", 4.5), ("text", "good", 4.5),
        ("text", "bad", 4.5), ("line", "back", 3),
    ],
)  # fmt: skip
def test_colours_can_be_told_apart(scheme: int, front: str, back: str, least: float) -> None:
    """WCAG 1.4.3 and 1.4.11."""
    found = [re.findall(rf"--{name}: (#[0-9a-f]{{6}});", STYLE)[scheme] for name in (front, back)]
    lighter, darker = sorted(map(_luminance, found), reverse=True)
    assert (lighter + 0.05) / (darker + 0.05) >= least


def test_the_style_cannot_end_itself_or_load_anything() -> None:
    assert "</" not in STYLE
    assert not re.search(r"url\(|@import|expression|http", STYLE)
    assert ";" not in HEADERS["X-Frame-Options"]
