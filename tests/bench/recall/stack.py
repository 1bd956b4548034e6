"""A Hindsight to measure: the one named, or a local stack of our own in a temporary folder."""

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from service.embedded.connection import read_connection

from tests.support import wait_until


@asynccontextmanager
async def hindsight(url: str | None) -> AsyncIterator[str]:
    """The base URL of a running Hindsight; one that was started here is stopped at the end.

    Raises AssertionError with the end of its output when the stack does not come up within 3 minutes.
    """
    if url is not None:
        yield url
        return
    with tempfile.TemporaryDirectory(prefix="bench-recall-") as folder:
        data_dir, log = Path(folder) / "data", Path(folder) / "output.txt"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MEMORY_")}
        with log.open("wb") as sink:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "service.cli.main", "up", "--data-dir", str(data_dir)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                env=environment,
            )
        try:

            def connection_url() -> str | None:
                assert process.returncode is None, log.read_text("utf-8", "replace")[-2000:]
                connection = read_connection(data_dir)
                return None if connection is None else connection.hindsight_url

            yield await wait_until(
                connection_url, "the local stack is ready", timeout_s=180, poll_s=0.2, not_yet=()
            )
        finally:
            if process.returncode is None:
                process.send_signal(signal.SIGINT)
                await asyncio.wait_for(process.wait(), 60)
