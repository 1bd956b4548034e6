"""The files under `deploy/` fit the service, each other and what they promise."""

import re
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from service.app import create_app
from service.cli.main import main
from service.embedded import embeddings, hindsight
from service.embedded.data_dir import DataDir
from service.settings import Settings

from tests.deployment import CHART, DEPLOY, ROOT, chart_documents, compose, texts

SERVICES: dict[str, dict[str, Any]] = compose()["services"]
OURS = ("memory-api", "memory-worker")
COMMANDS = main.list_commands(click.Context(main))
# Where the address of something differs between one machine and Compose, or a key is the operator's.
PLACES = {
    "HINDSIGHT_API_HOST",
    "HINDSIGHT_API_PORT",
    "HINDSIGHT_API_EMBEDDINGS_OPENAI_BASE_URL",
    "HINDSIGHT_API_EMBEDDINGS_OPENAI_API_KEY",
    "HINDSIGHT_API_TENANT_API_KEY",
    "HINDSIGHT_API_WEBHOOK_SECRET",
    "HINDSIGHT_API_LLM_PROVIDER",
}


def test_every_yaml_file_parses() -> None:
    read = [
        list(yaml.safe_load_all(text))
        for name, text in texts().items()
        if name.endswith((".yaml", ".yml")) and "templates/" not in name
    ]
    assert len(read) >= 4


@pytest.mark.parametrize("name", texts())
def test_every_setting_that_is_named_exists(name: str) -> None:
    named = set(re.findall(r"\bMEMORY_[A-Z0-9_]*[A-Z0-9]\b", texts()[name]))
    assert named <= {f"MEMORY_{field.upper()}" for field in Settings.model_fields}


@pytest.mark.parametrize("name", texts())
def test_no_file_holds_a_secret(name: str) -> None:
    found = re.findall(r"\b(?:sk-[A-Za-z0-9]{16,}|dm_[0-9a-f]{16,}|[0-9a-f]{40,})\b", texts()[name])
    assert found == []


@pytest.mark.parametrize("name", SERVICES)
def test_a_compose_service_is_watched_restarted_limited_and_without_rights(name: str) -> None:
    service = SERVICES[name]
    assert service["healthcheck"]["test"]
    assert service["restart"] == "unless-stopped"
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert set(service["deploy"]["resources"]["limits"]) == {"cpus", "memory"}
    # A name without it would be taken for one of Dify's own services in a common network.
    assert name.startswith("memory-")


@pytest.mark.parametrize("name", SERVICES)
def test_a_compose_service_has_a_pinned_image(name: str) -> None:
    repository, _, tag = SERVICES[name]["image"].partition(":")
    assert repository.startswith("dify-memory") or re.match(r"(\$\{\w+:-)?\d+\.\d+", tag)


@pytest.mark.parametrize("name", SERVICES)
def test_secrets_come_from_outside_the_compose_file(name: str) -> None:
    for key, value in SERVICES[name].get("environment", {}).items():
        if re.search(r"PASSWORD|SECRET|_KEY$|AUTH$", key):
            assert re.fullmatch(r"\$\{\w+(:\?[^}]+|:-)\}", value), key
        elif re.search(r"://[^/]*@", str(value)):
            assert re.search(r":\$\{\w+:\?[^}]+\}@", value), key


def test_only_the_api_can_be_reached_from_outside() -> None:
    assert [name for name, service in SERVICES.items() if "ports" in service] == ["memory-api"]
    assert SERVICES["memory-api"]["ports"] == ["${PUBLISH:-127.0.0.1:8000}:8000"]
    assert compose()["networks"]["data"] == {"internal": True}
    for name in ("memory-redis", "memory-cache", "memory-postgres", "memory-embeddings"):
        assert SERVICES[name]["networks"] == ["data"]


@pytest.mark.parametrize("name", OURS)
def test_our_containers_write_nothing_and_run_a_command_that_exists(name: str) -> None:
    assert SERVICES[name]["read_only"] is True
    [command] = SERVICES[name]["command"]
    assert command in COMMANDS


def test_a_container_gets_more_time_to_stop_than_its_process_takes() -> None:
    seconds = {name: int(SERVICES[name]["stop_grace_period"].removesuffix("s")) for name in OURS}
    assert seconds["memory-api"] > 15
    assert seconds["memory-worker"] > 20


def test_accepted_turns_are_on_the_disk_and_never_evicted() -> None:
    accepted = SERVICES["memory-redis"]["command"][-1]
    assert "--appendonly yes --appendfsync always" in accepted
    assert "--maxmemory-policy noeviction" in accepted
    assert SERVICES["memory-redis"]["volumes"] == ["redis:/data"]
    assert SERVICES["memory-cache"]["profiles"] == ["cache"]


def test_hindsight_is_set_up_as_on_one_machine(tmp_path: Path) -> None:
    local = hindsight.spec(
        DataDir(tmp_path),
        hindsight.HindsightServer(1),
        database_url=str,
        embeddings_server=embeddings.EmbeddingsServer(2, "key"),
        settings=Settings.model_validate({"hindsight_api_key": "key"}),
        webhook=hindsight.Webhook("http://memory-api:8000/hooks/hindsight", "secret"),
        base_env={},
    ).env
    wanted = {key: value for key, value in local.items() if key.startswith("HINDSIGHT_API_")}
    here = SERVICES["memory-hindsight"]["environment"]
    assert {key: here.get(key) for key in wanted if key not in PLACES} == {
        key: value for key, value in wanted.items() if key not in PLACES
    }
    assert set(wanted) <= set(here)


def test_the_dify_override_joins_nothing_but_the_api() -> None:
    override = compose("compose.dify.yaml")
    assert override["services"] == {"memory-api": {"networks": ["data", "outside", "dify"]}}
    assert override["networks"]["dify"]["external"] is True
    assert "SSRF_PROXY_ALLOW_PRIVATE_DOMAINS=memory-api" in texts()["compose.dify.yaml"]


def test_the_images_run_without_root_from_the_hashed_lock() -> None:
    text = texts()["Dockerfile"]
    assert text.count("--require-hashes") == text.count("pip install") - 1  # the package itself
    stages = re.split(r"^FROM ", text, flags=re.MULTILINE)[1:]
    names = [stage.split("\n", 1)[0].split(" AS ") for stage in stages]
    assert names[-1] == ["runtime", "core"]
    assert "USER 10001:10001" in next(
        stage for stage, name in zip(stages, names, strict=True) if name[1] == "runtime"
    )
    assert 'ENTRYPOINT ["dify-memory"]' in stages[-1]
    assert "HEALTHCHECK" in stages[-1]


def test_what_the_dockerfile_copies_is_there_and_not_ignored() -> None:
    let_in = {line[1:] for line in texts()["Dockerfile.dockerignore"].splitlines() if line.startswith("!")}
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", texts()["Dockerfile"], re.MULTILINE)
    for source in " ".join(copied).split():
        assert (ROOT / source).exists()
        assert any(source == entry or source.startswith(f"{entry}/") for entry in let_in), source


@pytest.mark.parametrize(
    ("name", "command"), [("dify-memory-api.service", "serve"), ("dify-memory-worker@.service", "worker")]
)
def test_a_unit_restarts_its_command_and_gives_it_no_rights(name: str, command: str) -> None:
    sections: dict[str, dict[str, str]] = {}
    for line in (DEPLOY / "systemd" / name).read_text("utf-8").splitlines():
        if section := re.fullmatch(r"\[(Unit|Service|Install)\]", line):
            values = sections.setdefault(section[1], {})
        elif line and not line.startswith("#"):
            key, equals, value = line.partition("=")
            assert equals
            assert key.isalnum()
            values[key] = value
    service = sections["Service"]
    assert service["ExecStart"].endswith(f"/dify-memory {command}")
    assert command in COMMANDS
    assert service["EnvironmentFile"] == "/etc/dify-memory/memory.env"
    assert service["Restart"] == "always"
    assert int(service["TimeoutStopSec"]) > (15 if command == "serve" else 20)
    for key in ("NoNewPrivileges", "DynamicUser", "PrivateTmp", "PrivateDevices", "RestrictNamespaces"):
        assert service[key] == "yes"
    assert service["ProtectSystem"] == "strict"
    assert service["CapabilityBoundingSet"] == ""
    assert sections["Install"]["WantedBy"] == "multi-user.target"


def test_the_proxies_let_pass_what_the_api_takes_and_stream_replies() -> None:
    limit = Settings.model_fields["max_body_bytes"].default
    nginx, caddy = texts()["nginx/dify-memory.conf"], texts()["caddy/Caddyfile"]
    assert f"client_max_body_size {limit};" in nginx
    assert f"max_size {limit}\n" in caddy
    [stream] = re.findall(r"location /v1/ \{(.*?)\}", nginx, re.DOTALL)
    assert "proxy_buffering off;" in stream
    assert re.search(r"handle /v1/\* \{\s+reverse_proxy [^}]*flush_interval -1", caddy)
    for text in (nginx, caddy):
        assert text.count("{") == text.count("}")
        assert "HTTPS pass on port 443 only" in text


def test_the_ingress_leads_to_every_route_that_is_not_for_machines_inside() -> None:
    [ingress] = re.findall(
        r"range list (.*?) \}\}", (CHART / "templates" / "ingress.yaml").read_text("utf-8")
    )
    prefixes = re.findall(r'"(/[^"]*)"', ingress)
    app = create_app(Settings.model_validate({"api_key": "0123456789abcdef"}))
    routes = {path for route in app.routes if (path := getattr(route, "path", "")).startswith("/")}
    missing = {path for path in routes if not any(path == p or path.startswith(f"{p}/") for p in prefixes)}
    assert missing <= {"/metrics", "/hooks/hindsight"}
    assert chart_documents("ingress.yaml")
