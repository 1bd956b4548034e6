"""Whether the memory works: looked at within a deadline, and judged.

Three answers: `ok`; `degraded`, while turns are safe but something needs an eye; `down`, when turns
are not accepted, or when nothing gets from the queue to Hindsight although Hindsight answers: then
every process may live and the memory stands still all the same.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar

from service.adapters.cache import RecallCache
from service.adapters.hindsight import HindsightAdapter
from service.adapters.turns import LogState, TurnsLog
from service.adapters.vitals import Signs, Vitals
from service.errors import ServiceError
from service.metrics import Metrics

T = TypeVar("T")

Status = Literal["ok", "degraded", "down"]

# A bank that was due this long ago, and nothing stored since: no worker gets anything done.
_STUCK_S = 120.0
# A batch on its way, or a turn left out of one, for this long, and nothing stored since: what is tried again
# and again is never due for long. Hindsight refuses our key, ends no operation, the language model has failed
# for as long, or a bank's turns cannot be taken.
_VAIN_S = 900.0
# The same while others are stored.
_STUCK_BATCH_S = 1800.0
# Recalls wait for their cache a small part of this.
_CACHE_PATIENCE_S = 1.0
_DOWN = frozenset({"redis_down", "queue_full", "queue_stuck"})


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen; None for what could not be looked at in time.

    `has_hindsight` None: not asked. `has_cache` None: neither, or it is on the Redis of accepted turns.
    """

    log: LogState | None
    signs: Signs | None
    has_hindsight: bool | None
    has_cache: bool | None
    is_breaker_open: bool

    @property
    def has_worker(self) -> bool:
        """Whether a worker lives, by the workers' own signs if there are any.

        arq's sign is one for all of them, and each that leaves takes it away for some seconds.
        """
        if self.signs is not None and self.signs.heartbeat_age_s is not None:
            return self.signs.workers > 0
        return self.log is not None and self.log.is_worker_alive


class Verdict(NamedTuple):
    """The status, and a code for each thing that keeps it from being `ok`."""

    status: Status
    reasons: tuple[str, ...]


class Health:
    """Looks at the parts of one process; `cache` if it is on a Redis of its own."""

    def __init__(
        self,
        turns: TurnsLog,
        vitals: Vitals,
        hindsight: HindsightAdapter,
        cache: RecallCache | None,
        *,
        max_waiting: int,
    ) -> None:
        self._turns = turns
        self._vitals = vitals
        self._hindsight = hindsight
        self._cache = cache
        self._max_waiting = max_waiting

    async def look(self, timeout_s: float, *, only_turns: bool = False) -> Look:
        """Look at everything at once, or only at what takes turns; ends by `timeout_s`, whatever they do."""
        cache = None if only_turns else self._cache
        log, signs, has_hindsight, has_cache = await asyncio.gather(
            _in_time(self._turns.check, timeout_s),
            _in_time(lambda: self._vitals.read(timeout_s), timeout_s),
            _nobody() if only_turns else _answers(self._hindsight, timeout_s),
            _nobody() if cache is None else _answers(cache, min(timeout_s, _CACHE_PATIENCE_S)),
        )
        return Look(
            log=log,
            signs=signs,
            has_hindsight=has_hindsight,
            has_cache=has_cache,
            is_breaker_open=self._hindsight.is_spared,
        )

    def judge(self, look: Look) -> Verdict:
        """What the look means."""
        reasons = tuple(self._reasons(look))
        # With Hindsight away, waiting is what the queue is for; its own reason says enough.
        down = _DOWN if look.has_hindsight is not False else _DOWN - {"queue_stuck"}
        if down & set(reasons):
            return Verdict("down", reasons)
        return Verdict("degraded" if reasons else "ok", reasons)

    def _reasons(self, look: Look) -> list[str]:
        away = {"hindsight_down": look.has_hindsight is False, "cache_down": look.has_cache is False}
        if look.log is None:
            return ["redis_down", *(reason for reason, is_so in away.items() if is_so)]
        log, signs = look.log, look.signs
        last_s = signs.last_stored_age_s if signs else None
        still_s = math.inf if last_s is None else last_s
        is_waiting = log.overdue_s >= _STUCK_S and still_s >= _STUCK_S
        # Beyond what a turn is meant to wait: its bank may be claimed again and again, and so never be due
        # for long, and nobody gets a batch out of it.
        left_s = log.oldest_turn_s - self._turns.debounce.max_wait_s
        is_in_vain = max(log.oldest_batch_s, left_s) >= _VAIN_S and still_s >= _VAIN_S
        found = {
            "queue_full": signs is not None and signs.waiting_turns >= self._max_waiting,
            "queue_stuck": is_waiting or is_in_vain,
            "queue_slow": (log.overdue_s >= _STUCK_S and not is_waiting)
            or (left_s >= _STUCK_BATCH_S and not is_in_vain),
            "batch_stuck": log.oldest_batch_s >= _STUCK_BATCH_S,
            "no_worker": not look.has_worker,
            "dead_letters": log.dead_letters > 0,
            "not_durable": signs is not None and signs.is_durable is False,
            **away,
            "recalls_spared": look.is_breaker_open,
            # Turns wait as they were told to: these banks are no part of the oldest batch.
            **dict.fromkeys(signs.not_asked if signs else (), True),
            "signs_unknown": signs is None,
        }
        return [reason for reason, is_so in found.items() if is_so]


def parts_of(look: Look) -> dict[str, dict[str, Any]]:
    """What was seen, for people; seconds to a tenth, null for what is not known."""
    log: dict[str, Any] = {"ok": look.log is not None}
    if look.log is not None:
        log |= {
            "worker": look.has_worker,
            "waiting_banks": look.log.waiting_banks,
            "overdue_s": round(look.log.overdue_s, 1),
            "oldest_batch_s": round(look.log.oldest_batch_s, 1),
            "oldest_turn_s": round(look.log.oldest_turn_s, 1),
            "dead_letters": look.log.dead_letters,
        }
    if look.log is not None and look.signs is not None:
        log |= {
            "durable": look.signs.is_durable,
            "waiting_turns": look.signs.waiting_turns,
            "workers": look.signs.workers,
            "heartbeat_age_s": _tenth(look.signs.heartbeat_age_s),
            "last_stored_age_s": _tenth(look.signs.last_stored_age_s),
            "llm_not_asked_s": {code: _tenth(age_s) for code, age_s in look.signs.not_asked.items()},
            "llm_not_asked_banks": look.signs.resting_banks,
        }
    parts = {"turns_log": log}
    if look.has_hindsight is not None:
        parts["hindsight"] = {"ok": look.has_hindsight, "spared": look.is_breaker_open}
    if look.has_cache is not None:
        parts["cache"] = {"ok": look.has_cache}
    return parts


def gauges_of(look: Look, metrics: Metrics) -> dict[str, float | None]:
    """What was seen, for Prometheus; counts what could not be looked at."""
    log, signs = look.log, look.signs
    for part, is_missing in (("turns_log", log is None), ("vitals", signs is None)):
        if is_missing:
            metrics.scrape_failures.labels(part).inc()
    durable = None if signs is None or signs.is_durable is None else float(signs.is_durable)
    return {
        "memory_waiting_turns": signs.waiting_turns if signs else None,
        "memory_waiting_banks": log.waiting_banks if log else None,
        "memory_oldest_due_seconds": log.overdue_s if log else None,
        "memory_oldest_batch_seconds": log.oldest_batch_s if log else None,
        "memory_oldest_turn_seconds": log.oldest_turn_s if log else None,
        "memory_dead_letters": log.dead_letters if log else None,
        "memory_workers": signs.workers if signs else None,
        "memory_worker_heartbeat_age_seconds": signs.heartbeat_age_s if signs else None,
        "memory_last_stored_age_seconds": signs.last_stored_age_s if signs else None,
        "memory_redis_up": float(log is not None),
        "memory_redis_durable": durable,
        "memory_redis_used_ratio": signs.used_ratio if signs else None,
        "memory_cache_up": None if look.has_cache is None else float(look.has_cache),
        "memory_hindsight_up": float(bool(look.has_hindsight)),
        "memory_breaker_open": float(look.is_breaker_open),
    }


def _tenth(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)


async def _in_time(ask: Callable[[], Awaitable[T]], timeout_s: float) -> T | None:
    try:
        async with asyncio.timeout(timeout_s):
            return await ask()
    except (ServiceError, TimeoutError):
        return None


async def _answers(part: HindsightAdapter | RecallCache, timeout_s: float) -> bool:
    async def ask() -> bool:
        await part.check(timeout_s)
        return True

    return bool(await _in_time(ask, timeout_s))


async def _nobody() -> None:
    return None
