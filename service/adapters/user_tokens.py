"""User tokens: what a flow passes as `user_id` where a model must not choose whose memory it reads.

A token is a JWT (HS256) with the user's bank, the tenant and an end. It holds no user id, only the
digest that the bank is named by, so that whoever logs it logs nobody; and its length is bounded.
"""

import re
from dataclasses import dataclass
from time import time

import jwt

from service.errors import TokenRefused
from service.scope import BankId
from service.settings import Settings

MAX_TTL_S = 31 * 86_400
_ALGORITHM = "HS256"
# Clocks of two servers may differ by so much.
_LEEWAY_S = 30
_MOST_CHARS = 600
_BANK = re.compile(r"u-[0-9a-f]{48}")
# One sentence for every kind of wrong token: it tells a forger nothing.
_REFUSED = "This API key wants a valid user token as user_id (POST /admin/user-tokens makes one)."


@dataclass(frozen=True, slots=True)
class UserToken:
    """A token that was made, and when it ends (Unix seconds)."""

    text: str
    expires_s: int


class UserTokens:
    """Makes and reads tokens; the first key signs, every key is good."""

    def __init__(self, keys: dict[str, str]) -> None:
        self._keys = {name: secret.encode() for name, secret in keys.items()}
        self._signing = next(iter(keys))

    @classmethod
    def from_settings(cls, settings: Settings) -> "UserTokens | None":
        """With `MEMORY_TOKEN_KEYS`; None without."""
        return cls(settings.token_secrets) if settings.token_secrets else None

    def make(self, tenant: str, bank: BankId, ttl_s: int) -> UserToken:
        """A token for one user of one tenant, good for `ttl_s` seconds from now."""
        expires_s = int(time()) + ttl_s
        claims = {"aud": _audience(tenant), "sub": bank, "exp": expires_s}
        key = self._keys[self._signing]
        return UserToken(jwt.encode(claims, key, _ALGORITHM, headers={"kid": self._signing}), expires_s)

    def bank_in(self, tenant: str, token: str) -> BankId:
        """Whose memory a token is for; raises `TokenRefused`, always in the same words."""
        token = token.strip()
        if not token.isascii() or len(token) > _MOST_CHARS:
            raise refused()
        try:
            # The name of the key is read before anything is proven: it only chooses among our own.
            key = self._keys.get(str(jwt.get_unverified_header(token).get("kid")))
            if key is None:
                raise refused()
            claims = jwt.decode(
                token,
                key,
                [_ALGORITHM],
                audience=_audience(tenant),
                leeway=_LEEWAY_S,
                options={"require": ["aud", "sub", "exp"]},
            )
        except (jwt.PyJWTError, ValueError, RecursionError) as exc:
            raise refused() from exc
        bank = claims["sub"]
        if not isinstance(bank, str) or not _BANK.fullmatch(bank):
            raise refused()
        return BankId(bank)


def refused() -> TokenRefused:
    """What every token meets, also where there is no key to read it by."""
    return TokenRefused(_REFUSED)


def _audience(tenant: str) -> str:
    # What it is for and for whom: nothing else that these keys may sign some day passes as a user token.
    return f"memory-user:{tenant}"
