"""The page `/admin` as text: both languages whole, every state well-made, nothing escapes the escaping."""

import re
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from string import Formatter
from typing import Any

import pytest
from service.policy.admin_charts import Chart, Series, figure
from service.policy.admin_page import key_page, overview_page, problem_page, sign_in_page
from service.policy.admin_parts import dollars, millis
from service.policy.admin_style import STYLE
from service.policy.admin_texts import EN, ZH, AdminTexts
from service.policy.admin_view import (
    Key,
    Letter,
    Letters,
    Overview,
    Part,
    PolicyShown,
    Queue,
    Times,
    Told,
    Use,
    Used,
)
from service.policy.kinds import KeepPolicy, Kind
from service.policy.tenant_policy import TenantPolicy

from tests.pages import Page

BOTH = pytest.mark.parametrize("texts", [EN, ZH], ids=lambda texts: texts.lang)
_NOW = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)
_NASTY = '<script>alert("1")</script>'


def overview(**changes: Any) -> Overview:
    given: dict[str, Any] = {
        "now": _NOW, "zone": UTC, "version": "1", "tenant": "default", "key_id": "k", "form_key": "f",
        "scopes": frozenset({"admin", "review"}), "sees_all_tenants": False, "expires_s": 1_800_000_000,
        "status": "ok", "parts": [], "queue": None, "used": None, "letters": None, "keys": None,
        "policy": PolicyShown(TenantPolicy(), 90, "auto", has_file=False),
    }  # fmt: skip
    return Overview(**given | changes)


def full() -> Overview:
    """Everything there can be, with nasty words wherever words come from elsewhere."""
    hours = [_NOW - timedelta(hours=back) for back in range(24)]
    use = Use(
        hits=5, misses=3, failures=1, adds=4, stored=3, dead=1, tokens=7, usd=0.01, chat_tokens=9_876_543
    )
    ended = Key(
        "k1",
        _NASTY,
        ["add"],
        "bound",
        "2026-01-01T00:00:00+00:00",
        "",
        "2026-01-02T00:00:00+00:00",
        False,
        True,
    )
    good = Key("k2", _NASTY, ["add"], "trusted", "2026-01-01T00:00:00+00:00", "", "", True, True)
    letters = [
        Letter("t-0001", "default", _NASTY, "2026-03-01T10:00:00+00:00", 1000, _NASTY),
        Letter("t-0002", "", "reason", "2026-02-01T10:00:00+00:00", 1),
    ]
    kinds = (Kind("pets", _NASTY, _NASTY, retention_days=3), Kind("gossip", keep=False))
    return overview(
        status="degraded",
        parts=[
            Part("turns_redis", True, ["9.1"], ["not_durable", "may_evict"]),
            Part("cache_redis", True, [], ["same_redis"]),
            Part("hindsight", False, [], ["hindsight_down"]),
            Part("worker", False, [], ["no_worker"]),
            Part("queue", True, [], ["a_reason_that_is_new"]),
        ],
        queue=Queue(None, 3, 99_999.0, 2),
        used=Used(
            hours=[(hour, use, Times(0.4, 2_500.0)) for hour in hours],
            days=[(hour, Use()) for hour in hours],
            tenants=[(_NASTY, use)],
            total=use,
            times=Times(0.4, 2_500.0),
        ),
        letters=Letters(letters, "17", has_text=True),
        keys=[good, ended],
        policy=PolicyShown(TenantPolicy(KeepPolicy(kinds)), 0, "litellm", has_file=True),
        told=Told("dropped", 3),
        tenant_keys=[("default", 1)],
        sees_all_tenants=True,
    )


def placeholders(text: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(text) if name}


@pytest.mark.parametrize("name", [field.name for field in fields(AdminTexts)])
def test_both_languages_say_the_same_things(name: str) -> None:
    english, chinese = getattr(EN, name), getattr(ZH, name)
    pairs = (
        [(english, chinese)]
        if isinstance(english, str)
        else [(english[one], chinese[one]) for one in english]
    )
    if not isinstance(english, str):
        assert english.keys() == chinese.keys()
    for said, meant in pairs:
        assert said
        assert placeholders(said) == placeholders(meant)
        assert not re.search(r"[\u3400-\u9fff]", said)
        assert name == "lang" or re.search(r"[\u3400-\u9fff]", meant), name


@BOTH
def test_every_page_is_well_made(texts: AdminTexts) -> None:
    for made in (
        overview_page(texts, overview()),
        overview_page(texts, full()),
        overview_page(texts, overview(letters=Letters([], "", has_text=False), keys=[])),
        sign_in_page(texts),
        sign_in_page(texts, up="../", is_wrong=True),
        sign_in_page(texts, is_off=True),
        key_page(texts, "dm_key", _NASTY, up="../"),
        problem_page(texts, "", up="../", is_unsure=True),
        *(problem_page(texts, code, up="../") for code in (*texts.problems, "internal_error")),
    ):
        page = Page(made)
        page.check()
        assert not page.all("script")


@BOTH
def test_all_there_is_to_say_is_said(texts: AdminTexts) -> None:
    page = Page(overview_page(texts, full()))
    assert page.words == [_NASTY]
    assert page.all("div", "done")[0].text == texts.told["dropped"].format(count=3)
    for note in ("not_durable", "may_evict", "same_redis", "hindsight_down", "no_worker"):
        assert texts.notes[note] in page.text
    # What another version of the health check may say is shown as it is.
    assert "a_reason_that_is_new" in page.text
    assert len(page.all("svg")) == 2  # what is nothing but zeros says so instead
    assert page.text.count(texts.nothing_yet) == 2
    assert [form.fields["id"] for form in page.forms if "id" in form.fields] == ["k2", "k2"]
    assert texts.revoked in page.text
    # Each button and each summary of one thing says which.
    for one in page.all("summary"):
        if one.text in (texts.replay, texts.drop, texts.revoke, texts.rotate):
            assert "aria-describedby" in one.attributes


def test_spans_and_numbers_are_written_for_people() -> None:
    assert [EN.span(one) for one in (0, 119, 120, 7199, 7200, 172_799, 172_800)] == [
        "0 s", "119 s", "2 min", "119 min", "2 h", "47 h", "2 days",
    ]  # fmt: skip
    assert [millis(one) for one in (None, 0.42, 12.3, 999.4, 2500)] == [
        "–",
        "0.4 ms",
        "12 ms",
        "999 ms",
        "2.5 s",
    ]
    assert [dollars(one) for one in (0, 0.0012, 1234.5)] == ["$0.00", "$0.0012", "$1,234.50"]
    assert ZH.moment(_NOW) == "2026年3月1日 12:30"
    assert EN.short_day(_NOW) == "1 Mar"


def test_a_chart_fits_its_frame_and_leaves_out_what_is_not_known() -> None:
    lines = Chart("c", "Times", ["a", "b", "c", "d"], [Series("half", [1, None, 3, 2])], millis, is_line=True)
    made = Page(f"<main>{figure(lines, first='Hour', table_name='Table', nothing='none')}</main>")
    assert len(made.all("circle")) == 3
    assert len(made.all("polyline")) == 1
    assert [one.text for one in made.all("td")] == ["1.0 ms", "", "3.0 ms", "2.0 ms"]
    bars = Chart("c", "Counts", ["a", "b"], [Series("x", [1, 1_000_000]), Series("y", [2, 0])], dollars)
    drawn = Page(f"<main>{figure(bars, first='Hour', table_name='Table', nothing='none')}</main>")
    assert len(drawn.all("rect")) == 3
    for one in drawn.all("rect"):
        top, height = float(one.attributes["y"]), float(one.attributes["height"])
        assert top >= 0
        assert top + height <= 160


def test_the_style_cannot_end_itself_or_load_anything() -> None:
    assert "</" not in STYLE
    assert not re.search(r"url\(|@import|expression|http", STYLE)


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
        ("one", "card", 3), ("two", "card", 3), ("three", "card", 3), ("ok", "card", 4.5),
        ("warn", "card", 4.5), ("danger", "card", 4.5), ("faint", "card", 4.5), ("link", "card", 4.5),
        ("text", "card", 4.5), ("warn", "back", 4.5),
    ],
)  # fmt: skip
def test_colours_can_be_told_apart(scheme: int, front: str, back: str, least: float) -> None:
    """WCAG 1.4.3 and 1.4.11."""
    found = [re.findall(rf"--{name}: (#[0-9a-f]{{6}});", STYLE)[scheme] for name in (front, back)]
    lighter, darker = sorted(map(_luminance, found), reverse=True)
    assert (lighter + 0.05) / (darker + 0.05) >= least


@BOTH
def test_a_tenant_s_chats_are_in_tokens(texts: AdminTexts) -> None:
    page = Page(overview_page(texts, full()))
    heads = [one.text for one in page.all("th")]
    first = heads.index(texts.chat_tokens)
    assert heads[first : first + 3] == [texts.chat_tokens, texts.tokens, texts.cost]
    cells = [one.text for one in page.all("td")]
    first = cells.index("9,876,543")
    assert cells[first : first + 3] == ["9,876,543", "7", "$0.01"]
