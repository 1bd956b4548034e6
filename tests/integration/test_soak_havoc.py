"""The soak's blows: a process that was hurt can be told from one that lived on, or that just died."""

import asyncio
import random
from pathlib import Path

import pytest

from tests.soak.havoc import Havoc, Victim
from tests.support import ServerProcess, wait_until

pytestmark = pytest.mark.anyio


class _Process(ServerProcess):
    """Lives until it is killed; how it comes to be ready is watched by `seen`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(["sleep", "60"], log_path=folder / "log", is_ready=self._look)
        self.havoc: Havoc | None = None
        self.seen: list[int | None] = []

    async def _look(self) -> bool:
        if self.havoc is not None:
            self.seen.append(self.havoc.life("victim"))
        return True


async def test_a_life_ends_with_a_blow_and_begins_when_it_is_back(folder: Path) -> None:
    process = _Process(folder)
    await process.start()
    process.havoc = havoc = Havoc([Victim("victim", process, ("kill", "stop"))], random.Random(1), 0.01)
    assert havoc.life("victim") == 0
    is_over = asyncio.Event()
    havocking = asyncio.create_task(havoc.run(is_over))
    try:
        await wait_until(lambda: (havoc.life("victim") or 0) >= 2, "it was hurt twice")
    finally:
        is_over.set()
        await havocking
        assert process.is_running
        await process.stop()
    assert set(process.seen) == {None}  # down from the blow until it is ready
    assert havoc.life("victim") == havoc.blows.total()
    assert havoc.life("somebody who is spared") == 0
    assert havoc.breaches == []


async def test_one_that_dies_by_itself_is_a_breach(folder: Path) -> None:
    process = _Process(folder)
    await process.start()
    await process.kill()
    havoc, is_over = Havoc([Victim("victim", process, ("kill",))], random.Random(1), 0.01), asyncio.Event()
    havocking = asyncio.create_task(havoc.run(is_over))
    try:
        await wait_until(lambda: (havoc.life("victim") or 0) >= 1, "it was started again")
    finally:
        is_over.set()
        await havocking
        await process.stop()
    assert havoc.breaches[0] == ("died by itself", "victim ended with -9")
