"""What is counted and timed. Labels are bounded: route templates, statuses, outcomes — never ids."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Literal

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

LATENCY_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10)
_BOUNDS = (*map(floatToGoString, LATENCY_BUCKETS_S), "+Inf")
_RETAIN_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 20, 60)
# From a conversation stored at once to one that has waited for a weekend's outage.
_QUEUE_BUCKETS_S = (1, 5, 10, 15, 30, 60, 120, 300, 900, 3600, 14_400, 86_400, 259_200)

CONTENT_TYPE = CONTENT_TYPE_LATEST

TurnOutcome = Literal["queued", "duplicate", "skipped", "refused", "stored", "dead"]

# What is looked at when somebody asks for it; a number that cannot be had then has no sample.
GAUGES: dict[str, str] = {
    "memory_waiting_turns": "How many accepted turns Hindsight does not know yet.",
    "memory_waiting_banks": "How many users have turns that wait.",
    "memory_oldest_due_seconds": "How long the turns that are due have waited for a worker at most.",
    "memory_oldest_batch_seconds": "How long a batch has been on its way to Hindsight at most.",
    "memory_oldest_turn_seconds": "How long a turn that is in no batch has waited at most.",
    "memory_dead_letters": "How many turns could not be stored and wait for an operator.",
    "memory_workers": "How many workers have given a sign of life in the last 15 seconds.",
    "memory_worker_heartbeat_age_seconds": "How long ago a worker last gave a sign of life.",
    "memory_last_stored_age_seconds": "How long ago a turn was last stored.",
    "memory_redis_up": "How many Redis servers for accepted turns take writes: 1 or 0.",
    "memory_redis_durable": "How many of them keep what they acknowledge (append-only file): 1 or 0.",
    "memory_redis_used_ratio": "How many parts of its `maxmemory` it uses: 1 is full, 0 without a limit.",
    "memory_cache_up": "How many caches on a Redis of their own answer: 1 or 0; none on the turns' Redis.",
    "memory_hindsight_up": "How many Hindsight servers answer: 1 or 0.",
    "memory_breaker_open": "How many circuits to Hindsight are open, so that recalls do without: 1 or 0.",
}


class Metrics:
    """The metrics of one process, on a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.turns = Counter(
            "memory_turns_total",
            "How many turns were queued, repeated or skipped when they came, and stored or dead in the end.",
            ["outcome"],
            registry=self.registry,
        )
        self.cache_failures = Counter(
            "memory_cache_failures_total",
            "How many times recall went on without its cache.",
            registry=self.registry,
        )
        self.llm_calls = Counter(
            "memory_llm_calls_total",
            "How many times the language model was to be asked, by what came of it.",
            ["outcome"],
            registry=self.registry,
        )
        self.llm_tokens = Counter(
            "memory_llm_tokens_total",
            "How many tokens the language model was sent and has said, in chats behind `/v1` as `chat_`.",
            ["direction"],
            registry=self.registry,
        )
        self.llm_cost = Counter(
            "memory_llm_cost_usd_total",
            "How many US dollars the language model has cost, where its price is known.",
            registry=self.registry,
        )
        self.facts = Counter(
            "memory_facts_total",
            "How many extracted memories were kept, or dropped for which reason.",
            ["outcome"],
            registry=self.registry,
        )
        self.chats = Counter(
            "memory_chats_total",
            "How many chats a model has begun to answer, by what memory did for them.",
            ["status"],
            registry=self.registry,
        )
        self.operation_polls = Counter(
            "memory_operation_polls_total",
            "How many times Hindsight was asked how far an operation is, by what it said.",
            ["status"],
            registry=self.registry,
        )
        self.retain_seconds = Histogram(
            "memory_retain_seconds",
            "How long the try took that stored a batch, the making of memories included.",
            buckets=_RETAIN_BUCKETS_S,
            registry=self.registry,
        )
        self.queue_seconds = Histogram(
            "memory_queue_seconds",
            "How long turns took from being accepted to being stored.",
            buckets=_QUEUE_BUCKETS_S,
            registry=self.registry,
        )
        self.scrape_failures = Counter(
            "memory_scrape_failures_total",
            "How many times a part could not be looked at for `/metrics`.",
            ["part"],
            registry=self.registry,
        )
        self.stored_turns = 0
        self._usage: dict[tuple[str, str], int] = {}
        self._recalled: dict[tuple[str, str], int] = {}
        self._requests = _Requests()
        self.registry.register(self._requests)

    def note_stored(self, ages_s: Iterable[float], seconds: float) -> None:
        """Count and time turns that a batch has stored: how old each was, how long the try took."""
        for age_s in ages_s:
            self.queue_seconds.observe(max(0.0, age_s))
            self.turns.labels("stored").inc()
            self.stored_turns += 1
        self.retain_seconds.observe(seconds)

    def note_request(self, route: str, status: int, seconds: float) -> None:
        """Count and time a request; `route` is a template, never a path from outside."""
        self._requests.note(route, status, seconds)

    def note_usage(self, what: str, tenant: str, count: int = 1) -> None:
        """Count something of one tenant for the operators' page; `memory/usage` takes it away again.

        Plain numbers, like those of recalls: tenants are no labels, and a cache hit counts here, too.
        """
        name = (what, tenant)
        self._usage[name] = self._usage.get(name, 0) + count

    def take_usage(self) -> dict[tuple[str, str], int]:
        """What was counted since the last time, by what and tenant; recalls as `recall_` and outcome."""
        usage, self._usage = self._usage, {}
        recalled, self._recalled = self._recalled, {}
        # Told apart here: a cache hit need not build a name.
        return usage | {(f"recall_{outcome}", tenant): count for (outcome, tenant), count in recalled.items()}

    def times_of(self, route: str) -> tuple[int, ...]:
        """How many requests of a route fell into each bucket of `LATENCY_BUCKETS_S`, and above the last."""
        return self._requests.times_of(route)

    def note_recall(self, outcome: str, tenant: str = "") -> None:
        """Count a recall."""
        recalls = self._requests.recalls
        recalls[outcome] = recalls.get(outcome, 0) + 1
        name = (outcome, tenant)
        recalled = self._recalled
        recalled[name] = recalled.get(name, 0) + 1

    def note_turn(self, outcome: TurnOutcome, tenant: str = "", count: int = 1) -> None:
        """Count what became of turns."""
        self.turns.labels(outcome).inc(count)
        self.note_usage(f"turn_{outcome}", tenant, count)

    def exposition(self, gauges: Mapping[str, float | None] | None = None) -> bytes:
        """All of it as Prometheus reads it; `gauges` by their names in `GAUGES`, None: without a sample."""
        families = CollectorRegistry()
        families.register(_Looked(gauges or {}))
        return generate_latest(self.registry) + generate_latest(families)


class _Looked(Collector):
    """Gauges of one look."""

    def __init__(self, values: Mapping[str, float | None]) -> None:
        self._values = values

    def collect(self) -> Iterator[Metric]:
        for name in self._values:
            yield GaugeMetricFamily(name, GAUGES[name], self._values[name])


@dataclass(slots=True)
class _Times:
    """How long requests of one route took: how many fell into which bucket, and all together."""

    buckets: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BUCKETS_S) + 1))
    sum_s: float = 0.0


@dataclass(slots=True)
class _Tally:
    """Requests of one route that ended with one status."""

    times: _Times
    count: int = 0


class _Requests(Collector):
    """Counts of recalls, counts and times of requests, as plain numbers.

    Only the event loop's thread notes and reads them: the locks of the library's own counters would
    cost a cache hit as much as looking it up.
    """

    def __init__(self) -> None:
        self._tallies: dict[tuple[str, int], _Tally] = {}
        self._times: dict[str, _Times] = {}
        self.recalls: dict[str, int] = {}

    def note(self, route: str, status: int, seconds: float) -> None:
        """One request more."""
        tally = self._tallies.get((route, status))
        if tally is None:
            times = self._times.setdefault(route, _Times())
            tally = self._tallies[route, status] = _Tally(times)
        tally.count += 1
        times = tally.times
        times.buckets[bisect_left(LATENCY_BUCKETS_S, seconds)] += 1
        times.sum_s += seconds

    def times_of(self, route: str) -> tuple[int, ...]:
        """The buckets of one route, each for itself."""
        times = self._times.get(route)
        return tuple(times.buckets) if times else ()

    def collect(self) -> Iterator[Metric]:
        """The numbers as Prometheus wants them."""
        recalls = CounterMetricFamily(
            "memory_recalls", "How many recalls ended in which way.", labels=["outcome"]
        )
        for outcome, count in self.recalls.items():
            recalls.add_metric([outcome], count)
        yield recalls
        requests = CounterMetricFamily(
            "memory_requests", "How many requests were answered.", labels=["route", "status"]
        )
        for (route, status), tally in self._tallies.items():
            requests.add_metric([route, str(status)], tally.count)
        yield requests
        seconds = HistogramMetricFamily("memory_request_seconds", "How long requests took.", labels=["route"])
        for route, times in self._times.items():
            pairs = zip(_BOUNDS, accumulate(times.buckets), strict=True)
            seconds.add_metric([route], [(bound, count) for bound, count in pairs], times.sum_s)
        yield seconds
