"""What is counted and timed. Labels are bounded: route templates, statuses, outcomes — never ids."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Histogram

_LATENCY_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10)


class Metrics:
    """The metrics of one process, on a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "memory_requests_total",
            "How many requests were answered.",
            ["route", "status"],
            registry=self.registry,
        )
        self.request_seconds = Histogram(
            "memory_request_seconds",
            "How long requests took.",
            ["route"],
            buckets=_LATENCY_BUCKETS_S,
            registry=self.registry,
        )
        self.turns = Counter(
            "memory_turns_total",
            "How many turns were queued, repeated or skipped when they came, and stored or dead in the end.",
            ["outcome"],
            registry=self.registry,
        )
        self.recalls = Counter(
            "memory_recalls_total",
            "How many recalls ended in which way.",
            ["outcome"],
            registry=self.registry,
        )
        self.cache_failures = Counter(
            "memory_cache_failures_total",
            "How many times recall went on without its cache.",
            registry=self.registry,
        )
        self._notes: dict[tuple[str, int], tuple[Callable[[], None], Callable[[float], None]]] = {}

    def note_request(self, route: str, status: int, seconds: float) -> None:
        """Count and time a request; `route` is a template, never a path from outside."""
        note = self._notes.get((route, status))
        if note is None:
            # Finding a labelled child costs more than counting on it, and there are few of them.
            note = (self.requests.labels(route, str(status)).inc, self.request_seconds.labels(route).observe)
            self._notes[route, status] = note
        note[0]()
        note[1](seconds)
