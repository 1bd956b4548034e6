"""What is counted and timed. Labels are bounded: route templates, statuses, outcomes — never ids."""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

_LATENCY_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10)
_BOUNDS = (*map(floatToGoString, _LATENCY_BUCKETS_S), "+Inf")


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
            "How many tokens the language model was sent and has said.",
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
        self._requests = _Requests()
        self.registry.register(self._requests)

    def note_request(self, route: str, status: int, seconds: float) -> None:
        """Count and time a request; `route` is a template, never a path from outside."""
        self._requests.note(route, status, seconds)

    def note_recall(self, outcome: str) -> None:
        """Count a recall."""
        recalls = self._requests.recalls
        recalls[outcome] = recalls.get(outcome, 0) + 1


@dataclass(slots=True)
class _Times:
    """How long requests of one route took: how many fell into which bucket, and all together."""

    buckets: list[int] = field(default_factory=lambda: [0] * (len(_LATENCY_BUCKETS_S) + 1))
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
        times.buckets[bisect_left(_LATENCY_BUCKETS_S, seconds)] += 1
        times.sum_s += seconds

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
