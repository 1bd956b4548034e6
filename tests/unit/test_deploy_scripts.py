"""Backup and restore with stand-ins for the tools they call; and all shell scripts."""

import os
import re
import stat
import subprocess
from pathlib import Path

import pytest
from service.settings import Settings

from tests.deployment import DEPLOY

SCRIPTS = sorted(path.name for path in DEPLOY.glob("*.sh"))
# A snapshot as Redis sends it: ff and a checksum at its end. A server without a file of its own adds a mark.
SNAPSHOT = b"REDIS0011" + b"\x01what waits\x00" + b"\xff12345678"
MARK = b"0123456789abcdef0123456789abcdef01234567"
_TOOL = """#!/bin/sh
echo "{name} $*" >> "$CALLS"
{body}
"""


class Tools:
    """Stand-ins for the clients of Redis and PostgreSQL; `calls` is what was asked of them, in order."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "tools"
        self.folder.mkdir()
        self._calls = folder / "calls"
        (folder / "sent").write_bytes(SNAPSHOT + MARK)
        self.make("valkey-cli", f'case "$1" in --rdb) cat "{folder}/sent" ;; *) exit 1 ;; esac')
        self.make("pg_dump", "printf PGDMP")
        self.make("pg_restore", f'cat > "{folder}/restored-$#"')
        self.make("psql", "echo 0")
        self.make("date", 'case "$*" in *) echo 20260131T020000Z ;; esac')

    def make(self, name: str, body: str) -> None:
        """Put a tool there."""
        path = self.folder / name
        path.write_text(_TOOL.format(name=name, body=body), "utf-8")
        path.chmod(0o700)

    def run(self, script: str, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run a script of `deploy/` among them."""
        path = f"{self.folder}:{os.environ['PATH']}"
        return subprocess.run(
            ["sh", str(DEPLOY / script), *arguments],
            env={"PATH": path, "CALLS": str(self._calls), **env},
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )

    @property
    def calls(self) -> list[str]:
        """The tools' names."""
        if not self._calls.exists():
            return []
        names = [line.split()[0] for line in self._calls.read_text("utf-8").splitlines()]
        return [name for name in names if name != "date"]


@pytest.fixture
def tools(tmp_path: Path) -> Tools:
    """Tools that do what they should."""
    return Tools(tmp_path)


@pytest.fixture
def backup(tools: Tools, tmp_path: Path) -> Path:
    """A backup made by the script."""
    done = tools.run("backup.sh", str(tmp_path / "backups"))
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


@pytest.mark.parametrize(
    ("name", "sections"), [("README.md", ("Backup", "Restore")), ("README.zh.md", ("备份", "恢复"))]
)
def test_the_guide_keeps_and_puts_back_every_file_that_compose_takes_settings_from(
    name: str, sections: tuple[str, str]
) -> None:
    compose = (DEPLOY / "compose.yaml").read_text("utf-8")
    files = {".env", *re.findall(r"path: (\S+\.env)", compose)}
    files |= {f"{folder}/" for folder in re.findall(r"\./(\w+):/etc/dify-memory", compose)}
    assert len(files) == 5, files
    text = (DEPLOY / name).read_text("utf-8")
    guide = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))
    for section in sections:
        named = re.findall(r"`(?:deploy/)?([\w./]+)`", guide[section])
        assert files <= set(named), section


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_parses_and_stops_at_the_first_error(script: str) -> None:
    subprocess.run(["bash", "-n", str(DEPLOY / script)], check=True)
    text = (DEPLOY / script).read_text("utf-8")
    assert text.startswith("#!/bin/sh\n")
    assert re.search(r"^set -eu$", text, re.MULTILINE)
    assert (DEPLOY / script).stat().st_mode & stat.S_IXUSR


def test_redis_is_backed_up_before_postgres(tools: Tools, backup: Path) -> None:
    assert tools.calls == ["valkey-cli", "pg_dump", "pg_restore"]
    assert sorted(path.name for path in backup.iterdir()) == ["SHA256SUMS", "postgres.dump", "redis.rdb"]


def test_a_backup_is_readable_by_its_owner_alone(backup: Path) -> None:
    assert stat.S_IMODE(backup.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in backup.iterdir()} == {0o600}


@pytest.mark.parametrize("mark", [b"", MARK])
def test_the_snapshot_is_kept_without_the_mark_at_its_end(tools: Tools, tmp_path: Path, mark: bytes) -> None:
    (tmp_path / "sent").write_bytes(SNAPSHOT + mark)
    done = tools.run("backup.sh", str(tmp_path / "b"))
    assert done.returncode == 0, done.stderr
    assert (Path(done.stdout.strip()) / "redis.rdb").read_bytes() == SNAPSHOT


@pytest.mark.parametrize(
    "sent", [b"", b"NOAUTH Authentication required.\n", SNAPSHOT[:-3], SNAPSHOT[:9] + SNAPSHOT[9:14] + MARK]
)
def test_half_a_snapshot_is_no_backup(tools: Tools, tmp_path: Path, sent: bytes) -> None:
    (tmp_path / "sent").write_bytes(sent)
    assert tools.run("backup.sh", str(tmp_path / "b")).returncode != 0
    assert list((tmp_path / "b").iterdir()) == []


@pytest.mark.parametrize("tool", ["valkey-cli", "pg_dump", "pg_restore"])
def test_a_tool_that_fails_leaves_no_backup(tools: Tools, tmp_path: Path, tool: str) -> None:
    tools.make(tool, "exit 3")
    assert tools.run("backup.sh", str(tmp_path / "b")).returncode != 0
    assert list((tmp_path / "b").iterdir()) == []


def test_a_tool_that_is_not_installed_is_named(tools: Tools, tmp_path: Path) -> None:
    done = tools.run("backup.sh", str(tmp_path / "b"), PG_DUMP="pg_dump-of-nowhere --verbose")
    assert done.returncode == 1
    assert "pg_dump-of-nowhere is not installed" in done.stderr


def test_a_backup_is_never_written_over(tools: Tools, tmp_path: Path, backup: Path) -> None:
    before = {path.name: path.read_bytes() for path in backup.iterdir()}
    assert tools.run("backup.sh", str(backup.parent)).returncode == 1
    assert {path.name: path.read_bytes() for path in backup.iterdir()} == before


def test_old_backups_go_and_other_files_stay(tools: Tools, tmp_path: Path) -> None:
    folder = tmp_path / "b"
    for name in ("dify-memory-20250101T000000Z", "dify-memory-20250102T000000Z", "mine"):
        (folder / name).mkdir(parents=True)
    assert tools.run("backup.sh", str(folder), KEEP="2").returncode == 0
    assert sorted(path.name for path in folder.iterdir()) == [
        "dify-memory-20250102T000000Z",
        "dify-memory-20260131T020000Z",
        "mine",
    ]


def test_a_restore_may_be_run_twice(tools: Tools, tmp_path: Path, backup: Path) -> None:
    data = tmp_path / "data"
    (data / "appendonlydir").mkdir(parents=True)
    (data / "appendonlydir" / "old").touch()
    for _ in range(2):
        done = tools.run("restore.sh", str(backup), REDIS_DATA=str(data))
        assert done.returncode == 0, done.stderr
        assert (data / "appendonlydir" / "appendonly.aof.1.base.rdb").read_bytes() == SNAPSHOT
        assert (data / "appendonlydir" / "appendonly.aof.manifest").read_text("utf-8") == (
            "file appendonly.aof.1.base.rdb seq 1 type b\n"
        )
    # What was there is kept aside.
    assert len(list(data.glob("appendonlydir.before-*/old"))) == 1
    assert tools.calls[3:6] == ["valkey-cli", "psql", "pg_restore"]


def test_a_damaged_backup_restores_nothing(tools: Tools, tmp_path: Path, backup: Path) -> None:
    (backup / "redis.rdb").write_bytes(SNAPSHOT[:-1] + b"!")
    assert tools.run("restore.sh", str(backup), REDIS_DATA=str(tmp_path)).returncode != 0
    assert tools.calls[3:] == []


@pytest.mark.parametrize("says", ["PONG", "(error) NOAUTH Authentication required."])
def test_nothing_is_restored_under_a_running_redis(
    tools: Tools, tmp_path: Path, backup: Path, says: str
) -> None:
    tools.make("valkey-cli", f"echo '{says}'")
    done = tools.run("restore.sh", str(backup), REDIS_DATA=str(tmp_path))
    assert done.returncode == 1
    assert "Redis is running" in done.stderr
    assert "pg_restore" not in tools.calls[3:]


def test_nothing_is_restored_under_a_running_hindsight(tools: Tools, tmp_path: Path, backup: Path) -> None:
    tools.make("psql", "echo 3")
    done = tools.run("restore.sh", str(backup), REDIS_DATA=str(tmp_path))
    assert done.returncode == 1
    assert "pg_restore" not in tools.calls[3:]


def test_redis_is_left_alone_when_postgres_cannot_be_restored(
    tools: Tools, tmp_path: Path, backup: Path
) -> None:
    tools.make("pg_restore", "exit 1")
    assert tools.run("restore.sh", str(backup), REDIS_DATA=str(tmp_path)).returncode != 0
    assert not (tmp_path / "appendonlydir").exists()


def test_secrets_are_made_once_for_everything_that_compose_asks_for(tools: Tools, tmp_path: Path) -> None:
    file = tmp_path / ".env"
    assert tools.run("make-env.sh", str(file)).returncode == 0
    text = file.read_text("utf-8")
    made = dict(re.findall(r"^(\w+)=(\S+)$", text, re.MULTILINE))
    asked = set(re.findall(r"\$\{(\w+):\?", (DEPLOY / "compose.yaml").read_text("utf-8")))
    optional = set(re.findall(r"\$\{(\w+):-", (DEPLOY / "compose.yaml").read_text("utf-8")))
    assert set(made) == asked
    # They become parts of URLs as they are, and no two are the same.
    assert all(re.fullmatch(r"(k1:)?\w{48,}", value) for value in made.values())
    assert len(set(made.values())) == len(made)
    for compose_itself in ("COMPOSE_FILE", "COMPOSE_PROFILES", "DIFY_NETWORK"):
        optional.add(compose_itself)
    assert set(re.findall(r"^#(\w+)=", text, re.MULTILINE)) == optional - {
        "DIFY_MEMORY_TAG",
        "HINDSIGHT_TAG",
    }
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert tools.run("make-env.sh", str(file)).returncode == 0
    assert file.read_text("utf-8") == text
    # What it makes, the service takes.
    made_keys = Settings.model_validate({"token_keys": made["TOKEN_KEYS"]}).token_secrets
    assert made_keys == {"k1": made["TOKEN_KEYS"].removeprefix("k1:")}


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("MEMORY_LLM_MODEL=openai/x", "MEMORY_LLM_MODEL"),
        ("export MEMORY_LLM_MODEL=openai/x", "MEMORY_LLM_MODEL"),
        ("  MEMORY_LLM_API_KEY=x", "MEMORY_LLM_API_KEY"),
        ("\tCACHE_REDIS_URL = redis://x", "CACHE_REDIS_URL"),
        ("MEMORY_LLM_BASE_URL: http://x", "MEMORY_LLM_BASE_URL"),
        ("MEMORY_LLM_MODEL=", ""),
        ("MEMORY_LLM_MODEL =  ", ""),
        ("# MEMORY_LLM_MODEL=openai/x", ""),
        ("MEMORY_API_KEY=dm_1", ""),
        ("HINDSIGHT_LLM_MODEL=gpt-4o-mini", ""),
    ],
)
def test_lines_that_compose_no_longer_reads_are_named_however_they_are_written(
    tools: Tools, tmp_path: Path, line: str, named: str
) -> None:
    file = tmp_path / ".env"
    file.write_text(f"TOKEN_KEYS=k1:x\n{line}\n", "utf-8")
    done = tools.run("make-env.sh", str(file))
    assert done.returncode == 0
    assert re.findall(r"No longer read from \S+: (.*)\. Move", done.stderr) == ([named] if named else [])
    assert "openai/x" not in done.stderr
    assert "No longer read from the shell" not in done.stderr


@pytest.mark.parametrize("is_there", [True, False])
def test_variables_of_the_shell_that_compose_no_longer_reads_are_named(
    tools: Tools, tmp_path: Path, is_there: bool
) -> None:
    file = tmp_path / ".env"
    if is_there:
        file.write_text("TOKEN_KEYS=k1:x\n", "utf-8")
    shell = {"MEMORY_LLM_MODEL": "openai/x", "CACHE_REDIS_URL": "redis://x", "MEMORY_LLM_API_KEY": ""}
    done = tools.run("make-env.sh", str(file), **shell, HINDSIGHT_LLM_MODEL="x")
    assert done.returncode == 0
    found = re.findall(r"No longer read from the shell: (.*)\. Move", done.stderr)
    assert [sorted(names.split(", ")) for names in found] == [["CACHE_REDIS_URL", "MEMORY_LLM_MODEL"]]
    assert "openai/x" not in done.stderr


def test_a_file_made_by_an_older_version_gets_the_secret_it_lacks_and_keeps_the_others(
    tools: Tools, tmp_path: Path
) -> None:
    file = tmp_path / ".env"
    file.write_text("MEMORY_API_KEY=dm_1\nREDIS_PASSWORD=2", "utf-8")
    for _ in range(2):
        assert tools.run("make-env.sh", str(file)).returncode == 0
    lines = file.read_text("utf-8").splitlines()
    assert lines[:2] == ["MEMORY_API_KEY=dm_1", "REDIS_PASSWORD=2"]
    assert len([line for line in lines if re.fullmatch(r"TOKEN_KEYS=k1:\w{48}", line)]) == 1
