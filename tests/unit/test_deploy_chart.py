"""The Helm chart without Helm: its structure, its values and their schema."""

import json
import re
import tomllib
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from service.adapters.redis_urls import SENTINEL_PORT
from service.metrics import GAUGES
from service.settings import Settings

from tests.deployment import CHART, DEPLOY, ROOT, chart_documents, most

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


def _define(name: str) -> str:
    """The text of a named template."""
    text = (CHART / "templates" / "_helpers.tpl").read_text("utf-8")
    [found] = re.findall(
        rf'{{{{- define "{re.escape(name)}" -}}}}\n(.*?)\n{{{{- end -}}}}(?:\n\n|\n*\Z)', text, re.DOTALL
    )
    return str(found)


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
        "PodMonitor",
        "PodDisruptionBudget",
        "Service",
        "ServiceAccount",
    }


def test_values_and_schema_say_the_same() -> None:
    assert set(_paths(VALUES)) == {path for path in _schema_paths(SCHEMA) if path != ("global",)}


def test_what_set_turns_into_a_number_is_taken_unless_it_would_become_another() -> None:
    properties = SCHEMA["properties"]
    targets = [properties[role]["properties"]["autoscaling"]["properties"] for role in ("api", "worker")]
    numbers = [target["externalMetric"]["properties"]["targetValue"] for target in targets]
    for schema in (properties["secretVersion"], *numbers):
        assert {"string", "integer"} <= set(schema["type"])
    assert properties["image"]["properties"]["tag"]["type"] == "string"  # 1.10 would be 1.1


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
    # Whatever MEMORY_DRAIN_S is set to, in the Secret or elsewhere.
    assert _pod("api-deployment.yaml")["terminationGracePeriodSeconds"] > pause + most("drain_s") + 15
    assert _pod("worker-deployment.yaml")["terminationGracePeriodSeconds"] > 20


def test_a_redis_that_is_away_does_not_take_the_api_out_of_its_service() -> None:
    [container] = _pod("api-deployment.yaml")["containers"]
    # Not all of it: a queue that stands still must not keep the pods from starting that are to mend it.
    assert container["startupProbe"]["httpGet"]["path"] == "/health/ready?only=accepting"
    assert container["readinessProbe"]["httpGet"]["path"] == "/health/ready?only=serving"
    assert container["livenessProbe"]["httpGet"]["path"] == "/health/live"


def test_the_pods_may_reach_whatever_the_settings_name_by_their_usual_ports() -> None:
    [rule] = VALUES["networkPolicy"]["egress"]
    defaults = {Settings.model_fields[name].default for name in ("redis_url", "hindsight_url")}
    usual = {urlsplit(url).port for url in defaults} | {SENTINEL_PORT, 443}
    # OTLP over HTTP, as the setting's description says.
    usual |= {
        int(port)
        for port in re.findall(r"port (\d+)", str(Settings.model_fields["otlp_endpoint"].description))
    }
    assert {port["port"] for port in rule["ports"]} == usual


def test_every_secret_is_named_where_the_secret_is() -> None:
    text = (CHART / "values.yaml").read_text("utf-8").split("existingSecret:")[0]
    secret = {name for name, field in Settings.model_fields.items() if "SecretStr" in str(field.annotation)}
    secret |= {name for name in Settings.model_fields if name.endswith("redis_url")}
    assert {f"MEMORY_{name.upper()}" for name in secret} <= set(re.findall(r"MEMORY_[A-Z_]+", text))


@pytest.mark.parametrize("template", DEPLOYMENTS)
def test_a_role_may_have_a_secret_of_its_own_which_goes_before_the_common_one(template: str) -> None:
    sources = [next(iter(source)) for source in _pod(template)["containers"][0]["envFrom"]]
    # The last one wins.
    assert sources == ["configMapRef", "secretRef", "secretRef"]
    container = _define("dify-memory.container")
    common, own = re.findall(r"secretRef:\n +name: (.*)", container)
    assert common.endswith(".root.Values.existingSecret }}")
    assert own == "{{ . }}"
    assert '{{- with (index .root.Values .role "existingSecret") }}\n  - secretRef:' in container
    for role in ("api", "worker"):
        assert VALUES[role]["existingSecret"] == ""
        assert SCHEMA["properties"][role]["properties"]["existingSecret"]["type"] == "string"


@pytest.mark.parametrize("name", ["README.md", "README.zh.md"])
def test_the_handbook_says_what_replaces_pods_and_keeps_secrets_apart(name: str) -> None:
    text = (DEPLOY / name).read_text("utf-8")
    assert text.count("`api.existingSecret`") == text.count("`worker.existingSecret`") == 2
    [upgrade] = re.findall(r"^ +\* Kubernetes[:：].*?(?=^ +\*)", text, re.DOTALL | re.MULTILINE)
    # None of what is not the chart's own is seen by it.
    for value in ("Secret", "policyConfigMap", "modelsSecret", "secretVersion"):
        assert value in upgrade


def test_files_that_settings_name_are_mounted_where_the_settings_look() -> None:
    for template in DEPLOYMENTS:
        pod = _pod(template)
        [files] = [volume for volume in pod["volumes"] if volume["name"] == "files"]
        kinds = {kind: value for source in files["projected"]["sources"] for kind, value in source.items()}
        # The models' file may hold keys.
        assert [item["path"] for item in kinds["configMap"]["items"]] == ["policy.yaml"]
        assert [item["path"] for item in kinds["secret"]["items"]] == ["models.yaml"]
        [mount] = [mount for mount in pod["containers"][0]["volumeMounts"] if mount["name"] == "files"]
        assert mount["mountPath"] == "/etc/dify-memory"
    settings = chart_documents("settings.yaml")[0]["data"]
    assert settings["MEMORY_POLICY_FILE"] == "/etc/dify-memory/policy.yaml"
    assert settings["MEMORY_GATEWAY_MODELS_FILE"] == "/etc/dify-memory/models.yaml"


@pytest.mark.parametrize("name", ["README.md", "README.zh.md"])
def test_the_adapter_s_rule_gives_the_autoscaler_its_metric(name: str) -> None:
    [block] = re.findall(r"```yaml\n( +rules:\n.*?)```", (DEPLOY / name).read_text("utf-8"), re.DOTALL)
    [rule] = yaml.safe_load(block)["rules"]["external"]
    metric = VALUES["worker"]["autoscaling"]["externalMetric"]["name"]
    assert rule["seriesQuery"].partition("{")[0] == rule["name"]["as"] == metric
    # Each API pod tells of the one queue.
    assert rule["metricsQuery"] == "max(<<.Series>>{<<.LabelMatchers>>})"


def test_api_and_worker_scale_apart_by_cpu_and_an_external_metric_beside_it() -> None:
    """An adapter that fails leaves the CPU, by which Kubernetes goes on adding pods."""
    [scaler] = chart_documents("autoscalers.yaml")  # the body of a loop over both roles
    assert scaler["apiVersion"] == "autoscaling/v2"
    assert [metric["type"] for metric in scaler["spec"]["metrics"]] == ["Resource", "External"]
    [external] = re.findall(
        r"\{\{- if \$values.externalMetric.enabled \}\}\n(.*?)\n {4}\{\{- end \}\}",
        _define("dify-memory.autoscaler"),
        re.DOTALL,
    )
    assert "type: External" in external
    assert "else" not in external
    for role in ("api", "worker"):
        assert VALUES[role]["autoscaling"]["externalMetric"]["enabled"] is False


def test_the_worker_s_autoscaler_knows_the_age_of_the_queue_by_its_real_name() -> None:
    metric = VALUES["worker"]["autoscaling"]["externalMetric"]
    assert metric["name"] in GAUGES
    assert float(metric["targetValue"]) > 0


def test_prometheus_finds_both_roles_and_is_let_in() -> None:
    [monitor] = chart_documents("pod-monitors.yaml")
    assert monitor["spec"]["podMetricsEndpoints"][0]["path"] == "/metrics"
    ports = {
        template: [port["name"] for port in _pod(template)["containers"][0]["ports"]]
        for template in DEPLOYMENTS
    }
    assert ports == {"api-deployment.yaml": ["http"], "worker-deployment.yaml": ["metrics"]}
    policies = (CHART / "templates" / "network-policies.yaml").read_text("utf-8")
    assert re.findall(r"port: ([a-z]+)", policies) == ["metrics", "http"]
    # Who reads the worker's metrics reads the API's, too: the age of the queue is among these.
    [api] = re.findall(r'if eq \$role "api" \}\}\n(.*?)\n  \{\{- end \}\}\n', policies, re.DOTALL)
    assert "with $root.Values.networkPolicy.ingressFrom }}" in api
    assert "toYaml (concat . ($root.Values.networkPolicy.metricsFrom | default list))" in api
    named = {env["name"] for env in _pod("worker-deployment.yaml")["containers"][0]["env"]}
    assert named == {"MEMORY_WORKER_METRICS_HOST", "MEMORY_WORKER_METRICS_PORT"}


def test_chart_and_package_have_one_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert chart["appVersion"] == project["version"]
    assert chart["name"] == project["name"]
