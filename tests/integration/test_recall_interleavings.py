"""A recall under way, stopped at each of its steps, while things happen (every order: see tests/faults)."""

from collections.abc import AsyncIterator

import pytest

from tests.fakes.hindsight import HindsightStandIn
from tests.integration.recall_world import POINTS, World, open_world, stopped_recall
from tests.support import RedisServer

pytestmark = pytest.mark.anyio
ORDERS = [("add",), ("forget",), ("store", "forget", "add")]


@pytest.fixture
async def world(redis_server: RedisServer, stand_in: HindsightStandIn) -> AsyncIterator[World]:
    async with open_world(redis_server, stand_in) as opened:
        yield opened


@pytest.mark.parametrize("point", POINTS)
async def test_nothing_old_is_current_afterwards_and_nothing_forgotten_is_told(
    world: World, user: str, point: tuple[str, str]
) -> None:
    for number, order in enumerate(ORDERS):
        await stopped_recall(world, f"{user}-{number}", point, order, is_warm=number > 0)
