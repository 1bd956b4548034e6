"""A worker whose metrics have no port."""

import json
import socket
from pathlib import Path

import pytest

from tests.fakes.hindsight import HindsightStandIn
from tests.processes import WorkerProcess
from tests.support import RedisServer, wait_until

pytestmark = pytest.mark.anyio


async def test_a_port_that_is_taken_is_named_and_ends_no_worker(
    redis_server: RedisServer, stand_in: HindsightStandIn, folder: Path
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        worker = WorkerProcess(folder, redis_server.url, stand_in.url, worker_metrics_port=port)
        await worker.start()
        try:
            await wait_until(lambda: "metrics_port_taken" in worker.log(), "the worker has told")
            [line] = [line for line in worker.log().splitlines() if "metrics_port_taken" in line]
            assert json.loads(line)["port"] == port
            assert worker.is_running
        finally:
            await worker.stop()
