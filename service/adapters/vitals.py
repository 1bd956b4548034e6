"""Signs of life in the Redis of accepted turns: workers' heartbeats, the last turn stored, durability.

arq's own heartbeat says that some worker was there seconds ago. This one counts them, tells those of one
container from others, and remembers for a week when the last of them was there and when it last got a turn
to Hindsight.
"""

import asyncio
import hashlib
import math
import socket
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from redis.exceptions import RedisError, ResponseError

from service import keyspace
from service.adapters.redis_client import RedisStore
from service.errors import LlmBudgetSpent, LlmNotAsked, TurnsLogUnavailable

_TTL_S = 7 * 86_400
# A worker that is gone for longer is not counted; the newest stays known.
_FORGET_S = 3600
_FRESH_S = 15
# A stamp this far ahead is of a server whose clock was wrong (before a fail-over): it says nothing.
_AHEAD_S = 5
# Why the language model may not be asked although nothing is wrong.
_NOT_ASKED = (LlmBudgetSpent.code, LlmNotAsked.code)
# How many questions at the end of a look may be refused.
_FORBIDDABLE = 3
# One clock for everything: the server's, in Unix milliseconds.
# The first write needs no memory, so that a full server takes the others, too (see lua/common.lua).
_BEAT = """
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[2] * 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], now + ARGV[5] * 1000, '+inf')
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('EXPIRE', KEYS[1], ARGV[3])
if ARGV[4] == '1' then redis.call('SET', KEYS[2], now, 'EX', ARGV[3]) end
return now
"""


@dataclass(frozen=True, slots=True)
class Signs:
    """What Redis knows: ages in seconds, None where nothing is known.

    `is_durable`: everything acknowledged goes to an append-only file that can be written and is flushed
    (`appendfsync` is not `no`), and nothing is evicted (`maxmemory-policy` is `noeviction`). False as soon as
    one of these is known to be otherwise; None: the server does not tell (managed ones often hide it).
    `not_asked`: for which reasons (codes of errors) the language model is not asked, and for how long
    already; `resting_banks` is for how many banks, about. `used_ratio`: how much of its `maxmemory` the
    server uses, 0 without a limit; None: it does not tell.
    """

    waiting_turns: int
    workers: int
    heartbeat_age_s: float | None
    last_stored_age_s: float | None
    is_durable: bool | None
    not_asked: dict[str, float] = field(default_factory=dict)
    resting_banks: int = 0
    used_ratio: float | None = None


def new_worker() -> str:
    """A name for this start of a worker: of its machine or container it says only which workers share it."""
    return _place() + uuid4().hex


class Vitals(RedisStore):
    """Reads and writes signs of life; raises `TurnsLogUnavailable` when Redis does not answer."""

    _ERROR = TurnsLogUnavailable
    _SENTENCE = "The queue does not answer; try again soon."

    async def beat(self, worker: str, *, has_stored: bool) -> None:
        """This worker lives, and has got a turn to Hindsight since it last said so."""
        async with self._errors(), asyncio.timeout(self._timeout_s):
            await self._redis.eval(  # type: ignore[misc]
                _BEAT, 2, keyspace.WORKERS, keyspace.LAST_STORED, worker, str(_FORGET_S), str(_TTL_S),
                "1" if has_stored else "0", str(_AHEAD_S),
            )  # fmt: skip

    async def leave(self, worker: str) -> None:
        """This worker ends and counts no more; the newest sign of all stays known."""
        async with self._errors(), asyncio.timeout(self._timeout_s):
            newest = await self._redis.zrevrange(keyspace.WORKERS, 0, 0)
            if newest != [worker]:
                await self._redis.zrem(keyspace.WORKERS, worker)

    async def is_worker_here(self) -> bool:
        """Whether a worker of this container (without containers: this machine) lived in the last 15 seconds.

        By the server's clock, like the stamps.
        """
        place = _place()
        async with self._errors(), asyncio.timeout(self._timeout_s):
            seconds, micros = await self._redis.time()
            now_ms = int(seconds) * 1000 + int(micros) // 1000
            alive = await self._redis.zrangebyscore(
                keyspace.WORKERS, now_ms - _FRESH_S * 1000, now_ms + _AHEAD_S * 1000
            )
        return any(worker.startswith(place) for worker in alive)

    async def read(self, timeout_s: float) -> Signs:
        """One look, in one round trip and within `timeout_s`."""
        async with self._errors(), asyncio.timeout(timeout_s):
            pipe = self._redis.pipeline(transaction=False)
            pipe.time()
            pipe.get(keyspace.WAITING)
            pipe.zrevrange(keyspace.WORKERS, 0, 99, withscores=True)
            pipe.get(keyspace.LAST_STORED)
            pipe.zcard(keyspace.RESTING)
            pipe.mget([keyspace.not_asked(code) for code in _NOT_ASKED])
            # What may be forbidden comes last: managed servers often refuse CONFIG, and some refuse INFO.
            pipe.info("persistence")
            pipe.info("memory")
            pipe.config_get("appendfsync")
            (seconds, micros), waiting, workers, stored_ms, resting, since_ms, *told = _unless_refused(
                await pipe.execute(raise_on_error=False)
            )
        now_ms = int(seconds) * 1000 + int(micros) // 1000
        beats = (_age_s(now_ms, at_ms) for _, at_ms in workers)
        ages_s = [age_s for age_s in beats if age_s is not None]
        since_s = {
            code: _age_s(now_ms, at_ms) or 0.0
            for code, at_ms in zip(_NOT_ASKED, since_ms, strict=True)
            if at_ms
        }
        persistence, memory, config = (part if isinstance(part, dict) else {} for part in told)
        return Signs(
            waiting_turns=_whole(waiting),
            workers=sum(age_s <= _FRESH_S for age_s in ages_s),
            heartbeat_age_s=ages_s[0] if ages_s else None,
            last_stored_age_s=_age_s(now_ms, stored_ms),
            is_durable=_is_durable(persistence, memory, config),
            not_asked=since_s,
            resting_banks=resting if since_s else 0,
            used_ratio=_used_ratio(memory),
        )


def _place() -> str:
    """The same for all processes of a container, and another one elsewhere."""
    facts = [socket.gethostname()]
    # Containers may share the machine's name (its network), and machines one name.
    with suppress(OSError):  # not Linux
        boot, files = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/mnt")
        facts += [boot.read_text("ascii"), str(files.readlink())]
    return hashlib.sha256("\0".join(facts).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _whole(value: str | None) -> int:
    try:
        return int(value or 0)
    except ValueError as exc:
        # How many wait is not known until the sweep has counted.
        raise TurnsLogUnavailable("The queue's counter of waiting turns is broken.", retry_after_s=5) from exc


def _age_s(now_ms: int, at_ms: str | float | None) -> float | None:
    """How long ago a stamp is; None: there is none, it is broken, or of a clock that was ahead."""
    try:
        age_s = (now_ms - float(at_ms)) / 1000 if at_ms is not None else math.nan
    except ValueError:
        return None
    return max(0.0, age_s) if -_AHEAD_S <= age_s < math.inf else None


def _unless_refused(replies: list[Any]) -> list[Any]:
    """The replies, if all of them but the last (which may be forbidden) came."""
    for reply in replies[:-_FORBIDDABLE]:
        if isinstance(reply, Exception):
            raise reply
    for reply in replies[-_FORBIDDABLE:]:
        if isinstance(reply, RedisError) and not isinstance(reply, ResponseError):
            raise reply
    return replies


def _used_ratio(memory: dict[str, Any]) -> float | None:
    if not {"maxmemory", "used_memory"} <= memory.keys():
        return None
    return float(memory["used_memory"] / memory["maxmemory"]) if memory["maxmemory"] else 0.0


def _is_durable(persistence: dict[str, Any], memory: dict[str, Any], config: dict[str, Any]) -> bool | None:
    # Also without a limit of memory: a managed server's own limit is often not the one it tells.
    if memory.get("maxmemory_policy", "noeviction") != "noeviction":
        return False
    # Whoever has no append-only file has no use for this.
    if config.get("appendfsync") == "no":
        return False
    if "aof_enabled" not in persistence:
        return None
    return bool(persistence["aof_enabled"]) and persistence.get("aof_last_write_status", "ok") == "ok"
