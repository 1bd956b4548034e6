"""What `/metrics` says of requests."""

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from service.metrics import Metrics


def said(metrics: Metrics) -> dict[tuple[str, ...], float]:
    """Name, route and the other label values → number, as a scraper reads them."""
    families = text_string_to_metric_families(generate_latest(metrics.registry).decode())
    found: dict[tuple[str, ...], float] = {}
    for sample in (sample for family in families for sample in family.samples):
        others = [value for name, value in sorted(sample.labels.items()) if name != "route"]
        route = [sample.labels["route"]] if "route" in sample.labels else []
        found[sample.name, *route, *others] = sample.value
    return found


def test_requests_are_counted_by_route_and_status_and_timed_by_route() -> None:
    metrics = Metrics()
    metrics.note_request("/a", 200, 0.001)
    metrics.note_request("/a", 200, 0.002)
    metrics.note_request("/a", 503, 20.0)
    metrics.note_request("/b", 200, 0.5)
    found = said(metrics)
    assert found["memory_requests_total", "/a", "200"] == 2
    assert found["memory_requests_total", "/a", "503"] == 1
    assert found["memory_requests_total", "/b", "200"] == 1
    assert found["memory_request_seconds_count", "/a"] == 3
    assert found["memory_request_seconds_sum", "/a"] == 20.003
    # A bound belongs to its bucket.
    assert found["memory_request_seconds_bucket", "/a", "0.001"] == 1
    assert found["memory_request_seconds_bucket", "/a", "0.0025"] == 2
    assert found["memory_request_seconds_bucket", "/a", "10.0"] == 2
    assert found["memory_request_seconds_bucket", "/a", "+Inf"] == 3
    assert found["memory_request_seconds_bucket", "/b", "0.25"] == 0
    assert found["memory_request_seconds_bucket", "/b", "0.5"] == 1


def test_stored_turns_are_counted_and_timed() -> None:
    metrics = Metrics()
    metrics.note_stored([12.0, 4000.0, -0.5], 0.3)  # a clock that went back is no negative time
    found = said(metrics)
    assert found["memory_turns_total", "stored"] == metrics.stored_turns == 3
    assert found["memory_queue_seconds_count",] == 3
    assert found["memory_queue_seconds_sum",] == 4012
    assert found["memory_queue_seconds_bucket", "15.0"] == 2
    assert found["memory_retain_seconds_bucket", "0.25"] == 0
    assert found["memory_retain_seconds_bucket", "0.5"] == 1


def test_a_gauge_that_is_not_known_has_no_sample() -> None:
    text = Metrics().exposition({"memory_workers": 2, "memory_dead_letters": None}).decode()
    assert "memory_workers 2.0\n" in text
    assert "# HELP memory_dead_letters How many" in text
    assert "\nmemory_dead_letters" not in text


def test_recalls_are_counted_by_outcome() -> None:
    metrics = Metrics()
    for outcome in ("hit", "miss", "hit"):
        metrics.note_recall(outcome)
    found = said(metrics)
    assert (found["memory_recalls_total", "hit"], found["memory_recalls_total", "miss"]) == (2, 1)
