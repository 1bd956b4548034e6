"""Fixtures for all tests: real parts, each test with users of its own."""

import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.schedule import Schedule, rank_of
from tests.support import RedisServer, valkey

# Run under `nohup`, what the tests start would take a closed terminal for nothing.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Hundreds of processes of ours start, and each would compile every module anew, for seconds of a processor.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Nothing here speaks TLS to the world, and each HTTP client would load all the world's authorities anew, for
# 28 ms of a processor: one that has signed nothing does. What the variable said before is kept for tests that
# download (xdist gives its workers what this process has set).
os.environ.setdefault("TESTS_SYSTEM_CERT_FILE", os.environ.get("SSL_CERT_FILE", ""))
os.environ["SSL_CERT_FILE"] = str(Path(__file__).with_name("no_authority.pem"))

# Dify's engine needs Python 3.12; on 3.11 there is none to run the templates in.
if sys.version_info < (3, 12):
    collect_ignore = [
        "e2e/test_chatflow_openai_stack.py",
        "e2e/test_templates_stack.py",
        "e2e/test_templates_wire.py",
        "integration/test_dify_openai.py",
        "integration/test_dify_templates.py",
    ]

# Failed checks of the stand-in show their values.
pytest.register_assert_rewrite("tests.fakes.hindsight_checks")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first."""
    items.sort(key=lambda item: rank_of(item.nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Schedule | None:
    """In that order, and not by the number of tests."""
    if config.getoption("dist") != "loadfile":
        return None
    config.option.loadscopereorder = False
    return Schedule(config, log)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """asyncio: arq and the Hindsight client know no other."""
    return "asyncio"


@pytest.fixture(scope="module")
async def redis_server(
    anyio_backend: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[RedisServer]:
    """A real Redis-compatible server for one test module."""
    async with valkey(tmp_path_factory.mktemp("redis") / "data") as server:
        yield server


@pytest.fixture
def user() -> str:
    """A user id that no other test has."""
    return f"user-{secrets.token_hex(6)}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of the test's own."""
    return tmp_path
