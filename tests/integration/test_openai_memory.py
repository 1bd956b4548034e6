"""What a chat may ask of its memory, what becomes of its turns, and the faults others have had with that."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai.types.chat import ChatCompletionMessageFunctionToolCall
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tests.integration.chat_world import MODEL, EndlessModel, World, app_of, chat_world, said
from tests.support import RedisServer, wait_until

pytestmark = [
    pytest.mark.anyio,
    # litellm's own: of a provider that it loads at the first call, and of how it reads its models.
    pytest.mark.filterwarnings("ignore:Items? .* on TypedDict class:UserWarning"),
    pytest.mark.filterwarnings("ignore:Accessing the 'model_:DeprecationWarning"),
]
FACT = "I live in Lisbon and work as a nurse."
ASKED = "Where do I live?"
TOOLS: Any = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Lisbon"}'}}


@pytest.fixture(params=[True, False], ids=["direct", "litellm"])
def direct(request: pytest.FixtureRequest) -> bool:
    """Whether the model is spoken to with or without litellm."""
    return bool(request.param)


@pytest.fixture
async def world(redis_server: RedisServer) -> AsyncIterator[World]:
    async with chat_world(redis_server) as made:
        yield made


async def ask(world: World, user: str = "ana", text: str = ASKED, **memory: Any) -> httpx.Response:
    reply = await world.post(said(text, user=user, memory=memory))
    assert reply.status_code == 200, reply.text
    return reply


# --- Options --------------------------------------------------------------------------------------------
async def test_memory_goes_into_the_system_message_that_is_there(world: World) -> None:
    await world.knows("ana", FACT)
    system = {"role": "system", "content": "Be brief."}
    await world.post({"model": "memory", "user": "ana", "messages": [system, said(ASKED)["messages"][0]]})
    first, last = world.shown["messages"]
    assert first["role"] == "system"
    assert first["content"].startswith("Be brief.\n\n<user_memories>")
    assert "Lisbon" in first["content"]
    assert last == {"role": "user", "content": ASKED}


async def test_memory_goes_before_the_users_words_and_the_words_are_stored_without_it(world: World) -> None:
    # hindsight-litellm's prepend_user drops the user's own words from what is stored.
    await world.knows("ana", FACT)
    await ask(world, injection_mode="user")
    [message] = world.shown["messages"]
    assert message["content"].startswith("<user_memories>")
    assert message["content"].endswith(f"\n\n{ASKED}")
    await world.settle()
    [turn] = [document for document in world.stored("ana") if ASKED in document]
    assert "<user_memories>" not in turn
    assert "earlier conversations" not in turn


async def test_a_header_says_the_same_as_an_option(world: World) -> None:
    await world.knows("ana", FACT)
    await world.post(said(ASKED, user="ana"), **{"X-Memory-Injection-Mode": "user"})
    assert world.shown["messages"][0]["role"] == "user"
    assert "Lisbon" in world.shown["messages"][0]["content"]
    reply = await world.post(
        said(ASKED, user="ana", memory={"mode": "recall"}), **{"X-Memory-Mode": "reflect"}
    )
    assert reply.status_code == 400
    reply = await world.post(said(ASKED, user="ana"), **{"X-Memory-Modus": "recall"})
    assert reply.status_code == 400


async def test_nothing_is_shown_or_stored_if_so_asked(world: World) -> None:
    await world.knows("ana", FACT)
    before = world.stored("ana")
    reply = await ask(world, inject=False)
    assert (reply.headers["x-memory-status"], reply.headers["x-memory-stored"]) == ("off", "queued")
    assert "Lisbon" not in json.dumps(world.shown)
    reply = await ask(world, text=f"{ASKED} Now.", store=False)
    assert (reply.headers["x-memory-status"], reply.headers["x-memory-stored"]) == ("on", "off")
    assert "Lisbon" in json.dumps(world.shown)
    await world.settle()
    assert len(world.stored("ana")) == len(before) + 1


async def test_another_query_fewer_memories_and_a_debug_object(world: World) -> None:
    for number in range(6):
        await world.api.add("ana", f"Lisbon has hill number {number}.")
    await world.settle()
    reply = await ask(world, text="Tell me more.", query="hill Lisbon", max_memories=2, debug=True)
    debug = reply.json()["memory"]
    assert debug["count"] == len(debug["ids"]) == 2
    assert (debug["query"], debug["mode"], debug["status"]) == ("hill Lisbon", "recall", "on")
    assert reply.headers["x-memory-count"] == "2"
    assert debug["job_id"] == reply.headers["x-memory-job-id"]
    job = await world.api.job(debug["job_id"])
    assert job["status"] in ("queued", "waiting")
    reply = await ask(world, text="More, please.", query="hill Lisbon", max_tokens=8)
    assert reply.headers["x-memory-count"] == "1"
    assert "memory" not in reply.json()


async def test_a_stream_ends_with_the_debug_object(world: World) -> None:
    stream = await world.client.chat.completions.create(
        model="memory",
        messages=[{"role": "user", "content": ASKED}],
        user="ana",
        stream=True,
        extra_body={"memory": {"debug": True}},
    )
    chunks = [chunk async for chunk in stream]
    debug = (chunks[-1].model_extra or {})["memory"]
    assert debug["stored"] == "queued"
    assert (await world.api.job(debug["job_id"]))["status"] in ("queued", "waiting")
    assert not any("memory" in (chunk.model_extra or {}) for chunk in chunks[:-1])


async def test_tags_keep_memories_apart(world: World) -> None:
    await ask(world, text="The code of the work door is heron.", tags="work")
    await ask(world, text="The code of the home door is magpie.", tags=["home"])
    await world.settle()
    await ask(world, text="What is the code of the door?", tags="home", store=False)
    assert "magpie" in json.dumps(world.shown)
    assert "heron" not in json.dumps(world.shown)


# --- Turns ----------------------------------------------------------------------------------------------
async def test_a_conversation_is_not_stored_again_with_every_turn(world: World) -> None:
    # hindsight-litellm's session mode stores the whole history each time.
    messages: list[Any] = []
    for text in ("I grow dahlias.", "I also keep bees.", "And I sail."):
        messages.append({"role": "user", "content": text})
        reply = await world.post({"model": "memory", "user": "ana", "messages": messages})
        messages.append(reply.json()["choices"][0]["message"])
    await world.settle()
    turns = world.stored("ana")
    assert len(turns) == 3
    said_once = [
        turn for turn in turns if "user" in turn.lower() and "I grow dahlias." in turn.split("\n")[0]
    ]
    assert len(said_once) == 1


async def test_the_same_words_of_two_users_are_two_turns(world: World) -> None:
    # hindsight-litellm's digest of a turn ignores whose it is.
    for user in ("ana", "bob"):
        reply = await ask(world, user=user, text=FACT)
        assert reply.headers["x-memory-stored"] == "queued"
    reply = await ask(world, text=FACT, turn_id="t")
    assert reply.headers["x-memory-stored"] == "queued"
    await world.settle()
    assert world.stored("ana")
    assert world.stored("bob")


async def test_a_turn_id_makes_a_repetition_one_turn(world: World) -> None:
    replies = [await ask(world, text="I sail.", turn_id="t1", inject=False) for _ in range(2)]
    assert [reply.headers["x-memory-stored"] for reply in replies] == ["queued", "duplicate"]
    assert len({reply.headers["x-memory-job-id"] for reply in replies}) == 1


async def test_a_tool_is_called_and_the_whole_turn_is_stored_once(world: World) -> None:
    user = {"role": "user", "content": "Is it raining at home?"}
    call = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    result = {"role": "tool", "tool_call_id": "c1", "content": "Rain, 14 degrees."}
    messages: Any = [user, call, result]
    reply = await world.client.chat.completions.create(
        model="memory",
        messages=messages,
        tools=TOOLS,
        user="ana",
    )
    assert world.shown["messages"][-2]["tool_calls"] == [CALL]
    assert reply.choices[0].message.content
    await world.settle()
    [turn] = world.stored("ana")
    for words in ("Is it raining at home?", 'weather({"city": "Lisbon"})', "Rain, 14 degrees."):
        assert words in turn


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_of_a_tool_comes_back_and_is_no_turn_yet(
    redis_server: RedisServer, direct: bool, stream: bool
) -> None:
    model = ToolModel()
    async with chat_world(redis_server, gateway_direct=direct, model=model.app) as world:
        body = said("Is it raining?", user="ana", tools=TOOLS, stream=stream, memory={"debug": True})
        reply = await world.post(body)
        assert '"weather"' in reply.text
        assert '"stored":"later"' in reply.text
        forced = {"type": "function", "function": {"name": "weather"}}
        reply = await world.post(body | {"tool_choice": forced})
        assert '"stored":"queued"' in reply.text, "nobody will answer for it"
        await world.settle()
        [turn] = world.stored("ana")
        assert 'weather({"city": "Lisbon"})' in turn


class ToolModel:
    """A model that calls a tool and thinks aloud."""

    def __init__(self) -> None:
        self.app = app_of(self._completions)

    async def _completions(self, http: Request) -> Response:
        request = await http.json()
        common = {"id": "c", "created": 1, "model": "m"}
        message = {"role": "assistant", "content": None, "reasoning_content": "Hm.", "tool_calls": [CALL]}
        if not request.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
            usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
            return JSONResponse({**common, "object": "chat.completion", "choices": [choice], "usage": usage})
        start = {**CALL, "index": 0, "function": {"name": "weather", "arguments": '{"city":'}}
        rest = {"index": 0, "function": {"arguments": ' "Lisbon"}'}}
        deltas: list[tuple[Any, str | None]] = [
            ({"role": "assistant", "reasoning_content": "Hm."}, None),
            ({"tool_calls": [start]}, None),
            ({"tool_calls": [rest]}, None),
            ({}, "tool_calls"),
        ]
        events = [
            json.dumps(
                {
                    **common,
                    "object": "chat.completion.chunk",
                    "choices": [{"index": 0, "delta": delta, "finish_reason": reason}],
                }
            )
            for delta, reason in deltas
        ]
        lines = "".join(f"data: {event}\n\n" for event in (*events, "[DONE]"))
        return Response(lines, media_type="text/event-stream")


async def test_reasoning_and_calls_are_passed_through(redis_server: RedisServer, direct: bool) -> None:
    async with chat_world(redis_server, gateway_direct=direct, model=ToolModel().app) as world:
        messages: Any = [{"role": "user", "content": "Is it raining?"}]
        whole = await world.client.chat.completions.create(
            model="memory",
            messages=messages,
            tools=TOOLS,
        )
        message = whole.choices[0].message
        assert (message.model_extra or {})["reasoning_content"] == "Hm."
        [call] = message.tool_calls or []
        assert isinstance(call, ChatCompletionMessageFunctionToolCall)
        assert json.loads(call.function.arguments) == {"city": "Lisbon"}
        assert whole.choices[0].finish_reason == "tool_calls"
        stream = await world.client.chat.completions.create(
            model="memory",
            messages=messages,
            tools=TOOLS,
            stream=True,
        )
        deltas = [chunk.choices[0].delta async for chunk in stream if chunk.choices]
        assert "Hm." in [(delta.model_extra or {}).get("reasoning_content") for delta in deltas]
        pieces = [call for delta in deltas for call in delta.tool_calls or []]
        arguments = "".join(piece.function.arguments or "" for piece in pieces if piece.function)
        assert json.loads(arguments) == {"city": "Lisbon"}


# --- Clients that leave ---------------------------------------------------------------------------------
@pytest.mark.parametrize("keeps", [True, False])
async def test_a_client_that_leaves_hangs_up_on_the_model(
    redis_server: RedisServer, direct: bool, keeps: bool
) -> None:
    model = EndlessModel()
    async with chat_world(
        redis_server, gateway_direct=direct, model=model.app, gateway_store_partial=keeps
    ) as world:
        body = said(FACT, user="ana", stream=True)
        async with world.api.client.stream("POST", "/v1/chat/completions", json=body) as reply:
            seen = ""
            async for line in reply.aiter_lines():
                seen += line
                if "story" in seen:
                    break
        await wait_until(model.hung_up.is_set, "the model's client has gone")

        async def is_stored() -> bool:
            await world.settle()
            return any(FACT in turn and "It is a long story" in turn for turn in world.stored("ana"))

        if keeps:
            await wait_until(is_stored, "the turn is stored as far as it came")
        else:
            await world.api.add("ana", "A later turn.")
            await world.settle()
            assert not await is_stored()


async def test_a_client_that_leaves_before_the_answer_hangs_up_too(
    redis_server: RedisServer, direct: bool
) -> None:
    model = SilentModel()
    async with chat_world(redis_server, gateway_direct=direct, model=model.app) as world:
        asking = asyncio.create_task(world.post(said(FACT, user="ana")))
        await wait_until(lambda: model.calls, "the model is asked", timeout_s=30)
        asking.cancel()
        await wait_until(model.hung_up.is_set, "the model's client has gone")


class SilentModel:
    """A model that never says anything."""

    def __init__(self) -> None:
        self.hung_up = asyncio.Event()
        self.calls = 0
        self.app = app_of(self._completions)

    async def _completions(self, http: Request) -> Response:
        await http.json()
        self.calls += 1
        assert (await http.receive())["type"] == "http.disconnect"
        self.hung_up.set()
        return JSONResponse({})


# --- Several models -------------------------------------------------------------------------------------
FILE = """
model_list:
  - model_name: fast
    litellm_params: {model: openai/fast-1, api_key: os.environ/TEST_UPSTREAM_KEY, api_base: "{llm}"}
  - model_name: careful
    litellm_params: {model: openai/careful-1, api_key: key-two, api_base: "{llm}"}
  - model_name: secret-code
    litellm_params: {model: openai/code-1, api_key: key-three, api_base: "{llm}"}
router_settings: {fallbacks: [{fast: [careful]}]}
memory:
  exclude_models: ["secret-*"]
  defaults: {injection_mode: user}
"""


async def test_several_models_a_fallback_and_an_excluded_one(
    redis_server: RedisServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_UPSTREAM_KEY", "key-one")
    file = folder / "models.yaml"
    file.write_text(FILE, "utf-8")
    async with chat_world(redis_server, gateway_model=None, gateway_models_file=file) as world:
        assert [model.id async for model in await world.client.models.list()] == [
            "memory",
            "fast",
            "careful",
            "secret-code",
        ]
        await world.knows("ana", FACT)
        await ask(world)
        assert world.shown["model"] == "fast-1"
        assert world.llm.calls[-1]["authorization"] == "Bearer key-one"
        assert "Lisbon" in world.shown["messages"][-1]["content"], "by the file's defaults"
        for stream in (False, True):
            world.llm.behave("500", times=1)
            reply = await world.post(said(ASKED, user="ana", stream=stream))
            assert reply.status_code == 200
            assert world.shown["model"] == "careful-1"
        reply = await world.post(said(ASKED, user="ana") | {"model": "secret-code"})
        assert reply.headers["x-memory-status"] == "excluded"
        assert reply.headers["x-memory-stored"] == "off"
        assert world.shown["messages"] == said(ASKED)["messages"]
        assert reply.json()["model"] == "secret-code"
        reply = await ask(world, exclude_models=["mem*"])
        assert reply.headers["x-memory-status"] == "excluded"
    assert MODEL not in file.read_text("utf-8")


async def test_content_stays_out_of_logs_and_metrics(
    world: World, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level("DEBUG", logger="service"):
        await world.post(said("marigold", user="ana-marigold"))
        world.llm.behave("400", times=1)
        refused = await world.post(said("marigold", user="ana-marigold"))
        world.llm.behave("cut", times=1)
        await world.post(said("marigold", user="ana-marigold", stream=True))
    printed = capfd.readouterr()
    metrics = (await world.api.client.get("/metrics")).text
    assert 'memory_chats_total{status="on"}' in metrics
    logged = [
        json.dumps(vars(record), default=str)
        for record in caplog.records
        if record.name.startswith("service")
    ]
    for text in (*logged, printed.out, printed.err, metrics, refused.text):
        assert "marigold" not in text
        assert "key-of-the-upstream" not in text
