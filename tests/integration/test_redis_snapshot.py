"""`deploy/redis_snapshot.py` on a real server: all of a snapshot or a reason, and never the password."""

import asyncio
import sys
from pathlib import Path

import pytest

from tests.deployment import DEPLOY
from tests.support import free_port, valkey

pytestmark = pytest.mark.anyio


async def snapshot(url: str, *words: str) -> tuple[int | None, bytes, str]:
    """Exit status, what was sent, and what was told."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", str(DEPLOY / "redis_snapshot.py"), *words,
        env={"MEMORY_REDIS_URL": url},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    sent, told = await asyncio.wait_for(process.communicate(), 30)
    return process.returncode, sent, told.decode()


@pytest.mark.parametrize("streams", ["yes", "no"], ids=["up to a mark", "of a known length"])
async def test_a_snapshot_is_whole(tmp_path: Path, streams: str) -> None:
    extra = ("--repl-diskless-sync", streams, "--repl-diskless-sync-delay", "0", "--rdbcompression", "no")
    socket = tmp_path / "s"
    async with valkey(tmp_path / "data", extra=(*extra, "--unixsocket", str(socket))) as server:
        await server.command("SET", "mem:large", "x" * 50_000)
        await server.command("SET", "mem:last", "y" * 3_000)
        for url in (server.url, f"unix://{socket}?db=0"):
            code, sent, told = await snapshot(url)
            assert (code, told) == (0, "")
            assert (sent[:5], sent[-9:-8]) == (b"REDIS", b"\xff")
            assert (sent.count(b"x" * 50_000), sent.count(b"y" * 3_000)) == (1, 1)
            assert (await snapshot(url, "ping"))[0] == 0


async def test_it_tells_a_server_that_is_stopped_from_other_trouble(tmp_path: Path) -> None:
    port = free_port()
    async with valkey(tmp_path / "data", port=port) as server:
        await server.command("CONFIG", "SET", "requirepass", "right")
        for login in ("", ":wr0ng@"):
            code, sent, told = await snapshot(f"redis://{login}127.0.0.1:{port}/0")
            assert (code, sent) == (2, b"")
            assert "Redis refused" in told
            assert "wr0ng" not in told
        # It need not log in to know that somebody is there.
        assert (await snapshot(f"redis://127.0.0.1:{port}/0", "ping"))[0] == 0
    for words in ((), ("ping",)):
        assert (await snapshot(f"redis://127.0.0.1:{port}/0", *words))[0] == 3
        for url in ("", "redis+sentinel://127.0.0.1:1/m/0", "redis://:wr0ng@127.0.0.1:999999"):
            code, _, told = await snapshot(url, *words)
            assert (code, "wr0ng" in told) == (2, False)


@pytest.mark.parametrize("header", [b"$100\r\n", b"$EOF:" + b"0" * 40 + b"\r\n", b"$-1\r\n", b"+OK\r\n"])
async def test_half_a_snapshot_is_a_failure(header: bytes) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"+OK\r\n+OK\r\n\n\n" + header + b"REDIS0011 and no more")
        await writer.drain()
        await reader.readuntil(b"SYNC\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", port := free_port()):
        code, _, told = await snapshot(f"redis://127.0.0.1:{port}")
    assert code == 2
    assert told
