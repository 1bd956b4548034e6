"""Which layout the data in the Redis of accepted turns has: brought up to date at start, never misread.

`mem:data-version` holds the number of the layout that `keyspace.py` describes. Installations from before
there was such a number have layout 1. A process that finds an older one carries the data forward, one process
at a time; one that finds a newer one must not touch it (`DataTooNew`): it would not understand what it
reads, and what it writes would not be understood. The same goes for what is no number (`DataUnreadable`).

A step of the way may be interrupted anywhere and is then done again, and former and new processes may be at
work meanwhile, as they are in a rolling restart: a step adds what is missing and takes nothing away that the
layout before it needs.

Layout 1 wrote the job alone as the value of `mem:seen:D`, layout 2 adds the turn's number. Layout 2 reads
both, and takes what has no number for a repetition as long as nobody can tell that it was forgotten since.
Layout 1 takes the whole value for the job: while processes of it still run, it answers a repetition of a turn
that a process of layout 2 has accepted and stored with that, or, once anything of the user's was forgotten,
takes it for new words. Nothing has to be carried forward: the values expire.
"""

import asyncio
import logging
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from service import keyspace
from service.adapters.redis_urls import open_client
from service.adapters.turns_redis import script_text
from service.errors import ServiceError, TurnsLogUnavailable
from service.scope import BankId, JobId

_log = logging.getLogger(__name__)

Step = Callable[[Redis, Callable[[], Awaitable[None]]], Awaitable[None]]

_TIMEOUT_S = 5.0
_LEASE_MS = 30_000
_POLL_S = 0.1
_PAGE = 500
_NUMBER = re.compile(r"[1-9][0-9]{0,8}")
# What an installation without a number has, if it has anything.
_FIRST = 1

_LEFT_BY_OTHERS = (
    keyspace.DUE,
    keyspace.DEAD,
    keyspace.CLAIM_NUMBER,
    keyspace.KEYS,
)
# KEYS: the lease, the version. ARGV: token, the version before, the version now. Only whoever has the lease
# may go on, and only from where it was: two steps at once would be one too many.
_ADVANCE = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] or redis.call('GET', KEYS[2]) ~= ARGV[2] then return 0 end
redis.call('SET', KEYS[2], ARGV[3])
return 1
"""
_RENEW = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
"""
_RELEASE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"


class DataUnusable(ServiceError):
    """This process must not touch the data; starting it again does not help."""


class DataTooNew(DataUnusable):
    """The data was written by a newer version of this service."""

    code = "data_too_new"


class DataUnreadable(DataUnusable):
    """What says which layout the data has says nothing: another program's data, or damaged."""

    code = "data_unreadable"


async def _list_letters_by_bank(redis: Redis, keep: Callable[[], Awaitable[None]]) -> None:
    """1 → 2: dead letters are listed by bank, too, with their tenant, to be found without a walk."""
    cursor = 0
    while True:
        cursor, _ = await list_letters(redis, cursor)
        await keep()
        if cursor == 0:
            return


async def list_letters(redis: Redis, cursor: int, page: int = _PAGE) -> tuple[int, int]:
    """List one page of dead letters by bank where they are not; the next page (0: none), how many were not.

    A worker of layout 1 that still runs puts letters aside without listing them. Those whose words were
    forgotten since are dropped.
    """
    listed = 0
    script = script_text("list_letter")
    cursor, letters = await cast("Any", redis.hscan(keyspace.DEAD, cursor, count=page))
    parts = {document: str(letter).partition("\n")[::2] for document, letter in letters.items()}
    pipe = redis.pipeline(transaction=False)
    for document, (bank, _) in parts.items():
        pipe.hexists(keyspace.dead_of(BankId(bank)), document)
    known = await pipe.execute() if parts else []
    for (document, (bank, rest)), is_listed in zip(parts.items(), known, strict=True):
        if is_listed:
            continue
        # The reason, then the turn: its number, its time, its job (see lua/common.lua).
        job = rest.split("\n", 4)[3:4]
        tenant = await cast("Any", redis.hget(keyspace.job(JobId(job[0])), "tenant")) if job else None
        keys = (keyspace.DEAD, keyspace.dead_of(BankId(bank)), keyspace.forgotten(BankId(bank)))
        args = (document, tenant or "", keyspace.job(JobId("")))
        listed += await cast("Any", redis.eval(script, len(keys), *keys, *args))
    return int(cursor), listed


# From the layout that is there → what brings it to the next one.
STEPS: Mapping[int, Step] = {1: _list_letters_by_bank}
CURRENT = max(STEPS) + 1


async def bring_up_to_date(
    redis_url: str, *, steps: Mapping[int, Step] = STEPS, patience_s: float = 60.0
) -> int:
    """Make sure the data has the layout this process knows; the number it had before.

    Waits up to `patience_s` for another process that is at it. Raises `DataUnusable`, or
    `TurnsLogUnavailable` when Redis does not answer or the other one does not end.
    """
    current = max(steps) + 1
    redis = open_client(
        redis_url, decode_responses=True, socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S
    )
    try:
        async with redis:
            async with asyncio.timeout(patience_s):
                return await _bring(redis, steps, current)
    except (RedisError, OSError, TimeoutError) as exc:
        raise TurnsLogUnavailable("The queue does not answer; try again soon.", retry_after_s=5) from exc


async def refuse_newer(redis_url: str) -> None:
    """Raise `DataUnusable` for a command that would write what a newer version cannot read; change nothing.

    Without an answer from Redis there is nothing to refuse: the command will say that itself.
    """
    redis = open_client(
        redis_url, decode_responses=True, socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S
    )
    try:
        async with redis:
            found = await _number(redis)
    except (RedisError, OSError, TimeoutError):
        return
    if found is not None and found > CURRENT:
        raise _too_new(found, CURRENT)


def _too_new(found: int, known: int) -> DataTooNew:
    return DataTooNew(
        f"The data in Redis has layout {found}, and this version of dify-memory knows {known}: a newer "
        "version has written it. Install that version, or restore a backup from before."
    )


async def _bring(redis: Redis, steps: Mapping[int, Step], current: int) -> int:
    found = await _version(redis, current)
    before = found
    while found != current:
        if found > current:
            raise _too_new(found, current)
        token = secrets.token_hex(8)
        if await redis.set(keyspace.DATA_MIGRATION, token, nx=True, px=_LEASE_MS):
            try:
                await _one_step(redis, steps[found], found, token)
            finally:
                await cast("Any", redis.eval(_RELEASE, 1, keyspace.DATA_MIGRATION, token))
        else:
            await asyncio.sleep(_POLL_S)
        found = await _version(redis, current)
    return before


async def _version(redis: Redis, current: int) -> int:
    """The number there is; where there is none it is written, by what else there is."""
    while (found := await _number(redis)) is None:
        is_used = await redis.exists(*_LEFT_BY_OTHERS)
        await redis.set(keyspace.DATA_VERSION, _FIRST if is_used else current, nx=True)
    return found


async def _number(redis: Redis) -> int | None:
    """The number as it is written, None where there is none; raises `DataUnreadable`."""
    try:
        text = await redis.get(keyspace.DATA_VERSION)
    except UnicodeDecodeError:
        text = ""
    except ResponseError as exc:
        if not str(exc).startswith("WRONGTYPE"):
            raise
        text = ""
    if text is None:
        return None
    if not _NUMBER.fullmatch(text):
        raise DataUnreadable(
            f"What {keyspace.DATA_VERSION} holds in Redis is not the number of a layout: another program's "
            "data, or damaged. Give this service a Redis database of its own, or restore a backup."
        )
    return int(text)


async def _one_step(redis: Redis, step: Step, number: int, token: str) -> None:
    async def keep() -> None:
        if not await cast("Any", redis.eval(_RENEW, 1, keyspace.DATA_MIGRATION, token, str(_LEASE_MS))):
            raise RedisError("another process goes on with this")

    await step(redis, keep)
    keys = (keyspace.DATA_MIGRATION, keyspace.DATA_VERSION)
    if await cast("Any", redis.eval(_ADVANCE, 2, *keys, token, str(number), str(number + 1))):
        _log.info("data_migrated", extra={"from_version": number, "to_version": number + 1})
