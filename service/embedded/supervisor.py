"""Keeps a set of child processes running: start in order, restart with back-off, stop in reverse.

It knows nothing about what the children are; the recipes beside it say that.
"""

import asyncio
import contextlib
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from service.embedded import ports, processes
from service.embedded.errors import ChildFailed, LocalStackError

Probe = Callable[[int], Awaitable[bool]]  # is asked with the child's process id
Step = Callable[[], Awaitable[None]]
# So many other ports are tried for a server whose port is taken each time it starts.
_OTHER_PORTS = 3
_TAKEN = "address already in use"  # Linux's words for EADDRINUSE, which every server writes into its log


async def always(pid: int) -> bool:
    """The probe of a child that cannot be asked: it answers by being there."""
    del pid
    return True


async def nothing() -> None:
    """The preparation of a child that needs none."""


def any_port(name: str) -> int:
    """A free port for a child of which nobody needs to know."""
    del name
    return ports.internal_port(None, set())


@dataclass(frozen=True)
class ChildSpec:
    """One child: what to run and how to tell how it is.

    `prepare` runs before every start and must be repeatable. A child is ready once `is_ready` says so and it
    has run for `settle_s`. `is_alive` answers whether it is responsive at all; a child that does not answer
    for a minute is killed and started again.

    A child with a `listener` gets another port when somebody else has taken its own; those that depend on it
    are started again then, and their `prepare` has to hand on the new one. A child with a `reservation`
    inherits its sockets.
    """

    name: str
    command: Sequence[str]
    env: Mapping[str, str]
    cwd: Path
    log: Path
    is_ready: Probe = always
    is_alive: Probe = always
    prepare: Step = nothing
    depends_on: tuple[str, ...] = ()
    listener: ports.Listener | None = None
    reservation: ports.Reservation | None = None
    settle_s: float = 0.0
    ready_timeout_s: float = 60.0
    stop_signal: signal.Signals = signal.SIGTERM
    stop_timeout_s: float = 10.0


@dataclass(frozen=True)
class Pace:
    """How patient the supervisor is, in seconds."""

    poll_s: float = 0.1
    notice_s: float = 10.0
    check_s: float = 10.0
    hung_after_s: float = 60.0
    first_delay_s: float = 0.5
    longest_delay_s: float = 30.0
    healthy_after_s: float = 60.0


class _Child:
    def __init__(self, spec: ChildSpec) -> None:
        self.spec = spec
        self.process: asyncio.subprocess.Process | None = None
        self.spawning: asyncio.Task[asyncio.subprocess.Process] | None = None
        self.was_ready = asyncio.Event()
        self.ready_at: float | None = None
        self.starts = 0
        self.moves = 0
        self.log_start = 0

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.returncode is None

    @property
    def is_started(self) -> bool:
        """Whether it runs or is about to."""
        return self.is_running or (self.spawning is not None and not self.spawning.done())


class Supervisor:
    """Runs the children of `specs` until it is told to stop.

    `say` gets readable lines. `on_pids` gets all process ids by name whenever a child was started.
    `another_port` chooses a free loopback port for the child it is given the name of.
    """

    def __init__(
        self,
        specs: Sequence[ChildSpec],
        *,
        say: Callable[[str], None],
        on_pids: Callable[[dict[str, int]], None],
        another_port: Callable[[str], int] = any_port,
        pace: Pace | None = None,
    ) -> None:
        self._children = {spec.name: _Child(spec) for spec in specs}
        self._levels = _levels(specs)
        self._say = say
        self._on_pids = on_pids
        self._another_port = another_port
        self._pace = pace or Pace()
        self._hurry = asyncio.Event()
        self._width = max((len(spec.name) for spec in specs), default=0)

    @property
    def pids(self) -> dict[str, int]:
        """Process ids by name, each as last started."""
        return {name: child.process.pid for name, child in self._children.items() if child.process}

    async def run(self, stop: asyncio.Event, on_ready: Callable[[], None]) -> None:
        """Start everything, call `on_ready` once, keep it running until `stop`, then stop everything.

        Whatever ends this, no child is left when it returns.

        Raises:
            ChildFailed: a child did not get ready on the first start.
            LocalStackError: a preparation failed.
        """
        keepers = [asyncio.create_task(self._keep(child)) for child in self._children.values()]
        all_ready = asyncio.create_task(self._all_ready())
        stopped = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait([*keepers, all_ready, stopped], return_when=asyncio.FIRST_COMPLETED)
            if all_ready.done() and not stopped.done():
                on_ready()
                await asyncio.wait([*keepers, stopped], return_when=asyncio.FIRST_COMPLETED)
            # Keepers never end by themselves: one that did has failed, unless we were told to stop.
            failed = [keeper for keeper in keepers if keeper.done()]
        finally:
            for task in (*keepers, all_ready, stopped):
                task.cancel()
            await asyncio.gather(*keepers, all_ready, stopped, return_exceptions=True)
            await self._stop_all()
        if not stop.is_set():
            for keeper in failed:
                keeper.result()

    def hurry(self) -> None:
        """Stop waiting for children to end by themselves."""
        self._hurry.set()

    async def _all_ready(self) -> None:
        for child in self._children.values():
            await child.was_ready.wait()

    # Running

    async def _keep(self, child: _Child) -> None:
        dependencies = [self._children[name] for name in child.spec.depends_on]
        for dependency in dependencies:
            await dependency.was_ready.wait()
        delay_s = self._pace.first_delay_s
        ports_left = _OTHER_PORTS
        is_port_lost = False
        while True:
            if ports_left and (is_port_lost or self._is_port_taken(child)):
                ports_left -= 1
                await self._move(child)
            child.ready_at = None
            known = [(dependency.starts, dependency.moves) for dependency in dependencies]
            cause, is_excused = await self._live(child)
            if child.ready_at is not None:
                ports_left = _OTHER_PORTS
            is_port_lost = child.ready_at is None and (self._is_port_taken(child) or self._says_taken(child))
            if is_port_lost and ports_left:
                continue
            if is_port_lost and child.spec.listener is not None:
                cause += f" (port {child.spec.listener.port} is taken by another program)"
            if not child.was_ready.is_set():
                # Being killed, or losing a server it was talking to, is no fault of its own.
                is_excused |= known != [(dependency.starts, dependency.moves) for dependency in dependencies]
                if not is_excused or child.starts >= 5:
                    raise self._failure(child, cause)
            if child.ready_at is not None and time.monotonic() - child.ready_at > self._pace.healthy_after_s:
                delay_s = self._pace.first_delay_s
            self._tell(child, f"{cause}; starting it again in {delay_s:g} s")
            await asyncio.sleep(delay_s)
            delay_s = min(delay_s * 2, self._pace.longest_delay_s)

    def _is_port_taken(self, child: _Child) -> bool:
        """Whether somebody else listens on the port of a child that does not run."""
        listener = child.spec.listener
        return listener is not None and not ports.is_free(ports.LOOPBACK, listener.port)

    def _says_taken(self, child: _Child) -> bool:
        """Whether a child has ended because of its port; whoever had that may be gone by now."""
        if child.spec.listener is None:
            return False
        return _TAKEN in processes.tail(child.spec.log, since=child.log_start, lines=200).lower()

    async def _move(self, child: _Child) -> None:
        """Give a child that does not run another port, and end those that know it by the old one."""
        listener, name = child.spec.listener, child.spec.name
        if listener is None:
            return
        old = listener.port
        try:
            listener.port = self._another_port(name)
        except LocalStackError as exc:
            if not child.was_ready.is_set():
                raise
            self._tell(child, f"port {old} is taken by another program, and no other can be had now ({exc})")
            return
        child.moves += 1
        self._tell(child, f"port {old} is taken by another program; it gets port {listener.port}")
        # One that is being prepared or waits for its next start takes the new port by itself.
        dependents = [
            other for other in self._children.values() if name in other.spec.depends_on and other.is_started
        ]
        for other in dependents:
            self._tell(other, f"is started again, since {name} has another port")
        await asyncio.gather(*(self._stop(other) for other in dependents))

    async def _live(self, child: _Child) -> tuple[str, bool]:
        """One life of a child: why it ended, and whether from outside."""
        began = time.monotonic()
        try:
            await self._prepare(child)
            child.spawning = asyncio.create_task(self._spawn(child))
            process = await asyncio.shield(child.spawning)
        except LocalStackError as exc:
            if not child.was_ready.is_set():
                raise
            return f"cannot be started now ({exc})", False
        ended = asyncio.create_task(process.wait())
        try:
            if await self._until_ready(child, process.pid, ended):
                again = " again" if child.was_ready.is_set() else ""
                self._tell(child, f"ready{again} after {time.monotonic() - began:.1f} s")
                child.ready_at = time.monotonic()
                child.was_ready.set()
                is_hung = not await self._until_hung(child, process.pid, ended)
            else:
                is_hung = not ended.done()
        finally:
            ended.cancel()
        if is_hung:
            processes.kill_group(process.pid)
            await process.wait()
            verb = "does not answer" if child.was_ready.is_set() else "did not get ready in time"
            return f"{verb} and was killed", False
        processes.kill_group(process.pid)
        return _cause(process.returncode), (process.returncode or 0) < 0

    async def _prepare(self, child: _Child) -> None:
        try:
            await child.spec.prepare()
        except OSError as exc:  # a full or broken disk
            place = f" ({exc.filename})" if exc.filename else ""
            raise LocalStackError(f"{child.spec.name} could not be prepared: {exc.strerror}{place}.") from exc

    async def _spawn(self, child: _Child) -> asyncio.subprocess.Process:
        spec = child.spec
        processes.rotate(spec.log)
        child.log_start = processes.size(spec.log)
        held = spec.reservation
        try:
            child.process = await processes.spawn(
                spec.command, env=spec.env, cwd=spec.cwd, log=spec.log, fds=held.fds if held else ()
            )
        finally:
            if held:
                held.release()  # the child's own from here on, and free again when it ends
        child.starts += 1
        self._on_pids(self.pids)
        return child.process

    async def _until_ready(self, child: _Child, pid: int, ended: asyncio.Task[int]) -> bool:
        """Whether it got ready; False if it ended, or is late and does not answer at all."""
        spec = child.spec
        began = time.monotonic()
        notice_s = self._pace.notice_s
        while not ended.done():
            age_s = time.monotonic() - began
            if await spec.is_ready(pid) and age_s >= spec.settle_s:
                return not ended.done()
            if age_s > spec.ready_timeout_s and not (child.was_ready.is_set() and await spec.is_alive(pid)):
                return False
            if age_s > notice_s:
                self._tell(child, f"still starting after {age_s:.0f} s (see logs/{spec.log.name})")
                notice_s += self._pace.notice_s
            await asyncio.wait([ended], timeout=self._pace.poll_s)
        return False

    async def _until_hung(self, child: _Child, pid: int, ended: asyncio.Task[int]) -> bool:
        """Wait until it ends (True) or has not answered for too long (False)."""
        answered = time.monotonic()
        while True:
            await asyncio.wait([ended], timeout=self._pace.check_s)
            if ended.done():
                return True
            if await child.spec.is_alive(pid):
                answered = time.monotonic()
            elif time.monotonic() - answered > self._pace.hung_after_s and not ended.done():
                return False

    def _failure(self, child: _Child, cause: str) -> ChildFailed:
        return ChildFailed(child.spec.name, cause, processes.tail(child.spec.log, since=child.log_start))

    def _tell(self, child: _Child, text: str) -> None:
        self._say(f"  {child.spec.name:<{self._width}}  {text}")

    # Stopping

    async def _stop_all(self) -> None:
        for child in self._children.values():
            if child.spec.reservation is not None:
                child.spec.reservation.release()
        for level in reversed(self._levels):
            await asyncio.gather(*(self._stop(self._children[name]) for name in level))

    async def _stop(self, child: _Child) -> None:
        if child.spawning is not None:
            with contextlib.suppress(LocalStackError):
                await child.spawning
        process = child.process
        if process is None:
            return
        if child.is_running:
            processes.send(process.pid, child.spec.stop_signal)
            ended = asyncio.create_task(process.wait())
            hurried = asyncio.create_task(self._hurry.wait())
            await asyncio.wait(
                [ended, hurried], timeout=child.spec.stop_timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
            hurried.cancel()
            if ended.done():
                self._tell(child, "stopped")
            else:
                processes.kill_group(process.pid)
                await ended
                self._tell(child, "killed" if self._hurry.is_set() else "did not stop in time and was killed")
        processes.kill_group(process.pid)


def _cause(returncode: int | None) -> str:
    if returncode is None or returncode >= 0:
        return f"ended with exit code {returncode}"
    try:
        return f"was ended by {signal.Signals(-returncode).name}"
    except ValueError:
        return f"was ended by signal {-returncode}"


def _levels(specs: Sequence[ChildSpec]) -> list[list[str]]:
    """Names grouped so that everything depends only on earlier groups."""
    remaining = {spec.name: set(spec.depends_on) for spec in specs}
    levels: list[list[str]] = []
    while remaining:
        done = {name for level in levels for name in level}
        level = [name for name, needs in remaining.items() if needs <= done]
        if not level:
            raise ValueError(f"children depend on each other or on unknown ones: {sorted(remaining)}")
        for name in level:
            del remaining[name]
        levels.append(level)
    return levels
