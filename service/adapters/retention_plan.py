"""How far a round of deletions has got, in Redis, so that any worker can go on with it after a restart."""

import secrets
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self, cast

from redis.asyncio import Redis
from redis.exceptions import RedisError

from service import keyspace
from service.adapters.redis_urls import open_client
from service.errors import TurnsLogUnavailable
from service.scope import BankId
from service.settings import Settings

_TTL_S = 3 * 86_400
_TIMEOUT_S = 2.0
_SCAN = 1000
# Only the holder may end a lease.
_END_LEASE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"


@dataclass(frozen=True, slots=True)
class Place:
    """How far a bank is: `kept` documents were looked at and stay.

    `mark`: whose it was when it was listed (see `hindsight_review.StoredBank`), which may change while it
    waits; None: that was not noted.
    """

    bank: BankId
    kept: int = 0
    mark: str | None = None


@dataclass(frozen=True, slots=True)
class Round:
    """The last round begun: its day (empty: none), how many banks of the list were read, what is over."""

    day: str
    listed: int
    is_listed: bool
    is_over: bool


class RetentionPlan:
    """Open as an async context manager; every method raises `TurnsLogUnavailable` without Redis.

    All of it expires after three days without a change; a round that is lost like that starts anew.
    """

    def __init__(self, redis_url: str) -> None:
        self._url = redis_url

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """Next to the accepted turns."""
        return cls(settings.redis_url)

    async def __aenter__(self) -> Self:
        self._redis: Redis = open_client(
            self._url, decode_responses=True, socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._redis.aclose()

    @asynccontextmanager
    async def leased(self, for_s: float) -> AsyncIterator[bool]:
        """Whether nobody else goes on with the round, for `for_s` seconds at most."""
        token = secrets.token_hex(8)
        with _errors():
            is_ours = await self._redis.set(keyspace.RETENTION_LEASE, token, nx=True, px=int(for_s * 1000))
        try:
            yield bool(is_ours)
        finally:
            if is_ours:
                with _errors():
                    await cast("Any", self._redis.eval(_END_LEASE, 1, keyspace.RETENTION_LEASE, token))

    async def round(self) -> Round:
        """The round as it stands."""
        with _errors():
            fields: dict[str, str] = await cast("Any", self._redis.hgetall(keyspace.RETENTION))
        return Round(
            day=fields.get("day", ""),
            listed=int(fields.get("listed", 0)),
            is_listed=fields.get("is_listed") == "1",
            is_over=fields.get("is_over") == "1",
        )

    async def begin(self, day: str, *, is_over: bool = False) -> None:
        """Start a round for `day`; banks of the one before that are not done stay on the list."""
        with _errors():
            pipe = self._redis.pipeline(transaction=True)
            pipe.delete(keyspace.RETENTION)
            pipe.hset(keyspace.RETENTION, mapping={"day": day, "is_over": "1" if is_over else "0"})
            pipe.expire(keyspace.RETENTION, _TTL_S)
            await pipe.execute()

    async def add(self, places: Sequence[Place], *, listed: int, is_listed: bool) -> None:
        """Put banks on the list and note how far the reading of all banks has got.

        One that is on it stays as far as it is. Nobody else may work on the round meanwhile.
        """
        banks = {place.bank: place for place in places}
        with _errors():
            if banks:
                noted = await cast("Any", self._redis.hmget(keyspace.RETENTION_BANKS, list(banks)))
                for bank, text in zip(banks, noted, strict=True):
                    if text is not None:
                        banks[bank] = replace(banks[bank], kept=_place(bank, text).kept)
            pipe = self._redis.pipeline(transaction=True)
            if banks:
                noted_anew = {bank: _text(place) for bank, place in banks.items()}
                pipe.hset(keyspace.RETENTION_BANKS, mapping=noted_anew)
            pipe.hset(
                keyspace.RETENTION, mapping={"listed": str(listed), "is_listed": "1" if is_listed else "0"}
            )
            pipe.expire(keyspace.RETENTION, _TTL_S)
            pipe.expire(keyspace.RETENTION_BANKS, _TTL_S)
            await pipe.execute()

    async def places(self) -> list[Place]:
        """The banks of the list, by their ids; read bit by bit, so that Redis answers others meanwhile."""
        found: dict[BankId, Place] = {}
        with _errors():
            async for bank, text in self._redis.hscan_iter(keyspace.RETENTION_BANKS, count=_SCAN):
                found[BankId(bank)] = _place(BankId(bank), text)
        return [found[bank] for bank in sorted(found)]

    async def note(self, place: Place) -> None:
        """Keep how far a bank is."""
        with _errors():
            await cast("Any", self._redis.hset(keyspace.RETENTION_BANKS, place.bank, _text(place)))

    async def finish(self, bank: BankId) -> None:
        """Take a bank off the list."""
        with _errors():
            await cast("Any", self._redis.hdel(keyspace.RETENTION_BANKS, bank))

    async def end(self) -> None:
        """The round is over."""
        with _errors():
            await cast("Any", self._redis.hset(keyspace.RETENTION, "is_over", "1"))


def _text(place: Place) -> str:
    return str(place.kept) if place.mark is None else f"{place.kept} {place.mark}"


def _place(bank: BankId, text: str) -> Place:
    # In an entry of an earlier version there may be no mark.
    kept, space, mark = text.partition(" ")
    return Place(bank, int(kept), mark if space else None)


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except (RedisError, OSError, TimeoutError) as exc:
        raise TurnsLogUnavailable("The queue does not answer; try again soon.", retry_after_s=5) from exc
