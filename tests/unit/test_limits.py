"""Rate limits: counted in memory, shared through Redis, a minute that slides."""

from collections.abc import Sequence
from typing import cast

import pytest
from prometheus_client import generate_latest
from service.adapters.rates import RateCounters, Told, Total
from service.errors import CacheUnavailable, TooManyRequests
from service.memory.limits import RateLimits
from service.metrics import Metrics
from service.scope import bank_of

from tests.support import wait_until

pytestmark = pytest.mark.anyio
BANK = bank_of("t", "u")


class Shared:
    """What Redis would hold; can be away."""

    def __init__(self) -> None:
        self.counts: dict[tuple[str, int], int] = {}
        self.is_away = False
        self.calls = 0

    async def tell(self, told: Sequence[Told]) -> list[Total]:
        self.calls += 1
        if self.is_away:
            raise CacheUnavailable("away")
        totals = []
        for subject, window, requests in told:
            now = self.counts[subject, window] = self.counts.get((subject, window), 0) + requests
            totals.append(Total(now, self.counts.get((subject, window - 1), 0)))
        return totals


class World:
    """Processes that share counts, and a clock."""

    def __init__(self, *, per_user: int = 0) -> None:
        self.now = 6000.0
        self.shared = Shared()
        self.metrics = Metrics()
        self.per_user = per_user

    def process(self) -> RateLimits:
        counters = cast("RateCounters", self.shared)
        return RateLimits(counters, self.metrics, per_user=self.per_user, clock=lambda: self.now)


def passed(limits: RateLimits, times: int, rate: int = 10) -> int:
    """How many of so many requests get through."""
    count = 0
    for _ in range(times):
        try:
            limits.take_key("k", rate)
        except TooManyRequests:
            continue
        count += 1
    return count


def wait_of(limits: RateLimits, rate: int = 10) -> int:
    with pytest.raises(TooManyRequests) as caught:
        limits.take_key("k", rate)
    assert caught.value.retry_after_s is not None
    return caught.value.retry_after_s


def test_exactly_the_limit_gets_through() -> None:
    assert passed(World().process(), 50) == 10


def test_keys_and_users_are_counted_apart() -> None:
    limits = World(per_user=3).process()
    assert passed(limits, 50) == 10
    limits.take_key("another", 10)
    for _ in range(3):
        limits.take_user(BANK)
    with pytest.raises(TooManyRequests, match="3 a minute"):
        limits.take_user(BANK)
    limits.take_user(bank_of("t", "v"))


def test_without_a_limit_users_are_not_counted() -> None:
    limits = World().process()
    for _ in range(100):
        limits.take_user(BANK)
    assert not limits.has_users


def test_whoever_waits_as_long_as_told_gets_through_and_not_before() -> None:
    world = World()
    limits = world.process()
    world.now += 20
    assert passed(limits, 50) == 10
    wait_s = wait_of(limits)
    assert wait_s == 40
    world.now += wait_s - 1
    assert passed(limits, 1) == 0
    world.now += 1.5
    assert passed(limits, 1) == 1
    # Now most of the minute before still counts.
    wait_s = wait_of(limits)
    world.now += wait_s - 1.6
    assert passed(limits, 1) == 0
    world.now += 1.7
    assert passed(limits, 1) == 1


def test_at_no_time_does_much_more_than_the_limit_fit_into_a_minute() -> None:
    world = World()
    limits = world.process()
    times = []
    for _ in range(6000):
        world.now += 0.1
        if passed(limits, 1):
            times.append(world.now)
    # The window's estimate takes the minute before for evenly spread; this is how far that can be off.
    assert max(sum(1 for other in times if start <= other < start + 60) for start in times) <= 16
    assert 95 <= len(times) <= 110, "Ten minutes of ten."


async def test_processes_share_what_they_have_counted() -> None:
    world = World()
    one, other = (
        world.process(),
        RateLimits(cast("RateCounters", world.shared), Metrics(), per_user=0, clock=lambda: world.now),
    )
    assert passed(one, 6) == 6
    await one.tell()
    assert passed(other, 1) == 1  # not yet told
    await other.tell()
    assert passed(other, 50) == 3
    await other.tell()
    await one.tell()
    assert passed(one, 50) <= 4, "At most what it did not know of yet."
    # A minute on, both know of the minute before.
    world.now += 60
    assert passed(other, 1) == 0


async def test_nothing_is_told_twice_and_nothing_when_there_is_nothing() -> None:
    world = World()
    limits = world.process()
    await limits.tell()
    assert world.shared.calls == 0
    passed(limits, 4)
    await limits.tell()
    await limits.tell()
    assert list(world.shared.counts.values()) == [4]
    assert world.shared.calls == 1


async def test_without_redis_each_goes_on_by_itself_and_it_is_counted() -> None:
    world = World()
    limits = world.process()
    world.shared.is_away = True
    assert passed(limits, 4) == 4
    await limits.tell()
    assert "memory_rate_limit_failures_total 1.0" in generate_latest(world.metrics.registry).decode()
    assert passed(limits, 50) == 6
    world.shared.is_away = False
    await limits.tell()
    assert list(world.shared.counts.values()) == [10], "What was not told then is told later."


async def test_who_has_gone_is_forgotten() -> None:
    world = World(per_user=5)
    limits = world.process()
    for number in range(100):
        limits.take_user(bank_of("t", str(number)))
    world.now += 180
    limits.take_user(BANK)
    await limits.tell()
    assert len(limits._windows) == 1


async def test_it_tells_by_itself_and_ends_quietly() -> None:
    world = World()
    limits = RateLimits(
        cast("RateCounters", world.shared), Metrics(), per_user=0, every_s=0.001, clock=lambda: world.now
    )
    async with limits:
        passed(limits, 2)
        await wait_until(lambda: world.shared.counts, "it has told")
    assert list(world.shared.counts.values()) == [2]
