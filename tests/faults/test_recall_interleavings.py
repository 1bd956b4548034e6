"""A recall under way, stopped at each of its steps, while up to three things happen, in every order."""

from collections.abc import AsyncIterator
from itertools import product

import pytest

from tests.fakes.hindsight import HindsightStandIn
from tests.integration.recall_world import EVENTS, POINTS, World, open_world, stopped_recall
from tests.support import RedisServer

pytestmark = pytest.mark.anyio


@pytest.fixture
async def world(redis_server: RedisServer) -> AsyncIterator[World]:
    async with HindsightStandIn() as stand_in, open_world(redis_server, stand_in) as opened:
        yield opened


@pytest.mark.parametrize("is_warm", [False, True])
@pytest.mark.parametrize("length", [1, 2, 3])
@pytest.mark.parametrize("point", POINTS)
async def test_every_order(
    world: World, user: str, point: tuple[str, str], length: int, is_warm: bool
) -> None:
    for number, order in enumerate(product(EVENTS, repeat=length)):
        await stopped_recall(world, f"{user}-{number}", point, order, is_warm)
