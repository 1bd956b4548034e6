"""API key → `Caller`, and the request's user id → the bank it may touch.

A key is looked for where Dify and people put it: `Authorization` (with Bearer, Basic as a literal
prefix, or nothing; repeated prefixes too, since the second call of a Dify agent run carries
`Bearer Bearer KEY`, dify#35974), `X-API-Key`, `Api-Key`, or the query parameter `api_key`.
"""

import hashlib
import hmac
import time
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

from service import logs
from service.adapters.keys import ALL_SCOPES, Identity, KeyRecord, Scope, digest_of, id_in
from service.adapters.user_tokens import UserTokens, refused
from service.errors import IdentityConflict, KeyRefused, ScopeMissing
from service.memory.audit import Audit
from service.memory.limits import RateLimits
from service.scope import BankId, bank_of, checked_user_id, is_absent
from service.settings import Settings

__all__ = ["ALL_SCOPES", "Caller", "Guards", "KeyRing", "Scope", "bank_for", "note_done", "note_subject"]

_PREFIXES = ("bearer ", "basic ", "token ")
_LONGEST_PREFIX = max(map(len, _PREFIXES))
_BARE_PREFIXES = frozenset(prefix.strip() for prefix in _PREFIXES)
_KEY_HEADERS = (b"authorization", b"x-api-key", b"api-key")
_KEY_PARAMETER = "api_key"
# One key can be written in many ways (prefixes, spaces); a few are in use.
_MOST_SEEN = 1024

_REFUSED = (
    "The API key is missing or wrong. This is the memory service speaking, not a network block: "
    "check the key in Dify's authorization settings (Authorization: Bearer <key>)."
)


# Where the caller of a request is noted for the audit trail, and what it was about besides a bank.
_CALLER = "memory.caller"
_SUBJECT = "memory.subject"


@dataclass(frozen=True, slots=True)
class Guards:
    """What else a request has to pass, or is written down in; None where that is not set up."""

    tokens: UserTokens | None = None
    limits: RateLimits | None = None
    audit: Audit | None = None


_NO_GUARDS = Guards()


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls: the tenant of the key, an id of the key that may be logged, what it may do.

    `identity` is how the user is known: `trusted` (by the request's user id, which has to begin with
    `user_prefix`), `signed` (by a user token in its place) or `bound` (always that of `bank`).
    """

    tenant: str
    key_id: str
    scopes: frozenset[Scope]
    identity: Identity = "trusted"
    bank: BankId | None = None
    user_prefix: str = ""
    rate_per_minute: int = 0
    guards: Guards = field(default=_NO_GUARDS, repr=False, compare=False)

    def require(self, scope: Scope) -> None:
        """Raise `ScopeMissing` unless the key has `scope`."""
        if scope not in self.scopes:
            raise ScopeMissing(f"This API key may not do that; it lacks the scope {scope}.")

    @property
    def is_plain(self) -> bool:
        """Whether whose memory a request is about follows for ever from the key and the request's bytes.

        A user token ends, and a user's requests have to be counted.
        """
        return self.identity != "signed" and (self.guards.limits is None or not self.guards.limits.has_users)


class KeyRing:
    """The keys in force, in memory: those of the settings, and those that were made (see `put`)."""

    def __init__(
        self,
        keys: Mapping[bytes, Caller],
        guards: Guards = _NO_GUARDS,
        *,
        pepper: bytes = b"",
        rate_per_key: int = 0,
    ) -> None:
        # By digest: comparing digests takes the same time for every wrong key.
        self._keys = dict(keys)
        self._guards = guards
        self._pepper = pepper
        self._rate_per_key = rate_per_key
        self._made: dict[str, tuple[KeyRecord, Caller]] = {}
        self._revoked: set[str] = set()
        # Headers that were found to hold a good key, as they came: taking one apart costs more than this.
        self._seen: dict[bytes, Caller] = {}

    @classmethod
    def from_settings(cls, settings: Settings, guards: Guards = _NO_GUARDS) -> "KeyRing":
        """`MEMORY_API_KEY` with all scopes; no key at all lets nobody in."""
        seeds: dict[bytes, Caller] = {}
        key = _bare(settings.api_key.get_secret_value()) if settings.api_key else ""
        if key:
            digest = _digest(key)
            seeds[digest] = Caller(
                settings.tenant,
                digest.hex()[:8],
                ALL_SCOPES,
                rate_per_minute=settings.key_rate_limit if guards.limits else 0,
                guards=guards,
            )
        pepper = settings.key_pepper.get_secret_value().encode() if settings.key_pepper else b""
        return cls(seeds, guards, pepper=pepper, rate_per_key=settings.key_rate_limit)

    def put(self, records: Iterable[KeyRecord], now_s: float) -> None:
        """From now on these are the keys that were made; those that have ended are no keys.

        A key that was once seen revoked stays so, whatever an older Redis may say later.
        """
        records = list(records)
        self._revoked.update(record.key_id for record in records if record.revoked_s is not None)
        self._made = {
            record.key_id: (record, self._caller(record))
            for record in records
            if record.is_good(now_s) and record.key_id not in self._revoked
        }
        self._seen.clear()

    def _caller(self, record: KeyRecord) -> Caller:
        grant = record.grant
        return Caller(
            grant.tenant,
            record.key_id,
            frozenset(grant.scopes),
            grant.identity,
            grant.bank,
            grant.user_prefix,
            (record.rate_per_minute or self._rate_per_key) if self._guards.limits else 0,
            self._guards,
        )

    def authenticate(self, asgi_scope: MutableMapping[str, Any]) -> Caller:
        """The caller of an ASGI request, which is counted and noted as its caller.

        Raises `KeyRefused` without exactly one good key, `TooManyRequests` when it has made too many.
        """
        headers, query_string = asgi_scope["headers"], asgi_scope.get("query_string", b"")
        sent = [value for name, value in headers if name in _KEY_HEADERS]
        is_plain = len(sent) == 1 and not query_string
        found = self._seen.get(sent[0]) if is_plain else None
        if found is None:
            keys = _presented(sent, query_string)
            if len(keys) != 1 or (found := self._look_up(keys.pop())) is None:
                raise KeyRefused(_REFUSED)
            if is_plain and len(self._seen) < _MOST_SEEN:
                self._seen[sent[0]] = found
        guards = found.guards
        if guards.audit is not None:
            asgi_scope[_CALLER] = found
        if found.rate_per_minute and guards.limits is not None:
            guards.limits.take_key(found.key_id, found.rate_per_minute)
        return found

    def admit(self, asgi_scope: MutableMapping[str, Any], key: str) -> Caller:
        """The caller whose key this text is, noted like `authenticate`'s; raises as that does."""
        bare = _bare(key)
        if not bare or (found := self._look_up(bare)) is None:
            raise KeyRefused(_REFUSED)
        return self._noted(asgi_scope, found)

    def resume(self, asgi_scope: MutableMapping[str, Any], key_id: str) -> Caller:
        """The caller whose key, shown before, has this id; noted, and raises, as `authenticate` does."""
        found = next((caller for caller in self._keys.values() if caller.key_id == key_id), None)
        if found is None and (made := self._made.get(key_id)) is not None and made[0].is_good(time.time()):
            found = made[1]
        if found is None:
            raise KeyRefused(_REFUSED)
        return self._noted(asgi_scope, found)

    def is_seed(self, caller: Caller) -> bool:
        """Whether this is a key of the settings, which only who runs the whole installation has."""
        return any(seed.key_id == caller.key_id for seed in self._keys.values())

    def _noted(self, asgi_scope: MutableMapping[str, Any], found: Caller) -> Caller:
        if found.guards.audit is not None:
            asgi_scope[_CALLER] = found
        if found.rate_per_minute and found.guards.limits is not None:
            found.guards.limits.take_key(found.key_id, found.rate_per_minute)
        return found

    def _look_up(self, key: str) -> Caller | None:
        digest = _digest(key)
        found: Caller | None = None
        for known, caller in self._keys.items():
            if hmac.compare_digest(known, digest):
                found = caller
        # An id is no secret: that there is none of that name may show in the time this takes.
        if found is None and (made := self._made.get(id_in(key))) is not None:
            record, caller = made
            if record.is_good(time.time()) and hmac.compare_digest(
                record.digest, digest_of(key, record.grant, self._pepper)
            ):
                found = caller
        return found


def bank_for(caller: Caller, asgi_scope: Mapping[str, Any], user_id: str, *, allow_anonymous: bool) -> BankId:
    """The bank that the caller means by `user_id`, which is counted as one request about it.

    Raises `IdentityRequired` for an id that cannot stand for one person, `TokenRefused` where the key
    wants a user token and gets none, `IdentityConflict` when the query string names another user than
    the body or the user is not one of the key's, `TooManyRequests` when it is one too many.
    """
    bank = _bank_of(caller, user_id, allow_anonymous)
    for name, value in _parameters(asgi_scope.get("query_string", b"")):
        if name == "user_id" and value != user_id:
            raise IdentityConflict("The query string and the body name two different users.")
    if caller.guards.limits is not None:
        caller.guards.limits.take_user(bank)
    return bank


def _bank_of(caller: Caller, user_id: str, allow_anonymous: bool) -> BankId:
    if caller.identity == "signed":
        if caller.guards.tokens is None:
            raise refused()
        return caller.guards.tokens.bank_in(caller.tenant, user_id)
    if caller.bank is not None and is_absent(user_id):
        return caller.bank  # there is one user only: nobody need name them
    if caller.identity == "bound":
        checked = checked_user_id(user_id, allow_anonymous=allow_anonymous)
        if (bank := bank_of(caller.tenant, checked)) != caller.bank:
            raise IdentityConflict("This API key is for one user only, and not for the one in user_id.")
        return bank
    checked = checked_user_id(user_id, allow_anonymous=allow_anonymous)
    if not checked.startswith(caller.user_prefix):
        raise IdentityConflict("This API key is only for user ids that begin with its prefix.")
    return bank_of(caller.tenant, checked)


def note_subject(asgi_scope: MutableMapping[str, Any], subject: str) -> None:
    """Say what a request is about for the audit trail, where that is no user: an id of ours, no content."""
    asgi_scope[_SUBJECT] = subject


def note_done(asgi_scope: Mapping[str, Any], action: str, status: int) -> None:
    """Put a request that was answered into the audit trail, if there is one and the key was good."""
    caller: Caller | None = asgi_scope.get(_CALLER)
    if caller is not None and caller.guards.audit is not None:
        subject = asgi_scope.get(_SUBJECT) or logs.bank_id.get()
        caller.guards.audit.note(caller.tenant, caller.key_id, action, subject, status)


def _presented(sent: Iterable[bytes], query_string: bytes) -> set[str]:
    keys = {_bare(_text(value)) for value in sent}
    if query_string:
        keys |= {_bare(value) for name, value in _parameters(query_string) if name == _KEY_PARAMETER}
    keys.discard("")
    return keys


def _parameters(query_string: bytes) -> list[tuple[str, str]]:
    return parse_qsl(_text(query_string), keep_blank_values=True) if query_string else []


def _text(raw: bytes) -> str:
    """UTF-8, whatever bytes there are: a key may hold any of them."""
    return raw.decode("utf-8", "surrogateescape")


def _bare(value: str) -> str:
    """The key without its prefixes, however often they are repeated."""
    value = value.strip()
    while value[:_LONGEST_PREFIX].lower().startswith(_PREFIXES):
        value = value.split(" ", 1)[1].strip()
    return "" if len(value) < _LONGEST_PREFIX and value.lower() in _BARE_PREFIXES else value


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
