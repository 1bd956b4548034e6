"""Ids: injective, of a fixed form, and never made for somebody who is nobody."""

import contextlib
import re
import unicodedata
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st
from service.errors import IdentityRequired
from service.scope import (
    MAX_ID_CHARS,
    bank_of,
    checked_user_id,
    conversation_of,
    document_of,
    holds_reference,
    is_absent,
    is_bank_id,
    is_tenant_mark,
    operation_of,
    tenant_mark,
    turn_digest,
)

# What reports on products of this kind say was mixed up: separators, cuts, case, Unicode forms.
LOOK_ALIKES = (
    "a.b@x",
    "a-b-x",
    "a_b_x",
    "A.B@X",
    "a.b@x ",
    " a.b@x",
    "a:b",
    "a/b",
    "../a",
    "..",
    ".",
    "%2e%2e",
    "a%2Fb",
    "a%2fb",
    "test_user",
    "test_user1",
    unicodedata.normalize("NFC", "café"),
    unicodedata.normalize("NFD", "café"),
    "用户",
    "用戶",
    "ｕｓｅｒ",
    "user",
    "😀",
    "😀️",
    "x" * 300,
    "x" * 301,
    "x" * 80 + "a",
    "x" * 80 + "b",
)


def test_a_bank_id_is_one_that_hindsight_takes() -> None:
    bank = bank_of("default", "../用户 :😀" * 50)
    assert re.fullmatch(r"u-[0-9a-f]{48}", bank)
    assert is_bank_id(bank)


@pytest.mark.parametrize(
    "name", ["", "u-", "u-support-desk", f"u-{'0' * 47}", f"u-{'0' * 49}", f"u-{'A' * 48}", f"u-{'0' * 48}\n"]
)
def test_a_bank_id_that_only_looks_like_ours_is_somebody_elses(name: str) -> None:
    assert not is_bank_id(name)


def test_people_with_look_alike_ids_have_banks_of_their_own() -> None:
    banks = {bank_of("default", user) for user in LOOK_ALIKES}
    assert len(banks) == len(set(LOOK_ALIKES)) == len(LOOK_ALIKES)


def test_the_border_between_tenant_and_user_counts() -> None:
    pairs = [("a:b", "c"), ("a", "b:c"), ("a", ":b:c"), ("", "a:b:c"), ("a:b:c", "")]
    assert len({bank_of(*pair) for pair in pairs}) == len(pairs)


@given(*[st.tuples(st.text(max_size=6), st.text(max_size=6))] * 2)
def test_different_tenants_and_users_have_different_banks(
    left: tuple[str, str], right: tuple[str, str]
) -> None:
    assert (bank_of(*left) == bank_of(*right)) == (left == right)


def test_an_id_of_one_kind_is_never_one_of_another() -> None:
    bank = bank_of("default", "u")
    conversation = conversation_of(bank, "u")
    document = document_of(bank, conversation, "u", 0)
    assert len({bank[2:], conversation[2:], document[2:], turn_digest("u")}) == 4
    assert (bank[:2], conversation[:2], document[:2]) == ("u-", "c-", "t-")


def test_a_document_belongs_to_its_bank_conversation_turn_and_part() -> None:
    bank, other = bank_of("default", "u"), bank_of("default", "v")
    here, there = conversation_of(bank, "1"), conversation_of(bank, "2")
    documents = {
        document_of(bank, here, "t", 0),
        document_of(bank, here, "t", 1),
        document_of(bank, here, "s", 0),
        document_of(bank, there, "t", 0),
        document_of(other, here, "t", 0),
    }
    assert len(documents) == 5


def test_an_operation_id_is_a_uuid_that_names_one_batch_and_part() -> None:
    first = operation_of("batch", "0")
    assert str(uuid.UUID(first)) == first == operation_of("batch", "0")
    assert len({first, operation_of("batch", "1"), operation_of("batch"), operation_of("batch2", "0")}) == 4


@pytest.mark.parametrize("user", [u for u in LOOK_ALIKES if len(u) <= MAX_ID_CHARS])
def test_a_user_id_stays_as_it_came(user: str) -> None:
    assert checked_user_id(user) == user


@pytest.mark.parametrize(
    "user",
    [
        "DEFAULT-USER",
        "default-user",
        " Default-User ",
        "null",
        "NULL",
        "None",
        "none",
        "undefined",
        "nil",
        "NaN",
    ],
)
def test_a_placeholder_is_refused_unless_the_setting_allows_it(user: str) -> None:
    with pytest.raises(IdentityRequired, match="placeholder"):
        checked_user_id(user)
    assert checked_user_id(user, allow_anonymous=True) == user


@pytest.mark.parametrize(
    "user",
    [
        "",
        " ",
        "\t\n",
        "\u3000",
        "\u200b",
        "\ufeff \u2060",
        "{{#sys.user_id#}}",
        " {{#sys.user_id#}} ",
        "{{ user }}",
        "app1-{{#sys.user_id#}}",
        "sys.user_id",
        "sys.usr_id",
        "conversation.person",
        "env.USER",
        "a\x00b",
        "a\nb",
        "a\x7fb",
        "a\x85b",
        "a\u2028b",
        "a\ud800b",
        "\udfff",
        "x" * (MAX_ID_CHARS + 1),
    ],
)
def test_what_cannot_be_one_person_is_refused_whatever_the_setting(user: str) -> None:
    for allow_anonymous in (False, True):
        with pytest.raises(IdentityRequired):
            checked_user_id(user, allow_anonymous=allow_anonymous)


@given(st.text(alphabet=st.characters(), max_size=30))
def test_any_text_is_one_person_or_refused(user: str) -> None:
    with contextlib.suppress(IdentityRequired):
        assert checked_user_id(user) == user


@pytest.mark.parametrize(
    "value",
    [
        "",
        " ",
        "null",
        "None",
        "undefined",
        "{{#sys.conversation_id#}}",
        " {{#sys.workflow_run_id#}} ",
        "sys.workflow_run_id",
    ],
)
def test_an_optional_value_that_says_nothing_is_absent(value: str) -> None:
    assert is_absent(value)


@pytest.mark.parametrize("value", ["0", "nothing", "nullable", "{}", "{{", "a {{#b#}}"])
def test_an_optional_value_that_says_something_is_not(value: str) -> None:
    assert not is_absent(value)


@given(st.text(min_size=1, max_size=64), st.text(min_size=1, max_size=64))
def test_a_bank_s_mark_stands_for_one_tenant_and_is_known_as_a_mark(one: str, other: str) -> None:
    assert (tenant_mark(one) == tenant_mark(other)) is (one == other)
    assert is_tenant_mark(tenant_mark(one))
    # What Hindsight or an operator calls a bank is none.
    assert not any(map(is_tenant_mark, (bank_of(one, other), one, f"tenant-{one}", f"{tenant_mark(one)}x")))


def test_a_reference_inside_an_id_is_found() -> None:
    assert holds_reference("run-{{#sys.workflow_run_id#}}")
    assert not holds_reference("run-{{1}}-#2#")
