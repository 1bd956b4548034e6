"""A stream that is cut off is a turn that says so, whatever else it says of itself."""

from typing import Any

import pytest
from service.schemas import MAX_METADATA

from tests.integration.chat_world import World, chat_world, said
from tests.support import RedisServer, wait_until

pytestmark = pytest.mark.anyio
FACT = "I live in Lisbon and work as a nurse."
MOST = {f"name{number}": "value" for number in range(MAX_METADATA)}


async def stored_metadata(world: World) -> list[Any]:
    """What came with Ana's turns that Hindsight was given; nothing before it has stored one."""
    await world.settle()
    if not world.stored("ana"):
        return []
    return [
        item["metadata"] for sent in world.hindsight.requests_for("retain") for item in sent.body["items"]
    ]


@pytest.mark.parametrize(
    "metadata", [{}, {"a": "b"}, MOST, {**dict(list(MOST.items())[1:]), "partial": "perhaps"}]
)
async def test_a_turn_that_was_cut_off_keeps_its_metadata_and_says_so(
    redis_server: RedisServer, metadata: dict[str, str]
) -> None:
    async with chat_world(redis_server, gateway_direct=True) as world:
        world.llm.behave("cut", times=1)
        reply = await world.post(said(FACT, user="ana", stream=True, memory={"metadata": metadata}))
        assert "[DONE]" not in reply.text
        found = await wait_until(lambda: stored_metadata(world), "the partial turn is stored")
        assert found == [{**metadata, "partial": "true"}]


async def test_a_whole_turn_keeps_its_metadata_and_one_too_many_is_refused(redis_server: RedisServer) -> None:
    async with chat_world(redis_server, gateway_direct=True) as world:
        body = said(FACT, user="ana", stream=True, memory={"metadata": MOST | {"more": "x"}})
        assert (await world.post(body)).status_code == 400
        assert not world.llm.calls
        reply = await world.post(said(FACT, user="ana", stream=True, memory={"metadata": MOST}))
        assert "[DONE]" in reply.text
        assert await wait_until(lambda: stored_metadata(world), "the turn is stored") == [MOST]
