"""The simulation of sizes: against theory, against itself, and that nobody gets lost in it."""

import random
import statistics

import pytest

from tests.bench.simulation import NEEDED, Clock, Costs, Sizes, Station, Traffic, run, simulate

COSTS = Costs(hit=0.0002, miss=0.004, add=0.001, stored=0.008, hindsight=0.05)
TRAFFIC = Traffic(users=1_000, recalls_per_s=50, seconds=30, settling_s=15)
ENOUGH = Sizes(apis=2, workers=2, hindsight=8)


@pytest.mark.parametrize("load", [0.3, 0.7])
def test_one_server_is_as_slow_as_theory_says(load: float) -> None:
    # M/M/1: the mean time from arrival to end is 1 / (service rate - arrival rate).
    clock, rng, took_s = Clock(), random.Random(7), []
    station = Station(clock, 1)

    def arrive() -> None:
        clock.after(rng.expovariate(load), arrive)
        began = clock.now
        station.ask(rng.expovariate(1), lambda: took_s.append(clock.now - began))

    clock.after(0, arrive)
    clock.run(100_000)
    assert statistics.mean(took_s) == pytest.approx(1 / (1 - load), rel=0.05)
    assert station.busy_s / clock.now == pytest.approx(load, rel=0.03)


def test_who_cannot_begin_in_time_is_left_out() -> None:
    clock, done = Clock(), []
    station = Station(clock, 1)
    station.ask(2, lambda: done.append("first"))
    station.ask(1, lambda: done.append("too late"), until=1.5)
    station.ask(1, lambda: done.append("third"), until=2.5)
    clock.run(10)
    assert done == ["first", "third"]
    assert (station.busy_s, station.waiting) == (3, 0)


def test_the_same_seed_tells_the_same_and_another_something_else() -> None:
    first, same, other = (simulate(COSTS, ENOUGH, TRAFFIC, seed) for seed in (1, 1, 2))
    assert first == same
    assert first.recall_ms != other.recall_ms


def test_every_turn_comes_to_its_end() -> None:
    outcome = simulate(COSTS, ENOUGH, TRAFFIC)
    # Those of the last seconds are still being answered or wait for their conversation to be quiet.
    still = outcome.begun - outcome.ended
    assert 0 < still < 50 * 25
    assert outcome.waiting == 0
    assert outcome.recalls == len(outcome.recall_ms) == pytest.approx(50 * 30, rel=0.1)
    assert outcome.late == 0


def test_only_repetitions_are_hits_and_an_add_ends_them() -> None:
    few = simulate(COSTS, ENOUGH, Traffic(users=1_000_000, recalls_per_s=50, seconds=60, settling_s=15))
    # Of 1.5 recalls a turn the first is a miss; with so many users nobody's turns get in each other's way.
    assert few.hits / few.recalls == pytest.approx(1 / 3, abs=0.03)
    crowd = simulate(COSTS, ENOUGH, Traffic(users=5, recalls_per_s=50, seconds=60, settling_s=15))
    assert crowd.hits / crowd.recalls < 0.1


def test_too_few_servers_are_seen_and_every_recall_is_answered_by_its_deadline() -> None:
    starved = simulate(COSTS, Sizes(apis=2, workers=1, hindsight=1), TRAFFIC)
    enough = simulate(COSTS, ENOUGH, TRAFFIC)
    assert starved.late > starved.recalls / 4
    assert max(starved.recall_ms) <= 2000.001
    assert starved.ms(95) > 10 * enough.ms(95)
    slow = Costs(hit=0.0002, miss=0.004, add=0.001, stored=0.05, hindsight=0.05)
    assert simulate(slow, Sizes(2, 1, 8), TRAFFIC).overdue_s > simulate(slow, ENOUGH, TRAFFIC).overdue_s + 1


def test_what_was_not_measured_is_named() -> None:
    numbers = dict.fromkeys(NEEDED, 100.0)
    del numbers["cpu_us_add"]
    with pytest.raises(ValueError, match="not measured yet: cpu_us_add"):
        run(numbers)
