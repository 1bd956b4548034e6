"""Models that answer in odd shapes, how their streams end, and what of `/v1` is not there."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

import openai
import pytest
from service.adapters.gateway import Gateway
from service.adapters.gateway_direct import OpenAiServer
from service.memory.chat import Ask, Chats, ChatStream
from service.memory.chat_report import Report
from service.memory.retain import Accepted
from service.metrics import Metrics
from service.policy.chat_options import MemoryOptions
from service.policy.gateway_file import MemoryRules
from service.routes.openai import EventStream
from service.schemas import AddRequest
from service.scope import BankId, bank_of
from service.settings import Settings
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from tests.integration.chat_world import Json, World, app_of, chat_world, said
from tests.integration.conftest import Api
from tests.support import RedisServer, serve, wait_until

pytestmark = [
    pytest.mark.anyio,
    # litellm's own: of a provider that it loads at the first call, and of how it reads its models.
    pytest.mark.filterwarnings("ignore:Items? .* on TypedDict class:UserWarning"),
    pytest.mark.filterwarnings("ignore:Accessing the 'model_:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Pydantic serializer warnings:UserWarning"),
]
FACT = "I live in Lisbon and work as a nurse."
ASKED = "Where do I live?"
ANA = bank_of("default", "ana")
COMMENT = ": memory "


class ScriptedModel:
    """A model that says what it is given, chunk by chunk or, if that is not asked for, `whole`."""

    def __init__(self, *chunks: Json, whole: Json | None = None) -> None:
        self._chunks = chunks
        self._whole = whole
        self.app = app_of(self._completions)

    async def _completions(self, http: Request) -> Response:
        if not (await http.json()).get("stream"):
            return JSONResponse(COMMON | {"object": "chat.completion"} | (self._whole or {}))
        events = (*(json.dumps(COMMON | chunk) for chunk in self._chunks), "[DONE]")
        return Response("".join(f"data: {event}\n\n" for event in events), media_type="text/event-stream")


COMMON: Json = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}


def piece(delta: Any, reason: Any = None) -> Json:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}


def parts_of(text: str) -> list[str]:
    """The events of a stream, each with its `data:`, and the comments among them."""
    return text.removesuffix("\n\n").split("\n\n")


# --- Odd shapes -----------------------------------------------------------------------------------------
async def test_null_is_as_good_as_nothing(redis_server: RedisServer) -> None:
    model = ScriptedModel(
        {"error": None} | piece({"role": "assistant", "content": "You live "}),
        {"error": None} | piece({"content": "in Lisbon."}),
        {"error": None} | piece({}, "stop"),
        {"error": None, "choices": None, "usage": USAGE},
        whole={"error": None, "usage": USAGE}
        | {
            "choices": [
                {"index": 0, "message": {"role": "assistant", "content": "Yes."}, "finish_reason": "stop"}
            ]
        },
    )
    async with chat_world(redis_server, gateway_direct=True, model=model.app) as world:
        messages: Any = [{"role": "user", "content": ASKED}]
        stream = await world.client.chat.completions.create(
            model="memory", messages=messages, user="ana", stream=True
        )
        chunks = [chunk async for chunk in stream]
        assert chunks[-1].choices == [], "clients go through them"
        assert chunks[-1].usage is not None
        whole = await world.client.chat.completions.create(
            model="memory", messages=[{"role": "user", "content": "Is it so?"}], user="ana"
        )
        assert whole.choices[0].message.content == "Yes."
        await world.settle()
        assert any("You live in Lisbon." in turn for turn in world.stored("ana"))


ODD: list[Any] = [
    {"tool_calls": ["x"]},
    {"tool_calls": "x"},
    {"tool_calls": [{"index": [], "function": {"name": 5, "arguments": {"a": 1}}}]},
    {"tool_calls": [{"index": 0, "function": "x"}]},
    {"function_call": "x"},
    {"content": 5},
    {"content": [{"type": "text", "text": "in parts"}, 5, None]},
    None,
]


@pytest.mark.parametrize("direct", [True, False], ids=["direct", "litellm"])
async def test_a_stream_with_an_odd_chunk_still_has_an_end(redis_server: RedisServer, direct: bool) -> None:
    odd = [piece(delta) for delta in ODD]
    odd += [{"choices": [{"delta": {}, "index": "0"}]}, {"choices": [{}]}, piece({}, ["stop"]), {}]
    chunk: list[Json] = []

    async def completions(http: Request) -> Response:
        model = ScriptedModel(piece({"content": "Before, "}), *chunk, piece({"content": "after."}, "stop"))
        return await model._completions(http)

    async with chat_world(redis_server, gateway_direct=direct, model=app_of(completions)) as world:
        for number, one in enumerate(odd):
            chunk[:] = [one]
            reply = await world.post(said(f"Question {number}.", user="ana", stream=True))
            assert reply.status_code == 200
            last = parts_of(reply.text)[-1]
            if direct:
                assert last == "data: [DONE]", one
                assert "after." in reply.text
            else:  # what litellm cannot read is an error, and said to be one
                assert last == "data: [DONE]" or "error" in json.loads(last.removeprefix("data: ")), one


@pytest.mark.parametrize("odd", [{"choices": ["x"]}, {"choices": "x"}, {"error": "x"}, piece("x")])
async def test_what_is_no_chunk_is_an_error_in_the_stream(redis_server: RedisServer, odd: Json) -> None:
    model = ScriptedModel(piece({"content": "Before"}), odd)
    async with chat_world(redis_server, gateway_direct=True, model=model.app) as world:
        reply = await world.post(said(ASKED, user="ana", stream=True))
        *_, last = parts_of(reply.text)
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "llm_unavailable"
        assert "Before" in reply.text


async def test_whatever_goes_wrong_in_a_stream_ends_it_with_an_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def chunks() -> AsyncIterator[list[Json]]:
        yield [{"choices": []}]
        raise RuntimeError("marigold")

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        await asyncio.Event().wait()

    stream = ChatStream(cast("Any", chunks()), lambda: None)
    await EventStream(stream, Report("on"))({"type": "http"}, receive, send)
    body = b"".join(message.get("body", b"") for message in sent).decode()
    error = json.loads(parts_of(body)[-1].removeprefix("data: "))["error"]
    assert (error["type"], error["param"]) == ("api_error", None)
    assert "marigold" not in body
    assert sent[-1]["more_body"] is False
    assert "stream_failed" in caplog.messages


# --- Calls of functions, as they were before there were tools -------------------------------------------
LEGACY = ScriptedModel(
    piece({"role": "assistant", "content": None, "function_call": {"name": "weather", "arguments": ""}}),
    piece({"function_call": {"arguments": '{"city": '}}),
    piece({"function_call": {"arguments": '"Lisbon"}'}}),
    piece({}, "function_call"),
    whole={
        "usage": USAGE,
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": None,
                    "function_call": {"name": "weather", "arguments": '{"city": "Lisbon"}'},
                },
                "finish_reason": "function_call",
            }
        ],
    },
)


@pytest.mark.parametrize("direct", [True, False], ids=["direct", "litellm"])
@pytest.mark.parametrize("stream", [True, False])
async def test_the_call_of_a_function_is_no_turn_yet(
    redis_server: RedisServer, direct: bool, stream: bool
) -> None:
    functions = [{"name": "weather", "parameters": {"type": "object"}}]
    async with chat_world(redis_server, gateway_direct=direct, model=LEGACY.app) as world:
        body = said("Is it raining?", user="ana", functions=functions, stream=stream, memory={"debug": True})
        reply = await world.post(body)
        assert '"stored":"later"' in reply.text
        await world.settle()
        assert not world.stored("ana")
        reply = await world.post(body | {"function_call": {"name": "weather"}})
        assert '"stored":"queued"' in reply.text, "nobody will answer for it"
        await world.settle()
        [turn] = world.stored("ana")
        assert 'weather({"city": "Lisbon"})' in turn


# --- The end of a stream --------------------------------------------------------------------------------
def of_turn(text: str) -> Json:
    [comment] = [part for part in parts_of(text) if part.startswith(COMMENT)]
    assert parts_of(text)[-1] == "data: [DONE]"
    found: Json = json.loads(comment.removeprefix(COMMENT))
    return found


async def test_a_stream_says_at_its_end_what_became_of_the_turn(redis_server: RedisServer) -> None:
    async with chat_world(redis_server, gateway_direct=True) as world:
        body = said(FACT, user="ana", stream=True, memory={"turn_id": "t", "inject": False})
        reply = await world.post(body)
        assert "x-memory-job-id" not in reply.headers
        first = of_turn(reply.text)
        assert first["stored"] == "queued"
        assert of_turn((await world.post(body)).text) == {"stored": "duplicate", "job_id": first["job_id"]}
        world.hindsight.fail("retain", "status", status=422)
        await world.settle()
        job = await world.api.job(first["job_id"])
        assert (job["status"], bool(job["reason"])) == ("failed", True)
        reply = await world.post(said(FACT, user="ana", stream=True, memory={"store": False}))
        assert of_turn(reply.text) == {"stored": "off"}


async def test_openais_client_passes_over_what_a_stream_says_of_its_turn(redis_server: RedisServer) -> None:
    async with chat_world(redis_server, gateway_direct=True) as world:
        stream = await world.client.chat.completions.create(
            model="memory", messages=[{"role": "user", "content": FACT}], user="ana", stream=True
        )
        assert all(chunk.choices for chunk in [chunk async for chunk in stream])


class LingeringModel:
    """A model that has said all and does not hang up."""

    def __init__(self) -> None:
        self.hung_up = asyncio.Event()
        self.app = app_of(self._completions)

    async def _completions(self, http: Request) -> Response:
        await http.json()
        return StreamingResponse(self._chunks(), media_type="text/event-stream")

    async def _chunks(self) -> AsyncIterator[str]:
        try:
            yield f"data: {json.dumps(COMMON | piece({'content': 'Yes.'}, 'stop'))}\n\ndata: [DONE]\n\n"
            await asyncio.Event().wait()
        finally:
            self.hung_up.set()


async def test_a_client_that_leaves_while_its_turn_is_added_hangs_up_on_the_model() -> None:
    model = LingeringModel()
    adding, may_end = asyncio.Event(), asyncio.Event()

    async def accept(request: AddRequest, /, *, tenant: str, bank: BankId) -> Accepted:
        del request, tenant, bank
        adding.set()
        await may_end.wait()
        return Accepted("queued", "j", 1, 0, 0, True)

    async with serve(model.app) as url:
        server = OpenAiServer("m", base_url=f"{url}/v1", api_key=None, timeout_s=20)
        nothing = cast("Any", None)  # a chat that is shown no memory needs neither recall nor reflect
        async with (
            Gateway(["m"], [], {}, timeout_s=20, direct=server) as gateway,
            Chats(gateway, MemoryRules(), nothing, nothing, accept, Settings(), Metrics()) as chats,
        ):
            body = said(FACT, stream=True)
            ask = Ask(body, body["messages"], "m", MemoryOptions(inject=False), "default", ANA)
            stream, _ = await chats.stream(ask)

            async def read() -> None:
                async for _ in stream:
                    pass

            reading = asyncio.create_task(read())
            await wait_until(adding.is_set, "the turn is being added")
            reading.cancel()
            try:
                await wait_until(model.hung_up.is_set, "the model's client has gone")
            finally:
                may_end.set()
            await stream.aclose()


# --- What is not there ----------------------------------------------------------------------------------
MISSING: Sequence[tuple[str, str, int, str]] = [
    ("POST", "/v1/embeddings", 404, "not_found"),
    ("POST", "/v1/completions", 404, "not_found"),
    ("POST", "/v1/responses", 404, "not_found"),
    ("GET", "/v1/chat/completions/abc", 404, "not_found"),
    ("DELETE", "/v1/files/f-1", 404, "not_found"),
    ("GET", "/v1/", 404, "not_found"),
    ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
    ("DELETE", "/v1/models/memory", 405, "method_not_allowed"),
    ("POST", "/v1/models", 405, "method_not_allowed"),
]


@pytest.mark.parametrize(("method", "path", "status", "code"), MISSING)
async def test_what_is_not_there_is_said_in_openais_shape(
    api: Api, method: str, path: str, status: int, code: str
) -> None:
    reply = await api.client.request(method, path)
    assert reply.status_code == status
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", None, code)
    assert ("allow" in reply.headers) is (status == 405)


async def test_what_is_not_there_elsewhere_is_said_in_our_own_shape(api: Api) -> None:
    reply = await api.client.post("/v2/embeddings")
    assert reply.status_code == 404
    assert set(reply.json()["error"]) == {"code", "message", "request_id"}


async def test_openais_client_raises_its_own_error_for_what_is_not_there(redis_server: RedisServer) -> None:
    async with chat_world(redis_server, gateway_direct=True) as world:
        with pytest.raises(openai.NotFoundError) as caught:
            await world.client.embeddings.create(model="memory", input="x")
        assert (caught.value.code, caught.value.type) == ("not_found", "invalid_request_error")


# --- The limits of what reflect says --------------------------------------------------------------------
async def reflected(world: World, **memory: Any) -> tuple[str, str]:
    """What the model was shown, and why if nothing."""
    options = {"mode": "reflect", "store": False, **memory}
    reply = await world.post(said(ASKED, user="ana", memory=options))
    assert reply.status_code == 200, reply.text
    first = world.shown["messages"][0]
    block = first["content"] if first["role"] == "system" else ""
    return block, reply.headers.get("x-memory-reason", "")


async def test_reflect_keeps_to_the_limits_of_a_request(redis_server: RedisServer) -> None:
    async with chat_world(redis_server, gateway_direct=True) as world:
        world.hindsight.add_memory(ANA, f"I live in Lisbon{', by the river' * 20}.")
        long, _ = await reflected(world)
        assert long.count("by the river") == 20
        for limit in ({"max_tokens": 10}, {"max_chars": 40}):
            block, reason = await reflected(world, **limit)
            assert "I live in Lisbon" in block
            assert "…" in block
            assert len(long) - len(block) > 200
            assert not reason
        schema = {"type": "object", "properties": {"city": {"type": "string"}}}
        block, reason = await reflected(world, response_schema=schema)
        assert '"city"' in block
        block, reason = await reflected(world, response_schema=schema, max_tokens=10)
        assert (block, reason) == ("", "too_long"), "half an object is none"
