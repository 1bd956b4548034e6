"""The whole product as a user runs it: `dify-memory up` with real parts, in folders of the tests' own."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from service.embedded.connection import Connection, read_connection

from tests.support import ServerProcess, free_port, wait_until

START_TIMEOUT_S = 180


@dataclass
class Stack:
    """A running stack; `connection` is read anew each time, since restarts change the pids."""

    process: asyncio.subprocess.Process
    data_dir: Path
    output: Path

    @property
    def connection(self) -> Connection:
        """Where it is now."""
        found = read_connection(self.data_dir)
        assert found is not None, f"The stack is not running:\n{self.output.read_text('utf-8')[-3000:]}"
        return found

    @property
    def hindsight_url(self) -> str:
        """The real Hindsight."""
        return self.connection.hindsight_url

    @property
    def client(self) -> httpx.AsyncClient:
        """A client with the key; close it yourself."""
        connection = self.connection
        return httpx.AsyncClient(
            base_url=connection.url, headers={"Authorization": f"Bearer {connection.api_key}"}, timeout=60
        )

    async def ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until every part says it is well."""

        async def is_ready() -> bool:
            assert self.process.returncode is None, (
                f"up ended with {self.process.returncode}:\n{self.output.read_text('utf-8')[-3000:]}"
            )
            if read_connection(self.data_dir) is None:
                return False
            async with self.client as client:
                reply = await client.get("/health/ready")
            # Dead letters of a restored backup say nothing about the parts.
            return reply.status_code == 200 and set(reply.json()["reasons"]) <= {"dead_letters"}

        await wait_until(is_ready, "the stack is ready", timeout_s=timeout_s, poll_s=0.2)

    async def stop(self) -> int:
        """Ctrl-C, and its exit code."""
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
        return await asyncio.wait_for(self.process.wait(), 60)


@asynccontextmanager
async def running_stack(data_dir: Path, **env: str) -> AsyncIterator[Stack]:
    """`dify-memory up` on `data_dir` with extra `MEMORY_*` variables."""
    output = data_dir.parent / f"{data_dir.name}-up.log"
    with output.open("ab") as sink:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "service.cli.main",
            "up",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            env={
                **clean_environment(),
                "MEMORY_DATA_DIR": str(data_dir),
                "MEMORY_PORT": str(free_port()),
                **env,
            },
        )
    stack = Stack(process, data_dir, output)
    try:
        await stack.ready()
        yield stack
    finally:
        code = await stack.stop()
    assert code == 0, output.read_text("utf-8")[-3000:]


def clean_environment() -> Mapping[str, str]:
    """This process's environment without settings of a developer's own."""
    return {
        name: value for name, value in os.environ.items() if not name.startswith(("MEMORY_", "HINDSIGHT_"))
    }


@asynccontextmanager
async def running_llm(folder: Path) -> AsyncIterator[str]:
    """A process with the deterministic fake language model; its URL, without /v1."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"

    async def answers() -> bool:
        async with httpx.AsyncClient() as client:
            return (await client.get(f"{url}/v1/models")).status_code == 200

    llm = ServerProcess(
        [sys.executable, "-m", "tests.fakes.llm", "--port", str(port)],
        log_path=folder / "llm.log",
        is_ready=answers,
    )
    await llm.start()
    try:
        yield url
    finally:
        await llm.stop()


@pytest.fixture(scope="session")
async def stack(anyio_backend: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """A stack with a (fake) language model behind `/v1` alone: turns are kept word for word."""
    folder = tmp_path_factory.mktemp("stack")
    async with (
        running_llm(folder) as url,
        running_stack(
            folder / "data",
            MEMORY_QUIET_S="0.5",
            # Chats cannot say how long they have; the machine may be busy.
            MEMORY_RECALL_DEADLINE_MS="8000",
            MEMORY_GATEWAY_MODEL="openai/fake-model",
            MEMORY_GATEWAY_API_KEY="fake-key-0123456789",
            MEMORY_GATEWAY_BASE_URL=f"{url}/v1",
        ) as running,
    ):
        yield running


@pytest.fixture
def hindsight_url(stack: Stack) -> str:
    """The real Hindsight."""
    return stack.hindsight_url


@dataclass
class LlmStack:
    """A stack whose Hindsight extracts with the fake language model at `llm_url` (without /v1)."""

    stack: Stack
    llm_url: str

    @property
    def hindsight_url(self) -> str:
        """The real Hindsight."""
        return self.stack.hindsight_url


@pytest.fixture(scope="session")
async def llm_stack(anyio_backend: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LlmStack]:
    """A stack with a language model (the deterministic fake one)."""
    folder = tmp_path_factory.mktemp("llm-stack")
    async with (
        running_llm(folder) as url,
        running_stack(
            folder / "data",
            MEMORY_QUIET_S="0.5",
            MEMORY_LLM_MODEL="openai/fake-model",
            MEMORY_LLM_API_KEY="fake-key-0123456789",
            MEMORY_LLM_BASE_URL=f"{url}/v1",
        ) as running,
    ):
        yield LlmStack(running, url)
