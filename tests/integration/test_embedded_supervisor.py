"""The supervisor on small stand-in children that start late, die, hang and refuse to stop."""

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from service.embedded.errors import ChildFailed, LocalStackError
from service.embedded.ports import listens
from service.embedded.supervisor import ChildSpec, Pace, Supervisor, any_port

from tests.support import free_port, wait_until

pytestmark = pytest.mark.anyio

QUICK = Pace(poll_s=0.02, check_s=0.05, hung_after_s=0.3, first_delay_s=0.05, longest_delay_s=0.2)
WAIT = "import signal; signal.pause()"
STUBBORN = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print('deaf', flush=True)
signal.pause()
"""


@dataclass
class Life:
    """A supervisor at work, and what it has said and published."""

    folder: Path
    said: list[str] = field(default_factory=list)
    published: list[dict[str, int]] = field(default_factory=list)
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    another_port: Callable[[str], int] = any_port
    is_ready: bool = False
    supervisor: Supervisor | None = None
    task: asyncio.Task[None] | None = None

    def child(self, name: str, code: str, **options: object) -> ChildSpec:
        """A child that runs a piece of Python."""
        return ChildSpec(
            name=name,
            command=[sys.executable, "-S", "-c", code],
            env=dict(os.environ),
            cwd=self.folder,
            log=self.folder / f"{name}.log",
            **options,  # type: ignore[arg-type]
        )

    def start(self, *specs: ChildSpec, pace: Pace = QUICK) -> None:
        """Begin to run the children."""
        self.supervisor = Supervisor(
            specs,
            say=self.said.append,
            on_pids=self.published.append,
            another_port=self.another_port,
            pace=pace,
        )

        def ready() -> None:
            self.is_ready = True

        self.task = asyncio.create_task(self.supervisor.run(self.stop, ready))

    @property
    def pids(self) -> dict[str, int]:
        """Process ids by name."""
        assert self.supervisor is not None
        return self.supervisor.pids

    def says(self, *words: str) -> bool:
        """Whether one line holds all the words."""
        return any(all(word in line for word in words) for line in self.said)

    async def end(self) -> None:
        """Ask it to stop and wait until it has."""
        assert self.task is not None
        self.stop.set()
        await self.task


@asynccontextmanager
async def life(folder: Path) -> AsyncIterator[Life]:
    """A life whose children are gone afterwards, whatever the test did."""
    one = Life(folder)
    try:
        yield one
    finally:
        if one.task is not None and not one.task.done():
            assert one.supervisor is not None
            one.supervisor.hurry()
            await one.end()


def state(pid: int) -> str:
    """The kernel's letter for a process: R, S, T, Z …; "" if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return ""


def is_there(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    return state(pid) not in ("", "Z")


async def test_children_start_in_order_and_stop_in_reverse(tmp_path: Path) -> None:
    events = tmp_path / "events"

    def noting(name: str) -> str:
        return (
            "import signal, sys\n"
            f"note = lambda what: open({str(events)!r}, 'a').write(what + ' {name}\\n')\n"
            "def end(*_): note('-'); sys.exit(0)\n"
            "signal.signal(signal.SIGTERM, end); note('+'); signal.pause()"
        )

    def has_begun(name: str) -> ChildSpec:
        async def is_ready(_: int) -> bool:
            return events.exists() and f"+ {name}" in events.read_text("utf-8")

        needs = {"database": (), "engine": ("database",), "front": ("engine",)}[name]
        return one.child(name, noting(name), is_ready=is_ready, depends_on=needs)

    async with life(tmp_path) as one:
        one.start(has_begun("front"), has_begun("engine"), has_begun("database"))
        await wait_until(lambda: one.is_ready, "all are ready")
        pids = dict(one.pids)
        await one.end()
    assert events.read_text("utf-8").split("\n")[:-1] == [
        "+ database",
        "+ engine",
        "+ front",
        "- front",
        "- engine",
        "- database",
    ]
    assert not any(is_there(pid) for pid in pids.values())
    assert one.published[-1] == pids


async def test_a_killed_child_is_started_again_and_the_others_stay(tmp_path: Path) -> None:
    async with life(tmp_path) as one:
        one.start(one.child("a", WAIT), one.child("b", WAIT))
        await wait_until(lambda: one.is_ready, "all are ready")
        before = dict(one.pids)
        os.kill(before["a"], signal.SIGKILL)
        await wait_until(lambda: one.says("a", "ready again"), "the child is back")
        assert one.pids["a"] != before["a"]
        assert one.pids["b"] == before["b"]
        assert one.published[-1] == one.pids
        assert one.says("a", "SIGKILL", "again in 0.05 s")


async def test_the_pause_before_a_new_start_grows_to_a_limit(tmp_path: Path) -> None:
    flag = tmp_path / "broken"
    code = f"import os, signal, sys\nif os.path.exists({str(flag)!r}): sys.exit(3)\nsignal.pause()"
    async with life(tmp_path) as one:
        one.start(one.child("a", code, settle_s=0.2))
        await wait_until(lambda: one.is_ready, "it is ready")
        flag.touch()
        os.kill(one.pids["a"], signal.SIGTERM)
        await wait_until(
            lambda: sum("again in 0.2 s" in line for line in one.said) >= 2, "the limit is reached"
        )
        assert [line.rsplit(" in ")[1] for line in one.said if "again in" in line][:3] == [
            "0.05 s",
            "0.1 s",
            "0.2 s",
        ]
        assert one.says("exit code 3")
        flag.unlink()
        await wait_until(lambda: one.says("ready again"), "it is well again")


async def test_a_frozen_child_is_killed_and_started_again(tmp_path: Path) -> None:
    async def answers(pid: int) -> bool:
        return state(pid) != "T"

    async with life(tmp_path) as one:
        one.start(one.child("a", WAIT, is_alive=answers))
        await wait_until(lambda: one.is_ready, "it is ready")
        frozen = one.pids["a"]
        os.kill(frozen, signal.SIGSTOP)
        await wait_until(lambda: one.says("ready again"), "it is back")
        assert not is_there(frozen)
        assert one.says("does not answer")


async def test_a_child_that_cannot_start_ends_everything_with_its_last_words(tmp_path: Path) -> None:
    async with life(tmp_path) as one:
        (tmp_path / "b.log").write_text("words of yesterday\n")
        one.start(
            one.child("a", WAIT),
            one.child("b", "import sys; print('no such table'); sys.exit(4)", settle_s=5),
        )
        assert one.task is not None
        with pytest.raises(ChildFailed, match="b could not be started: ended with exit code 4") as failure:
            await one.task
        assert failure.value.log_tail == "no such table"
        assert not any(is_there(pid) for pid in one.pids.values())
        assert not one.is_ready


async def test_a_child_that_is_never_ready_is_given_up(tmp_path: Path) -> None:
    async def never(_: int) -> bool:
        return False

    async with life(tmp_path) as one:
        one.start(one.child("a", WAIT, is_ready=never, ready_timeout_s=0.2))
        assert one.task is not None
        with pytest.raises(ChildFailed, match="did not get ready in time"):
            await one.task
        assert not is_there(one.pids["a"])


async def test_a_child_killed_from_outside_while_it_starts_gets_another_chance(tmp_path: Path) -> None:
    flag = tmp_path / "go"

    async def may_go(_: int) -> bool:
        return flag.exists()

    async with life(tmp_path) as one:
        one.start(one.child("a", WAIT, is_ready=may_go))
        first = await wait_until(lambda: one.pids.get("a"), "it was started")
        os.kill(first, signal.SIGKILL)
        await wait_until(lambda: one.pids["a"] != first, "it was started again")
        flag.touch()
        await wait_until(lambda: one.is_ready, "it is ready")


async def test_a_failed_preparation_ends_the_first_start_but_not_a_restart(tmp_path: Path) -> None:
    broken = tmp_path / "broken"

    async def prepare() -> None:
        if broken.exists():
            raise LocalStackError("the disk is full")

    async with life(tmp_path) as one:
        one.start(one.child("a", WAIT, prepare=prepare))
        await wait_until(lambda: one.is_ready, "it is ready")
        broken.touch()
        os.kill(one.pids["a"], signal.SIGKILL)
        await wait_until(lambda: one.says("the disk is full"), "the preparation has failed")
        broken.unlink()
        await wait_until(lambda: one.says("ready again"), "it is well again")
        await one.end()
        broken.touch()
        another = Life(tmp_path)
        another.start(another.child("a", WAIT, prepare=prepare))
        assert another.task is not None
        with pytest.raises(LocalStackError, match="the disk is full"):
            await another.task


async def test_a_child_that_does_not_obey_is_killed_after_its_time(tmp_path: Path) -> None:
    async with life(tmp_path) as one:
        one.start(one.child("a", STUBBORN, stop_timeout_s=0.2))
        await wait_until(lambda: one.is_ready, "it is ready")
        await wait_until(lambda: "deaf" in (tmp_path / "a.log").read_text("utf-8"), "it is deaf")
        await one.end()
        assert one.says("did not stop in time and was killed")
        assert not is_there(one.pids["a"])


async def test_a_second_wish_to_stop_is_obeyed_at_once(tmp_path: Path) -> None:
    async with life(tmp_path) as one:
        one.start(one.child("a", STUBBORN, stop_timeout_s=100))
        await wait_until(lambda: "deaf" in (tmp_path / "a.log").read_text("utf-8"), "it is deaf")
        one.stop.set()
        assert one.supervisor is not None
        one.supervisor.hurry()
        began = time.monotonic()
        await one.end()
        assert time.monotonic() - began < 10
        assert not is_there(one.pids["a"])


async def test_stopping_in_the_middle_of_the_start_leaves_nothing(tmp_path: Path) -> None:
    async def never(_: int) -> bool:
        return False

    async with life(tmp_path) as one:
        one.start(one.child("a", WAIT, is_ready=never), one.child("b", WAIT, depends_on=("a",)))
        await wait_until(lambda: "a" in one.pids, "the first was started")
        await one.end()
        assert not is_there(one.pids["a"])
        assert "b" not in one.pids
        assert not one.is_ready


async def test_what_a_child_started_itself_goes_with_it(tmp_path: Path) -> None:
    code = (
        "import signal, subprocess, sys\n"
        "p = subprocess.Popen([sys.executable, '-S', '-c', 'import signal; signal.pause()'])\n"
        "print(p.pid, flush=True); signal.pause()"
    )
    async with life(tmp_path) as one:
        one.start(one.child("a", code))
        log = tmp_path / "a.log"
        grandchild = await wait_until(lambda: int(log.read_text("utf-8") or 0), "it has a child of its own")
        assert is_there(grandchild)
        await one.end()
        await wait_until(lambda: not is_there(grandchild), "the grandchild is gone")


LISTEN = """
import os, signal, socket
server = socket.create_server(('127.0.0.1', int(os.environ['AT'])))
signal.pause()
"""


@dataclass
class Listener:
    """A server on a port of our choice; `rivals` take it the moment before the server is started."""

    port: int = field(default_factory=free_port)
    rivals: int = 0
    sockets: list[socket.socket] = field(default_factory=list)

    def take(self) -> None:
        """Be another program on the port."""
        self.sockets.append(socket.create_server(("127.0.0.1", self.port)))

    def leave(self) -> None:
        """Be gone from all ports."""
        while self.sockets:
            self.sockets.pop().close()

    def child(self, one: Life) -> ChildSpec:
        """The child `a` that listens there."""
        env = dict(os.environ)

        async def prepare() -> None:
            env["AT"] = str(self.port)
            if self.rivals:
                self.rivals -= 1
                self.take()

        async def is_ready(pid: int) -> bool:
            return listens(pid, self.port)

        return replace(one.child("a", LISTEN, is_ready=is_ready, prepare=prepare, listener=self), env=env)

    def client(self, one: Life) -> ChildSpec:
        """The child `b` that depends on `a` and tells where it was sent."""
        env = dict(os.environ)

        async def prepare() -> None:
            env["AT"] = str(self.port)

        code = "import os, signal; print(os.environ['AT'], flush=True); signal.pause()"
        return replace(one.child("b", code, depends_on=("a",), prepare=prepare), env=env)


@pytest.fixture
def listener() -> Iterator[Listener]:
    """A server whose rivals are gone after the test."""
    one = Listener()
    yield one
    one.leave()


async def test_a_port_taken_before_the_child_listens_is_replaced_and_handed_on(
    tmp_path: Path, listener: Listener
) -> None:
    first, listener.rivals = listener.port, 3
    async with life(tmp_path) as one:
        one.start(listener.child(one), listener.client(one))
        await wait_until(lambda: one.is_ready, "all are ready")
        assert listener.port != first
        assert one.says("a", f"port {first} is taken by another program; it gets port")
        assert sum("it gets port" in line for line in one.said) == 3
        told = tmp_path / "b.log"
        await wait_until(
            lambda: told.read_text("utf-8") == f"{listener.port}\n", "only the last is handed on"
        )


async def test_a_port_taken_long_before_the_start_costs_no_start(tmp_path: Path, listener: Listener) -> None:
    listener.take()
    async with life(tmp_path) as one:
        one.start(listener.child(one))
        await wait_until(lambda: one.is_ready, "it is ready")
        assert len(one.published) == 1


async def test_when_every_port_is_taken_the_error_names_the_last(tmp_path: Path, listener: Listener) -> None:
    listener.rivals = 100
    async with life(tmp_path) as one:
        one.start(listener.child(one))
        assert one.task is not None
        with pytest.raises(ChildFailed, match=r"a could not be started.* \(port \d+ is taken") as failure:
            await one.task
    assert f"port {listener.port} " in str(failure.value)
    assert len(one.published) == 4
    assert "Address already in use" in failure.value.log_tail


async def test_a_rival_that_is_gone_again_is_known_from_the_log(tmp_path: Path, listener: Listener) -> None:
    chosen = listener.port
    code = f"import os, sys\nif os.environ['AT'] == '{chosen}': sys.exit('bind: Address already in use')\n"
    async with life(tmp_path) as one:
        one.start(replace(listener.child(one), command=[sys.executable, "-S", "-c", code + LISTEN]))
        await wait_until(lambda: one.is_ready, "it is ready")
        assert listener.port != chosen


async def test_a_port_lost_at_a_restart_sends_those_that_depend_on_it_to_the_new_one(
    tmp_path: Path, listener: Listener
) -> None:
    chosen = listener.port
    async with life(tmp_path) as one:
        one.start(listener.child(one), listener.client(one))
        await wait_until(lambda: one.is_ready, "all are ready")
        before = dict(one.pids)
        told = tmp_path / "b.log"
        await wait_until(lambda: told.read_text("utf-8") == f"{chosen}\n", "the first port was handed on")
        listener.rivals = 1
        os.kill(before["a"], signal.SIGKILL)
        await wait_until(lambda: one.says("a", "ready again"), "it is back")
        await wait_until(
            lambda: told.read_text("utf-8") == f"{chosen}\n{listener.port}\n", "the new port was handed on"
        )
        assert listener.port != chosen
        assert not is_there(before["b"])
        assert one.says("b", "is started again, since a has another port")


async def test_without_another_port_a_restart_waits_for_its_own(tmp_path: Path, listener: Listener) -> None:
    def none(name: str) -> int:
        raise LocalStackError(f"no port for {name}")

    chosen = listener.port
    async with life(tmp_path) as one:
        one.another_port = none
        one.start(listener.child(one))
        await wait_until(lambda: one.is_ready, "it is ready")
        listener.rivals = 1
        os.kill(one.pids["a"], signal.SIGKILL)
        await wait_until(lambda: one.says("a", f"port {chosen}", "no port for a"), "it is told")
        listener.leave()
        await wait_until(lambda: one.says("a", "ready again"), "it is back")
        assert listener.port == chosen
