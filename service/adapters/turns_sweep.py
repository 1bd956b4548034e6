"""The walk through the turns log that puts right what only a fault can have left wrong.

No script of the log leaves such a thing behind; a restored backup, a cut append-only file, or a worker of an
older version that runs on beside this one might.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, cast

from redis.asyncio import Redis

from service import keyspace
from service.adapters.data_version import list_letters
from service.adapters.resting import resting
from service.scope import BankId

_PAGE = 1000
# Each of these that is not listed costs two calls; all of them together must fit into one time limit.
_LETTERS_PAGE = 100
# Three sweeps long: without a worker nobody knows, and that is seen by its heartbeat.
_OLDEST_TTL_S = 900


@dataclass(frozen=True, slots=True)
class _Counters:
    """Waiting turns by their counter, and the number of the newest turn or claim."""

    waiting: int
    number: int


async def sweep(
    redis: Redis,
    errors: Callable[[], AbstractAsyncContextManager[None]],
    run: Callable[[str, Sequence[str], Sequence[str]], Awaitable[Any]],
) -> int:
    """Put banks with work that are not on the list back on it; how many were. Recounts waiting turns, and
    lists dead letters by bank that are not.

    `errors` maps what Redis raises, `run` runs a script of the log.
    """
    walk = _Walk(redis, errors, run)
    before = await walk.counters()
    async with errors():
        seconds, _ = await redis.time()
        left_alone = await resting(redis, seconds * 1000)
    sizes: dict[str, int] = {}
    frozen_ms: list[int] = []
    listed: dict[str, int] = {}
    rearmed = 0
    cursor = 0
    prefixes = tuple(key(BankId("")) for key in (keyspace.turns, keyspace.conversations, keyspace.batch))
    while True:
        async with errors():
            cursor, keys = await redis.scan(cursor, match="mem:[tcbd]*:*", count=_PAGE)
        rearmed += await walk.rearm(
            {BankId(k.removeprefix(p)) for k in keys for p in prefixes if k.startswith(p)}
        )
        # By key: a walk may come by twice.
        sizes |= await walk.sizes([key for key in keys if key.startswith(prefixes[0])])
        listed |= await walk.sizes([key for key in keys if key.startswith(keyspace.dead_of(BankId("")))])
        batches = [key for key in keys if key.startswith(prefixes[2])]
        frozen_ms += await walk.frozen([k for k in batches if k.removeprefix(prefixes[2]) not in left_alone])
        if not cursor:
            break
    await walk.note_oldest(frozen_ms)
    await walk.recount(sum(sizes.values()), before)
    await walk.list_letters(sum(listed.values()))
    while True:
        async with errors():
            cursor, claims = await redis.hscan(keyspace.CLAIMS, cursor, count=_PAGE)
        rearmed += await walk.rearm({BankId(bank) for bank in claims})
        if not cursor:
            return rearmed


@dataclass(frozen=True, slots=True)
class _Walk:
    """The steps of one sweep."""

    redis: Redis
    errors: Callable[[], AbstractAsyncContextManager[None]]
    run: Callable[[str, Sequence[str], Sequence[str]], Awaitable[Any]]

    async def rearm(self, banks: set[BankId]) -> int:
        """Put those of the banks that are not on the list and have work on it."""
        ordered = sorted(banks)
        if not ordered:
            return 0
        async with self.errors():
            scores = await self.redis.zmscore(keyspace.DUE, cast("Any", ordered))
        rearmed = 0
        for bank in (bank for bank, score in zip(ordered, scores, strict=True) if score is None):
            rearmed += await self.run(
                "rearm",
                [
                    keyspace.DUE,
                    keyspace.CLAIMS,
                    keyspace.turns(bank),
                    keyspace.conversations(bank),
                    keyspace.batch(bank),
                ],
                [bank],
            )
        return rearmed

    async def counters(self) -> _Counters:
        """How the counters stand."""
        async with self.errors():
            waiting, number = await self.redis.mget(keyspace.WAITING, keyspace.CLAIM_NUMBER)
        return _Counters(int(waiting or 0), int(number or 0))

    async def sizes(self, keys: Sequence[str]) -> dict[str, int]:
        """How many turns or letters each of these hashes holds."""
        if not keys:
            return {}
        async with self.errors():
            pipe = self.redis.pipeline(transaction=False)
            for key in keys:
                pipe.hlen(key)
            return dict(zip(keys, await pipe.execute(), strict=True))

    async def frozen(self, keys: Sequence[str]) -> list[int]:
        """When these batches were frozen."""
        if not keys:
            return []
        async with self.errors():
            pipe = self.redis.pipeline(transaction=False)
            for key in keys:
                pipe.hget(key, "frozen_ms")
            return [int(value) for value in await pipe.execute() if value]

    async def note_oldest(self, frozen_ms: Sequence[int]) -> None:
        """Keep the oldest for whoever asks how the log is: a batch that Hindsight never ends is not due."""
        async with self.errors():
            if frozen_ms:
                await self.redis.set(keyspace.OLDEST_BATCH, min(frozen_ms), ex=_OLDEST_TTL_S)
            else:
                await self.redis.delete(keyspace.OLDEST_BATCH)

    async def list_letters(self, listed: int) -> None:
        """List dead letters by bank where they are not; they are walked through if their numbers differ."""
        async with self.errors():
            if await cast("Any", self.redis.hlen(keyspace.DEAD)) == listed:
                return
        cursor = 0
        while True:
            async with self.errors():
                cursor, _ = await list_letters(self.redis, cursor, _LETTERS_PAGE)
            if not cursor:
                return

    async def recount(self, counted: int, before: _Counters) -> None:
        """Put the counter of waiting turns right if it is wrong for sure.

        The hashes were not counted all at once. Since `before`, no more turns can have come than numbers
        were given out, nor more gone than the counter tells then; only what is beyond that is drift.
        """
        now = await self.counters()
        came = now.number - before.number
        gone = max(0, before.waiting + came - now.waiting)
        drift = counted - now.waiting
        if abs(drift) > came + gone:
            async with self.errors():
                await self.redis.incrby(keyspace.WAITING, drift)
