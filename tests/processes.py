"""The service's own processes, as a test may start, stop, freeze and kill them."""

import os
import sys
from pathlib import Path

import httpx
from service import keyspace
from service.adapters.redis_urls import open_client

from tests.support import ServerProcess, free_port

KEY = "test-key-0123456789"
_ROOT = Path(__file__).parents[1]


def environment(redis_url: str, hindsight_url: str, **settings: object) -> dict[str, str]:
    """The environment of a process of ours: nothing inherited that could configure it."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("MEMORY_")}
    given = {
        "api_key": KEY,
        "redis_url": redis_url,
        "hindsight_url": hindsight_url,
        "quiet_s": 0,
        "drain_s": 0,
        **settings,
    }
    return inherited | {f"MEMORY_{name.upper()}": str(value) for name, value in given.items()}


class WorkerProcess(ServerProcess):
    """`dify-memory worker`; ready once it has written its heartbeat."""

    def __init__(self, folder: Path, redis_url: str, hindsight_url: str, **settings: object) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._redis_url = redis_url
        super().__init__(
            [sys.executable, "-c", "from service.cli.main import main; main()", "worker"],
            log_path=folder / "worker.log",
            is_ready=self._has_heartbeat,
            env=environment(redis_url, hindsight_url, **settings),
            cwd=_ROOT,
            start_timeout_s=60,
        )

    async def _has_heartbeat(self) -> bool:
        async with open_client(self._redis_url) as redis:
            return bool(await redis.exists(keyspace.ARQ_HEALTH))


class ApiProcess(ServerProcess):
    """`dify-memory serve` on a fixed loopback port; ready once it answers."""

    def __init__(self, folder: Path, redis_url: str, hindsight_url: str, **settings: object) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        super().__init__(
            [sys.executable, "-c", "from service.cli.main import main; main()", "serve"],
            log_path=folder / "api.log",
            is_ready=self._is_alive,
            env=environment(redis_url, hindsight_url, port=port, **settings),
            cwd=_ROOT,
            start_timeout_s=60,
        )

    async def _is_alive(self) -> bool:
        async with httpx.AsyncClient(trust_env=False) as client:
            return (await client.get(f"{self.url}/health/live")).is_success
