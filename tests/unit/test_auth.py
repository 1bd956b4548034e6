"""Keys in every form that Dify and people send them, and whose memory a request may touch."""

import re
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from service.auth import ALL_SCOPES, Caller, KeyRing, bank_for
from service.errors import IdentityConflict, IdentityRequired, KeyRefused, ScopeMissing
from service.scope import bank_of
from service.settings import Settings

KEY = "a-key-of-some-length"
RING = KeyRing.from_settings(Settings(api_key=KEY, tenant="acme"))


def scope_of(*headers: tuple[str, str | bytes], query: str = "") -> dict[str, Any]:
    """The part of an ASGI scope that carries keys."""
    raw = [(name.lower().encode(), v if isinstance(v, bytes) else v.encode("latin-1")) for name, v in headers]
    return {"headers": raw, "query_string": query.encode()}


def is_accepted(scope: dict[str, Any], ring: KeyRing = RING) -> bool:
    try:
        ring.authenticate(scope)
    except KeyRefused:
        return False
    return True


@pytest.mark.parametrize(
    "value",
    [
        f"Bearer {KEY}",
        f"bearer {KEY}",
        f"BEARER   {KEY}",
        f"Bearer Bearer {KEY}",  # dify#35974
        f"Bearer bearer Bearer {KEY}",
        f"Basic {KEY}",  # Dify's "Basic" is a literal prefix
        f"Bearer Basic {KEY}",
        f"Token {KEY}",
        KEY,
        f"  {KEY} ",
    ],
)
def test_the_authorization_header_in_all_its_forms(value: str) -> None:
    caller = RING.authenticate(scope_of(("Authorization", value)))
    assert (caller.tenant, caller.scopes) == ("acme", ALL_SCOPES)


@pytest.mark.parametrize("name", ["X-API-Key", "Api-Key"])
def test_other_headers(name: str) -> None:
    assert is_accepted(scope_of((name, KEY)))
    assert is_accepted(scope_of((name, f"Bearer {KEY}")))


@pytest.mark.parametrize(
    "query", [f"api_key={KEY}", f"x=1&api_key={KEY}", f"api%5Fkey={KEY}", f"api_key={quote('Bearer ' + KEY)}"]
)
def test_the_query_parameter(query: str) -> None:
    assert is_accepted(scope_of(query=query))


def test_one_key_in_several_places_is_one_key() -> None:
    assert is_accepted(
        scope_of(("Authorization", f"Bearer {KEY}"), ("X-API-Key", KEY), query=f"api_key={KEY}")
    )


def test_an_empty_header_does_not_hide_the_key() -> None:
    # Dify sends an omitted header parameter as an empty string.
    assert is_accepted(scope_of(("Authorization", ""), ("X-API-Key", KEY)))
    assert is_accepted(scope_of(("Authorization", "Bearer "), query=f"api_key={KEY}"))


@pytest.mark.parametrize(
    "scope",
    [
        scope_of(),
        scope_of(("Authorization", "")),
        scope_of(("Authorization", "Bearer")),
        scope_of(("Authorization", "Bearer Bearer ")),
        scope_of(("Authorization", "Bearer wrong-key-of-length")),
        scope_of(("Authorization", f"Bearer {KEY}x")),
        scope_of(("Authorization", f"Bearer {KEY[:-1]}")),
        scope_of(("Authorization", f"Bearer {KEY.upper()}")),
        scope_of(("Authorization", f"Bearer{KEY}")),
        scope_of(("Authorization", f"Digest {KEY}")),
        scope_of(("Authorization", "Bearer clé".encode())),
        scope_of(("Authorization", b"Bearer \xff\xfe")),
        scope_of(("Authorization", b"\x00")),
        scope_of(("Cookie", f"api_key={KEY}")),
        scope_of(query="api_key="),
        scope_of(query="api_key=%FF"),
        scope_of(query=f"key={KEY}"),
        scope_of(("Authorization", f"Bearer {KEY}"), ("X-API-Key", "another-key-of-length")),
        scope_of(("Authorization", "Bearer another-key"), query=f"api_key={KEY}"),
        scope_of(("Authorization", f"Bearer {KEY}"), ("Authorization", "Bearer another-key")),
        scope_of(query=f"api_key={KEY}&api_key=another-key"),
    ],
)
def test_no_key_a_wrong_key_and_two_keys_are_refused(scope: dict[str, Any]) -> None:
    with pytest.raises(KeyRefused, match="not a network block"):
        RING.authenticate(scope)


def test_without_a_configured_key_nobody_gets_in() -> None:
    for ring in (KeyRing.from_settings(Settings()), KeyRing.from_settings(Settings(api_key=" " * 16))):
        assert not is_accepted(scope_of(), ring)
        assert not is_accepted(scope_of(("Authorization", "Bearer")), ring)
        assert not is_accepted(scope_of(("Authorization", " " * 16)), ring)


def test_a_configured_key_counts_without_the_space_or_prefix_it_was_pasted_with() -> None:
    for configured in (f"{KEY}\n", f" {KEY}", f"Bearer {KEY}"):
        assert is_accepted(scope_of(("X-API-Key", KEY)), KeyRing.from_settings(Settings(api_key=configured)))


def test_a_key_that_is_not_ascii_works_as_utf8() -> None:
    ring = KeyRing.from_settings(Settings(api_key="钥匙-très-longue-0123"))
    assert is_accepted(scope_of(("Authorization", "Bearer 钥匙-très-longue-0123".encode())), ring)
    assert is_accepted(scope_of(query=f"api_key={quote('钥匙-très-longue-0123')}"), ring)


@given(st.binary(max_size=40), st.binary(max_size=40))
def test_no_bytes_break_authentication(header: bytes, query: bytes) -> None:
    scope = {"headers": [(b"authorization", header)], "query_string": b"api_key=" + query}
    assert not is_accepted(scope)


def test_the_key_id_that_may_be_logged_is_not_part_of_the_key() -> None:
    key_id = RING.authenticate(scope_of(("X-API-Key", KEY))).key_id
    assert re.fullmatch(r"[0-9a-f]{8}", key_id)
    assert key_id not in KEY


def test_a_scope_the_key_lacks_is_named() -> None:
    caller = Caller("acme", "1", frozenset({"recall"}))
    caller.require("recall")
    with pytest.raises(ScopeMissing, match="forget"):
        caller.require("forget")


CALLER = Caller("acme", "1", ALL_SCOPES)


def test_a_bank_is_that_of_the_callers_tenant() -> None:
    assert bank_for(CALLER, scope_of(), "u", allow_anonymous=False) == bank_of("acme", "u")


@pytest.mark.parametrize("query", ["user_id=u", "user_id=u&user_id=u", "x=1", "user%5Fid=u"])
def test_a_query_string_that_agrees_is_fine(query: str) -> None:
    assert bank_for(CALLER, scope_of(query=query), "u", allow_anonymous=False) == bank_of("acme", "u")


@pytest.mark.parametrize(
    "query", ["user_id=v", "user_id=u&user_id=v", "user_id=U", "user_id=", "user%5Fid=v"]
)
def test_a_query_string_that_names_another_is_refused(query: str) -> None:
    with pytest.raises(IdentityConflict):
        bank_for(CALLER, scope_of(query=query), "u", allow_anonymous=False)


def test_a_query_string_in_raw_utf8_is_read() -> None:
    scope = {"headers": [], "query_string": "user_id=用户".encode()}
    assert bank_for(CALLER, scope, "用户", allow_anonymous=False) == bank_of("acme", "用户")


def test_an_anonymous_user_has_a_bank_only_if_the_setting_says_so() -> None:
    with pytest.raises(IdentityRequired):
        bank_for(CALLER, scope_of(), "DEFAULT-USER", allow_anonymous=False)
    assert bank_for(CALLER, scope_of(), "DEFAULT-USER", allow_anonymous=True) == bank_of(
        "acme", "DEFAULT-USER"
    )
