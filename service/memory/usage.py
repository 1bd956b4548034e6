"""What is used, over all processes: counted in memory, added up in Redis every few seconds.

A request only adds to plain numbers of its process (`Metrics.note_usage`); how long requests took is what
the metrics know already. A process that is killed loses its last seconds. While Redis is away the numbers
are kept, each in its hour, until it is back; of more than two days of absence the oldest hours are put
together.
"""

import asyncio
import contextlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Self

from service.adapters.usage import UsageStore
from service.errors import CacheUnavailable
from service.metrics import Metrics

WRITE_EVERY_S = 10.0
# The routes whose times are kept, and how they are called there.
TIMED = {"recall": "/memory/recall", "add": "/memory/add"}
OTHERS = ""
_MOST_HOURS = 48
# Of one hour in one process; whatever other tenant comes is counted together with the rest.
_MOST_NAMES = 5_000

_Counts = dict[tuple[str, str], int]


class Usage:
    """The counts of one process; open it as an async context manager."""

    def __init__(
        self,
        store: UsageStore,
        metrics: Metrics,
        *,
        every_s: float = WRITE_EVERY_S,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._store = store
        self._metrics = metrics
        self._every_s = every_s
        self._clock = clock
        self._times: dict[str, tuple[int, ...]] = {}
        self._unwritten: dict[datetime, _Counts] = {}
        self._one_at_a_time = asyncio.Lock()

    async def __aenter__(self) -> Self:
        self._writing = asyncio.create_task(self._write_for_ever())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._writing
        await self.write()

    async def write(self) -> None:
        """Write what was counted since the last time; what Redis does not take is kept for the next."""
        async with self._one_at_a_time:
            self._take()
            if not self._unwritten:
                return
            sent, self._unwritten = self._unwritten, {}
            is_written = False
            try:
                await self._store.add(sent)
                is_written = True
            except CacheUnavailable:
                pass
            finally:
                # Nothing was added to meanwhile, but another hour may have begun by the next time.
                if not is_written:
                    self._unwritten = sent

    def _take(self) -> None:
        counted = self._metrics.take_usage()
        for word, route in TIMED.items():
            now = self._metrics.times_of(route)
            before = self._times.get(word) or (0,) * len(now)
            self._times[word] = now
            for bucket, (new, old) in enumerate(zip(now, before, strict=True)):
                if new > old:
                    counted[f"{word}_le_{bucket}", OTHERS] = new - old
        if not counted:
            return
        hour = self._clock().replace(minute=0, second=0, microsecond=0)
        into = self._unwritten.setdefault(hour, {})
        for name, count in counted.items():
            _add(into, name, count)
        while len(self._unwritten) > _MOST_HOURS:
            oldest, second = sorted(self._unwritten)[:2]
            for name, count in self._unwritten.pop(oldest).items():
                _add(self._unwritten[second], name, count)

    async def _write_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            await self.write()


def _add(into: _Counts, name: tuple[str, str], count: int) -> None:
    if name not in into and len(into) >= _MOST_NAMES:
        name = (name[0], OTHERS)
    into[name] = into.get(name, 0) + count


def last_hours(now: datetime, count: int) -> list[datetime]:
    """The hours up to this one, the oldest first."""
    hour = now.replace(minute=0, second=0, microsecond=0)
    return [hour - timedelta(hours=back) for back in range(count - 1, -1, -1)]


def last_days(now: datetime, count: int) -> list[datetime]:
    """The days (UTC) up to today, the oldest first."""
    day = now.replace(hour=0, minute=0, second=0, microsecond=0)
    return [day - timedelta(days=back) for back in range(count - 1, -1, -1)]
