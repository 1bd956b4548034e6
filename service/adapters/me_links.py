"""What the page `/me` is opened by: signed links, the visits they open, and the mark that ends them.

All are JWTs (HS256) of the keys that sign user tokens, each with an audience of its own, so that none
passes for another: a link is no user token, a visit no link. They hold no user id, only the bank's digest.
"""

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from time import time
from typing import Any, Final

import jwt

from service import keyspace
from service.adapters.redis_client import RedisStore
from service.errors import KeysUnavailable, LinkRefused
from service.scope import BankId
from service.settings import Settings

MAX_LINK_S: Final = 7 * 86_400
_ALGORITHM: Final = "HS256"
_LINK, _VISIT, _VIEW = "memory-me-link", "memory-me-visit", "memory-me-view"
# Clocks of two servers may differ by so much.
_LEEWAY_S: Final = 30
# A browser keeps cookies of up to 4096 bytes, their names included.
_MOST_CHARS: Final = 3800
_BANK = re.compile(r"u-[0-9a-f]{48}")
# One sentence for every kind of wrong link: it tells a forger nothing.
_REFUSED = "This page opens by a personal link that is still good (POST /admin/me-links makes one)."


@dataclass(frozen=True, slots=True)
class MeLink:
    """The token of a link, and when it ends (Unix seconds)."""

    token: str
    expires_s: int


@dataclass(frozen=True, slots=True)
class Visit:
    """Somebody who came by a link: whose memory is shown, and until when (Unix seconds).

    `made_ms` is when the link was made. Forms carry `form_key`, which only this visit's pages know.
    """

    tenant: str
    bank: BankId
    made_ms: int
    expires_s: int
    form_key: str


class MeLinks:
    """Makes and reads links and visits; the first key signs, every key is good."""

    def __init__(self, keys: Mapping[str, str]) -> None:
        self._keys = {name: secret.encode() for name, secret in keys.items()}
        self._signing = next(iter(keys))

    @classmethod
    def from_settings(cls, settings: Settings) -> "MeLinks | None":
        """With `MEMORY_TOKEN_KEYS`; None without."""
        return cls(settings.token_secrets) if settings.token_secrets else None

    def make(self, tenant: str, bank: BankId, ttl_s: int, made_ms: int) -> MeLink:
        """A link for one user of one tenant, good for `ttl_s` seconds from now."""
        expires_s = int(time()) + ttl_s
        claims = {"sub": bank, "tenant": tenant, "made_ms": made_ms, "exp": expires_s}
        return MeLink(self._sign(_LINK, claims), expires_s)

    def open(self, token: str) -> tuple[str, Visit]:
        """A visit by a link, and what proves it; it ends when the link does. Raises `LinkRefused`."""
        claims = self._read(_LINK, token)
        claims["form_key"] = secrets.token_urlsafe(24)
        return self._sign(_VISIT, claims), _visit_in(claims)

    def visit(self, proof: str) -> Visit:
        """The visit that `open` has made this proof for; raises `LinkRefused`."""
        return _visit_in(self._read(_VISIT, proof))

    def seal(self, visit: Visit, facts: Mapping[str, object]) -> str:
        """What the visitor's browser keeps for us until the visit ends, and cannot change."""
        claims = {"sub": visit.bank, "exp": visit.expires_s, "facts": dict(facts)}
        text = self._sign(_VIEW, claims)
        return text if len(text) <= _MOST_CHARS else self._sign(_VIEW, claims | {"facts": {}})

    def unseal(self, visit: Visit, text: str) -> dict[str, Any]:
        """The facts that were sealed; none of them if it was for somebody else, or is broken."""
        try:
            claims = self._read(_VIEW, text)
        except LinkRefused:
            return {}
        facts = claims.get("facts")
        return facts if claims["sub"] == visit.bank and isinstance(facts, dict) else {}

    def _sign(self, audience: str, claims: Mapping[str, Any]) -> str:
        key = self._keys[self._signing]
        return jwt.encode({**claims, "aud": audience}, key, _ALGORITHM, headers={"kid": self._signing})

    def _read(self, audience: str, text: str) -> dict[str, Any]:
        text = text.strip()
        if not text.isascii() or len(text) > _MOST_CHARS:
            raise refused()
        try:
            # The name of the key is read before anything is proven: it only chooses among our own.
            key = self._keys.get(str(jwt.get_unverified_header(text).get("kid")))
            if key is None:
                raise refused()
            claims: dict[str, Any] = jwt.decode(
                text,
                key,
                [_ALGORITHM],
                audience=audience,
                leeway=_LEEWAY_S,
                options={"require": ["aud", "sub", "exp"]},
            )
        except (jwt.PyJWTError, ValueError, RecursionError) as exc:
            raise refused() from exc
        if not isinstance(claims["sub"], str) or not _BANK.fullmatch(claims["sub"]):
            raise refused()
        return claims


def refused() -> LinkRefused:
    """What every wrong link meets, also where there is no key to read it by."""
    return LinkRefused(_REFUSED)


def _visit_in(claims: Mapping[str, Any]) -> Visit:
    tenant, made_ms, form_key = claims.get("tenant"), claims.get("made_ms"), claims.get("form_key")
    if not (isinstance(tenant, str) and isinstance(made_ms, int) and isinstance(form_key, str)):
        raise refused()
    return Visit(tenant, BankId(claims["sub"]), made_ms, int(claims["exp"]), form_key)


class EndedLinks(RedisStore):
    """Which links were ended before their time, in Redis.

    Every method raises `KeysUnavailable` without Redis: a link that may have been ended is not good then.
    """

    _ERROR = KeysUnavailable
    _SENTENCE = "Whether this link is good cannot be told now; try again soon."

    async def end(self, bank: BankId) -> None:
        """End all links of a bank that were made until now, also by a server whose clock is ahead."""
        until_ms = int((time() + _LEEWAY_S) * 1000)
        async with self._errors():
            await self._redis.set(keyspace.me_ended(bank), until_ms, ex=MAX_LINK_S + 2 * _LEEWAY_S)

    async def until_ms(self, bank: BankId) -> int:
        """Links of a bank made until then (Unix ms) are good no more; 0: none was ended."""
        async with self._errors():
            return int(await self._redis.get(keyspace.me_ended(bank)) or 0)
