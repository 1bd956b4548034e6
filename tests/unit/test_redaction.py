"""Redaction: actions per kind, idempotence, hostile texts, metadata and tags."""

from dataclasses import replace
from time import process_time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from service.policy.content import Message
from service.policy.redaction import RedactionPolicy, find, redact, redact_all, redact_map, redact_messages
from service.policy.redaction_types import Kind, Span

MASK = RedactionPolicy()
DROP = RedactionPolicy("drop", "drop", "drop", "drop", "drop", "drop", "drop", "drop")
KEEP = RedactionPolicy("keep", "keep", "keep", "keep", "keep", "keep", "keep", "keep")
CARD = "4111 1111 1111 1111"


# --- What happens to a finding --------------------------------------------------------------------------
def test_a_mask_names_the_kind_and_the_rest_stays() -> None:
    done = redact("我的手机号是138 0013 8000，邮箱 a@example.com。", MASK)
    assert done.text == "我的手机号是[phone]，邮箱 [email]。"
    assert done.counts == {"phone": 1, "email": 1}
    assert done.total == 2


def test_a_text_without_findings_is_the_same_text() -> None:
    text = "I moved to Hangzhou in 2024 and pay 3,000 a month."
    assert redact(text, MASK).text is text
    assert redact(text, MASK).counts == {}


def test_drop_removes_the_whole_sentence() -> None:
    done = redact(f"I like tea. My card is {CARD}, keep it. I live in Hangzhou.", replace(MASK, card="drop"))
    assert done.text == "I like tea. I live in Hangzhou."
    assert done.counts == {"card": 1}


def test_drop_of_chinese_and_of_the_only_sentence() -> None:
    policy = replace(MASK, secret="drop")
    assert redact("我爱喝茶。密码是abc12345！下周去东京。", policy).text == "我爱喝茶。下周去东京。"
    assert redact("密码是abc12345", policy).text == ""


def test_a_point_inside_a_finding_ends_no_sentence() -> None:
    assert redact("Hello there. Write to a.b@example.co.uk. Bye.", replace(MASK, email="drop")).text == (
        "Hello there. Bye."
    )


def test_a_dropped_sentence_takes_its_masks_along() -> None:
    done = redact(f"Tea. Call 202-555-0143, card {CARD}. Bye.", replace(MASK, card="drop"))
    assert done.text == "Tea. Bye."
    assert done.counts == {"phone": 1, "card": 1}


@pytest.mark.parametrize(
    ("kind", "policy"),
    [
        ("secret", replace(MASK, secret="keep")),
        ("card", replace(MASK, card="keep")),
        ("national_id", replace(MASK, national_id="keep")),
        ("iban", replace(MASK, iban="keep")),
        ("passport", replace(MASK, passport="keep")),
        ("phone", replace(MASK, phone="keep")),
        ("email", replace(MASK, email="keep")),
        ("address", replace(MASK, address="keep")),
    ],
)
def test_keep_leaves_one_kind_alone(kind: Kind, policy: RedactionPolicy) -> None:
    samples = {
        "secret": "password: hunter2x",
        "card": CARD,
        "national_id": "110101189001010016",
        "iban": "DE89370400440532013000",
        "passport": "护照 E12345678",
        "phone": "13800138000",
        "email": "a@example.com",
        "address": "文三路478号",
    }
    assert kind in samples
    for name, text in samples.items():
        changed = redact(text, policy).text != text
        assert changed == (name != kind), name


def test_keeping_everything_changes_nothing() -> None:
    assert redact(f"card {CARD}", KEEP).text == f"card {CARD}"


def test_overlaps_become_one_mask() -> None:
    assert redact("密码：13800138000", MASK).text == "密码：[secret]"
    assert redact("13800138000@163.com", MASK).text == "[email]"


def test_of_overlapping_kinds_the_dropped_one_wins() -> None:
    policy = replace(MASK, phone="drop")
    assert redact("茶。密码：13800138000。咖啡。", policy).text == "茶。咖啡。"


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("https://a.example/?phone=13800138000&x=1", "https://a.example/?phone=[phone]&x=1"),
        ('{"card": "4111111111111111", "n": 5}', '{"card": "[card]", "n": 5}'),
        ("```py\nPHONE = '13800138000'\n```", "```py\nPHONE = '[phone]'\n```"),
        ("postgres://app:s3cretPw@db:5432/x", "postgres://app:[secret]@db:5432/x"),
        ("https://me:s3cretPw@git.example.com/r", "https://me:[secret]@git.example.com/r"),
        ("ftp://anna@files.example.com/a", "ftp://anna@files.example.com/a"),
        ("１３８００１３８０００", "[phone]"),
        ("1\u200b3\u200b8\u200b00138000", "[phone]"),
        ("一三八零零一三八零零零", "[phone]"),
        ("13800138000、13900139000/13700137000", "[phone]、[phone]/[phone]"),
        ("张三,4111111111111111\n李四,5105105105105100", "张三,[card]\n李四,[card]"),
        ("①③⑧⓪⓪①③⑧⓪⓪⓪", "[phone]"),
        ("13八0013八000", "[phone]"),
        ("+1 (202) 555-0143 x12", "[phone] x12"),
        ("Tél. 01 99 00 55 00", "Tél. [phone]"),
        ("住回龙观东大街 336 号院 1 号楼 502", "住[address]"),
        ("朝阳门外大街甲6号", "[address]"),
        ("广州天河路208号粤海天河城大厦", "[address]"),
        ("12 rue de la Paix, 75002 Paris", "[address]"),
        ("dbPass=abc123 bypass=12345", "dbPass=[secret] bypass=12345"),
        ("G-482913 is your Google verification code", "[secret] is your Google verification code"),
        ("<password>hunter2</password>", "<password>[secret]</password>"),
        ("the wifi password is: sunny day", "the wifi password is: [secret]"),
        ("密 码：123456", "密 码：[secret]"),
        ("curl -u bob:s3cret99 https://x.example", "curl -u bob:[secret] https://x.example"),
        ('{"password": "the cat sat"}', '{"password": "[secret]"}'),
        ("密码从 abc123 改成 def456", "密码从 [secret] 改成 [secret]"),
    ],
)
def test_wherever_and_however_it_is_written(text: str, masked: str) -> None:
    assert redact(text, MASK).text == masked


def test_an_order_number_stays_even_when_it_looks_like_a_phone_or_a_card() -> None:
    text = f"订单号 13800138000，order number {CARD}"
    assert redact(text, MASK).text == text


def test_partly_hidden_numbers_stay() -> None:
    text = "手机号 138****8000，卡号 6222 **** **** 1234，尾号 8000，Card ending in 4242"
    assert redact(text, MASK).text == text


def test_a_wrong_check_digit_is_no_card_without_a_label() -> None:
    assert redact("4111 1111 1111 1112", MASK).total == 0
    assert redact("card number 4111 1111 1111 1112", MASK).text == "card number [card]"


# --- Messages, questions, metadata, tags ----------------------------------------------------------------


def test_a_message_of_which_nothing_is_left_is_left_out() -> None:
    messages = [Message("user", "My card is 4111 1111 1111 1111."), Message("assistant", "Better not. Tea?")]
    assert redact_messages(messages, MASK) == ([Message("user", "My card is [card]."), messages[1]], 1)
    assert redact_messages(messages, DROP) == ([messages[1]], 1)


def test_a_question_is_masked_where_a_memory_would_be_dropped() -> None:
    policy = replace(DROP, phone="keep").for_questions
    asked = "谁的邮箱是 a@example.com？13800138000"
    assert redact(asked, policy).text == "谁的邮箱是 [email]？13800138000"
    assert MASK.for_questions is MASK


def test_metadata_values_are_redacted_with_their_names_as_labels() -> None:
    kept, total = redact_map(
        {"phone": "2025550143", "city": "Hangzhou", "note": "ID 110101189001010016", "password": "hunter2"},
        MASK,
    )
    assert kept == {
        "phone": "[phone]",
        "city": "Hangzhou",
        "note": "ID [national_id]",
        "password": "[secret]",
    }
    assert total == 3


def test_dropped_metadata_and_tags_are_left_out_and_empty_ones_stay() -> None:
    assert redact_map({"phone": "13800138000", "x": ""}, DROP) == ({"x": ""}, 1)
    assert redact_all(("vip", "13800138000"), DROP) == (("vip",), 1)
    assert redact_all(("vip", "tel:13800138000"), MASK) == (("vip", "tel:[phone]"), 1)


def test_redacted_metadata_stays_the_same() -> None:
    once, _ = redact_map({"phone": "2025550143", "password": "hunter2", "card": CARD}, MASK)
    assert redact_map(once, MASK) == (once, 0)


# --- Whatever the text holds ----------------------------------------------------------------------------
_PIECES = st.sampled_from(
    [
        "13800138000", "138", "0013", "8000", CARD, "4111", "110101189001010016", "DE89",
        "3704 0044 0532 0130 00", "a@example.com", "@", ".", "。", "\n", " ", "-", "(", ")", "+",
        "密码", "是", "：", "password", " is ", "=", '"', "'", "[phone]", "[secret]", "文三路", "478号",
        "3栋", "12 Main Street", "sk-", "ghp_", "eyJ", "://", "a:b@", "E1234567", "\u200b", "１３",
        "一二三", "\ud800", "🎉", "从", "改成", "--", " at ", " dot ", "com",
        "-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----", "is my password", "token", "X",
        "订单号",
    ]
)  # fmt: skip


@given(
    st.lists(_PIECES, max_size=14).map("".join), st.sampled_from([MASK, DROP, replace(MASK, phone="drop")])
)
@example("密码从[secret]改成[secret]", MASK)
def test_it_never_raises_and_again_changes_nothing(text: str, policy: RedactionPolicy) -> None:
    once = redact(text, policy)
    again = redact(once.text, policy)
    assert again.text == once.text
    assert again.total == 0


@settings(deadline=None)
@given(st.text(max_size=200))
def test_any_text_at_all(text: str) -> None:
    once = redact(text, MASK)
    assert redact(once.text, MASK).text == once.text
    for span in find(text, MASK):
        assert 0 <= span.start < span.end <= len(text)


@settings(deadline=None)
@given(st.lists(_PIECES, max_size=20).map("".join))
def test_findings_do_not_reach_over_line_ends(text: str) -> None:
    """Which is why only changed lines are read again; private keys are the exception."""
    text = text.replace("-----", "")
    by_line: list[Span] = []
    at = 0
    for line in text.split("\n"):
        by_line += [Span(span.start + at, span.end + at, span.kind) for span in find(line, MASK)]
        at += len(line) + 1
    assert find(text, MASK) == by_line


_HOSTILE = [
    "1", "@", "a.", "a@", "a@a.", "[(", "-", "1-", "1 ", "14 ", "4111 ", "13800138000 ", "+1", "路",
    "路1号", "杭州市", "号", "1 main street ", "1 a ", "eyJ", "eyJaaaaaaa.", "sk-", "ghp_",
    "-----BEGIN PRIVATE KEY-----", "://a:", "password", "password ", "a password is ", "pass=", "密码",
    "密码是", " is my password", "地址", 'password:"', "DE00", "E1", "a1", "\u200b", "1\u200b", "１",
    "二", "二 ", " ", "\n", " dot a at", "a(at)b", "1 rue ", "straße 1 ", "RSSMRA85", "%40a",
    "seed phrase abandon ", "。", "1.", "(1)", "4 ", "token=", "bearer ", "订单号13800138000",
    "从a改成", "a ", "[secret]",
]  # fmt: skip


def _seconds(text: str) -> float:
    begin = process_time()
    find(text, MASK)
    return process_time() - begin


@pytest.mark.parametrize("unit", _HOSTILE)
def test_time_grows_like_the_text(unit: str) -> None:
    """Compared with itself, so that a slow machine makes no difference; a busy one gets more than one try.

    Twice the text may take 2.6 times as long, so four times the text 6.8; quadratic time would be 16.
    """
    small, large = (unit * (chars // len(unit)) for chars in (10_000, 40_000))
    fast = slow = float("inf")
    for _ in range(8):
        fast, slow = min(fast, _seconds(small)), min(slow, _seconds(large))
        if slow <= 6.8 * max(fast, 0.001):
            return
    pytest.fail(f"{fast * 1000:.1f} ms became {slow * 1000:.1f} ms")


def test_a_hundred_thousand_hostile_characters_of_every_sort() -> None:
    text = "".join(unit * 80 for unit in _HOSTILE) * 5
    assert len(text) > 100_000
    assert redact(text, MASK).text


def test_a_text_that_needs_another_round_ends() -> None:
    text = "password is " * 200
    once = redact(text, MASK)
    assert redact(once.text, MASK).text == once.text
