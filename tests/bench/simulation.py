"""How a size no machine here can carry would behave: a million users, 1,000 recalls a second.

A discrete-event simulation with the processor times that the other benchmarks have measured. A turn of a
chat is the same question asked once, twice or three times (as `load_shape` asks), an answer of the model, an
add, and the storing of it once its conversation has been quiet. Whether a recall is a hit follows from the
rules of the cache: somebody asked the same since the last turn of that user was accepted or stored, and not
too long ago. Processes of the API and workers do one thing at a time, in order of arrival; a balancer that
knows nothing spreads the requests; Hindsight has some cores and one queue. A recall that waits for Hindsight
is answered at its deadline, without memories, and Hindsight leaves out what nobody waits for.

What it leaves out: that Hindsight stores on the same cores it recalls on, Redis (its share is a hundredth of
a core at this rate; RESULTS.md has what one carries), PostgreSQL of that size, and the network.
"""

import argparse
import heapq
import itertools
import json
import math
import random
import statistics
import sys
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from service.settings import Settings

from tests.bench import report

ASKED: Final = (0.6, 0.3, 0.1)
_PER_TURN: Final = sum(times * share for times, share in enumerate(ASKED, 1))
_USERS: Final = 1_000_000
_RECALLS_PER_S: Final = 1000.0
# The model's answer, and the time to a second node's recall of the same question.
_ANSWER_S: Final = 4.0
_AGAIN_S: Final = 0.3
# What a role may be busy at most on average, as in the sizing table.
_BUSY: Final = 0.6
NEEDED: Final = (
    "cpu_us_hit_unseen_bytes",
    "cpu_us_miss",
    "cpu_us_add",
    "cpu_us_stored_turn",
    "recall_direct_ms_p50_banks_10000",
)


class Clock:
    """What happens when, in seconds from the beginning."""

    def __init__(self) -> None:
        self.now = 0.0
        self._next: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def after(self, seconds: float, what: Callable[[], None]) -> None:
        """Do it so much later; of what is due at the same time, what was told first."""
        heapq.heappush(self._next, (self.now + seconds, next(self._numbers), what))

    def run(self, until: float) -> None:
        """Let time pass until then."""
        while self._next and self._next[0][0] <= until:
            self.now, _, what = heapq.heappop(self._next)
            what()
        self.now = until


class Station:
    """So many servers with one queue, first come, first served."""

    def __init__(self, clock: Clock, servers: int) -> None:
        self._clock = clock
        self._idle = servers
        self._queue: deque[tuple[float, float, Callable[[], None]]] = deque()
        self.busy_s = 0.0

    @property
    def waiting(self) -> int:
        """How many are in the queue."""
        return len(self._queue)

    def ask(self, work_s: float, done: Callable[[], None], until: float = math.inf) -> None:
        """Work so long for whoever asks, then `done`; not at all if it cannot begin before `until`."""
        self._queue.append((work_s, until, done))
        self._begin()

    def _begin(self) -> None:
        while self._idle and self._queue:
            work_s, until, done = self._queue.popleft()
            if until <= self._clock.now:
                continue
            self._idle -= 1
            self.busy_s += work_s
            self._clock.after(work_s, lambda done=done: self._end(done))  # type: ignore[misc]

    def _end(self, done: Callable[[], None]) -> None:
        self._idle += 1
        done()
        self._begin()


@dataclass(frozen=True)
class Costs:
    """Seconds of a processor: a recall that the cache or Hindsight answers, an add, a stored turn; and of
    one of Hindsight's cores for a recall."""

    hit: float
    miss: float
    add: float
    stored: float
    hindsight: float

    @classmethod
    def measured(cls, numbers: Mapping[str, float]) -> "Costs":
        """From the benchmarks' results; ValueError names what is missing."""
        missing = [name for name in NEEDED if name not in numbers]
        if missing:
            raise ValueError(f"not measured yet: {', '.join(missing)}")
        hit, miss, add, stored = (numbers[name] / 1e6 for name in NEEDED[:4])
        return cls(hit, miss, add, stored, numbers[NEEDED[4]] / 1e3)


@dataclass(frozen=True)
class Sizes:
    """Processes of the API, workers, cores of Hindsight."""

    apis: int
    workers: int
    hindsight: int


@dataclass(frozen=True)
class Traffic:
    """Users, recalls a second, and how long it is watched after a time to settle (s)."""

    users: int = _USERS
    recalls_per_s: float = _RECALLS_PER_S
    seconds: float = 40.0
    settling_s: float = 20.0


@dataclass
class Outcome:
    """What the callers saw and what the servers did while it was watched."""

    recalls: int = 0
    hits: int = 0
    late: int = 0
    users: int = 0
    begun: int = 0
    ended: int = 0
    overdue_s: float = 0.0
    waiting: int = 0
    recall_ms: list[float] = field(default_factory=list)
    busy: dict[str, float] = field(default_factory=dict)

    def ms(self, percentile: int) -> float:
        """Of the recalls."""
        return statistics.quantiles(self.recall_ms, n=100, method="inclusive")[percentile - 1]


class _World:
    def __init__(self, costs: Costs, sizes: Sizes, traffic: Traffic, seed: int) -> None:
        self._rng = random.Random(seed)
        self._costs = costs
        self._traffic = traffic
        self._sizes = sizes
        self.clock = Clock()
        self.apis = [Station(self.clock, 1) for _ in range(sizes.apis)]
        self.workers = Station(self.clock, sizes.workers)
        self.hindsight = Station(self.clock, sizes.hindsight)
        self.outcome = Outcome()
        defaults = {name: info.default for name, info in Settings.model_fields.items()}
        self._deadline_s: float = defaults["recall_deadline_ms"] / 1000
        self._ttl_s: float = defaults["cache_ttl_s"]
        self._quiet_s: float = defaults["quiet_s"]
        self._epochs: dict[int, int] = {}
        self._seen: set[int] = set()

    def run(self) -> Outcome:
        self.clock.after(0.0, self._arrive)
        self.clock.run(self._traffic.settling_s)
        before = self._busy_s()
        ends = self._traffic.settling_s + self._traffic.seconds
        self.clock.run(ends)
        of = {"api": self._sizes.apis, "worker": self._sizes.workers, "hindsight": self._sizes.hindsight}
        for role, busy_s in self._busy_s().items():
            self.outcome.busy[role] = (busy_s - before[role]) / self._traffic.seconds / of[role]
        self.outcome.users = len(self._seen)
        self.outcome.waiting = self.workers.waiting
        return self.outcome

    def _busy_s(self) -> dict[str, float]:
        return {
            "api": sum(api.busy_s for api in self.apis),
            "worker": self.workers.busy_s,
            "hindsight": self.hindsight.busy_s,
        }

    @property
    def _is_watched(self) -> bool:
        return self.clock.now >= self._traffic.settling_s

    def _arrive(self) -> None:
        self.clock.after(self._rng.expovariate(self._traffic.recalls_per_s / _PER_TURN), self._arrive)
        # Some talk much more than others, as in load_shape.
        user = int(self._rng.random() ** 2 * self._traffic.users)
        self._seen.add(user)
        self.outcome.begun += 1
        [asked] = self._rng.choices((1, 2, 3), ASKED)
        self._recall(user, asked, None)

    def _recall(self, user: int, left: int, cached: tuple[int, float] | None) -> None:
        """Ask; `cached`: the user's epoch when the same question was answered before, and when that was."""
        began = self.clock.now
        epoch = self._epochs.get(user, 0)
        is_hit = cached is not None and cached[0] == epoch and began - cached[1] < self._ttl_s
        is_over = False

        def end(*, is_late: bool) -> None:
            nonlocal is_over
            if is_over:
                return
            is_over = True
            if self._is_watched:
                self.outcome.recalls += 1
                self.outcome.hits += is_hit
                self.outcome.late += is_late
                self.outcome.recall_ms.append((self.clock.now - began) * 1000)
            answered = cached if is_hit else None if is_late else (epoch, self.clock.now)
            if left > 1:
                again_s = self._rng.expovariate(1 / _AGAIN_S)
                self.clock.after(again_s, lambda: self._recall(user, left - 1, answered))
            else:
                self.clock.after(self._rng.expovariate(1 / _ANSWER_S), lambda: self._add(user))

        api = self._rng.choice(self.apis)
        if is_hit:
            api.ask(self._costs.hit, lambda: end(is_late=False))
            return
        # A miss works before and after it has asked Hindsight; the answer at the deadline is the second half.
        half_s, until = self._costs.miss / 2, began + self._deadline_s

        def ask_hindsight() -> None:
            # Memories differ: not all recalls take the same time.
            work_s = self._rng.gammavariate(4, self._costs.hindsight / 4)
            self.hindsight.ask(work_s, lambda: api.ask(half_s, lambda: end(is_late=False)), until)

        self.clock.after(self._deadline_s, lambda: None if is_over else end(is_late=True))
        api.ask(half_s, ask_hindsight)

    def _add(self, user: int) -> None:
        def accepted() -> None:
            self._epochs[user] = self._epochs.get(user, 0) + 1
            due = self.clock.now + self._quiet_s
            self.clock.after(self._quiet_s, lambda: self.workers.ask(self._costs.stored, lambda: stored(due)))

        def stored(due: float) -> None:
            self._epochs[user] += 1
            self.outcome.ended += 1
            if self._is_watched:
                self.outcome.overdue_s = max(self.outcome.overdue_s, self.clock.now - due)

        self._rng.choice(self.apis).ask(self._costs.add, accepted)


def simulate(costs: Costs, sizes: Sizes, traffic: Traffic | None = None, seed: int = 1) -> Outcome:
    """One run; the same for the same seed."""
    return _World(costs, sizes, traffic or Traffic(), seed).run()


def run(numbers: Mapping[str, float], seed: int = 1) -> dict[str, float]:
    """Names → how the fewest servers do that no role is busier with than the sizing table allows."""
    costs = Costs.measured(numbers)
    turns = _RECALLS_PER_S / _PER_TURN
    # First with more than enough of everything, to see what there is to do.
    ample = Sizes(
        math.ceil(2 * (_RECALLS_PER_S * costs.miss + turns * costs.add)),
        math.ceil(2 * turns * costs.stored),
        math.ceil(2 * _RECALLS_PER_S * costs.hindsight),
    )
    seen = simulate(costs, ample, seed=seed)
    fitting = Sizes(
        *(
            math.ceil(seen.busy[role] * servers / _BUSY)
            for role, servers in (
                ("api", ample.apis),
                ("worker", ample.workers),
                ("hindsight", ample.hindsight),
            )
        )
    )
    found = simulate(costs, fitting, seed=seed)
    scarce = simulate(
        costs, replace(fitting, hindsight=math.ceil(fitting.hindsight * _BUSY * 0.8)), seed=seed
    )
    return {
        "simulation_recalls_per_s": round(found.recalls / Traffic.seconds, 1),
        "simulation_users_seen": found.users,
        "simulation_hit_ratio": round(found.hits / found.recalls, 3),
        "simulation_api_processes": fitting.apis,
        "simulation_workers": fitting.workers,
        "simulation_hindsight_cores": fitting.hindsight,
        **{f"simulation_recall_ms_p{p}": round(found.ms(p), 1) for p in (50, 95, 99)},
        "simulation_late_ratio": round(found.late / found.recalls, 4),
        "simulation_overdue_s": round(found.overdue_s, 2),
        # A fifth fewer cores of Hindsight than there is work for: every recall is answered all the same.
        "simulation_scarce_late_ratio": round(scarce.late / scarce.recalls, 4),
        "simulation_scarce_recall_ms_p99": round(scarce.ms(99), 1),
    }


def main() -> None:
    """Simulate with what is in results.json, and write the numbers there."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--no-write", action="store_true")
    given = parser.parse_args()
    this_run = report.Run()
    found = run(report.numbers())
    sys.stdout.write(json.dumps(found, indent=2) + "\n")
    if not given.no_write:
        report.write(found, this_run)


if __name__ == "__main__":
    main()
