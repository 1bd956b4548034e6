"""The Helm chart without Helm: its structure, its values and their schema."""

import json
import re
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from service.settings import Settings

from tests.deployment import CHART, ROOT, chart_documents

TEMPLATES = sorted(path.name for path in (CHART / "templates").glob("*.yaml"))
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text("utf-8"))
DEPLOYMENTS = ("api-deployment.yaml", "worker-deployment.yaml")
# Objects whose keys the operator chooses.
OPEN = {"settings", "resources", "selector", "annotations", "podAnnotations", "nodeSelector", "affinity"}


def _paths(values: dict[str, Any], *above: str) -> Iterator[tuple[str, ...]]:
    for key, value in values.items():
        yield (*above, key)
        if isinstance(value, dict) and key not in OPEN:
            yield from _paths(value, *above, key)


def _schema_paths(schema: dict[str, Any], *above: str) -> Iterator[tuple[str, ...]]:
    for key, value in schema.get("properties", {}).items():
        yield (*above, key)
        yield from _schema_paths(value, *above, key) if key not in OPEN else ()


def _pod(template: str) -> dict[str, Any]:
    [deployment] = chart_documents(template)
    pod: dict[str, Any] = deployment["spec"]["template"]["spec"]
    return pod


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_template_makes_kubernetes_objects(template: str) -> None:
    documents = chart_documents(template)
    assert documents
    for document in documents:
        assert {"apiVersion", "kind", "metadata"} <= set(document)
        assert document["metadata"]["name"].startswith("x")
        assert document["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "x"


def test_the_chart_makes_no_secret() -> None:
    kinds = {document["kind"] for template in TEMPLATES for document in chart_documents(template)}
    assert kinds == {
        "ConfigMap",
        "Deployment",
        "HorizontalPodAutoscaler",
        "Ingress",
        "NetworkPolicy",
        "PodDisruptionBudget",
        "Service",
        "ServiceAccount",
    }


def test_values_and_schema_say_the_same() -> None:
    assert set(_paths(VALUES)) == {path for path in _schema_paths(SCHEMA) if path != ("global",)}


def test_the_schema_knows_no_other_values() -> None:
    assert SCHEMA["additionalProperties"] is False
    for key, schema in SCHEMA["properties"].items():
        assert schema["description"], key
        if "properties" in schema:
            assert schema["additionalProperties"] is False, key


@pytest.mark.parametrize("template", [*TEMPLATES, "_helpers.tpl", "NOTES.txt"])
def test_every_value_that_is_used_exists(template: str) -> None:
    known = {".".join(path) for path in _paths(VALUES)}
    text = (CHART / "templates" / template).read_text("utf-8")
    used = set(re.findall(r"\.Values\.([A-Za-z.]+)", text))
    assert used <= known


def test_secrets_are_refused_among_the_settings() -> None:
    refused = SCHEMA["properties"]["settings"]["propertyNames"]["not"]["pattern"]
    secret = {name for name, field in Settings.model_fields.items() if "SecretStr" in str(field.annotation)}
    # The URLs of Redis carry its password.
    secret |= {name for name in Settings.model_fields if name.endswith("redis_url")}
    matched = {name for name in Settings.model_fields if re.search(refused, f"MEMORY_{name.upper()}")}
    assert matched == secret


@pytest.mark.parametrize("template", DEPLOYMENTS)
def test_pods_have_no_rights_and_write_only_to_tmp(template: str) -> None:
    pod = _pod(template)
    [container] = pod["containers"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {"name": "tmp", "mountPath": "/tmp"} in container["volumeMounts"]


def test_pods_get_more_time_to_stop_than_their_processes_take() -> None:
    pause = int(_pod("api-deployment.yaml")["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1])
    assert _pod("api-deployment.yaml")["terminationGracePeriodSeconds"] > pause + 15
    assert _pod("worker-deployment.yaml")["terminationGracePeriodSeconds"] > 20


def test_a_redis_that_is_away_does_not_take_the_api_out_of_its_service() -> None:
    [container] = _pod("api-deployment.yaml")["containers"]
    assert container["startupProbe"]["httpGet"]["path"] == "/health/ready"
    assert container["readinessProbe"]["httpGet"]["path"] == "/health/live"
    assert container["livenessProbe"]["httpGet"]["path"] == "/health/live"


def test_api_and_worker_scale_apart_by_cpu_or_an_external_metric() -> None:
    [scaler] = chart_documents("autoscalers.yaml")  # the body of a loop over both roles
    assert scaler["apiVersion"] == "autoscaling/v2"
    assert [metric["type"] for metric in scaler["spec"]["metrics"]] == ["External", "Resource"]
    for role in ("api", "worker"):
        assert VALUES[role]["autoscaling"]["externalMetric"]["enabled"] is False


def test_chart_and_package_have_one_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert chart["appVersion"] == project["version"]
    assert chart["name"] == project["name"]
