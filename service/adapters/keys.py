"""API keys that were made, in Redis: what each may do and a keyed digest of it, never the key.

A key reads `dm_<id>_<secret>`: the id finds its record without a walk, the secret has 256 random bits, so
that no digest of it can be guessed back. The digest covers what the key may do as well; with a pepper
(`MEMORY_KEY_PEPPER`) whoever can write to Redis can therefore neither make a key nor widen one.
"""

import hashlib
import hmac
import json
import logging
import re
import secrets
import string
from collections.abc import Awaitable, Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal, cast

from service import keyspace
from service.adapters.redis_client import RedisStore
from service.errors import KeysUnavailable
from service.scope import BankId

Scope = Literal["recall", "add", "review", "forget", "chat", "admin"]
ALL_SCOPES: frozenset[Scope] = frozenset({"recall", "add", "review", "forget", "chat", "admin"})
Identity = Literal["trusted", "signed", "bound"]
_IDENTITIES = frozenset({"trusted", "signed", "bound"})
# What a key may at most be allowed in a minute.
MAX_RATE_PER_MINUTE = 10_000_000

_log = logging.getLogger(__name__)

_PREFIX = "dm_"
_ID_ALPHABET = string.ascii_lowercase + string.digits
_ALPHABET = string.ascii_letters + string.digits
_ID_CHARS = 10
# 62 ** 43 is more than 2 ** 256.
_SECRET_CHARS = 43
# Fields of the hash beside the records: "<id>:expires", "<id>:revoked" and this one, which changes with it.
_VERSION = "version"
_DIGEST = re.compile(r"[0-9a-f]{64}")
# The first second of the year 10000: no later time can be written as ISO 8601.
_END_OF_TIME_S = 253_402_300_800


@dataclass(frozen=True, slots=True)
class Grant:
    """What a key may do, for ever: `bank` is the one user's of a bound key."""

    tenant: str
    scopes: tuple[Scope, ...]
    identity: Identity = "trusted"
    bank: BankId | None = None
    user_prefix: str = ""


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """A key that was made; times are Unix seconds, `rate_per_minute` 0 means the server's default."""

    key_id: str
    name: str
    grant: Grant
    rate_per_minute: int
    created_s: int
    digest: str
    expires_s: int | None = None
    revoked_s: int | None = None

    def is_good(self, now_s: float) -> bool:
        """Whether the key may be used at `now_s`."""
        return self.revoked_s is None and (self.expires_s is None or now_s < self.expires_s)


def new_key() -> tuple[str, str]:
    """A fresh key and its id."""
    key_id = "".join(secrets.choice(_ID_ALPHABET) for _ in range(_ID_CHARS))
    return f"{_PREFIX}{key_id}_{''.join(secrets.choice(_ALPHABET) for _ in range(_SECRET_CHARS))}", key_id


def id_in(key: str) -> str:
    """The id in a key as it was sent; "" when it is no key of this kind."""
    prefix, _, rest = key.partition("_")
    return rest.partition("_")[0] if f"{prefix}_" == _PREFIX else ""


def digest_of(key: str, grant: Grant, pepper: bytes) -> str:
    """What is stored for a key: a digest of it and of what it may do."""
    said = json.dumps([key, *asdict(grant).values()])
    return hmac.digest(pepper or b"-", said.encode(), hashlib.sha256).hex()


class KeyStore(RedisStore):
    """The keys in Redis; every method raises `KeysUnavailable` without it."""

    _ERROR = KeysUnavailable
    _SENTENCE = "The keys cannot be reached; try again soon."

    async def version(self) -> str:
        """Changes whenever any key changes; "" while there is none."""
        async with self._errors():
            return await cast("Awaitable[str | None]", self._redis.hget(keyspace.KEYS, _VERSION)) or ""

    async def load(self) -> tuple[str, list[KeyRecord]]:
        """The version and all keys, the ended ones too."""
        async with self._errors():
            fields = await cast("Awaitable[dict[str, str]]", self._redis.hgetall(keyspace.KEYS))
        records = [
            record
            for name, text in fields.items()
            if name != _VERSION and ":" not in name and (record := _record(name, text, fields)) is not None
        ]
        return fields.get(_VERSION, ""), sorted(records, key=lambda record: (record.created_s, record.key_id))

    async def add(self, record: KeyRecord) -> None:
        """Keep a new key."""
        fields = {record.key_id: _rendered(record)}
        if record.expires_s is not None:
            fields[f"{record.key_id}:expires"] = str(record.expires_s)
        await self._change(fields)

    async def expire(self, key_id: str, at_s: int) -> None:
        """Let a key end at that time."""
        await self._change({f"{key_id}:expires": str(at_s)})

    async def revoke(self, key_id: str, at_s: int) -> None:
        """End a key now: nothing brings it back."""
        await self._change({f"{key_id}:revoked": str(at_s)})

    async def drop(self, key_ids: Iterable[str]) -> None:
        """Lose all knowledge of keys."""
        names = [name for key_id in key_ids for name in (key_id, f"{key_id}:expires", f"{key_id}:revoked")]
        if names:
            await self._change({}, names)

    async def _change(self, fields: dict[str, str], gone: Iterable[str] = ()) -> None:
        async with self._errors():
            pipe = self._redis.pipeline(transaction=True)
            if names := list(gone):
                pipe.hdel(keyspace.KEYS, *names)
            pipe.hset(keyspace.KEYS, mapping={**fields, _VERSION: secrets.token_hex(8)})
            await pipe.execute()


def _rendered(record: KeyRecord) -> str:
    known = {name: value for name, value in asdict(record).items() if not name.endswith(("_s", "key_id"))}
    return json.dumps(known | {"created_s": record.created_s}, ensure_ascii=False)


def _record(key_id: str, text: str, fields: dict[str, str]) -> KeyRecord | None:
    try:
        return _read(key_id, text, fields)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        # Of another version, or not written by us: no key.
        _log.warning("key_record_unreadable")
        return None


def _read(key_id: str, text: str, fields: dict[str, str]) -> KeyRecord:
    """Every field is looked at: what only fails when it is used would fail for all keys."""
    data = json.loads(text)
    record = KeyRecord(
        key_id=key_id,
        grant=_grant(data.pop("grant")),
        expires_s=_moment(fields.get(f"{key_id}:expires")),
        revoked_s=_moment(fields.get(f"{key_id}:revoked")),
        **data,
    )
    _text(record.name)
    _whole(record.rate_per_minute, MAX_RATE_PER_MINUTE + 1)
    _whole(record.created_s, _END_OF_TIME_S)
    if not _DIGEST.fullmatch(record.digest):
        raise ValueError("no digest")
    return record


def _grant(data: dict[str, Any]) -> Grant:
    """A record must never be read as something wider than it says: no default stands in for a field."""
    # Read as a sequence, a text would be one of letters.
    if not isinstance(data["scopes"], list):
        raise TypeError("the scopes are no list")
    grant = Grant(
        tenant=_text(data["tenant"]),
        scopes=cast("tuple[Scope, ...]", tuple(map(_text, data["scopes"]))),
        identity=cast("Identity", _text(data["identity"])),
        bank=None if data["bank"] is None else BankId(_text(data["bank"])),
        user_prefix=_text(data["user_prefix"]),
    )
    if len(data) != len(asdict(grant)):
        raise ValueError("a restriction that this version does not know")
    if grant.identity not in _IDENTITIES or (grant.identity == "bound") != bool(grant.bank):
        raise ValueError("no identity that this version knows")
    return grant


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("no text")
    value.encode()  # raises for half a character, which no reply could show
    return value


def _whole(value: object, end: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError("no whole number")
    if not 0 <= value < end:
        raise ValueError("a number out of range")
    return value


def _moment(text: str | None) -> int | None:
    return None if text is None else _whole(int(text), _END_OF_TIME_S)
