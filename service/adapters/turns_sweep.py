"""The walk through the turns log that puts right what only a fault can have left wrong.

No script of the log leaves such a thing behind; a restored backup, a cut append-only file, a clock that was
ahead, or a worker of an older version that runs on beside this one might.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, cast

from redis.asyncio import Redis

from service import keyspace
from service.adapters.counters import value_of
from service.adapters.data_version import list_letters
from service.adapters.resting import resting
from service.scope import BankId

_PAGE = 1000
# Each of these that is not listed costs two calls; all of them together must fit into one time limit.
_LETTERS_PAGE = 100
# Banks that one call of a script looks at, or pulls back.
_BANKS_PAGE = 100
# Three sweeps long: without a worker nobody knows, and that is seen by its heartbeat.
_OLDEST_TTL_S = 900
_COUNTERS = (keyspace.WAITING, keyspace.CLAIM_NUMBER, keyspace.CLAIMS)


# Texts, as the script has answered them: waiting turns by their counter, and the newest number.
_Counters = tuple[str, str]
_Run = Callable[[str, Sequence[str], Sequence[str | int | float]], Awaitable[Any]]


async def sweep(
    redis: Redis,
    errors: Callable[[], AbstractAsyncContextManager[None]],
    run: _Run,
    furthest_ms: int,
    claim_ms: int,
) -> int:
    """Put banks with work that are not on the list back on it, and have those looked at now that are put off
    for more than `furthest_ms`; how many there were. Recounts waiting turns, and lists dead letters by bank
    that are not.

    `errors` maps what Redis raises, `run` runs a script of the log, `claim_ms` is how long claims last.
    """
    walk = _Walk(redis, errors, run)
    before = await walk.counters()
    async with errors():
        seconds, _ = await redis.time()
        left_alone = await resting(redis, seconds * 1000)
    sizes: dict[str, int] = {}
    frozen_ms: list[int] = []
    oldest_ms: dict[str, int] = {}
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
        banks = [k.removeprefix(prefixes[0]) for k in keys if k.startswith(prefixes[0])]
        for bank, (held, came_ms) in (await walk.measure(banks)).items():
            sizes[bank] = held
            oldest_ms[bank] = came_ms if bank not in left_alone else 0
        listed |= await walk.sizes([key for key in keys if key.startswith(keyspace.dead_of(BankId("")))])
        batches = [key for key in keys if key.startswith(prefixes[2])]
        frozen_ms += await walk.frozen([k for k in batches if k.removeprefix(prefixes[2]) not in left_alone])
        if not cursor:
            break
    rearmed += await walk.pull_back(furthest_ms, claim_ms)
    await walk.note_oldest(keyspace.OLDEST_BATCH, frozen_ms)
    await walk.note_oldest(keyspace.OLDEST_TURN, [came_ms for came_ms in oldest_ms.values() if came_ms])
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
    run: _Run

    async def pull_back(self, furthest_ms: int, claim_ms: int) -> int:
        """Have banks looked at that were put off while the clock was ahead; how many there were."""
        found, last = 0, _BANKS_PAGE
        while last == _BANKS_PAGE:
            last = await self.run(
                "pull_back", [keyspace.DUE, keyspace.CLAIMS], [furthest_ms, claim_ms, _BANKS_PAGE]
            )
            found += last
        return found

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
        """How the counters stand; those that hold what is no count are put right."""
        waiting, number = await self.run("counters", _COUNTERS, [])
        return waiting, number

    async def measure(self, banks: Sequence[str]) -> dict[str, tuple[int, int]]:
        """How many turns each bank holds, and when the oldest that is in no batch came (see the script)."""
        found: dict[str, tuple[int, int]] = {}
        for start in range(0, len(banks), _BANKS_PAGE):
            page = banks[start : start + _BANKS_PAGE]
            keys = [
                key(BankId(bank))
                for bank in page
                for key in (keyspace.turns, keyspace.conversations, keyspace.batch)
            ]
            flat = await self.run("measure", keys, [])
            found |= dict(zip(page, zip(flat[::2], flat[1::2], strict=True), strict=True))
        return found

    async def sizes(self, keys: Sequence[str]) -> dict[str, int]:
        """How many letters each of these hashes holds."""
        if not keys:
            return {}
        async with self.errors():
            pipe = self.redis.pipeline(transaction=False)
            for key in keys:
                pipe.hlen(key)
            return dict(zip(keys, await pipe.execute(), strict=True))

    async def frozen(self, keys: Sequence[str]) -> list[int]:
        """When these batches were frozen; whoever takes a batch puts a broken time right."""
        if not keys:
            return []
        async with self.errors():
            pipe = self.redis.pipeline(transaction=False)
            for key in keys:
                pipe.hget(key, "frozen_ms")
            return [at_ms for text in await pipe.execute() if (at_ms := value_of(text))]

    async def note_oldest(self, key: str, at_ms: Sequence[int]) -> None:
        """Keep the oldest for whoever asks how the log is.

        A batch that Hindsight never ends is never due for long, nor is a bank that nobody can take from.
        """
        async with self.errors():
            if at_ms:
                await self.redis.set(key, min(at_ms), ex=_OLDEST_TTL_S)
            else:
                await self.redis.delete(key)

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
        """Put the counter of waiting turns right if it is wrong for sure (see the script)."""
        await self.run("recount", _COUNTERS, [counted, *before])
