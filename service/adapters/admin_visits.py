"""Visits of operators to `/admin`: a signed proof for the browser, and the mark that ends one early.

The proof is a JWT (HS256) with an audience of its own. It names the id of the API key that signed in, never
the key: whether that key is still good is asked at every request.
"""

import hashlib
import hmac
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from time import time
from typing import Any, Final, Self

import jwt

from service import keyspace
from service.adapters.redis_client import RedisStore
from service.errors import KeyRefused, KeysUnavailable
from service.scope import turn_digest
from service.settings import Settings

_ALGORITHM: Final = "HS256"
_AUDIENCE: Final = "memory-admin-visit"
_MOST_CHARS: Final = 1000
_REFUSED: Final = "This page opens with an API key that has the scope admin."


@dataclass(frozen=True, slots=True)
class AdminVisit:
    """An operator who has signed in: with which key, and until when (Unix seconds).

    Forms carry `form_key`, which only this visit's pages know.
    """

    id: str
    key_id: str
    expires_s: int
    form_key: str


class AdminVisits(RedisStore):
    """Makes, reads and ends visits; the first secret signs, every one is good.

    Without a secret nobody can sign in: `can_sign` is False.
    """

    _ERROR = KeysUnavailable
    _SENTENCE = "Whether this visit was ended cannot be told now; try again soon."

    def __init__(self, redis_url: str, secrets_: Sequence[bytes], *, timeout_s: float = 1.0) -> None:
        super().__init__(redis_url, timeout_s=timeout_s)
        # A key of its own, so that what is signed here is of no use where the secret signs other things.
        self._keys = [hmac.digest(one, _AUDIENCE.encode(), hashlib.sha256) for one in secrets_]

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """With `MEMORY_TOKEN_KEYS`, or else `MEMORY_KEY_PEPPER`, or else `MEMORY_API_KEY` to sign with.

        Each is a secret of all processes; who knows the last may sign in anyway.
        """
        given = list(settings.token_secrets.values())
        for other in (settings.key_pepper, settings.api_key):
            if not given and other is not None:
                given = [other.get_secret_value()]
        return cls(settings.redis_url, [one.encode() for one in given])

    @property
    def can_sign(self) -> bool:
        """Whether there is a secret."""
        return bool(self._keys)

    def make(self, key_id: str, ttl_s: int) -> tuple[str, AdminVisit]:
        """A visit with that key for `ttl_s` seconds, and the proof of it; raises `KeyRefused`."""
        if not self._keys:
            raise refused()
        visit = AdminVisit(
            secrets.token_urlsafe(16), key_id, int(time()) + ttl_s, form_key=secrets.token_urlsafe(24)
        )
        claims = {"sub": key_id, "jti": visit.id, "exp": visit.expires_s, "form_key": visit.form_key}
        return jwt.encode({**claims, "aud": _AUDIENCE}, self._keys[0], _ALGORITHM), visit

    def read(self, proof: str) -> AdminVisit:
        """The visit that `make` has made this proof for; raises `KeyRefused` for any other text."""
        if not proof or not proof.isascii() or len(proof) > _MOST_CHARS:
            raise refused()
        for key in self._keys:
            try:
                claims: dict[str, Any] = jwt.decode(
                    proof,
                    key,
                    [_ALGORITHM],
                    audience=_AUDIENCE,
                    options={"require": ["aud", "sub", "exp", "jti"]},
                )
            except (jwt.PyJWTError, ValueError, RecursionError):
                continue
            form_key = claims.get("form_key")
            if isinstance(form_key, str) and form_key:
                return AdminVisit(str(claims["jti"]), str(claims["sub"]), int(claims["exp"]), form_key)
        raise refused()

    async def end(self, visit: AdminVisit) -> None:
        """From now on the proof of this visit is good no more, in every process; raises `KeysUnavailable`."""
        async with self._errors():
            await self._redis.set(_key(visit), 1, ex=max(1, visit.expires_s - int(time()) + 60))

    async def is_ended(self, visit: AdminVisit) -> bool:
        """Whether it was ended before its time; raises `KeysUnavailable`."""
        async with self._errors():
            return bool(await self._redis.exists(_key(visit)))


def refused() -> KeyRefused:
    """What everybody meets who has not signed in, for whatever reason."""
    return KeyRefused(_REFUSED)


def _key(visit: AdminVisit) -> str:
    return keyspace.admin_ended(turn_digest("admin-visit", visit.id))
