"""What is noted for the audit trail: joined, bounded, written later, and never in anybody's way."""

from collections.abc import Iterable
from typing import cast

import pytest
from prometheus_client import generate_latest
from service.adapters.audit import AuditEvent, AuditTrail
from service.errors import KeysUnavailable
from service.memory.audit import Audit
from service.metrics import Metrics

pytestmark = pytest.mark.anyio


class Trail:
    """What was written; can be away."""

    def __init__(self) -> None:
        self.events: list[AuditEvent] = []
        self.calls = 0
        self.is_away = False

    async def append(self, events: Iterable[AuditEvent]) -> None:
        self.calls += 1
        if self.is_away:
            raise KeysUnavailable("away")
        self.events += events


def audit_on(trail: Trail, metrics: Metrics, *, most_waiting: int = 1000, every_s: float = 3600) -> Audit:
    return Audit(cast("AuditTrail", trail), metrics, most_waiting=most_waiting, every_s=every_s)


def dropped(metrics: Metrics) -> float:
    text = generate_latest(metrics.registry).decode()
    [line] = [line for line in text.splitlines() if line.startswith("memory_audit_dropped_total ")]
    return float(line.split()[1])


async def test_the_same_again_is_one_event_with_a_count() -> None:
    trail = Trail()
    audit = audit_on(trail, Metrics())
    for _ in range(1000):
        audit.note("t", "k", "/memory/recall", "u-1", 200)
    audit.note("t", "k", "/memory/recall", "u-2", 200)
    audit.note("t", "k", "/memory/recall", "u-1", 403)
    assert trail.events == []
    await audit.write()
    assert [(event.subject, event.status, event.count) for event in trail.events] == [
        ("u-1", 200, 1000),
        ("u-2", 200, 1),
        ("u-1", 403, 1),
    ]
    await audit.write()
    assert len(trail.events) == 3


async def test_what_redis_does_not_take_is_written_later_once() -> None:
    trail, metrics = Trail(), Metrics()
    audit = audit_on(trail, metrics)
    trail.is_away = True
    audit.note("t", "k", "a", "s", 200)
    await audit.write()
    audit.note("t", "k", "b", "s", 200)
    await audit.write()
    trail.is_away = False
    await audit.write()
    assert [event.action for event in trail.events] == ["a", "b"]
    assert dropped(metrics) == 0


async def test_the_buffer_is_bounded_and_what_does_not_fit_is_counted() -> None:
    trail, metrics = Trail(), Metrics()
    audit = audit_on(trail, metrics, most_waiting=5)
    trail.is_away = True
    for number in range(4):
        audit.note("t", "k", "a", f"u-{number}", 200)
    await audit.write()
    for number in range(4, 10):
        audit.note("t", "k", "a", f"u-{number}", 200)
    assert dropped(metrics) == 5
    trail.is_away = False
    await audit.write()
    assert [event.subject for event in trail.events] == [f"u-{number}" for number in range(5)]


async def test_much_goes_in_several_trips() -> None:
    trail = Trail()
    audit = audit_on(trail, Metrics(), most_waiting=5000)
    for number in range(1200):
        audit.note("t", "k", "a", f"u-{number}", 200)
    await audit.write()
    assert (len(trail.events), trail.calls) == (1200, 3)


async def test_a_process_that_ends_writes_what_it_has_noted_or_counts_it() -> None:
    for is_away in (False, True):
        trail, metrics = Trail(), Metrics()
        trail.is_away = is_away
        async with audit_on(trail, metrics) as audit:
            audit.note("t", "k", "a", "s", 200)
        assert (len(trail.events), dropped(metrics)) == ((0, 1) if is_away else (1, 0))
