"""What chats through `/v1` spend is counted for their tenant, as far as the model tells."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
from service.adapters.usage import UsageStore
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from tests.fakes.hindsight import HindsightStandIn
from tests.fakes.llm import Mode
from tests.integration.admin_world import operator_of
from tests.integration.chat_world import Json, World, app_of, chat_world, said
from tests.integration.conftest import run_api, settings_for
from tests.integration.test_admin_page import rows_of
from tests.integration.test_openai_shapes import COMMON, USAGE, ScriptedModel, piece
from tests.support import RedisServer, wait_until

pytestmark = [
    pytest.mark.anyio,
    # litellm's own: of a provider that it loads at the first call, and of how it reads its models.
    pytest.mark.filterwarnings("ignore:Items? .* on TypedDict class:UserWarning"),
    pytest.mark.filterwarnings("ignore:Accessing the 'model_:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Pydantic serializer warnings:UserWarning"),
]
ASKS: Json = {"stream": True, "stream_options": {"include_usage": True}}


@pytest.fixture(params=[True, False], ids=["direct", "litellm"])
def direct(request: pytest.FixtureRequest) -> bool:
    """Whether the model is spoken to with or without litellm."""
    return bool(request.param)


async def counted(redis_server: RedisServer) -> dict[str, int]:
    """What an API that has ended has counted today, by tenant."""
    async with UsageStore(redis_server.url) as store:
        (today,) = await store.days([datetime.now(UTC)])
    return {tenant: count for (what, tenant), count in today.items() if what == "chat_tokens"}


async def shown(world: World) -> dict[str, float]:
    """What a scraper sees of the tokens of chats."""
    text = (await world.api.client.get("/metrics")).text
    start = 'memory_llm_tokens_total{direction="chat_'
    lines = [line.removeprefix(start) for line in text.splitlines() if line.startswith(start)]
    return {direction: float(value) for direction, _, value in (line.partition('"} ') for line in lines)}


def usage(sent: int, told: int) -> Json:
    return {"prompt_tokens": sent, "completion_tokens": told, "total_tokens": sent + told}


async def test_answers_and_streams_are_counted_for_their_tenant(
    redis_server: RedisServer, direct: bool
) -> None:
    async with chat_world(redis_server, gateway_direct=direct, tenant="acme") as world:
        whole = (await world.post(said("Where do I live?", user="ana"))).json()
        # Nobody's chat costs as much.
        reply = await world.post(said("hello", **ASKS))
        (streamed,) = [
            chunk["usage"]
            for chunk in (json.loads(line[6:]) for line in reply.text.splitlines() if line[:7] == "data: {")
            if chunk.get("usage")
        ]
        spent = [whole["usage"], streamed]
        assert all(one["total_tokens"] > 1 for one in spent)
        assert await shown(world) == {
            "sent": sum(one["prompt_tokens"] for one in spent),
            "said": sum(one["completion_tokens"] for one in spent),
        }
    assert await counted(redis_server) == {"acme": sum(one["total_tokens"] for one in spent)}


async def test_who_does_not_ask_for_it_gets_none_and_the_model_is_not_asked_either(
    redis_server: RedisServer, direct: bool
) -> None:
    async with chat_world(redis_server, gateway_direct=direct) as world:
        reply = await world.post(said("hello", stream=True, user="ana"))
        assert '"usage"' not in reply.text
        assert "stream_options" not in world.shown
    assert await counted(redis_server) == {}


@pytest.mark.parametrize("mode", ["500", "not_json"])
@pytest.mark.parametrize("stream", [True, False])
async def test_what_fails_costs_nothing_that_is_known(
    redis_server: RedisServer, mode: Mode, stream: bool
) -> None:
    async with chat_world(redis_server, gateway_direct=True) as world:
        world.llm.behave(mode)
        await world.post(said("hello", user="ana", stream=stream))
    assert await counted(redis_server) == {}


@pytest.mark.parametrize("odd", ["many", 7, [], {"total_tokens": "many"}, {"prompt_tokens": -1}, None])
async def test_what_cannot_be_read_is_passed_on_and_not_counted(redis_server: RedisServer, odd: Any) -> None:
    model = ScriptedModel(piece({"content": "Hi"}, "stop"), {"choices": [], "usage": odd})
    async with chat_world(redis_server, gateway_direct=True, model=model.app) as world:
        reply = await world.post(said("hello", user="ana", **ASKS))
        assert json.dumps({"usage": odd}, separators=(",", ":"))[1:-1] in reply.text
        assert "data: [DONE]" in reply.text
    assert await counted(redis_server) == {}


async def test_a_model_that_tells_with_every_piece_is_counted_once(redis_server: RedisServer) -> None:
    model = ScriptedModel(
        piece({"content": "Hi"}) | {"usage": usage(5, 1)},
        piece({"content": "!"}, "stop") | {"usage": usage(5, 2)},
        {"choices": [], "usage": usage(5, 2)},
        {"choices": [], "usage": None},
    )
    async with chat_world(redis_server, gateway_direct=True, model=model.app) as world:
        await world.post(said("hello", user="ana", **ASKS))
    assert await counted(redis_server) == {"default": 7}


class TalkingModel:
    """A model that tells with its first piece what it has cost so far, and then stops or says no more."""

    def __init__(self, *, ends: bool) -> None:
        self._ends = ends
        self.hung_up = asyncio.Event()
        self.app = app_of(self._completions)

    async def _completions(self, http: Request) -> Response:
        await http.json()
        return StreamingResponse(self._chunks(), media_type="text/event-stream")

    async def _chunks(self) -> AsyncIterator[str]:
        try:
            yield f"data: {json.dumps(COMMON | piece({'content': 'story'}) | {'usage': USAGE})}\n\n"
            if not self._ends:
                await asyncio.Event().wait()
        finally:
            self.hung_up.set()


@pytest.mark.parametrize("keeps", [True, False])
async def test_of_a_stream_whose_client_leaves_what_is_known_is_counted(
    redis_server: RedisServer, keeps: bool
) -> None:
    model = TalkingModel(ends=False)
    async with chat_world(
        redis_server, gateway_direct=True, model=model.app, gateway_store_partial=keeps
    ) as world:
        body = said("hello", user="ana", **ASKS)
        async with world.api.client.stream("POST", "/v1/chat/completions", json=body) as reply:
            async for line in reply.aiter_lines():
                if "story" in line:
                    break
        await wait_until(model.hung_up.is_set, "the model's client has gone")
        assert await shown(world) == {"sent": 1, "said": 1}
    assert await counted(redis_server) == {"default": 2}


async def test_of_a_stream_that_breaks_what_is_known_is_counted(redis_server: RedisServer) -> None:
    async with chat_world(redis_server, gateway_direct=True, model=TalkingModel(ends=True).app) as world:
        reply = await world.post(said("hello", user="ana", **ASKS))
        assert '"error"' in reply.text
    assert await counted(redis_server) == {"default": 2}


async def test_an_operator_sees_it(redis_server: RedisServer, stand_in: HindsightStandIn) -> None:
    answer = {"choices": [{"index": 0, "message": {"content": "Hi"}, "finish_reason": "stop"}]}
    model = ScriptedModel(whole=answer | {"usage": usage(1_000, 234)})
    async with chat_world(redis_server, gateway_direct=True, model=model.app) as world:
        await world.post(said("hello", user="ana"))
    settings = settings_for(redis_server.url, stand_in.url)
    async with run_api(settings) as api, operator_of(api) as browser:
        page = await browser.get()
        assert "1,234" in rows_of(page, "Tenants")["default"]
        assert "LLM tokens (chats through /v1)" in page.text
