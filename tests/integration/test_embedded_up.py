"""`dify-memory up` as a process: terminal, files, signals and end, with a stand-in for Hindsight."""

import asyncio
import errno
import json
import os
import signal
import socket
import stat
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import redis.asyncio
from service.embedded.connection import read_connection
from service.embedded.data_dir import is_locked

from tests.fakes.hindsight import HindsightStandIn
from tests.support import free_port, wait_until

pytestmark = pytest.mark.anyio

# An ordinary user for root's tests: not root, but able to reach this interpreter wherever it lies.
AS_ORDINARY_USER = (
    [
        *("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"),
        *("--inh-caps=+dac_override", "--ambient-caps=+dac_override", "--pdeathsig=KILL", "--"),
    ]
    if os.geteuid() == 0
    else []
)


@dataclass
class Up:
    """A running `dify-memory up`."""

    process: asyncio.subprocess.Process
    data_dir: Path
    output: Path

    @property
    def said(self) -> str:
        """Everything on its terminal so far."""
        return self.output.read_text("utf-8")

    @property
    def pids(self) -> dict[str, int]:
        """Process ids from `connection.json`."""
        connection = read_connection(self.data_dir)
        assert connection is not None, self.said
        return connection.pids

    async def ready(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Wait for the published connection."""

        def is_ready() -> bool:
            meanwhile()
            assert self.process.returncode is None, self.said
            return read_connection(self.data_dir) is not None

        await wait_until(is_ready, "the stack is ready", timeout_s=60, poll_s=0.1, not_yet=())

    async def end(self, number: signal.Signals = signal.SIGINT) -> int:
        """Send a signal and return the exit code."""
        if self.process.returncode is None:
            self.process.send_signal(number)
        return await asyncio.wait_for(self.process.wait(), 60)


@asynccontextmanager
async def up(
    data_dir: Path,
    *arguments: str,
    env: Mapping[str, str] | None = None,
    prefix: Sequence[str] = (),
) -> AsyncIterator[Up]:
    """The command with arguments, in a session of its own as under a terminal; ended if it still runs."""
    output = data_dir.parent / "terminal.txt"
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MEMORY_")}
    with output.open("ab") as sink:
        process = await asyncio.create_subprocess_exec(
            *prefix,
            *(sys.executable, "-m", "service.cli.main", "up", "--data-dir", str(data_dir), *arguments),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            env=clean if env is None else env,
            start_new_session=True,
        )
    one = Up(process, data_dir, output)
    try:
        yield one
    finally:
        await one.end(signal.SIGTERM)


def listen_for_a_moment(port: int) -> None:
    """Be another program that wants the port, which somebody holds all the time."""
    with socket.socket() as rival:
        rival.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            rival.bind(("127.0.0.1", port))
            rival.listen()
            is_refused = False
        except OSError as exc:
            is_refused = exc.errno == errno.EADDRINUSE
    assert is_refused, "The port was free for a moment."


async def command(data_dir: Path, *words: str) -> str:
    """What `dify-memory` says with only the data directory set."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("MEMORY_")}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "service.cli.main", *words),
        stdout=asyncio.subprocess.PIPE,
        env=env | {"MEMORY_DATA_DIR": str(data_dir)},
    )
    said, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0
    return said.decode().strip()


def processes_of(data_dir: Path) -> list[str]:
    """Live processes that have to do with a data directory."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                words = (entry / "cmdline").read_bytes() + b" " + (entry / "environ").read_bytes()
            except OSError:
                continue
            if os.fsencode(data_dir) in words:
                found.append(f"{entry.name} {words[:80]!r}")
    return found


@pytest.fixture
async def hindsight() -> AsyncIterator[str]:
    """URL of a Hindsight that is somebody else's."""
    async with HindsightStandIn() as server:
        yield server.url


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """A data directory that does not exist yet, where every user can go."""
    for parent in (tmp_path, *tmp_path.parents):
        if parent.stat().st_uid == os.geteuid() and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o711)
    return tmp_path / "data"


def mode(path: Path) -> int:
    """Permission bits."""
    return stat.S_IMODE(path.stat().st_mode)


def owner(path: Path) -> int:
    """Whose it is."""
    return path.stat().st_uid


async def test_up_tells_serves_keeps_and_leaves_nothing(data_dir: Path, hindsight: str) -> None:
    port = free_port()
    options = ("--hindsight-url", hindsight, "--port", str(port))
    async with up(data_dir, *options) as one:
        await wait_until(
            lambda: (data_dir / "logs" / "api.log").exists(), "the API is starting", timeout_s=30
        )
        await one.ready(meanwhile=lambda: listen_for_a_moment(port))
        connection = read_connection(data_dir)
        assert connection is not None
        assert connection.url == f"http://127.0.0.1:{port}"
        assert connection.hindsight_url == hindsight
        assert connection.api_key.startswith("dm_")
        assert sorted(connection.pids) == ["api", "cache", "redis", "worker"]
        assert mode(data_dir) == 0o700
        for private in ("connection.json", "secrets.json", "up.lock", "logs/up.log", "logs/api.log"):
            assert mode(data_dir / private) == 0o600, private
        on_disk = json.loads((data_dir / "connection.json").read_text("utf-8"))
        assert sorted(on_disk) == [
            "api_key",
            "cache_redis_url",
            "hindsight_url",
            "pids",
            "redis_url",
            "token_keys",
            "url",
        ]
        for needed in (
            connection.url,
            f"{connection.url}/dify/openapi.json",
            f"Authorization: Bearer {connection.api_key}",
            f"http://host.docker.internal:{port}",
            "MEMORY_HOST=0.0.0.0",
            str(data_dir),
            "Ctrl-C",
        ):
            assert needed in one.said
        assert "\r" not in one.said
        assert connection.api_key not in (data_dir / "logs" / "up.log").read_text("utf-8")
        async with httpx.AsyncClient(base_url=connection.url) as client:
            key = {"Authorization": f"Bearer {connection.api_key}"}
            assert (
                await client.post("/memory/recall", data={"user_id": "u", "query": "q"})
            ).status_code == 401
            found = await client.post("/memory/recall", data={"user_id": "u", "query": "q"}, headers=key)
            assert found.status_code == 200
            # Without a setting there are links to people's own pages, and they lead to this stack.
            made = await command(data_dir, "link", "anne")
            assert made.startswith(f"{connection.url}/me?token=")
            assert (await client.get(made)).status_code == 200
            assert (await client.get(f"{made}x")).status_code == 401
            assert len((await command(data_dir, "token", "anne")).split(".")) == 3
        assert connection.token_keys not in one.said
        async with redis.asyncio.Redis.from_url(connection.redis_url) as store:
            await store.set("kept", "yes")

        async with up(data_dir, *options) as second:
            assert await second.process.wait() == 1
            assert f"process {one.process.pid}) already uses {data_dir}" in second.said
        async with up(data_dir.with_name("other"), *options) as third:
            assert await third.process.wait() == 1
            assert f"Port {port} on 127.0.0.1 is already in use" in third.said
            assert "--port" in third.said
        assert await one.end(signal.SIGINT) == 0
    assert "Traceback" not in one.said
    assert not (data_dir / "connection.json").exists()
    assert processes_of(data_dir) == []

    async with up(data_dir, *options) as again:
        await again.ready()
        kept = read_connection(data_dir)
        assert kept is not None
        assert kept.api_key == connection.api_key
        assert kept.token_keys == connection.token_keys
        async with redis.asyncio.Redis.from_url(kept.redis_url) as store:
            assert await store.get("kept") == b"yes"
        # The terminal was closed.
        assert await again.end(signal.SIGHUP) == 0
    assert processes_of(data_dir) == []


async def test_every_child_and_up_itself_may_be_killed(data_dir: Path, hindsight: str) -> None:
    options = ("--hindsight-url", hindsight, "--port", str(free_port()))
    async with up(data_dir, *options) as one, httpx.AsyncClient() as idle:
        await one.ready()
        before = one.pids
        connection = read_connection(data_dir)
        assert connection is not None
        # Its connection outlives the process at the other end, and must not keep the next one from the port.
        assert (await idle.get(f"{connection.url}/health/live")).status_code == 200
        for pid in before.values():
            os.kill(pid, signal.SIGKILL)

        async def is_well() -> bool:
            connection = read_connection(data_dir)
            assert connection is not None
            assert not set(connection.pids.values()) & set(before.values())
            async with httpx.AsyncClient() as client:
                return (await client.get(f"{connection.url}/health/ready")).status_code == 200

        await wait_until(is_well, "all children are back", timeout_s=60)
        assert sorted(one.pids) == sorted(before)
        assert one.said.count("was ended by SIGKILL; starting it again in 0.5 s") == len(before)
        one.process.send_signal(signal.SIGKILL)
        await one.process.wait()
        await wait_until(lambda: processes_of(data_dir) == [], "no orphan is left")
    assert (data_dir / "connection.json").exists()
    assert read_connection(data_dir) is None
    async with up(data_dir, *options) as again:
        await again.ready()
        assert await again.end(signal.SIGTERM) == 0
    assert processes_of(data_dir) == []


async def test_ctrl_c_during_the_start_ends_it_cleanly(data_dir: Path, hindsight: str) -> None:
    async with up(data_dir, "--hindsight-url", hindsight, "--port", str(free_port())) as one:
        await wait_until(
            lambda: (data_dir / "logs" / "api.log").exists(), "the API is starting", timeout_s=30
        )
        assert await one.end(signal.SIGINT) == 0
    assert "Traceback" not in one.said
    assert processes_of(data_dir) == []
    assert not is_locked(data_dir)


async def test_a_bare_environment_and_an_ordinary_user_are_enough(data_dir: Path, hindsight: str) -> None:
    data_dir.parent.chmod(0o777)
    options = ("--hindsight-url", hindsight, "--port", str(free_port()))
    bare = {"PATH": "/usr/bin:/bin"}
    async with up(data_dir, *options, env=bare, prefix=AS_ORDINARY_USER) as one:
        await wait_until(lambda: "Memory is ready." in one.said, "the stack is ready", timeout_s=60)
        assert owner(data_dir) != 0
        assert await one.end() == 0
    assert processes_of(data_dir) == []
    if os.geteuid() == 0:
        async with up(data_dir, *options) as as_root:
            assert await as_root.process.wait() == 1
            assert "belongs to nobody (uid 65534), but you are root (uid 0)" in as_root.said


async def test_the_default_port_moves_on_and_the_key_can_be_given(data_dir: Path, hindsight: str) -> None:
    env = {**os.environ, "MEMORY_API_KEY": "a-key-of-my-own-0123456789", "MEMORY_HINDSIGHT_URL": hindsight}
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Somebody may have it already, which does as well.
        taken = holder.connect_ex(("127.0.0.1", 8000)) == 0
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if not taken:
            holder.bind(("127.0.0.1", 8000))
            holder.listen()
        async with up(data_dir, env=env) as one:
            await one.ready()
            connection = read_connection(data_dir)
            assert connection is not None
            assert connection.api_key == "a-key-of-my-own-0123456789"
            assert connection.url != "http://127.0.0.1:8000"
            assert "Port 8000 is in use, so the API took" in one.said
            assert (
                not (data_dir / "secrets.json").exists()
                or "own" not in (data_dir / "secrets.json").read_text()
            )
            assert await one.end() == 0


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--redis-url", "redis://127.0.0.1:1"), "No Redis answers at 127.0.0.1:1"),
        (("--redis-url", "http://127.0.0.1"), "MEMORY_REDIS_URL"),
        (("--hindsight-url", "http://127.0.0.1:1"), "No Hindsight answers at 127.0.0.1:1"),
        (("--host", "203.0.113.1"), "Cannot listen on 203.0.113.1"),
    ],
)
async def test_what_cannot_work_is_refused_in_a_sentence(
    data_dir: Path, arguments: tuple[str, ...], reason: str
) -> None:
    async with up(data_dir, *arguments) as one:
        assert await one.process.wait() == 1
    assert reason in one.said
    assert "Traceback" not in one.said
    assert not is_locked(data_dir)
