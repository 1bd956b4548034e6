"""The product to measure: `dify-memory up` with real parts, or the one that runs on a data directory."""

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from service.embedded.connection import Connection, read_connection
from service.embedded.data_dir import DataDir
from service.embedded.postgres import postgres_server

from tests.support import free_port, wait_until


async def database_url(local: Connection) -> str:
    """Where its PostgreSQL is."""
    # It works in its data folder, which lies in that of the stack.
    folder = await asyncio.to_thread(Path(f"/proc/{local.pids['postgres']}/cwd").resolve)
    return postgres_server(DataDir(folder.parent), 5432).url()


@asynccontextmanager
async def product(data_dir: Path | None) -> AsyncIterator[Connection]:
    """Where the product is; one that was started here (in a temporary folder) is stopped at the end.

    Raises AssertionError when nothing runs on `data_dir`, or, with the end of its output, when the stack does
    not come up within 3 minutes.
    """
    if data_dir is not None:
        running = read_connection(data_dir)
        assert running is not None, f"Nothing runs on {data_dir}."
        yield running
        return
    with tempfile.TemporaryDirectory(prefix="bench-recall-") as folder:
        data_dir, log = Path(folder) / "data", Path(folder) / "output.txt"
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("MEMORY_", "HINDSIGHT_"))
        }
        with log.open("wb") as sink:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "service.cli.main", "up", "--data-dir", str(data_dir)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                env={**environment, "MEMORY_PORT": str(free_port()), "MEMORY_QUIET_S": "0"},
            )
        try:

            def connection() -> Connection | None:
                assert process.returncode is None, log.read_text("utf-8", "replace")[-2000:]
                return read_connection(data_dir)

            yield await wait_until(
                connection, "the local stack is ready", timeout_s=180, poll_s=0.2, not_yet=()
            )
        finally:
            if process.returncode is None:
                process.send_signal(signal.SIGINT)
                await asyncio.wait_for(process.wait(), 60)
