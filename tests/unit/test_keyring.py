"""Keys that were made: found by their id, good until they end, and for whose memory they are good."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from service.adapters.keys import Grant, KeyRecord, digest_of, id_in, new_key
from service.adapters.user_tokens import UserTokens
from service.auth import Caller, Guards, KeyRing, bank_for
from service.errors import IdentityConflict, IdentityRequired, KeyRefused, ScopeMissing, TokenRefused
from service.scope import bank_of
from service.settings import Settings

SEED = "the-seed-key-of-some-length"
PEPPER = "a-pepper-of-more-than-32-characters"
TOKENS = UserTokens({"a": "a-secret-of-more-than-32-characters"})
NOW = time.time()


def ring_of(*records: KeyRecord, pepper: str = "") -> KeyRing:
    settings = Settings.model_validate({"api_key": SEED, "key_pepper": pepper or None, "tenant": "acme"})
    ring = KeyRing.from_settings(settings, Guards(tokens=TOKENS))
    ring.put(records, NOW)
    return ring


def made(grant: Grant | None = None, *, pepper: str = "", **changes: Any) -> tuple[str, KeyRecord]:
    key, key_id = new_key()
    grant = grant or Grant("acme", ("recall",))
    record = KeyRecord(key_id, "a name", grant, 0, int(NOW), digest_of(key, grant, pepper.encode()))
    return key, replace(record, **changes)


def request(key: str, header: str = "authorization", query: str = "") -> dict[str, Any]:
    return {"headers": [(header.encode(), key.encode())], "query_string": query.encode()}


def is_good(ring: KeyRing, key: str) -> bool:
    try:
        ring.authenticate(request(f"Bearer {key}"))
    except KeyRefused:
        return False
    return True


def test_a_key_is_found_with_what_it_may_do() -> None:
    key, record = made(Grant("other", ("add", "recall"), user_prefix="app-"))
    caller = ring_of(record).authenticate(request(f"Bearer Bearer {key}"))
    assert (caller.tenant, caller.key_id, caller.user_prefix) == ("other", record.key_id, "app-")
    assert caller.scopes == {"add", "recall"}
    with pytest.raises(ScopeMissing):
        caller.require("admin")


def test_the_id_is_in_the_key_and_the_secret_nowhere_in_the_record() -> None:
    key, record = made()
    assert id_in(key) == record.key_id
    assert key.rpartition("_")[2] not in repr(record)
    assert len({new_key()[0] for _ in range(1000)}) == 1000
    assert len(key.rpartition("_")[2]) == 43


@pytest.mark.parametrize(
    "change",
    [
        lambda key: key[:-1],
        lambda key: key + "x",
        lambda key: key.upper(),
        lambda key: key.removeprefix("dm_"),
        lambda key: key.replace("dm_", "dm__", 1),
        lambda key: key.rpartition("_")[0] + "_",
        lambda key: key.rpartition("_")[0],
        lambda key: f"dm_{'0' * 10}_{key.rpartition('_')[2]}",
        lambda key: f"{key[:-1]}{'a' if key[-1] != 'a' else 'b'}",
    ],
)
def test_a_key_that_is_not_quite_right_is_refused(change: Callable[[str], str]) -> None:
    key, record = made()
    ring = ring_of(record)
    assert is_good(ring, key)
    assert not is_good(ring, change(key))


@given(st.text(max_size=60))
def test_no_text_is_a_key_by_accident(text: str) -> None:
    assert not is_good(ring_of(made()[1]), f"dm_{text.encode('utf-8', 'ignore').decode()}")


def test_with_a_pepper_a_record_that_was_forged_or_widened_is_no_key() -> None:
    key, record = made(pepper=PEPPER)
    assert is_good(ring_of(record, pepper=PEPPER), key)
    assert not is_good(ring_of(record, pepper=PEPPER + "x"), key)
    assert not is_good(ring_of(record), key)
    for grant in (
        Grant("another", ("recall",)),
        Grant("acme", ("admin", "recall")),
        Grant("acme", ("recall",), "bound", bank_of("acme", "victim")),
        Grant("acme", ("recall",), user_prefix="a"),
    ):
        assert not is_good(ring_of(replace(record, grant=grant), pepper=PEPPER), key)
    forged_key, forged = made()  # by somebody who can write to Redis and does not know the pepper
    assert not is_good(ring_of(forged, pepper=PEPPER), forged_key)


def test_a_key_that_has_ended_is_refused_even_between_two_looks() -> None:
    key, record = made(expires_s=int(NOW) - 1)
    assert not is_good(ring_of(record), key)
    key, record = made(expires_s=int(NOW) + 3600)
    ring = ring_of(record)
    assert is_good(ring, key)
    ring.put([record], NOW + 3601)
    assert not is_good(ring, key)
    key, record = made(expires_s=int(time.time()))
    ring.put([replace(record, expires_s=int(NOW) + 3600)], NOW)
    assert is_good(ring, key)


def test_a_revoked_key_stays_revoked_and_a_header_that_was_seen_does_not_help() -> None:
    key, record = made()
    ring = ring_of(record)
    assert is_good(ring, key)
    ring.put([replace(record, revoked_s=int(NOW))], NOW)
    assert not is_good(ring, key)
    ring.put([record], NOW)  # an older Redis, after a restore
    assert not is_good(ring, key)
    ring.put([], NOW)
    ring.put([record], NOW)
    assert not is_good(ring, key)


def test_a_key_that_is_gone_is_refused_and_the_one_of_the_settings_stays() -> None:
    key, record = made()
    ring = ring_of(record)
    assert is_good(ring, key)
    ring.put([], NOW)
    assert not is_good(ring, key)
    assert is_good(ring, SEED)


def test_two_keys_in_one_request_are_refused_even_if_both_are_good() -> None:
    key, record = made()
    ring = ring_of(record)
    with pytest.raises(KeyRefused):
        ring.authenticate(request(key, query=f"api_key={SEED}"))
    with pytest.raises(KeyRefused):
        ring.authenticate({"headers": [(b"x-api-key", key.encode()), (b"authorization", SEED.encode())]})


# --- Whose memory ---------------------------------------------------------------------------------------
def caller_of(grant: Grant) -> Caller:
    key, record = made(grant)
    return ring_of(record).authenticate(request(key))


def bank(caller: Caller, user_id: str, query: str = "") -> str:
    return bank_for(caller, request("", query=query), user_id, allow_anonymous=False)


def test_a_bound_key_is_one_users_whoever_is_named() -> None:
    alices = bank_of("acme", "alice")
    caller = caller_of(Grant("acme", ("recall",), "bound", alices))
    assert bank(caller, "alice") == alices
    for absent in ("", " ", "null", "DEFAULT-USER", "{{#sys.user_id#}}"):
        assert bank(caller, absent) == alices
    for other in ("bob", "Alice", "alice ", "alice1", alices):
        with pytest.raises(IdentityConflict, match="one user only") as caught:
            bank(caller, other)
        assert other not in caught.value.detail
    for named in ("user_id=bob", "user_id=alice&user_id=bob"):
        with pytest.raises(IdentityConflict):
            bank(caller, "alice", named)


def test_a_key_with_a_prefix_is_for_ids_that_begin_with_it() -> None:
    caller = caller_of(Grant("acme", ("recall",), user_prefix="app1-"))
    assert bank(caller, "app1-alice") == bank_of("acme", "app1-alice")
    for other in ("alice", "app1", "APP1-alice", " app1-alice", "app2-alice"):
        with pytest.raises(IdentityConflict, match="prefix"):
            bank(caller, other)
    with pytest.raises(IdentityRequired):
        bank(caller, "")


def test_a_signed_key_takes_tokens_of_its_tenant_and_nothing_else() -> None:
    caller = caller_of(Grant("acme", ("recall",), "signed"))
    alices = bank_of("acme", "alice")
    token = TOKENS.make("acme", alices, 60).text
    assert bank(caller, token) == alices
    assert bank(caller, token, f"user_id={token}") == alices
    for other in ("alice", alices, "", "DEFAULT-USER", TOKENS.make("b", bank_of("b", "alice"), 60).text):
        with pytest.raises(TokenRefused):
            bank(caller, other)
    with pytest.raises(IdentityConflict):
        bank(caller, token, "user_id=alice")
    theirs = TOKENS.make("acme", bank_of("acme", "bob"), 60).text
    with pytest.raises(IdentityConflict):
        bank(caller, token, f"user_id={theirs}")


def test_a_signed_key_without_keys_for_tokens_is_good_for_nobody() -> None:
    caller = replace(caller_of(Grant("acme", ("recall",), "signed")), guards=Guards())
    with pytest.raises(TokenRefused):
        bank(caller, TOKENS.make("acme", bank_of("acme", "alice"), 60).text)


def test_a_trusted_key_takes_a_token_for_a_name() -> None:
    """It is an id like any other there: somebody else's than the user it was made for."""
    token = TOKENS.make("acme", bank_of("acme", "alice"), 60).text
    assert bank(caller_of(Grant("acme", ("recall",))), token) == bank_of("acme", token)


def test_what_is_answered_from_memory_follows_from_key_and_bytes_alone() -> None:
    assert caller_of(Grant("acme", ("recall",))).is_plain
    assert caller_of(Grant("acme", ("recall",), "bound", bank_of("acme", "alice"))).is_plain
    assert not caller_of(Grant("acme", ("recall",), "signed")).is_plain
    # Two keys never share a name there.
    assert caller_of(Grant("acme", ("recall",))).key_id != caller_of(Grant("acme", ("recall",))).key_id
