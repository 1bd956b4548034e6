"""Cached answers of recall, in Redis, each with the epochs it was computed under.

An epoch is a random token, not a counter: when Redis evicts or loses it, the next reader makes
another one, and no value from before can come back to life. The server's run id counts as a third
epoch: a server that restarts may have lost the last change of an epoch, or restore an old file.

Whoever computes an answer reads the epochs first and stores them with it; whoever finds an answer
compares. An answer that was being computed while something was forgotten is not even stored, and
one that was being computed while something was added is only ever a last resort.

The cache only ever makes things faster: everything here answers within `patience_s` or raises
`CacheUnavailable`, and the caller goes on without.
"""

import asyncio
import math
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from time import time
from types import TracebackType
from typing import NamedTuple, Self, cast

from hiredis import HiredisError
from redis.exceptions import RedisError

from service import keyspace
from service.adapters.cluster import cache_redis
from service.errors import CacheUnavailable
from service.scope import BankId
from service.settings import Settings

_EPOCH_TTL_S = b"604800"
_LEASE_MS = 1000
_TROUBLE = (RedisError, HiredisError, OSError, TimeoutError)
LEASE_RENEWAL_S = _LEASE_MS / 3000
# A forget has promises to keep; it is not on anybody's way to an answer.
_PURGE_PATIENCE_S = 2.0

# Only the holder may prolong or end a lease; 0 ms ends it.
_RENEW_LEASE = b"""
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
if ARGV[2] == '0' then return redis.call('DEL', KEYS[1]) end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
"""
# Nothing from before a purge is written after it. What is old already is written only where there is
# nothing newer that it would replace.
_PUBLISH = b"""
if redis.call('GET', KEYS[2]) ~= ARGV[2] then return 0 end
if redis.call('GET', KEYS[1]) == ARGV[1] then
  redis.call('SET', KEYS[3], ARGV[3], 'EX', ARGV[4])
else
  redis.call('SET', KEYS[3], ARGV[3], 'EX', ARGV[4], 'NX')
end
local now = redis.call('TIME')[1]
redis.call('ZREMRANGEBYSCORE', KEYS[4], '-inf', now)
redis.call('ZADD', KEYS[4], 'GT', now + ARGV[4], KEYS[3])
if redis.call('TTL', KEYS[4]) < tonumber(ARGV[4]) then redis.call('EXPIRE', KEYS[4], ARGV[4]) end
return 1
"""
# The answers are worthless without their epoch; their words need not lie around either.
_CLEAR = b"""
local cleared = 0
for _, key in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do cleared = cleared + redis.call('DEL', key) end
redis.call('DEL', KEYS[1])
return cleared
"""


class Epochs(NamedTuple):
    """Write and purge epoch of a bank, and the server they are kept by."""

    write: bytes
    purge: bytes
    server: bytes


class Found(NamedTuple):
    """What a look-up found: the epochs, a current answer, one that is only good as a last resort."""

    epochs: Epochs | None
    current: bytes | None
    stale: bytes | None


NOT_FOUND = Found(None, None, None)


class Address(NamedTuple):
    """The names of what a look-up reads: the bank's write and purge epoch, the answer."""

    write: bytes
    purge: bytes
    answer: bytes


def address_of(bank: BankId, question: str) -> Address:
    """Where the epochs and the answer of a question are."""
    return Address(
        keyspace.write_epoch(bank).encode(),
        keyspace.purge_epoch(bank).encode(),
        keyspace.recall(bank, question).encode(),
    )


class RecallCache:
    """Open as an async context manager; values are opaque bytes."""

    def __init__(self, redis_url: str, *, patience_s: float, stale_ttl_s: int) -> None:
        self._url = redis_url
        self._patience_s = patience_s
        self._stale_ttl_s = stale_ttl_s

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """The cache that API and worker share."""
        return cls(
            settings.effective_cache_redis_url,
            patience_s=settings.cache_patience_ms / 1000,
            stale_ttl_s=settings.stale_ttl_s,
        )

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._stack = AsyncExitStack()
        self._redis = await self._stack.enter_async_context(cache_redis(self._url))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def check(self, timeout_s: float) -> None:
        """Raises `CacheUnavailable` unless the server, or each node of a cluster, answers in that time."""
        async with self._errors(patience_s=timeout_s):
            await self._redis.ping()

    async def find(self, bank: BankId, question: str, ends: float) -> Found:
        """Epochs and answer in one round trip; waits no longer than until `ends` (the loop's time)."""
        return await self.find_at(address_of(bank, question), ends)

    async def find_at(self, address: Address, ends: float) -> Found:
        """`find` by an address that was made before."""
        try:
            write, purge, value = await self._redis.execute_by(
                min(ends, self._loop.time() + self._patience_s), b"MGET", *address
            )
        except _TROUBLE as exc:
            raise CacheUnavailable("The cache does not answer.") from exc
        if write is None or purge is None:
            return NOT_FOUND
        epochs = Epochs(write, purge, self._redis.server_of(address.purge))
        if value is None:
            return Found(epochs, None, None)
        head, _, body = cast("bytes", value).partition(b"\n")
        try:
            write_then, purge_then, server_then, until = head.split(b" ")
            is_in_time = float(until) > time()
        except ValueError:  # not written by us, or by another version
            return Found(epochs, None, None)
        if purge_then != purge or server_then != epochs.server:
            return Found(epochs, None, None)
        if write_then == write and is_in_time:
            return Found(epochs, body, body)
        return Found(epochs, None, body)

    async def epochs(self, bank: BankId, ends: float) -> Epochs:
        """The bank's epochs, made if there are none. Read them before the backend is asked."""
        keys = keyspace.write_epoch(bank).encode(), keyspace.purge_epoch(bank).encode()
        async with self._errors(ends):
            *_, (write, purge) = await asyncio.gather(
                *(self._redis.execute(b"SET", key, token(), b"NX", b"EX", _EPOCH_TTL_S) for key in keys),
                self._redis.execute(b"MGET", *keys),
            )
        if write is None or purge is None:
            raise CacheUnavailable("The cache lost an epoch at once.")
        return Epochs(write, purge, self._redis.server_of(keys[1]))

    async def publish(
        self, bank: BankId, question: str, epochs: Epochs, body: bytes, ttl_s: float, ends: float
    ) -> bool:
        """Store an answer computed under `epochs`: current for `ttl_s`, a last resort for longer.

        False when the bank was purged since (or its purge epoch got lost): nothing is stored then,
        and the answer itself may hold what was forgotten.
        """
        head = b"%b %b %b %.3f\n" % (epochs.write, epochs.purge, epochs.server, time() + ttl_s)
        keys = (
            keyspace.write_epoch(bank),
            keyspace.purge_epoch(bank),
            keyspace.recall(bank, question),
            keyspace.answers(bank),
        )
        keep_s = max(int(ttl_s) + 1, self._stale_ttl_s)
        async with self._errors(ends):
            is_stored = await self._redis.execute(
                b"EVAL", _PUBLISH, b"4", *(key.encode() for key in keys),
                epochs.write, epochs.purge, head + body, b"%d" % keep_s,
            )  # fmt: skip
        return bool(is_stored)

    async def note_write(self, bank: BankId) -> None:
        """Something new is known of the bank: what is cached is old from now on."""
        await self._renew_epochs(keyspace.write_epoch(bank), patience_s=self._patience_s)

    async def note_purge(self, bank: BankId) -> int:
        """Something of the bank was forgotten: no answer from before is served or stored again.

        Answers how many cached answers were deleted, those not counted that Redis has evicted.

        Call it once no source holds it any more and before the forget is answered: an answer computed
        between this call and a later deletion would be current. Raises `CacheUnavailable` after two
        seconds when that cannot be promised; the call can be repeated.
        """
        await self._renew_epochs(
            keyspace.purge_epoch(bank), keyspace.write_epoch(bank), patience_s=_PURGE_PATIENCE_S
        )
        async with self._errors(patience_s=_PURGE_PATIENCE_S):
            cleared = await self._redis.execute(b"EVAL", _CLEAR, b"1", keyspace.answers(bank).encode())
        return int(cast("int", cleared))

    async def lease(self, bank: BankId, question: str, token: bytes) -> bool:
        """Whether we have the right to compute an answer for the next second: else another process has.

        `token` is the holder's own (see `token`). Whoever is cancelled here releases it all the same.
        """
        async with self._errors():
            taken = await self._redis.execute(
                b"SET", keyspace.lease(bank, question).encode(), token, b"NX", b"PX", b"%d" % _LEASE_MS
            )
        return taken is not None

    def renew_lease(self, bank: BankId, question: str, token: bytes) -> None:
        """Another second, if the lease is still ours; waits for nothing."""
        self._change_lease(bank, question, token, _LEASE_MS)

    def release_lease(self, bank: BankId, question: str, token: bytes) -> None:
        """Give the lease back, if it is still ours; waits for nothing, since it ends by itself."""
        self._change_lease(bank, question, token, 0)

    def _change_lease(self, bank: BankId, question: str, token: bytes, lives_ms: int) -> None:
        key = keyspace.lease(bank, question).encode()
        self._redis.post(b"EVAL", _RENEW_LEASE, b"1", key, token, b"%d" % lives_ms)

    async def _renew_epochs(self, *keys: str, patience_s: float) -> None:
        names = [key.encode() for key in keys]
        async with self._errors(patience_s=patience_s):
            try:
                for name in names:
                    await self._redis.execute(b"SET", name, token(), b"EX", _EPOCH_TTL_S)
            except HiredisError:
                # Out of memory, most likely. A lost epoch does the same, and losing is always allowed.
                await self._redis.execute(b"DEL", *names)

    @asynccontextmanager
    async def _errors(
        self, ends: float = math.inf, *, patience_s: float | None = None
    ) -> AsyncIterator[None]:
        patience_s = self._patience_s if patience_s is None else patience_s
        try:
            async with asyncio.timeout_at(min(ends, self._loop.time() + patience_s)):
                yield
        except _TROUBLE as exc:
            raise CacheUnavailable("The cache does not answer.") from exc


def token() -> bytes:
    """Random: an epoch, or the name of a lease's holder."""
    return secrets.token_hex(8).encode()
