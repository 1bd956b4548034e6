"""Dashboard and alerts name what is exported, and what is exported is on the dashboard."""

import json
import re
from typing import Any

import pytest
import yaml

from tests.deployment import DEPLOY, compose
from tests.metrics_catalogue import Expression, everything, families_of, family_of, samples_of

EXPOSITION = everything()
FAMILIES = families_of(EXPOSITION)
SAMPLES = samples_of(EXPOSITION)
DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "grafana" / "dify-memory.json").read_text("utf-8"))
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
GRAPHS = [panel for panel in PANELS if panel["type"] != "row"]
RULES: list[dict[str, Any]] = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yaml").read_text("utf-8"))[
    "groups"
][0]["rules"]
ON_DASHBOARD = [target["expr"] for panel in GRAPHS for target in panel["targets"]]
EXPRESSIONS = ON_DASHBOARD + [rule["expr"] for rule in RULES]


def faults(expression: str) -> list[str]:
    """What an expression names that is not exported."""
    found = []
    for use in Expression(expression).uses:
        labels = SAMPLES.get(use.metric)
        if labels is None:
            found.append(f"no metric {use.metric}")
            continue
        found += [f"{use.metric} has no label {name}" for name in use.grouped_by - labels.keys()]
        for label, operator, value in use.matchers:
            if label not in labels:
                found.append(f"{use.metric} has no label {label}")
                continue
            found += [
                f"{use.metric} is never {label}{operator}{pattern!r}"
                for pattern in patterns(operator, value)
                if not any(re.fullmatch(pattern, known) for known in labels[label])
            ]
    return found


def patterns(operator: str, value: str) -> list[str]:
    """What a matcher names, each alternative for itself: one that never was would be silent beside others."""
    if "~" not in operator:
        return [re.escape(value)]
    return [value] if "(" in value else value.split("|")


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_can_be_read_and_names_what_is_exported(expression: str) -> None:
    assert faults(expression) == []


@pytest.mark.parametrize(
    "expression",
    [
        "memory_no_such_total",
        "sum by (tenant) (memory_turns_total)",
        'memory_turns_total{outcome="lost"}',
        'memory_turns_total{outcome=~"lost|gone"}',
        'memory_turns_total{outcome=~"queued|lost"}',
        'memory_recalls_total{outcome!~"degrade|stale"}',
        'memory_recalls_total{outcome=~"stale|"}',
        'memory_requests_total{status=~"4..|9.."}',
        'memory_chats_total{status="ok"}',
        'memory_dead_letters{outcome="x"}',
        "histogram_quantile(0.9, sum by (le) (rate(memory_queue_seconds_count[5m])))",
    ],
)
def test_what_is_not_exported_is_found(expression: str) -> None:
    assert faults(expression) != []


def test_alternatives_within_brackets_are_taken_as_one() -> None:
    assert faults('memory_recalls_total{outcome=~"(stale|degraded)"}') == []


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "1 +",
        "sum(",
        "max(memory_workers))",
        "rate(memory_turns_total)",
        "rate(memory_turns_total[5])",
        "sum by (a b) (x)",
        "sum by a (x)",
        "x{a=b}",
        "x{a='b'}",
        "x and on y",
        "x ? y",
    ],
)
def test_what_is_no_expression_is_refused(expression: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        Expression(expression)


def test_every_metric_is_on_the_dashboard() -> None:
    named = {
        family_of(use.metric, FAMILIES) for expression in ON_DASHBOARD for use in Expression(expression).uses
    }
    assert set(FAMILIES) - named == set()


def test_the_catalogue_has_a_sample_of_everything() -> None:
    assert len(FAMILIES) > 20
    assert {family_of(sample, FAMILIES) for sample in SAMPLES if not sample.endswith("_created")} == set(
        FAMILIES
    )


@pytest.mark.parametrize("name", FAMILIES)
def test_a_help_text_says_how_many_or_how_long(name: str) -> None:
    text, labels = FAMILIES[name]
    assert re.fullmatch(r"How (many|long) .+\.", text)
    # Bounded, all of them.
    assert labels <= {"outcome", "route", "status", "direction", "part", "le"}


def test_prometheus_asks_the_services_of_compose_at_their_ports() -> None:
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yaml").read_text("utf-8"))
    assert [(DEPLOY / "prometheus" / name).is_file() for name in config["rule_files"]] == [True]
    services = compose()["services"]
    ports = {
        "memory-api": services["memory-api"]["environment"]["MEMORY_PORT"],
        "memory-worker": services["memory-worker"]["environment"]["MEMORY_WORKER_METRICS_PORT"],
    }
    asked = {
        job["dns_sd_configs"][0]["names"][0]: str(job["dns_sd_configs"][0]["port"])
        for job in config["scrape_configs"]
    }
    assert asked == ports
    assert services["memory-worker"]["environment"]["MEMORY_WORKER_METRICS_HOST"] == "0.0.0.0"


def test_panels_have_a_place_a_title_and_a_data_source() -> None:
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    for panel in GRAPHS:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        assert panel["title"]
        for target in panel["targets"]:
            assert target["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
    places = [
        (x, y)
        for panel in PANELS
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(places) == len(set(places)), "two panels lie upon each other"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_has_the_form_of_one_and_says_what_to_do(rule: dict[str, Any]) -> None:
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert re.fullmatch(r"Memory[A-Za-z]+", rule["alert"])
    assert re.fullmatch(r"\d+[sm]", rule.get("for", "1m"))
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert set(rule["annotations"]) == {"summary", "description"}
    # It speaks only when something is wrong: it compares, or asks for what is missing.
    assert re.search(r"[<>]|==|absent", rule["expr"])


def test_alerts_have_names_of_their_own() -> None:
    assert len({rule["alert"] for rule in RULES}) == len(RULES) > 15
