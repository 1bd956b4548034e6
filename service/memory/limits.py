"""How many requests a minute a key may make, and how many may be about one user's memories.

The decision is made in memory, without a wait, so that it costs a cache hit nothing that can be
measured: each process counts for itself and tells Redis what it has counted a few times a second, all
subjects in one round trip, and learns there what the others have. Several processes together may
therefore let through what arrives within that quarter of a second; one alone lets through exactly the
limit. While Redis is away each process goes on with its own counts, and the failures are counted.

The window slides: of the minute before, the part counts that is less than a minute ago.

No library does it like this. `limits` (its asyncio strategies) and `fastapi-limiter` ask Redis before every
request: a round trip that a cache hit does not make otherwise, and an error of theirs when Redis is away,
for which we would have to count in memory all the same. The latter is also a dependency of FastAPI's
routes, which the fast lane of recall never reaches, and is set up once for all of a process. The arithmetic
is that of the sliding window counter which `limits` has as well.
"""

import asyncio
import contextlib
import ipaddress
import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from time import time
from types import TracebackType
from typing import Self

from prometheus_client import Counter

from service.adapters.rates import WINDOW_S, RateCounters, Told
from service.errors import CacheUnavailable, TooManyRequests
from service.metrics import Metrics
from service.scope import BankId

_TELL_EVERY_S = 0.25
# Enough for who mistypes a key; a key cannot be guessed anyway, if it is not a word.
SIGN_INS_PER_MINUTE = 10
# About 20 MiB; who comes beyond that is not limited, and counted as a failure.
_MOST_SUBJECTS = 100_000
_SIGN_IN_COUNTS = 4096


@dataclass(slots=True)
class _Window:
    """Of one subject: what all processes had counted when they were asked last, and ours since then."""

    number: int
    told: int = 0
    untold: int = 0
    before: int = 0


class RateLimits:
    """Limits of one process; open it as an async context manager to share the counts with the others."""

    def __init__(
        self,
        counters: RateCounters,
        metrics: Metrics,
        *,
        per_user: int,
        every_s: float = _TELL_EVERY_S,
        clock: Callable[[], float] = time,
    ) -> None:
        self._counters = counters
        self._per_user = per_user
        self._every_s = every_s
        self._clock = clock
        self._windows: dict[str, _Window] = {}
        self._changed: set[str] = set()
        self._failures = Counter(
            "memory_rate_limit_failures_total",
            "How many times requests could not be counted together with those of other processes.",
            registry=metrics.registry,
        )

    @property
    def has_users(self) -> bool:
        """Whether requests are counted by user."""
        return self._per_user > 0

    async def __aenter__(self) -> Self:
        self._telling = asyncio.create_task(self._tell_for_ever())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._telling.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._telling

    def take_key(self, key_id: str, rate: int) -> None:
        """Count a request of a key; raises `TooManyRequests` instead once it has made `rate` in a minute."""
        self._take(f"key:{key_id}", rate, "This API key")

    def take_user(self, bank: BankId) -> None:
        """Count a request about a user's memories; raises `TooManyRequests` instead."""
        if self._per_user:
            self._take(f"user:{bank}", self._per_user, "This user")

    def take_sign_in(self, address: str) -> None:
        """Count a vain try to sign in from that network address; raises `TooManyRequests` instead.

        Addresses share some thousand counts, an IPv6 network one: who has many must not fill the memory.
        """
        with contextlib.suppress(ValueError):
            parsed = ipaddress.ip_address(address)
            if parsed.version == 6:
                address = str(ipaddress.ip_network((parsed, 64), strict=False))
        number = zlib.crc32(address.encode("utf-8", "replace")) % _SIGN_IN_COUNTS
        self._take(f"sign-in:{number}", SIGN_INS_PER_MINUTE, "This address")

    def _take(self, subject: str, rate: int, who: str) -> None:
        number, elapsed_s = divmod(self._clock(), WINDOW_S)
        window = self._windows.get(subject)
        if window is None:
            if len(self._windows) >= _MOST_SUBJECTS:
                self._failures.inc()
                return
            window = self._windows[subject] = _Window(int(number))
        elif window.number != number:
            _roll(window, int(number))
        now = window.told + window.untold
        if window.before * (1 - elapsed_s / WINDOW_S) + now >= rate:
            raise TooManyRequests(
                f"{who} has made too many requests: {rate} a minute are allowed.",
                retry_after_s=_wait_s(window.before, now, rate, elapsed_s),
            )
        window.untold += 1
        self._changed.add(subject)

    async def tell(self) -> None:
        """Tell Redis what was counted since the last time, and learn what the others have."""
        told = [
            Told(subject, window.number, window.untold)
            for subject in self._changed
            if (window := self._windows.get(subject)) is not None
        ]
        self._changed.clear()
        self._forget_idle()
        if not told:
            return
        try:
            totals = await self._counters.tell(told)
        except CacheUnavailable:
            self._failures.inc()
            self._changed.update(subject for subject, _, _ in told)
            return
        for (subject, number, count), total in zip(told, totals, strict=True):
            window = self._windows.get(subject)
            if window is None:
                continue
            if window.number == number:
                window.told, window.before = total.now, total.before
                window.untold -= count
            elif window.number == number + 1:
                window.before = total.now

    def _forget_idle(self) -> None:
        oldest = int(self._clock() // WINDOW_S) - 1
        for subject in [name for name, window in self._windows.items() if window.number < oldest]:
            del self._windows[subject]

    async def _tell_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            await self.tell()


def _roll(window: _Window, number: int) -> None:
    """Begin another minute: what the last one had counted is the minute before, if it was the last."""
    window.before = window.told + window.untold if window.number == number - 1 else 0
    window.number, window.told, window.untold = number, 0, 0


def _wait_s(before: int, now: int, rate: int, elapsed_s: float) -> int:
    """Whole seconds until one more request fits; in the next minute this one's count is the one before."""
    room = rate - now
    if room > 0:
        ends_s = WINDOW_S * (1 - room / before)
        return max(1, math.ceil(ends_s - elapsed_s))
    left_s = WINDOW_S - elapsed_s
    return max(1, math.ceil(left_s + (WINDOW_S * (1 - rate / now) if now else 0)))
