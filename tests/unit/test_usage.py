"""What is counted for the operators' page: kept while Redis is away, each in its hour, bounded; quantiles."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import pytest
from service.adapters.usage import Counts, UsageStore
from service.errors import CacheUnavailable
from service.memory.operation_view import quantile_ms
from service.memory.usage import OTHERS, Usage, last_days, last_hours
from service.metrics import LATENCY_BUCKETS_S, Metrics

pytestmark = pytest.mark.anyio
_NOON = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)
_HOUR = _NOON.replace(minute=0)


class Store(UsageStore):
    """Takes counts into memory, or is away."""

    def __init__(self) -> None:
        super().__init__("redis://nowhere")
        self.is_away = False
        self.taken: list[dict[datetime, dict[tuple[str, str], int]]] = []

    async def add(self, hours: Mapping[datetime, Counts]) -> None:
        if self.is_away:
            raise CacheUnavailable("The counts cannot be reached.")
        self.taken.append({hour: dict(counts) for hour, counts in hours.items()})


class Clock:
    """A time that a test sets."""

    def __init__(self) -> None:
        self.now = _NOON

    def __call__(self) -> datetime:
        return self.now


async def test_counts_are_written_once() -> None:
    store, metrics = Store(), Metrics()
    usage = Usage(store, metrics, clock=Clock())
    metrics.note_recall("hit", "acme")
    metrics.note_recall("hit", "acme")
    metrics.note_turn("queued", "acme", 3)
    metrics.note_request("/memory/recall", 200, 0.0002)
    metrics.note_request("/memory/recall", 200, 99)
    metrics.note_request("/memory/list", 200, 99)
    await usage.write()
    last = len(LATENCY_BUCKETS_S)
    assert store.taken == [
        {
            _HOUR: {
                ("recall_hit", "acme"): 2,
                ("turn_queued", "acme"): 3,
                ("recall_le_0", OTHERS): 1,
                (f"recall_le_{last}", OTHERS): 1,
            }
        }
    ]
    await usage.write()
    assert len(store.taken) == 1
    metrics.note_request("/memory/recall", 200, 0.0002)
    await usage.write()
    assert store.taken[1] == {_HOUR: {("recall_le_0", OTHERS): 1}}


async def test_while_redis_is_away_counts_stay_in_their_hours() -> None:
    store, metrics, clock = Store(), Metrics(), Clock()
    usage = Usage(store, metrics, clock=clock)
    store.is_away = True
    for _ in range(3):
        metrics.note_recall("miss", "acme")
        await usage.write()
        metrics.note_recall("miss", "acme")
        await usage.write()
        clock.now += timedelta(hours=1)
    store.is_away = False
    await usage.write()
    assert store.taken == [
        {_HOUR + timedelta(hours=after): {("recall_miss", "acme"): 2} for after in range(3)}
    ]


async def test_a_long_absence_loses_no_count_and_no_memory() -> None:
    store, metrics, clock = Store(), Metrics(), Clock()
    usage = Usage(store, metrics, clock=clock)
    store.is_away = True
    for _ in range(200):
        metrics.note_recall("hit", "acme")
        await usage.write()
        clock.now += timedelta(hours=1)
    store.is_away = False
    await usage.write()
    (written,) = store.taken
    assert len(written) <= 48
    assert sum(counts["recall_hit", "acme"] for counts in written.values()) == 200


async def test_too_many_tenants_are_counted_together() -> None:
    store, metrics = Store(), Metrics()
    usage = Usage(store, metrics, clock=Clock())
    store.is_away = True
    for number in range(3):
        for tenant in range(4000):
            metrics.note_recall("hit", f"tenant-{number}-{tenant}")
        await usage.write()
    store.is_away = False
    await usage.write()
    (counts,) = store.taken[0].values()
    assert len(counts) <= 5001
    assert counts["recall_hit", OTHERS] == 12_000 - 5_000
    assert sum(counts.values()) == 12_000


async def test_what_is_left_is_written_at_the_end() -> None:
    store, metrics = Store(), Metrics()
    async with Usage(store, metrics, every_s=3600, clock=Clock()):
        metrics.note_recall("hit", "acme")
    assert store.taken == [{_HOUR: {("recall_hit", "acme"): 1}}]


def _buckets(**counts: int) -> list[int]:
    return [counts.get(f"b{place}", 0) for place in range(len(LATENCY_BUCKETS_S) + 1)]


@pytest.mark.parametrize(
    ("buckets", "part", "expected"),
    [
        (_buckets(), 0.5, None),
        (_buckets(b0=100), 0.5, 0.5),
        (_buckets(b0=100), 0.95, 0.95),
        (_buckets(b0=90, b6=10), 0.5, 1000 * LATENCY_BUCKETS_S[0] * 50 / 90),
        (_buckets(b0=90, b6=10), 0.95, 1000 * (LATENCY_BUCKETS_S[5] + LATENCY_BUCKETS_S[6]) / 2),
        ([0] * len(LATENCY_BUCKETS_S) + [5], 0.5, 1000 * LATENCY_BUCKETS_S[-1]),
    ],
)
def test_quantiles_lie_evenly_in_their_bucket(
    buckets: list[int], part: float, expected: float | None
) -> None:
    assert quantile_ms(buckets, part) == (expected if expected is None else pytest.approx(expected))


def test_the_last_hours_and_days_end_now() -> None:
    assert last_hours(_NOON, 3) == [_HOUR - timedelta(hours=back) for back in (2, 1, 0)]
    assert last_days(_NOON, 2) == [datetime(2026, 2, 28, tzinfo=UTC), datetime(2026, 3, 1, tzinfo=UTC)]
