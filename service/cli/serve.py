"""`dify-memory serve`: the API's process."""

import asyncio
import contextlib
import gc
import logging
import signal
import socket
import sys
from types import FrameType

import click
import uvicorn
from fastapi import FastAPI

from service import logs
from service.adapters.data_version import DataUnusable, bring_up_to_date
from service.app import create_app
from service.cli.exits import Unusable
from service.errors import TurnsLogUnavailable
from service.settings import Settings

_log = logging.getLogger(__name__)

# Longer than what comes in between keeps idle connections (nginx and squid 60 s, Caddy 120 s): if we were the
# first to close one, a request could be on its way in that very moment and would be lost.
_KEEP_ALIVE_S = 130
_TICK_S = 0.1
# At start Redis gets this long to answer which layout its data has; without an answer it is asked on.
_PATIENCE_S = 5.0
_ASK_AGAIN_S = 1.0
# As uvicorn.run ends when the port is taken or an adapter cannot be opened.
_STARTUP_FAILURE = 3


@click.command()
@click.option("--fd", "fds", type=int, multiple=True, hidden=True, help="Listen on this bound socket.")
def serve(fds: tuple[int, ...]) -> None:
    """Run the API in the foreground (settings: MEMORY_* variables)."""
    settings = Settings()
    if settings.api_key is None:
        raise click.ClickException(
            "Set MEMORY_API_KEY (16 characters or more): without a key nobody may call."
        )
    logs.configure(settings.log_level)
    app = create_app(settings)
    # What is loaded by now stays; without this each full collection walks all of it while requests wait.
    gc.collect()
    gc.freeze()
    server = Server(app, settings)
    with contextlib.suppress(KeyboardInterrupt):
        server.run(sockets=[socket.socket(fileno=fd) for fd in fds] or None)
    if server.unusable is not None:
        raise Unusable(str(server.unusable))
    if not server.started:
        sys.exit(_STARTUP_FAILURE)


class Server(uvicorn.Server):
    """uvicorn that leaves without anybody noticing, and that does not serve data it does not understand.

    After SIGTERM `/health/ready` says `draining` and everything else is answered as ever, but each answer
    closes its connection, so that whoever spreads the requests comes with no new one. Only after
    `MEMORY_DRAIN_S` no more are taken; those in hand get `MEMORY_IN_FLIGHT_S`.
    A second signal, or Ctrl-C, ends the wait.
    """

    def __init__(self, app: FastAPI, settings: Settings) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                host=settings.host,
                port=settings.port,
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=_KEEP_ALIVE_S,
                timeout_graceful_shutdown=settings.in_flight_s,
            )
        )
        self._app = app
        self._settings = settings
        self._signals: list[int] = []
        self._asking: asyncio.Task[None] | None = None
        self.unusable: DataUnusable | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to leave; the second time: at once."""
        self._signals.append(sig)
        super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, unless the data is of a newer version; without Redis that is asked once there is one.

        `sockets` are bound ones, as `service.embedded.ports.Reservation` holds them.
        """
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await bring_up_to_date(self._settings.redis_url)
        except DataUnusable as exc:
            self.unusable = exc
            self.should_exit = True
            return
        except (TurnsLogUnavailable, TimeoutError):
            _log.warning("data_version_unknown")
            self._asking = asyncio.create_task(self._ask_on())
        for handed_over in sockets or ():
            # Off so far, which has kept everybody else from the port; but with it off, what is left of the
            # connections of a killed process would keep this one from listening for a minute.
            handed_over.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            handed_over.listen(self.config.backlog)
        await super().startup(sockets)

    async def _ask_on(self) -> None:
        while True:
            await asyncio.sleep(_ASK_AGAIN_S)
            try:
                await bring_up_to_date(self._settings.redis_url)
            except TurnsLogUnavailable:
                continue
            except DataUnusable as exc:
                _log.error("data_unusable", extra={"code": exc.code})
                self.unusable = exc
                self.should_exit = True
            return

    async def main_loop(self) -> None:
        """Serve, then drain."""
        await super().main_loop()
        self._app.state.is_draining = True
        if self.unusable is not None or self._signals[:1] != [signal.SIGTERM]:
            return
        _log.info("draining", extra={"seconds": self._settings.drain_s})
        # uvicorn closes a connection after an answer that says so.
        self.config.encoded_headers.append((b"connection", b"close"))
        loop = asyncio.get_running_loop()
        ends = loop.time() + self._settings.drain_s
        while loop.time() < ends and len(self._signals) == 1:
            await self.on_tick(0)  # the first of a second: it puts the headers of the answers together
            await asyncio.sleep(min(_TICK_S, max(0.0, ends - loop.time())))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, let what is in hand end, close the adapters."""
        if self._asking is not None:
            self._asking.cancel()
        await super().shutdown(sockets)
