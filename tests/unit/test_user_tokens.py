"""User tokens: good for one user of one tenant until they end, and refused in the same words otherwise."""

import json
from base64 import urlsafe_b64encode
from time import time

import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from service.adapters.user_tokens import UserTokens
from service.errors import TokenRefused
from service.scope import bank_of
from service.settings import Settings

OLD, NEW = "old-secret-of-more-than-32-characters", "new-secret-of-more-than-32-characters"
TOKENS = UserTokens({"a": OLD})
BANK = bank_of("acme", "alice@example.com")
TOKEN = TOKENS.make("acme", BANK, 86_400).text


def refusal(token: str, tenant: str = "acme", tokens: UserTokens = TOKENS) -> str:
    """The words a token is refused in."""
    with pytest.raises(TokenRefused) as caught:
        tokens.bank_in(tenant, token)
    return caught.value.detail


def signed(claims: dict[str, object], secret: str = OLD, kid: str = "a", algorithm: str = "HS256") -> str:
    return jwt.encode(claims, secret, algorithm, headers={"kid": kid})


def good_claims(**changes: object) -> dict[str, object]:
    return {"aud": "memory-user:acme", "sub": BANK, "exp": int(time()) + 86_400} | changes


def test_a_token_names_its_users_bank_and_says_nothing_else_of_them() -> None:
    assert TOKENS.bank_in("acme", TOKEN) == BANK
    assert TOKENS.bank_in("acme", f" {TOKEN}\n") == BANK
    claims = jwt.decode(TOKEN, options={"verify_signature": False})
    assert set(claims) == {"aud", "sub", "exp"}
    assert "alice" not in json.dumps(claims)
    longest = TOKENS.make("t" * 64, bank_of("t" * 64, "x" * 1024), 60).text
    assert len(TOKEN) < 260
    assert len(longest) < 600
    assert TOKENS.bank_in("t" * 64, longest)


def test_it_is_worthless_in_another_tenant() -> None:
    assert refusal(TOKEN, "acme2") == refusal("nonsense")
    assert refusal(TOKEN, "")
    assert refusal(TOKEN, "ACME")


def test_it_ends_when_it_says_but_for_a_difference_between_clocks() -> None:
    assert TOKENS.bank_in("acme", TOKENS.make("acme", BANK, -10).text) == BANK
    assert refusal(TOKENS.make("acme", BANK, -40).text) == refusal("nonsense")


@pytest.mark.parametrize("place", range(len(TOKEN)))
def test_changed_anywhere_it_is_refused(place: int) -> None:
    for other in ("A", "_", ".", "=", " "):
        # The last digit of each part has bits that mean nothing; strict readers refuse other forms of them.
        if TOKEN[place] != other and place + 1 < len(TOKEN):
            refusal(TOKEN[:place] + other + TOKEN[place + 1 :])


def test_parts_of_two_tokens_make_no_third() -> None:
    """Replay across users: the words of one under the signature of another."""
    other = TOKENS.make("acme", bank_of("acme", "bob"), 60).text
    head, body, signature = TOKEN.split(".")
    _, other_body, other_signature = other.split(".")
    refusal(f"{head}.{other_body}.{signature}")
    refusal(f"{head}.{body}.{other_signature}")
    assert TOKENS.bank_in("acme", other) == bank_of("acme", "bob")


@pytest.mark.parametrize(
    "token",
    [
        signed(good_claims(), "another-secret-of-more-than-32-chars"),
        signed(good_claims(), kid="b"),
        signed(good_claims(), OLD * 2, algorithm="HS512"),
        jwt.encode(good_claims(), "", "none", headers={"kid": "a"}),
        signed(good_claims(aud="acme")),
        signed(good_claims(aud="another-purpose:acme")),
        signed({"sub": BANK, "exp": int(time()) + 86_400}),
        signed({"aud": "memory-user:acme", "sub": BANK}),
        signed({"aud": "memory-user:acme", "exp": int(time()) + 86_400}),
        signed(good_claims(sub="alice@example.com")),
        signed(good_claims(sub="u-" + "0" * 47)),
        signed(good_claims(sub=BANK + "\n")),
        signed(good_claims(exp="soon")),
        signed(good_claims(nbf=int(time()) + 3600)),
        signed(good_claims(more="x" * 600)),
    ],
)
def test_what_we_did_not_make_is_refused(token: str) -> None:
    assert refusal(token) == refusal("nonsense")


@pytest.mark.parametrize(
    "text",
    [
        "", " ", ".", "..", "...", "alice@example.com", "{{#sys.user_id#}}", "DEFAULT-USER", BANK, "用户",
        "\ud800.\ud800.\ud800", "\x00", "x" * 100_000, TOKEN.rpartition(".")[0], f"Bearer {TOKEN}",
        f"{urlsafe_b64encode(b'[' * 300).decode()}.e30.x", f"{urlsafe_b64encode(b'null').decode()}.e30.x",
        f"{urlsafe_b64encode(b'{}').decode()}.e30.x", f"{urlsafe_b64encode(bytes([255])).decode()}.e.x",
        f"{urlsafe_b64encode(json.dumps({'kid': ['a'], 'alg': 'HS256'}).encode()).decode()}.e30.x",
    ],
)  # fmt: skip
def test_what_is_no_token_is_refused_in_the_same_words(text: str) -> None:
    assert refusal(text) == refusal(TOKEN, "another")


@given(st.text(max_size=80))
def test_no_text_breaks_reading(text: str) -> None:
    refusal(text)


def test_keys_are_rotated_without_a_gap() -> None:
    both = UserTokens({"b": NEW, "a": OLD})
    assert both.bank_in("acme", TOKEN) == BANK
    fresh = both.make("acme", BANK, 60).text
    assert jwt.get_unverified_header(fresh)["kid"] == "b"
    refusal(fresh)  # who has only the old key
    only_new = UserTokens({"b": NEW})
    assert only_new.bank_in("acme", fresh) == BANK
    refusal(TOKEN, tokens=only_new)
    # The same name with another secret is another key.
    refusal(TOKEN, tokens=UserTokens({"a": NEW}))


def test_the_keys_come_from_the_settings_the_first_one_signs() -> None:
    assert UserTokens.from_settings(Settings()) is None
    tokens = UserTokens.from_settings(Settings.model_validate({"token_keys": f"b:{NEW}, a:{OLD}"}))
    assert tokens is not None
    assert tokens.bank_in("acme", TOKEN) == BANK
    assert jwt.get_unverified_header(tokens.make("acme", BANK, 60).text)["kid"] == "b"


@pytest.mark.parametrize(
    "given", [OLD, f"a{OLD}", "a:short", f":{OLD}", f"a:{OLD},", f"a:{OLD},a:{NEW}", f"a b:{OLD}", f"é:{OLD}"]
)
def test_settings_that_would_sign_badly_are_refused_without_being_shown(given: str) -> None:
    with pytest.raises(ValueError, match="token_keys") as caught:
        Settings.model_validate({"token_keys": given})
    assert "secret-of-more" not in str(caught.value)
