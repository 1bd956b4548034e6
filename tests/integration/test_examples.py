"""The examples run as they are written, against the real API."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.integration.chat_world import World, chat_world
from tests.integration.conftest import KEY
from tests.support import RedisServer

pytestmark = pytest.mark.anyio
FOLDER = Path(__file__).parents[2] / "deploy" / "examples"


@pytest.fixture
async def world(redis_server: RedisServer) -> AsyncIterator[World]:
    async with chat_world(redis_server, gateway_direct=True) as made:
        yield made


async def printed(world: World, name: str) -> str:
    """What an example prints; the worker stores what it adds meanwhile."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        FOLDER / name,
        env={**os.environ, "DIFY_MEMORY_URL": world.api.url, "DIFY_MEMORY_API_KEY": KEY},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    ending = asyncio.create_task(process.communicate())
    while not ending.done():
        await world.settle()
        await asyncio.wait({ending}, timeout=0.1)
    out, err = await ending
    assert process.returncode == 0, err.decode()
    return out.decode()


async def test_remember(world: World) -> None:
    said = await printed(world, "remember.py")
    assert said.startswith("done: 1 kept\n")
    assert "<user_memories>" in said
    assert said.count("I live in Lisbon") >= 2
    assert "verified=True" in said
    assert world.stored("example-alice") == []


async def test_remember_async(world: World) -> None:
    said = await printed(world, "remember_async.py")
    assert [city for city in ("Lisbon", "Porto") if city in said] == ["Lisbon", "Porto"], said
    assert world.stored("example-ana") == world.stored("example-bob") == []


async def test_openai_chat(world: World) -> None:
    said = await printed(world, "openai_chat.py")
    assert "Lisbon" in said.partition("You said")[0]


def test_every_example_is_tested() -> None:
    tested = Path(__file__).read_text("utf-8")
    assert all(f'"{path.name}"' in tested for path in FOLDER.glob("*.py"))
