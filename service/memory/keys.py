"""API keys, made and ended by operators: what is asked and answered, and how every process learns of it."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Annotated, Any, Protocol, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from service.adapters.keys import (
    ALL_SCOPES,
    MAX_RATE_PER_MINUTE,
    Grant,
    Identity,
    KeyRecord,
    KeyStore,
    Scope,
    digest_of,
    new_key,
)
from service.adapters.user_tokens import MAX_TTL_S
from service.errors import InvalidRequest, KeysUnavailable, NotFound
from service.scope import BankId, bank_of, checked_user_id
from service.settings import Settings

_log = logging.getLogger(__name__)

# A key that was ended is gone for all processes after this and the time one look takes.
REFRESH_EVERY_S = 2.0
_FIRST_LOOK_S = 2.0
_TEN_YEARS_S = 10 * 366 * 86_400
# Ended keys are listed for so long, to explain what the audit trail says of them.
_REMEMBERED_S = 400 * 86_400


class Ring(Protocol):
    """Whatever must know which keys are good."""

    def put(self, records: Iterable[KeyRecord], now_s: float) -> None:
        """These are the keys that were made, with those that have ended."""


def _listed(value: object) -> object:
    """A list, or one text with commas, which is all a form can carry."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


class _Ask(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    @classmethod
    def read(cls, data: Mapping[str, object]) -> Self:
        """What is asked in `data`; raises `InvalidRequest` naming the first wrong field, not its value."""
        try:
            return cls.model_validate(
                {name: value for name, value in data.items() if value not in ("", None)}
            )
        except ValidationError as exc:
            first = exc.errors(include_url=False, include_context=False, include_input=False)[0]
            field = next((str(part) for part in first["loc"]), "")
            if field not in cls.model_fields:
                raise InvalidRequest(f"Send only these fields: {', '.join(cls.model_fields)}.") from None
            raise InvalidRequest(f"The field {field} is missing or not valid.") from None


class NewKey(_Ask):
    """`POST /admin/keys`."""

    name: str = Field(min_length=1, max_length=64, description="What the key is for; shown in lists.")
    scopes: Annotated[list[Scope], BeforeValidator(_listed)] = Field(
        min_length=1,
        max_length=len(ALL_SCOPES),
        description="What it may do, as a list or separated by commas: "
        + ", ".join(sorted(ALL_SCOPES))
        + ".",
    )
    identity: Identity = Field(
        "trusted",
        description="How the user is known: trusted (user_id says it), signed (user_id is a user token), "
        "bound (the key is one user's).",
    )
    user_id: str = Field("", max_length=1024, description="Only for bound: whose key it is.")
    user_prefix: str = Field(
        "", max_length=256, description="Only for trusted: user ids have to begin with this."
    )
    rate_per_minute: int = Field(
        0, ge=0, le=MAX_RATE_PER_MINUTE, description="Most requests a minute; 0: MEMORY_KEY_RATE_LIMIT."
    )
    expires_in_s: int | None = Field(
        None, ge=1, le=_TEN_YEARS_S, description="Seconds until it ends; never, if left out."
    )


class RotateKey(_Ask):
    """`POST /admin/keys/rotate`."""

    id: str = Field(max_length=32, description="Id of the key that is replaced.")
    overlap_s: int = Field(
        86_400, ge=0, le=31 * 86_400, description="Seconds for which the old key stays good."
    )


class ExpireKey(_Ask):
    """`POST /admin/keys/expire`."""

    id: str = Field(max_length=32, description="Id of the key.")
    in_s: int = Field(ge=0, le=_TEN_YEARS_S, description="Seconds until it ends.")


class RevokeKey(_Ask):
    """`POST /admin/keys/revoke`."""

    id: str = Field(max_length=32, description="Id of the key that ends at once.")


class NewToken(_Ask):
    """`POST /admin/user-tokens`."""

    user_id: str = Field(max_length=1024, description="Whose memory the token is for.")
    ttl_s: int = Field(86_400, ge=60, le=MAX_TTL_S, description="Seconds until it ends.")


class KeyReply(BaseModel):
    """A key as it is listed: never the key itself. Times are ISO 8601, "" for never."""

    id: str
    name: str
    tenant: str
    scopes: list[Scope]
    identity: Identity
    bank: str
    user_prefix: str
    rate_per_minute: int
    created_at: str
    expires_at: str
    revoked_at: str
    is_good: bool


class KeysReply(BaseModel):
    """All keys that were made for a tenant, oldest first."""

    keys: list[KeyReply]
    request_id: str


class NewKeyReply(KeyReply):
    """A key that was made; `key` is shown this once."""

    key: str
    request_id: str


class KeyDoneReply(KeyReply):
    """A key whose end was changed."""

    request_id: str


class TokenReply(BaseModel):
    """A user token and its end (ISO 8601)."""

    token: str
    expires_at: str
    request_id: str


class Keys:
    """The keys of one tenant (None: of all), for whoever may end and make them.

    `grantable` are the scopes that may be given to a key; a key with others can be ended, not rotated.
    """

    def __init__(
        self,
        store: KeyStore,
        settings: Settings,
        *,
        tenant: str | None,
        grantable: frozenset[Scope] = ALL_SCOPES,
    ) -> None:
        self._store = store
        self._tenant = tenant
        self._grantable = grantable
        self._allow_anonymous = settings.allow_anonymous_users
        self._has_tokens = settings.token_keys is not None
        self._pepper = settings.key_pepper.get_secret_value().encode() if settings.key_pepper else b""

    async def all(self) -> list[KeyRecord]:
        """Those that were made, oldest first."""
        _, records = await self._store.load()
        return [record for record in records if self._tenant in (None, record.grant.tenant)]

    async def create(self, ask: NewKey, tenant: str) -> tuple[str, KeyRecord]:
        """A new key of a tenant, and its record; raises `InvalidRequest` for what does not fit together."""
        self._check(ask)
        if not 1 <= len(tenant) <= 64:
            raise InvalidRequest("A tenant has 1 to 64 characters.")
        bank: BankId | None = None
        if ask.identity == "bound":
            bank = bank_of(tenant, checked_user_id(ask.user_id, allow_anonymous=self._allow_anonymous))
        await self._drop_long_ended()
        grant = Grant(tenant, tuple(sorted(set(ask.scopes))), ask.identity, bank, ask.user_prefix)
        now_s = int(time.time())
        expires_s = None if ask.expires_in_s is None else now_s + ask.expires_in_s
        return await self._make(ask.name, grant, ask.rate_per_minute, expires_s)

    async def rotate(self, ask: RotateKey) -> tuple[str, KeyRecord]:
        """Another key that may do the same; the old one ends after the overlap, if not sooner."""
        old = await self._good(ask.id)
        if not self._grantable.issuperset(old.grant.scopes):
            raise InvalidRequest("That key has a scope which this one lacks: it can only be ended.")
        made = await self._make(old.name, old.grant, old.rate_per_minute, old.expires_s)
        ends_s = int(time.time()) + ask.overlap_s
        if old.expires_s is None or ends_s < old.expires_s:
            await self._store.expire(old.key_id, ends_s)
        return made

    async def expire(self, ask: ExpireKey) -> KeyRecord:
        """Let a good key end at some time, sooner or later than before."""
        await self._good(ask.id)
        await self._store.expire(ask.id, int(time.time()) + ask.in_s)
        return await self._one(ask.id)

    async def revoke(self, ask: RevokeKey) -> KeyRecord:
        """End a key at once and for good; can be repeated."""
        record = await self._one(ask.id)
        if record.revoked_s is None:
            await self._store.revoke(ask.id, int(time.time()))
        return await self._one(ask.id)

    def _check(self, ask: NewKey) -> None:
        if not self._grantable.issuperset(ask.scopes):
            raise InvalidRequest("A key can only give scopes that it has itself.")
        if (ask.identity == "bound") != bool(ask.user_id):
            raise InvalidRequest("Send user_id for a bound key, and for no other.")
        if ask.user_prefix and ask.identity != "trusted":
            raise InvalidRequest("Only trusted keys can have a user_prefix.")
        if "admin" in ask.scopes and (ask.identity != "trusted" or ask.user_prefix):
            # Whoever has it sees what concerns all users, and could make a key for any of them.
            raise InvalidRequest("A key with the scope admin has to be trusted and without user_prefix.")
        if ask.identity == "signed" and not self._has_tokens:
            raise InvalidRequest("Signed keys need MEMORY_TOKEN_KEYS, which is not set.")

    async def _make(
        self, name: str, grant: Grant, rate_per_minute: int, expires_s: int | None
    ) -> tuple[str, KeyRecord]:
        key, key_id = new_key()
        record = KeyRecord(
            key_id,
            name,
            grant,
            rate_per_minute,
            int(time.time()),
            digest_of(key, grant, self._pepper),
            expires_s,
        )
        await self._store.add(record)
        return key, record

    async def _one(self, key_id: str) -> KeyRecord:
        for record in await self.all():
            if record.key_id == key_id:
                return record
        raise NotFound("There is no such key (MEMORY_API_KEY is not one: change the setting).")

    async def _good(self, key_id: str) -> KeyRecord:
        record = await self._one(key_id)
        if not record.is_good(time.time()):
            raise InvalidRequest("That key has ended already; make a new one.")
        return record

    async def _drop_long_ended(self) -> None:
        before_s = time.time() - _REMEMBERED_S
        _, records = await self._store.load()
        await self._store.drop(
            record.key_id
            for record in records
            if min(record.revoked_s or before_s, record.expires_s or before_s) < before_s
        )


class KeyWatch:
    """Keeps a ring up to date with the keys in Redis, as an async context manager.

    On entry the ring knows all keys, if Redis answers; after that whatever changes is known within
    seconds. While Redis is away the keys known last stay good until they end. Whatever goes wrong, the
    looks go on: else a key that is ended would stay good for as long as the process lives.
    """

    def __init__(self, store: KeyStore, ring: Ring, *, every_s: float = REFRESH_EVERY_S) -> None:
        self._store = store
        self._ring = ring
        self._every_s = every_s
        self._version = ""
        self._records: list[KeyRecord] = []
        # An older look that ends late must not undo a newer one.
        self._one_at_a_time = asyncio.Lock()

    async def __aenter__(self) -> Self:
        with contextlib.suppress(KeysUnavailable, TimeoutError):
            async with asyncio.timeout(_FIRST_LOOK_S):
                await self.refresh()
        self._looking = asyncio.create_task(self._look_for_ever())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._looking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._looking

    async def refresh(self) -> None:
        """Look now; raises `KeysUnavailable`, after which the ring has the keys known last."""
        async with self._one_at_a_time:
            try:
                if await self._store.version() != self._version:
                    self._version, self._records = await self._store.load()
            finally:
                # Also when nothing has changed: keys end.
                self._ring.put(self._records, time.time())

    async def _look_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            try:
                with contextlib.suppress(KeysUnavailable):
                    await self.refresh()
            except Exception:  # noqa: BLE001 - the outermost edge: logged without text; the next look tries again
                _log.error("key_look_failed", exc_info=True)


def described(record: KeyRecord) -> dict[str, Any]:
    """The fields of a `KeyReply`."""
    return {
        "id": record.key_id,
        "name": record.name,
        "tenant": record.grant.tenant,
        "scopes": list(record.grant.scopes),
        "identity": record.grant.identity,
        "bank": record.grant.bank or "",
        "user_prefix": record.grant.user_prefix,
        "rate_per_minute": record.rate_per_minute,
        "created_at": moment(record.created_s),
        "expires_at": moment(record.expires_s),
        "revoked_at": moment(record.revoked_s),
        "is_good": record.is_good(time.time()),
    }


def moment(unix_s: int | None) -> str:
    """ISO 8601 in UTC; "" for never."""
    return "" if unix_s is None else datetime.fromtimestamp(unix_s, UTC).isoformat()
