"""Links to `/me`, the visits they open and what a visitor's browser keeps: each good for one thing alone."""

from dataclasses import replace
from time import time

import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from service.adapters.me_links import EndedLinks, MeLinks, Visit
from service.adapters.user_tokens import UserTokens
from service.errors import InvalidRequest, LinkRefused, TokenRefused
from service.memory.me import Me, request_of
from service.memory.policies import Policies
from service.policy.kinds import DEFAULT_KINDS, KeepPolicy, Kind
from service.policy.me_view import Done, View
from service.policy.tenant_policy import PolicyFile, TenantPolicy
from service.scope import bank_of
from service.settings import Settings

OLD, NEW = "old-secret-of-more-than-32-characters", "new-secret-of-more-than-32-characters"
LINKS = MeLinks({"a": OLD})
BANK = bank_of("acme", "alice@example.com")
VISIT = Visit("acme", BANK, 0, 0, "")
ZONE = Settings().zone


def me(**settings: object) -> Me:
    made = Settings.model_validate({"token_keys": f"a:{OLD}"} | settings)
    keep = KeepPolicy((*DEFAULT_KINDS, Kind("noise", keep=False)))
    policies = Policies(PolicyFile(TenantPolicy(keep), {}))
    return Me.from_settings(made, EndedLinks.from_settings(made), policies)


def test_a_link_opens_visits_that_know_whose_they_are_and_nothing_else() -> None:
    link = LINKS.make("acme", BANK, 60, 5)
    proofs = {LINKS.open(link.token)[0] for _ in range(3)}
    assert len(proofs) == 3
    visits = [LINKS.visit(proof) for proof in proofs]
    assert {(one.tenant, one.bank, one.made_ms, one.expires_s) for one in visits} == {
        ("acme", BANK, 5, link.expires_s)
    }
    assert len({one.form_key for one in visits}) == 3
    assert min(len(one.form_key) for one in visits) >= 32
    for text in (link.token, *proofs):
        assert "alice" not in str(jwt.decode(text, options={"verify_signature": False}))


def test_no_token_passes_for_another() -> None:
    tokens = UserTokens({"a": OLD})
    user_token = tokens.make("acme", BANK, 60).text
    link = LINKS.make("acme", BANK, 60, 5).token
    proof, visit = LINKS.open(link)
    sealed = LINKS.seal(visit, {"query": "tea"})
    for wrong in (user_token, proof, sealed):
        with pytest.raises(LinkRefused):
            LINKS.open(wrong)
    for wrong in (user_token, link, sealed):
        with pytest.raises(LinkRefused):
            LINKS.visit(wrong)
    for wrong in (link, proof, sealed):
        with pytest.raises(TokenRefused):
            tokens.bank_in("acme", wrong)
        for tenant in ("link", "visit", "view", "me-link"):
            with pytest.raises(TokenRefused):
                tokens.bank_in(tenant, wrong)
    for other in (user_token, link, proof):
        assert LINKS.unseal(visit, other) == {}


@given(st.text(max_size=80))
def test_no_text_breaks_reading(text: str) -> None:
    with pytest.raises(LinkRefused):
        LINKS.open(text)
    assert LINKS.unseal(LINKS.open(LINKS.make("acme", BANK, 60, 5).token)[1], text) == {}


def test_keys_are_rotated_without_a_gap() -> None:
    link = LINKS.make("acme", BANK, 60, 5).token
    both, only_new = MeLinks({"b": NEW, "a": OLD}), MeLinks({"b": NEW})
    proof, _ = both.open(link)
    assert only_new.visit(proof).bank == BANK
    with pytest.raises(LinkRefused):
        only_new.open(link)


def test_it_ends_when_it_says_but_for_a_difference_between_clocks() -> None:
    assert LINKS.open(LINKS.make("acme", BANK, -10, 5).token)
    with pytest.raises(LinkRefused):
        LINKS.open(LINKS.make("acme", BANK, -40, 5).token)


def test_what_is_looked_at_is_kept_for_this_person_alone() -> None:
    page = me()
    _, visit = LINKS.open(LINKS.make("acme", BANK, 60, 5).token)
    view = View("zh", "茶" * 100, "preference", "2026-01-31", has_superseded=True, cursor="c" * 110)
    done = Done("all", "2026-01-31T00:00:00+00:00", "n" * 64, 1, 2, 3, 4, 5, is_verified=False)
    sealed = page.seal(visit, view, done)
    assert len(sealed) < 3800
    assert page.unseal(visit, sealed) == (view, done)
    assert page.unseal(visit, page.seal(visit, View())) == (View(), None)
    other = replace(visit, bank=bank_of("acme", "bob"))
    for broken in (page.seal(other, view, done), sealed[:-2], "", "x"):
        assert page.unseal(visit, broken) == (View(), None)
    # Whatever does not fit into a cookie is dropped whole.
    assert page.unseal(visit, LINKS.seal(visit, {"query": "x" * 5000})) == (View(), None)
    # As another version may have sealed it.
    assert page.unseal(
        visit, LINKS.seal(visit, {"query": "q", "colour": "red", "done": {"what": "x", "y": 1}})
    ) == (
        View(query="q"),
        None,
    )


@pytest.mark.parametrize(
    "form",
    [
        {"query": "x" * 101},
        {"kind": "noise"},
        {"kind": "unknown"},
        {"until": "yesterday"},
        {"until": "0001-01-01"},
        {"until": "9999-12-31"},
        {"cursor": "nonsense"},
    ],
)
def test_a_view_that_cannot_be_is_refused(form: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest):
        me().view_in(VISIT, form, View())


def test_a_form_says_all_of_a_view_but_the_language() -> None:
    before = View("zh", "tea", "preference", "2026-01-31", has_superseded=True, cursor="c")
    assert me().view_in(VISIT, {}, before) == View("zh")
    form = {"query": " bees ", "superseded": "yes", "kind": ["x"]}
    assert me().view_in(VISIT, form, View()) == View(query="bees", has_superseded=True)
    ask = request_of(View(until="2026-01-31"), BANK, ZONE)
    assert ask.cursor
    assert request_of(View(query="null"), BANK, ZONE).query == "null"


@pytest.mark.parametrize(
    ("settings", "url"),
    [
        ({}, "http://127.0.0.1:8000/me"),
        ({"host": "::1", "port": 9000}, "http://[::1]:9000/me"),
        ({"public_url": "http://host.docker.internal:8000"}, "http://host.docker.internal:8000/me"),
        ({"public_url": "http://x", "me_url": "https://me.example.com/m/"}, "https://me.example.com/m/me"),
    ],
)
def test_links_lead_where_people_reach_the_service(settings: dict[str, object], url: str) -> None:
    page = me(**settings)
    assert page.address_of(LINKS.make("acme", BANK, 60, int(time()))).startswith(f"{url}?token=")
