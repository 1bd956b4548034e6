"""Everything OpenAI's client can ask of a chat, through it: what is sent, what comes back, what is kept."""

import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from starlette.requests import Request
from starlette.responses import Response

from tests.integration.chat_world import MODEL, World, app_of, chat_world
from tests.support import RedisServer

pytestmark = [
    pytest.mark.anyio,
    # litellm's own: of a provider that it loads at the first call, and of how it reads its models.
    pytest.mark.filterwarnings("ignore:Items? .* on TypedDict class:UserWarning"),
    pytest.mark.filterwarnings("ignore:Accessing the 'model_:DeprecationWarning"),
]
SAID: Any = [{"role": "user", "content": "Name a colour."}]
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo=", "detail": "low"}}
SCHEMA = {
    "type": "json_schema",
    "json_schema": {"name": "colour", "strict": True, "schema": {"type": "object", "properties": {}}},
}
LOGPROBS = {"content": [{"token": "red", "logprob": -0.25, "bytes": [114], "top_logprobs": []}]}
USAGE = {
    "prompt_tokens": 3,
    "completion_tokens": 2,
    "total_tokens": 5,
    "completion_tokens_details": {"reasoning_tokens": 1},
    "prompt_tokens_details": {"cached_tokens": 2},
}


class Model:
    """A model that answers with as many choices as it is asked for; keeps what it was sent."""

    def __init__(self) -> None:
        self.sent: dict[str, Any] = {}
        self.pieces = ["red", "dish"]
        self.app = app_of(self._completions)

    async def _completions(self, http: Request) -> Response:
        self.sent = await http.json()
        common = {"id": "c", "created": 1, "model": "m", "system_fingerprint": "fp"}
        numbers = range(self.sent.get("n") or 1)
        if not self.sent.get("stream"):
            choices = [
                {
                    "index": number,
                    "message": {"role": "assistant", "content": f"{''.join(self.pieces)} {number}"},
                    "finish_reason": "stop",
                    "logprobs": LOGPROBS if self.sent.get("logprobs") else None,
                }
                for number in numbers
            ]
            whole = {**common, "object": "chat.completion", "choices": choices, "usage": USAGE}
            return Response(json.dumps(whole), media_type="application/json")
        events: list[dict[str, Any]] = [
            {"choices": [{"index": number, "delta": {"content": piece}, "finish_reason": None}]}
            for piece in self.pieces
            for number in numbers
        ]
        events += [{"choices": [{"index": n, "delta": {}, "finish_reason": "stop"}]} for n in numbers]
        if (self.sent.get("stream_options") or {}).get("include_usage"):
            events.append({"choices": [], "usage": USAGE})
        chunks = [json.dumps({**common, "object": "chat.completion.chunk", **event}) for event in events]
        # In one piece: what comes together goes on together.
        lines = "".join(f"data: {chunk}\n\n" for chunk in (*chunks, "[DONE]"))
        return Response(lines, media_type="text/event-stream")


@pytest.fixture(params=[True, False], ids=["direct", "litellm"])
async def world(redis_server: RedisServer, request: pytest.FixtureRequest) -> AsyncIterator[World]:
    async with chat_world(redis_server, gateway_direct=request.param, model=MODELS.app) as made:
        yield made


MODELS = Model()


@pytest.fixture
def model() -> Model:
    """The model behind `world`."""
    MODELS.pieces = ["red", "dish"]
    MODELS.sent = {}
    return MODELS


async def test_several_choices_come_back_and_the_first_is_remembered(world: World, model: Model) -> None:
    reply = await world.client.chat.completions.create(model="memory", messages=SAID, user="ana", n=3)
    assert [choice.message.content for choice in reply.choices] == ["reddish 0", "reddish 1", "reddish 2"]
    assert model.sent["n"] == 3
    stream = await world.client.chat.completions.create(
        model="memory", messages=SAID, user="bob", n=2, stream=True
    )
    texts = ["", ""]
    async for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == ["reddish", "reddish"]
    await world.settle()
    for user, answer in (("ana", "reddish 0"), ("bob", "reddish")):
        [turn] = world.stored(user)
        assert answer in turn
        assert "reddish 1" not in turn
        assert turn.count("reddish") == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("stop", ["\n", "END"]),
        ("stop", "END"),
        ("response_format", {"type": "json_object"}),
        ("response_format", SCHEMA),
        ("logprobs", True),
        ("parallel_tool_calls", False),
        ("presence_penalty", 0.5),
        ("frequency_penalty", -0.5),
        ("logit_bias", {"50256": -100}),
        ("max_completion_tokens", 7),
        ("seed", 3),
    ],
)
async def test_a_parameter_reaches_the_model_as_it_is(
    world: World, model: Model, name: str, value: Any
) -> None:
    more = {"tools": [TOOL]} if name == "parallel_tool_calls" else {}
    create: Any = world.client.chat.completions.create
    reply = await create(model=MODEL, messages=SAID, **{name: value}, **more)
    assert reply.choices[0].message.content == "reddish 0"
    assert model.sent[name] == value


TOOL: Any = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


async def test_what_a_model_says_besides_comes_back(world: World, model: Model) -> None:
    reply = await world.client.chat.completions.create(model="memory", messages=SAID, logprobs=True)
    logprobs = reply.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert logprobs.content[0].logprob == -0.25
    assert reply.usage is not None
    assert reply.usage.total_tokens == 5
    assert reply.usage.completion_tokens_details is not None
    assert reply.usage.completion_tokens_details.reasoning_tokens == 1
    assert reply.system_fingerprint == "fp"


async def test_usage_comes_with_the_last_chunk_of_who_asks_for_it(world: World, model: Model) -> None:
    async def usages(**options: Any) -> list[Any]:
        stream = await world.client.chat.completions.create(
            model="memory", messages=SAID, stream=True, **options
        )
        return [chunk.usage and chunk.usage.total_tokens async for chunk in stream]

    assert not any(await usages())
    asked = await usages(stream_options={"include_usage": True})
    assert asked[-1] == 5
    assert not any(asked[:-1])


async def test_pictures_sounds_and_words_go_on_and_the_words_are_remembered(
    world: World, model: Model
) -> None:
    sound = {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}
    parts: Any = [{"type": "text", "text": "What is this?"}, PICTURE, sound]
    await world.client.chat.completions.create(
        model="memory", messages=[{"role": "user", "content": parts}], user="ana"
    )
    assert model.sent["messages"][-1]["content"] == parts
    await world.settle()
    [turn] = world.stored("ana")
    assert "What is this?" in turn
    assert "UklGRg" not in turn
    assert "iVBORw" not in turn


@pytest.mark.parametrize("stream", [False, True])
async def test_half_a_character_at_a_time_is_a_character_in_the_end(
    redis_server: RedisServer, stream: bool
) -> None:
    # Some servers cut a stream between the two halves of one.
    model = Model()
    model.pieces = ["I like \ud83d", "\ude00 faces", " \udc00"]
    async with chat_world(redis_server, gateway_direct=True, model=model.app) as world:
        body = {"model": "memory", "messages": SAID, "user": "ana", "stream": stream}
        reply = await world.post(body)
        assert reply.status_code == 200
        assert "[DONE]" in reply.text or not stream
        assert "like" in reply.text
        await world.settle()
        [turn] = world.stored("ana")
        assert "I like 😀 faces" in turn


async def test_what_came_before_a_broken_piece_goes_on(redis_server: RedisServer) -> None:
    choice = {"index": 0, "delta": {"content": "red"}}
    good = json.dumps({"object": "chat.completion.chunk", "choices": [choice]})

    async def broken(_: Request) -> Response:
        # All of it in one piece.
        return Response(f"data: {good}\n\ndata: {{nonsense\n\n", media_type="text/event-stream")

    async with chat_world(redis_server, gateway_direct=True, model=app_of(broken)) as world:
        reply = await world.post({"model": "memory", "messages": SAID, "user": "ana", "stream": True})
        events = [json.loads(event.removeprefix("data: ")) for event in reply.text.split("\n\n") if event]
        assert events[0]["choices"][0]["delta"]["content"] == "red"
        assert events[1]["error"]["code"] == "llm_unavailable"
        assert len(events) == 2


async def test_a_model_is_found_by_its_name(world: World, model: Model) -> None:
    for name in ("memory", MODEL):
        found = await world.client.models.retrieve(name)
        assert (found.id, found.object) == (name, "model")
    with pytest.raises(openai.NotFoundError) as caught:
        await world.client.models.retrieve("openai/none-such")
    assert caught.value.code == "model_not_found"
    stranger = await world.client_with("wrong-key-0123456789")
    for name in ("memory", "none-such"):
        with pytest.raises(openai.AuthenticationError):
            await stranger.models.retrieve(name)
    limited = await world.made(scopes="recall")
    with pytest.raises(openai.PermissionDeniedError):
        await limited.models.retrieve("memory")


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_is_nested_without_end_is_an_error(
    redis_server: RedisServer, stream: bool
) -> None:
    deep = "[" * 100_000 + "]" * 100_000

    async def nested(_: Request) -> Response:
        kind = "text/event-stream" if stream else "application/json"
        return Response(f"data: {deep}\n\n" if stream else deep, media_type=kind)

    async with chat_world(redis_server, gateway_direct=True, model=app_of(nested)) as world:
        body = {"model": "memory", "messages": SAID, "user": "ana", "stream": stream}
        assert '"llm_unavailable"' in (await world.post(body)).text
