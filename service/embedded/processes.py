"""Starting, ending and finding processes on Linux so that none outlives the supervisor."""

import asyncio
import contextlib
import ctypes
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from service.embedded.errors import LocalStackError

_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1
_LOG_LIMIT_BYTES = 10_000_000


def ends_with_parent() -> Callable[[], None]:
    """A `preexec_fn` after which the kernel kills the process when its parent dies, even by kill -9.

    The mark survives exec and a new user namespace (Linux 6.18); a change of user may clear it.
    """
    parent = os.getpid()

    def before_exec() -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # the parent died before the mark was set
            os._exit(1)

    return before_exec


async def spawn(
    command: Sequence[str], *, env: Mapping[str, str], cwd: Path, log: Path, fds: Sequence[int] = ()
) -> asyncio.subprocess.Process:
    """Start a process in a session of its own (no Ctrl-C from the terminal), its output appended to `log`.

    It inherits the open files `fds` under the same numbers.

    Raises:
        LocalStackError: the program or the log file cannot be opened.
    """
    try:
        with log.open("ab") as output:
            return await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=dict(env),
                cwd=cwd,
                start_new_session=True,
                preexec_fn=ends_with_parent(),
                pass_fds=fds,
            )
    except OSError as exc:
        raise LocalStackError(f"Cannot start {command[0]}: {exc.strerror} ({exc.filename}).") from exc


async def run_to_end(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    log: Path,
    stdin: bytes = b"",
    timeout_s: float = 120,
) -> int:
    """Run a helper program and return its exit code; it does not outlive a cancelled caller.

    Raises:
        LocalStackError: it cannot be started.
        TimeoutError: it took longer than `timeout_s`.
    """
    try:
        with log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=dict(env),
                cwd=cwd,
                start_new_session=True,
                preexec_fn=ends_with_parent(),
            )
    except OSError as exc:
        raise LocalStackError(f"Cannot start {command[0]}: {exc.strerror} ({exc.filename}).") from exc
    try:
        async with asyncio.timeout(timeout_s):
            await process.communicate(stdin)
    finally:
        kill_group(process.pid)
    return await process.wait()


def send(pid: int, number: signal.Signals) -> None:
    """Signal one process; it may be gone already. A stopped one is woken so that it can obey."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
        os.kill(pid, signal.SIGCONT)


def kill_group(pid: int) -> None:
    """Kill whatever is left of the session that was started as `pid`."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def exists(pid: int) -> bool:
    """Whether any process has this id."""
    return Path(f"/proc/{pid}").exists()


def processes_in(folder: Path, program: str) -> Iterator[int]:
    """Ids of live processes that run `program` with `folder` as their working directory."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            is_ours = (entry / "cwd").readlink() == folder and (entry / "exe").readlink().name == program
        except OSError:  # ended meanwhile, or somebody else's
            continue
        if is_ours:
            yield int(entry.name)


def rotate(log: Path) -> None:
    """Begin a new log file when the present one is over 10 MB; one older generation is kept."""
    with contextlib.suppress(FileNotFoundError):
        if log.stat().st_size > _LOG_LIMIT_BYTES:
            log.replace(log.with_name(log.name + ".1"))


def size(log: Path) -> int:
    """Bytes in a log file, 0 if there is none."""
    try:
        return log.stat().st_size
    except FileNotFoundError:
        return 0


def tail(log: Path, *, since: int = 0, lines: int = 20) -> str:
    """The last lines that were written to a log file after byte `since`."""
    try:
        with log.open("rb") as file:
            file.seek(max(since, size(log) - 20_000))
            text = file.read().decode("utf-8", errors="replace")
    except FileNotFoundError:
        return ""
    return "\n".join(text.splitlines()[-lines:])
