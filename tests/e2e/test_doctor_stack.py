"""`dify-memory doctor` as a user runs it, on the whole stack with real parts."""

import asyncio
import json
import sys
from typing import Any

import pytest

from tests.e2e.conftest import Stack, clean_environment

pytestmark = [pytest.mark.anyio, pytest.mark.hindsight]


async def _doctor(*arguments: str) -> tuple[int, str]:
    """Exit code and output."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "service.cli.main",
        "doctor",
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=dict(clean_environment()),
    )
    output, _ = await process.communicate()
    return process.returncode or 0, output.decode()


async def test_a_running_stack_is_well_and_found_without_an_address(stack: Stack) -> None:
    code, output = await _doctor("--data-dir", str(stack.data_dir), "--json")
    assert code == 0, output
    report: dict[str, Any] = json.loads(output)
    found = {finding["code"]: finding["status"] for finding in report["findings"]}
    assert "fail" not in found.values(), found
    well = {"round_trip_ok", "forget_ok", "storage_ok", "hindsight_ok", "worker_ok", "key_ok", "document_ok"}
    assert well <= set(found), found
    # A stack on this computer alone is out of Dify's reach, and that is said.
    assert found["network_localhost"] == "warn"
    assert stack.connection.api_key not in output


async def test_a_wrong_key_is_one_red_line(stack: Stack) -> None:
    code, output = await _doctor(
        "--url", stack.connection.url, "--key", "wrong-key-0123456789", "--lang", "en"
    )
    assert code == 1
    (told,) = [line for line in output.splitlines() if line.startswith("✗")]
    assert told.startswith("✗ API key: refused. Dify reports this as “blocked by SSRF protection”.")
