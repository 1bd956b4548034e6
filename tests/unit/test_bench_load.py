"""The load generator: what becomes of a server that hangs up."""

import asyncio
import contextlib

import pytest

from tests.bench.load import measure, request_bytes


async def _hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.close()


pytestmark = pytest.mark.anyio


async def test_a_server_that_hangs_up_ends_the_measuring(capfd: pytest.CaptureFixture[str]) -> None:
    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(await asyncio.start_server(_hang_up, "127.0.0.1", 0))
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        request = request_bytes(url, "/", {}, b"")
        with pytest.raises(ChildProcessError):
            await asyncio.to_thread(measure, url, [request], connections=1, seconds=60)
    assert "the server closed the connection" in capfd.readouterr().err
