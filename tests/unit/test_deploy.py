"""The files under `deploy/` fit the service, each other and what they promise."""

import re
import subprocess
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

from tests import sizes
from tests.bench import report
from tests.deployment import CHART, DEPLOY, ROOT, chart_documents, compose, most, texts

SERVICES: dict[str, dict[str, Any]] = compose()["services"]
OURS = ("memory-api", "memory-worker")
COMMANDS = main.list_commands(click.Context(main))
# Most seconds that the API takes to leave: it drains, what is in hand gets its time, what is cut a moment.
LEAVES_S = most("drain_s") + Settings.model_fields["in_flight_s"].default + 10
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


@pytest.mark.parametrize("name", OURS)
def test_what_the_compose_file_sets_never_undoes_a_setting_of_an_env_file(name: str) -> None:
    """`environment` goes before `env_file`, even when it sets nothing: a model named there is lost."""
    for key, value in SERVICES[name]["environment"].items():
        if key.startswith("MEMORY_"):
            assert value, key
            for variable in re.findall(r"\$\{(.*?)\}", value):
                assert re.fullmatch(r"\w+(:\?|:-).+", variable), f"{key} may come out empty"


def test_every_variable_of_the_secrets_file_is_read() -> None:
    """Compose takes them from `.env` where the files name them; nothing else there gets into a container."""
    offered = set(re.findall(r"^#?([A-Z_]+)=", texts()["make-env.sh"], re.MULTILINE))
    read = set(re.findall(r"(?<!\$)\$\{(\w+)", texts()["compose.yaml"] + texts()["compose.dify.yaml"]))
    assert offered - {"COMPOSE_FILE", "COMPOSE_PROFILES"} == read - {"DIFY_MEMORY_TAG", "HINDSIGHT_TAG"}


@pytest.mark.parametrize("name", ["README.md", "README.zh.md"])
def test_what_env_files_hold_is_said_to_go_there(name: str) -> None:
    text = texts()[name]
    assert text.count("`MEMORY_CACHE_REDIS_URL=redis://:${REDIS_PASSWORD}@memory-cache:6379/0`") == 1
    # Where the compose file names it as well.
    assert "MEMORY_CACHE_REDIS_URL=redis://:${REDIS_PASSWORD}@memory-cache:6379/0" in texts()["compose.yaml"]
    # Not one of the variables of `.env`, which Compose gives to no container by itself.
    assert not re.search(r"(?<!MEMORY_)CACHE_REDIS_URL", text)


def test_what_an_older_secrets_file_held_for_the_env_files_is_told(tmp_path: Path) -> None:
    env = tmp_path / ".env"
    env.write_text("TOKEN_KEYS=k1:x\nMEMORY_LLM_MODEL=openai/x\n#MEMORY_LLM_BASE_URL=\nCACHE_REDIS_URL=y\n")
    told = _make_env(env)
    assert "MEMORY_LLM_MODEL, CACHE_REDIS_URL" in told
    assert "memory.env" in told
    env.write_text("TOKEN_KEYS=k1:x\n#MEMORY_LLM_MODEL=openai/x\n")
    assert "memory.env" not in _make_env(env)
    assert env.read_text().startswith("TOKEN_KEYS=k1:x\n#MEMORY_LLM")


def _make_env(path: Path) -> str:
    done = subprocess.run(
        ["sh", DEPLOY / "make-env.sh", path], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stderr


@pytest.mark.parametrize("name", ["README.md", "README.zh.md"])
def test_commands_run_where_the_secrets_that_they_need_are(name: str) -> None:
    """The pepper of keys and what signs links are the API's."""
    text = texts()[name]
    ran = re.findall(r"exec (\S+) (?:-- )?dify-memory", text)
    api = chart_documents("api-deployment.yaml")[0]["metadata"]["name"].removeprefix("x")
    assert set(ran) == {"memory-api", f"deploy/dify-memory{api}"}
    assert "doctor --url" not in text


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
    assert seconds["memory-api"] > LEAVES_S
    assert seconds["memory-worker"] > 20
    # Its start script kills what has not ended after 30 s.
    assert int(SERVICES["memory-hindsight"]["stop_grace_period"].removesuffix("s")) > 30


def test_a_container_is_well_while_it_serves_whatever_is_common_to_all() -> None:
    *_, probe = SERVICES["memory-api"]["healthcheck"]["test"]
    assert probe == "ready?only=serving"


def test_links_to_a_person_s_page_are_signed_and_files_that_settings_name_are_mounted() -> None:
    assert SERVICES["memory-api"]["environment"]["MEMORY_TOKEN_KEYS"] == "${TOKEN_KEYS:?run make-env.sh}"
    kept_out = texts()[".gitignore"].splitlines()
    for name in OURS:
        assert SERVICES[name]["volumes"] == ["./files:/etc/dify-memory:ro"]
        files = ["memory.env", f"{name.removeprefix('memory-')}.env"]
        assert SERVICES[name]["env_file"] == [{"path": path, "required": False} for path in files]
        assert set(files) <= set(kept_out)
    assert "files/" in kept_out


def test_accepted_turns_are_on_the_disk_and_never_evicted() -> None:
    accepted = SERVICES["memory-redis"]["command"][-1]
    assert "--appendonly yes --appendfsync always" in accepted
    assert '--maxmemory "$$REDIS_MAXMEMORY" --maxmemory-policy noeviction' in accepted
    # Full, it has to refuse turns before the kernel kills it: room for a rewrite of the file and for buffers.
    redis = SERVICES["memory-redis"]
    assert redis["environment"]["REDIS_MAXMEMORY"] == "${REDIS_MAXMEMORY:-640mb}"
    assert redis["deploy"]["resources"]["limits"]["memory"] == "${REDIS_MEMORY:-1G}"
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


@pytest.mark.parametrize(
    "name", ["README.md", "README.zh.md", "compose.yaml", "compose.dify.yaml", "make-env.sh"]
)
def test_no_command_names_files_or_profiles_that_a_later_one_would_forget(name: str) -> None:
    """They stand in `.env`: an `up` with one file less takes the API out of Dify's network."""
    text = texts()[name]
    assert not re.search(r"docker compose [^\n]*(-f |--file|--profile)", text)
    assert "COMPOSE_FILE=compose.yaml:compose.dify.yaml" in text or name == "compose.yaml"
    for listed in re.findall(r"COMPOSE_FILE=([\w.:-]+)", text):
        assert all((DEPLOY / file).exists() for file in listed.split(":"))


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
    ("name", "command"), [("dify-memory-api@.service", "serve"), ("dify-memory-worker@.service", "worker")]
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
            # A key may be given several times; of the files the later one goes before the earlier one.
            values[key] = f"{values[key]} {value}" if key == "EnvironmentFile" and key in values else value
    service = sections["Service"]
    assert service["ExecStart"].endswith(f"/dify-memory {command}")
    # Several processes of the API on one machine, each on the port it is named after.
    assert ("MEMORY_PORT=%i" in service["ExecStart"]) == (command == "serve")
    assert command in COMMANDS
    folder, role = "/etc/dify-memory", "api" if command == "serve" else command
    files = [f"{folder}/memory.env", f"-{folder}/{role}.env", f"-{folder}/{role}-%i.env"]
    assert service["EnvironmentFile"].split() == files
    assert service["Restart"] == "always"
    assert int(service["TimeoutStopSec"]) > (LEAVES_S if command == "serve" else 20)
    for key in ("NoNewPrivileges", "DynamicUser", "PrivateTmp", "PrivateDevices", "RestrictNamespaces"):
        assert service[key] == "yes"
    assert service["ProtectSystem"] == "strict"
    assert service["CapabilityBoundingSet"] == ""
    assert sections["Install"]["WantedBy"] == "multi-user.target"


def test_the_proxies_let_pass_what_the_api_takes_and_stream_replies() -> None:
    limit = Settings.model_fields["max_body_bytes"].default
    chat = Settings.model_fields["gateway_max_body_bytes"].default
    nginx, caddy = texts()["nginx/dify-memory.conf"], texts()["caddy/Caddyfile"]
    assert re.findall(r"client_max_body_size (\d+);", nginx) == [str(limit), str(chat)]
    [stream] = re.findall(r"location /v1/ \{(.*?)\}", nginx, re.DOTALL)
    assert f"client_max_body_size {chat};" in stream
    assert "proxy_buffering off;" in stream
    # A limit of the whole site would hold for chats as well: the smaller one wins.
    blocks = dict(re.findall(r"^\thandle(?: (\S+))? \{\n(.*?)^\t\}", caddy, re.DOTALL | re.MULTILINE))
    assert re.findall(r"max_size (\d+)", caddy) == [str(chat), str(limit)]
    assert f"max_size {chat}\n" in blocks["/v1/*"]
    assert re.search(r"reverse_proxy [^}]*flush_interval -1", blocks["/v1/*"])
    assert f"max_size {limit}\n" in blocks[""]


@pytest.mark.parametrize("name", ["nginx/dify-memory.conf", "caddy/Caddyfile"])
def test_a_proxy_s_file_is_whole_and_names_dify_s_port(name: str) -> None:
    text = texts()[name]
    assert text.count("{") == text.count("}")
    assert "HTTPS pass on port 443 only" in text


def test_whatever_spreads_requests_asks_only_whether_a_process_serves() -> None:
    """Redis and the queue are common to all: red for them, all would be taken out."""
    for name in ("nginx/dify-memory.conf", "caddy/Caddyfile"):
        asked = re.findall(r"/health/ready\S*", texts()[name])
        assert asked
        assert {address.rstrip(".") for address in asked} == {"/health/ready?only=serving"}
    for name in ("README.md", "README.zh.md"):
        assert "GET /health/ready?only=serving" in texts()[name]


def test_proxies_and_ingress_are_told_of_both_limits() -> None:
    for name in ("README.md", "README.zh.md"):
        text = texts()[name]
        assert text.count("MEMORY_GATEWAY_MAX_BODY_BYTES") >= 2
        assert "proxy-body-size: 16m" in text


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


@pytest.mark.parametrize("name", ["README.md", "README.zh.md"])
def test_a_setting_of_one_role_is_named_once(name: str) -> None:
    """What neither row names is common to both, like what decides whether words may go past Redis."""
    rows = re.findall(r"^\| (API|worker|both.*|两者.*) \| (.*MEMORY_.*) \|$", texts()[name], re.MULTILINE)
    assert len(rows) == 3
    settings = {f"MEMORY_{field.upper()}" for field in Settings.model_fields}
    found = []
    for _, cell in rows:
        named = re.findall(r"`(MEMORY_\w+?)(_…)?`", cell)
        found += [
            {each for each in settings if each.startswith(f"{word}_") if more} or {word} & settings
            for word, more in named
        ]
    assert all(found)
    assert sum(map(len, found)) == len(set().union(*found))
    api, worker = (cell for _, cell in rows[:2])
    for both in ("MEMORY_EXTRACTION`", "MEMORY_EXTRACTION_FALLBACK", "MEMORY_LLM_MODEL", "MEMORY_JOB_TTL_S"):
        assert both not in api + worker


def test_the_sizes_are_those_that_were_measured() -> None:
    for name in ("README.md", "README.zh.md"):
        assert texts()[name] == sizes.rendered(name, report.numbers()), "run python -m tests.sizes --write"


def test_the_sizes_follow_from_their_formulas() -> None:
    """1,000 recalls a second, 3 in 10 from the cache; 600 turns a second; a million users of 10 turns."""
    measured = {
        "cpu_us_hit_unseen_bytes": 160,
        "cpu_us_miss": 4240,
        "cpu_us_add": 700,
        "cpu_us_stored_turn": 8600,
        "bytes_per_waiting_turn": 1180,
        "bytes_per_stored_turn": 1100,
        "bytes_per_cached_answer": 3300,
        "postgres_bytes_per_turn": 36_400,
        "recall_direct_ms_p50_banks_10000": 32.9,
    }
    wanted = [
        ("0.16 ms", "0.048 cores"),
        ("4.2 ms", "2.9 cores"),
        ("0.7 ms", "0.42 cores"),
        ("one core each", "6"),  # 3.4 at 60 %
        ("8.6 ms", "9 processes"),  # 5.16 at 60 %
        ("1.2 kB", "0.24 GB at 200,000"),
        ("1.1 kB", "399 GB at 7 days, 4.8 GB at 2 hours"),
        ("3.3 kB", "8.3 GB at 1 hour, 0.7 GB at 5 minutes"),
        ("36 kB with its indexes", "360 GB at 10 turns a user"),
        ("33 ms, asked one after the other", "39 cores"),  # 23.1 at 60 %
    ]
    rows = [line.strip("| ").split(" | ") for line in sizes.table("README.md", measured).splitlines()[2:]]
    assert [(row[1], row[3]) for row in rows] == wanted
