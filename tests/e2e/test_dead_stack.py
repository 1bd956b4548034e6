"""`dify-memory dead` finds the local stack that runs by its data directory."""

import asyncio
import sys

import pytest

from tests.e2e.conftest import Stack, clean_environment

pytestmark = [pytest.mark.anyio, pytest.mark.hindsight]


async def test_the_command_finds_the_running_stack(stack: Stack) -> None:
    for words, code, told in (
        (("list",), 0, "There are no dead letters."),
        (("replay", "--all"), 0, "Replayed: 0"),
        (("replay", "t-unknown"), 1, "There are no such dead letters."),
    ):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "service.cli.main", "dead", *words,
            env={**clean_environment(), "MEMORY_DATA_DIR": str(stack.data_dir)},
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        output, _ = await asyncio.wait_for(process.communicate(), 60)
        assert (process.returncode, told in output.decode()) == (code, True), output.decode()
