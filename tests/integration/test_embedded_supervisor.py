"""The supervisor on small stand-in children that start late, die, hang and refuse to stop."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from service.embedded.errors import ChildFailed, LocalStackError
from service.embedded.supervisor import ChildSpec, Pace, Supervisor

from tests.support import wait_until

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
        self.supervisor = Supervisor(specs, say=self.said.append, on_pids=self.published.append, pace=pace)

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
