"""Who did what to whose memories, when: noted without a wait, written in the background.

A request is noted in memory after its answer; what the same key does to the same memories with the same
outcome within a second becomes one event with a count, so that even a thousand cache hits a second cost
next to nothing. A process that is killed loses its last second; Redis away for long, or more going on than
fits the buffer, loses events as well. Both are counted, and never hold up or fail a request.

Nothing here or elsewhere changes or takes out an event: the trail only loses its old end.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from time import time
from types import TracebackType
from typing import Self

from prometheus_client import Counter

from service.adapters.audit import AuditEvent, AuditTrail
from service.errors import KeysUnavailable
from service.metrics import Metrics
from service.scope import BankId

_WRITE_EVERY_S = 1.0
_MOST_WAITING = 10_000
# One round trip holds Redis up for no more than this many.
_MOST_AT_ONCE = 500

_Name = tuple[str, str, str, str, int]
# An event is written after it happened, and Redis has a clock of its own.
_LATENESS_MS = 60_000


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which events somebody wants to see: those that agree with all that is not empty (Unix ms)."""

    tenant: str = ""
    key_id: str = ""
    action: str = ""
    subject: str = ""
    since_ms: int = 0
    until_ms: int | None = None

    def has(self, event: AuditEvent) -> bool:
        """Whether an event is one of them; `until_ms` itself is none any more."""
        return (
            self.tenant in ("", event.tenant)
            and self.key_id in ("", event.key_id)
            and self.action in ("", event.action)
            and self.subject in ("", event.subject)
            and self.since_ms <= event.at_ms
            and (self.until_ms is None or event.at_ms < self.until_ms)
        )


async def export(trail: AuditTrail, wanted: Wanted) -> AsyncIterator[str]:
    """Events as JSON texts, as they were written, oldest first; raises `KeysUnavailable`."""
    async for event in trail.read(max(0, wanted.since_ms - _LATENESS_MS)):
        if wanted.has(event):
            facts = asdict(event)
            at = datetime.fromtimestamp(facts.pop("at_ms") / 1000, UTC)
            yield json.dumps({"at": at.isoformat(timespec="milliseconds"), **facts})


def deletions(audit: "Audit") -> Callable[[str, BankId], None]:
    """What a worker calls with the tenant and the bank of whom something got too old."""
    return lambda tenant, bank: audit.note(tenant, "worker", "retention", bank, 0)


class Audit:
    """The events of one process; open it as an async context manager."""

    def __init__(
        self,
        trail: AuditTrail,
        metrics: Metrics,
        *,
        every_s: float = _WRITE_EVERY_S,
        most_waiting: int = _MOST_WAITING,
    ) -> None:
        self.trail = trail
        self._every_s = every_s
        self._most_waiting = most_waiting
        # First time in Unix ms and count of each.
        self._waiting: dict[_Name, list[int]] = {}
        self._unwritten: list[AuditEvent] = []
        self._dropped = Counter(
            "memory_audit_dropped_total",
            "How many audit events were lost: Redis was away, or more happened than could be written.",
            registry=metrics.registry,
        )

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
        self._dropped.inc(len(self._unwritten))

    def note(self, tenant: str, key_id: str, action: str, subject: str, status: int) -> None:
        """Something was done; waits for nothing and raises nothing."""
        name = (tenant, key_id, action, subject, status)
        seen = self._waiting.get(name)
        if seen is not None:
            seen[1] += 1
        elif len(self._waiting) + len(self._unwritten) < self._most_waiting:
            self._waiting[name] = [int(time() * 1000), 1]
        else:
            self._dropped.inc()

    async def write(self) -> None:
        """Write what was noted; what Redis does not take is kept for the next time."""
        self._unwritten += [
            AuditEvent(first_ms, *name, count) for name, (first_ms, count) in self._waiting.items()
        ]
        self._waiting = {}
        while self._unwritten:
            events = self._unwritten[:_MOST_AT_ONCE]
            try:
                await self.trail.append(events)
            except KeysUnavailable:
                return
            del self._unwritten[: len(events)]

    async def _write_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            await self.write()
