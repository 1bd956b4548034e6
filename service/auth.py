"""API key → `Caller`, and the request's user id → the bank it may touch.

A key is looked for where Dify and people put it: `Authorization` (with Bearer, Basic as a literal
prefix, or nothing; repeated prefixes too, since the second call of a Dify agent run carries
`Bearer Bearer KEY`, dify#35974), `X-API-Key`, `Api-Key`, or the query parameter `api_key`.
"""

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import parse_qsl

from service.errors import IdentityConflict, KeyRefused, ScopeMissing
from service.scope import BankId, bank_of, checked_user_id
from service.settings import Settings

Scope = Literal["recall", "add", "review", "forget", "chat", "admin"]
ALL_SCOPES: frozenset[Scope] = frozenset({"recall", "add", "review", "forget", "chat", "admin"})

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


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls: the tenant of the key, an id of the key that may be logged, what it may do."""

    tenant: str
    key_id: str
    scopes: frozenset[Scope]

    def require(self, scope: Scope) -> None:
        """Raise `ScopeMissing` unless the key has `scope`."""
        if scope not in self.scopes:
            raise ScopeMissing(f"This API key may not do that; it lacks the scope {scope}.")


class KeyRing:
    """The keys in force, by digest: comparing digests takes the same time for every wrong key."""

    def __init__(self, keys: Mapping[bytes, Caller]) -> None:
        self._keys = dict(keys)
        # Headers that were found to hold a known key, as they came: taking one apart costs more than this.
        self._seen: dict[bytes, Caller] = {}

    @classmethod
    def from_settings(cls, settings: Settings) -> "KeyRing":
        """`MEMORY_API_KEY` with all scopes; no key at all lets nobody in."""
        if settings.api_key is None:
            return cls({})
        key = _bare(settings.api_key.get_secret_value())
        if not key:
            return cls({})
        digest = _digest(key)
        return cls({digest: Caller(settings.tenant, digest.hex()[:8], ALL_SCOPES)})

    def authenticate(self, asgi_scope: Mapping[str, Any]) -> Caller:
        """The caller of an ASGI request; raises `KeyRefused` without exactly one known key."""
        headers, query_string = asgi_scope["headers"], asgi_scope.get("query_string", b"")
        sent = [value for name, value in headers if name in _KEY_HEADERS]
        is_plain = len(sent) == 1 and not query_string
        if is_plain and (seen := self._seen.get(sent[0])) is not None:
            return seen
        keys = _presented(sent, query_string)
        if len(keys) != 1:
            raise KeyRefused(_REFUSED)
        digest = _digest(keys.pop())
        found: Caller | None = None
        for known, caller in self._keys.items():
            if hmac.compare_digest(known, digest):
                found = caller
        if found is None:
            raise KeyRefused(_REFUSED)
        if is_plain and len(self._seen) < _MOST_SEEN:
            self._seen[sent[0]] = found
        return found


def bank_for(caller: Caller, asgi_scope: Mapping[str, Any], user_id: str, *, allow_anonymous: bool) -> BankId:
    """The bank of `user_id` under the caller's tenant.

    Raises `IdentityRequired` for an id that cannot stand for one person, `IdentityConflict` when
    the query string names another user than the body.
    """
    checked = checked_user_id(user_id, allow_anonymous=allow_anonymous)
    for name, value in _parameters(asgi_scope.get("query_string", b"")):
        if name == "user_id" and value != checked:
            raise IdentityConflict("The query string and the body name two different users.")
    return bank_of(caller.tenant, checked)


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
