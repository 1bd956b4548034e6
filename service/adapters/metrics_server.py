"""`/metrics` of a process that is no web server: a worker's. It answers one GET or HEAD a connection."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

_log = logging.getLogger(__name__)

_READ_TIMEOUT_S: Final = 5.0
_MOST_BYTES: Final = 16_384
_MOST_OPEN: Final = 32
_TEXT: Final = "text/plain; charset=utf-8"
_PHRASES: Final = {200: "OK", 404: "Not Found", 500: "Internal Server Error"}


class MetricsServer:
    """Serves what `exposition` makes; open it as an async context manager. OSError: the port is taken.

    `GET /health/live` answers 200 as long as the event loop turns. Of more than 32 connections the oldest is
    cut off: whoever asks is answered at once, so that it is one of somebody who does not.
    """

    def __init__(self, host: str, port: int, exposition: Callable[[], bytes], content_type: str) -> None:
        self._host = host
        self._port = port
        self._exposition = exposition
        self._content_type = content_type
        # In the order they came.
        self._open: dict[asyncio.StreamWriter, None] = {}

    async def __aenter__(self) -> Self:
        """Listen."""
        self._server = await asyncio.start_server(self._answer, self._host, self._port, limit=_MOST_BYTES)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop; a connection that is open is not waited for."""
        self._server.close()

    @property
    def port(self) -> int:
        """The port it listens on."""
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while len(self._open) >= _MOST_OPEN:
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.transport.abort()
        self._open[writer] = None
        try:
            with suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                async with asyncio.timeout(_READ_TIMEOUT_S):
                    head = await reader.readuntil(b"\r\n\r\n")
                    writer.write(self._reply_to(head.split(b"\r\n", 1)[0]))
                    await writer.drain()
        finally:
            self._open.pop(writer, None)
            writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    def _reply_to(self, request_line: bytes) -> bytes:
        method, _, rest = request_line.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        status, content_type, body = self._found(path if method in (b"GET", b"HEAD") else b"")
        head = (
            f"HTTP/1.1 {status} {_PHRASES[status]}\r\n"
            f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
            "Cache-Control: no-store\r\nConnection: close\r\n\r\n"
        )
        return head.encode("latin-1") + (b"" if method == b"HEAD" else body)

    def _found(self, path: bytes) -> tuple[int, str, bytes]:
        if path == b"/health/live":
            return 200, "application/json", b'{"status": "alive"}'
        if path != b"/metrics":
            return 404, _TEXT, b"Only GET /metrics and GET /health/live exist here.\n"
        try:
            return 200, self._content_type, self._exposition()
        except Exception:  # noqa: BLE001 - the outermost edge: logged and answered
            _log.error("exposition_failed", exc_info=True)
            return 500, _TEXT, b"The metrics could not be made.\n"
