"""The model at `/v1`, asked by OpenAI's own client: answers, memory, identities, faults."""

import asyncio
import json
from collections.abc import AsyncIterator
from threading import Thread
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from tests.fakes.faults import FaultKind
from tests.fakes.llm import Mode
from tests.integration.chat_world import MODEL, World, chat_world, said
from tests.integration.conftest import KEY
from tests.support import RedisServer, wait_until

pytestmark = [
    pytest.mark.anyio,
    # litellm's own: of a provider that it loads at the first call, and of how it reads its models.
    pytest.mark.filterwarnings("ignore:Items? .* on TypedDict class:UserWarning"),
    pytest.mark.filterwarnings("ignore:Accessing the 'model_:DeprecationWarning"),
]
FACT = "I live in Lisbon and work as a nurse."
ASKED = "Where do I live?"
MESSAGES: Any = [{"role": "user", "content": ASKED}]


@pytest.fixture(params=[True, False], ids=["direct", "litellm"])
def direct(request: pytest.FixtureRequest) -> bool:
    """Whether the model is spoken to with or without litellm."""
    return bool(request.param)


@pytest.fixture
async def world(redis_server: RedisServer, direct: bool) -> AsyncIterator[World]:
    async with chat_world(redis_server, gateway_direct=direct, token_keys=f"a:{'s' * 32}") as made:
        yield made


# --- Answers --------------------------------------------------------------------------------------------
async def test_a_fact_of_one_conversation_is_known_in_the_next_and_to_nobody_else(world: World) -> None:
    first = await world.client.chat.completions.create(
        model="memory", messages=[{"role": "user", "content": FACT}], user="ana"
    )
    assert first.object == "chat.completion"
    assert first.model == "memory"
    assert first.usage is not None
    assert first.usage.total_tokens > 0
    assert "I remember nothing" in (first.choices[0].message.content or "")
    await world.settle()
    second = await world.client.chat.completions.create(model="memory", messages=MESSAGES, user="ana")
    assert "Lisbon" in (second.choices[0].message.content or "").partition("You said")[0]
    other = await world.client.chat.completions.create(model="memory", messages=MESSAGES, user="bob")
    assert "Lisbon" not in json.dumps(world.shown)
    assert "I remember nothing" in (other.choices[0].message.content or "")


async def test_a_turn_is_known_before_it_is_stored(world: World) -> None:
    await world.client.chat.completions.create(
        model="memory", messages=[{"role": "user", "content": FACT}], user="ana"
    )
    reply = await world.client.chat.completions.create(model="memory", messages=MESSAGES, user="ana")
    assert "Lisbon" in (reply.choices[0].message.content or "").partition("You said")[0]


async def test_a_stream_is_the_same_and_is_stored_whole(world: World) -> None:
    await world.knows("ana", FACT)
    stream = await world.client.chat.completions.create(
        model=MODEL, messages=MESSAGES, user="ana", stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert "Lisbon" in text
    assert text.endswith(f"You said: {ASKED}")
    assert [chunk.usage.total_tokens > 0 for chunk in chunks if chunk.usage] == [True]
    assert {chunk.model for chunk in chunks} == {MODEL}
    assert [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason] == [
        "stop"
    ]
    await world.settle()
    assert any(ASKED in document and text in document for document in world.stored("ana"))


async def test_usage_is_not_sent_to_who_did_not_ask(world: World) -> None:
    stream = await world.client.chat.completions.create(model="memory", messages=MESSAGES, stream=True)
    assert not [chunk for chunk in [c async for c in stream] if chunk.usage]


async def test_the_wire_is_events_that_end_with_done(world: World) -> None:
    reply = await world.post(said("hello", stream=True, user="ana"))
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert reply.headers["cache-control"] == "no-store"
    events = reply.text.split("\n\n")
    assert events[-1] == ""
    assert events[-2] == "data: [DONE]"
    assert events[-3].startswith(": memory "), "a comment"
    for event in events[:-3]:
        assert json.loads(event.removeprefix("data: "))["object"] == "chat.completion.chunk"


async def test_the_blocking_client_works_too(world: World) -> None:
    answers: list[str] = []

    def ask() -> None:
        with OpenAI(api_key=KEY, base_url=f"{world.api.url}/v1", max_retries=0) as client:
            reply = client.chat.completions.create(model="memory", messages=MESSAGES, user="ana")
            answers.append(reply.choices[0].message.content or "")
            answers.extend(model.id for model in client.models.list())

    thread = Thread(target=ask)
    thread.start()
    await wait_until(lambda: not thread.is_alive(), "the blocking client has its answers")
    assert answers[0].endswith(ASKED)
    assert answers[1:] == ["memory", MODEL]


async def test_parameters_go_on_and_what_could_steer_us_does_not(world: World) -> None:
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    body = said(
        ASKED,
        user="ana",
        temperature=0.5,
        top_p=0.9,
        n=2,
        stop=["\n"],
        seed=7,
        max_tokens=50,
        tools=tools,
        tool_choice="auto",
        response_format={"type": "json_object"},
        enable_thinking=False,
        # None of these may reach anybody: another server for our key, a made-up answer, who the user is.
        api_base="http://127.0.0.1:1/v1",
        base_url="http://127.0.0.1:1/v1",
        api_key="stolen",
        mock_response="made up",
        custom_llm_provider="anthropic",
        extra_headers={"X-A": "b"},
        metadata={"a": "b"},
        fallbacks=["x"],
        store=True,
    )
    reply = await world.post(body)
    assert reply.status_code == 200, reply.text
    assert "made up" not in reply.text
    sent = world.shown
    expected = {"temperature": 0.5, "top_p": 0.9, "n": 2, "stop": ["\n"], "seed": 7, "max_tokens": 50}
    expected |= {"tools": tools, "tool_choice": "auto", "enable_thinking": False, "model": "fake-model"}
    assert {name: sent[name] for name in expected} == expected
    assert sent["response_format"] == {"type": "json_object"}
    assert set(sent) <= {*expected, "messages", "response_format", "stream"}
    assert world.llm.calls[-1]["authorization"] == "Bearer key-of-the-upstream"


async def test_pictures_go_on_and_the_words_beside_them_are_remembered(world: World) -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    parts = [{"type": "text", "text": "What is this flower?"}, picture]
    await world.knows("ana", "This flower in my garden is a dahlia.")
    for where in ("system", "user"):
        reply = await world.post(
            {
                "model": "memory",
                "user": "ana",
                "messages": [{"role": "user", "content": parts}],
                "memory": {"injection_mode": where, "turn_id": where},
            }
        )
        assert reply.status_code == 200, reply.text
        assert picture in world.shown["messages"][-1]["content"]
        assert "dahlia" in json.dumps(world.shown)
    await world.settle()
    assert any("What is this flower?" in document for document in world.stored("ana"))
    assert not any("base64" in document for document in world.stored("ana"))


# --- Dify -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("stream", [False, True])
async def test_difys_check_passes_and_is_never_remembered(world: World, stream: bool) -> None:
    await world.knows("ana", FACT)
    before = world.stored("ana")
    body = said("ping", user="ana", max_tokens=5, stream=stream)
    reply = await world.post(body)
    assert reply.status_code == 200
    assert reply.headers["x-memory-status"] == "check"
    if not stream:
        assert reply.json()["object"] == "chat.completion"
    assert world.shown["messages"] == body["messages"]
    await world.settle()
    assert world.stored("ana") == before


async def test_a_check_without_a_user_passes(world: World) -> None:
    assert (await world.post(said("ping", max_tokens=5))).json()["object"] == "chat.completion"


# --- Who ------------------------------------------------------------------------------------------------
async def test_without_a_user_there_is_no_memory_and_a_header_says_so(world: World) -> None:
    for user in (None, "", "DEFAULT-USER", "null", "{{#sys.user_id#}}"):
        reply = await world.post(said(FACT, user=user))
        assert reply.status_code == 200
        assert reply.headers["x-memory-status"] == "no_user"
        assert reply.headers["x-memory-stored"] == "off"
    await world.settle()
    assert not world.hindsight.banks


async def test_a_signed_key_believes_tokens_alone(world: World) -> None:
    await world.knows("ana", FACT)
    client = await world.made(identity="signed")
    made = await world.api.client.post("/admin/user-tokens", json={"user_id": "ana"})
    token = made.json()["token"]
    for given in ({"user": token}, {"user": "difys-own-id", "extra_headers": {"X-Memory-User-Token": token}}):
        reply = await client.chat.completions.create(model="memory", messages=MESSAGES, **given)
        assert "Lisbon" in (reply.choices[0].message.content or "")
    for wrong in ("ana", token[:-3], "difys-own-id"):
        raw = await client.chat.completions.with_raw_response.create(
            model="memory", messages=MESSAGES, user=wrong
        )
        assert raw.headers["x-memory-status"] == "no_user"
        assert raw.headers["x-memory-reason"] == "user_token_refused"
        assert "Lisbon" not in raw.text


async def test_a_bound_key_needs_no_user_and_takes_no_other(world: World) -> None:
    await world.knows("ana", FACT)
    client = await world.made(identity="bound", user_id="ana")
    for user in (openai.omit, "ana"):
        reply = await client.chat.completions.create(model="memory", messages=MESSAGES, user=user)
        assert "Lisbon" in (reply.choices[0].message.content or "")
    with pytest.raises(openai.ConflictError):
        await client.chat.completions.create(model="memory", messages=MESSAGES, user="bob")


async def test_two_people_in_one_request_are_refused(world: World) -> None:
    for extra in ({"memory": {"user_id": "bob"}}, {"memory": {"user_token": "a.b.c"}}):
        reply = await world.post(said(ASKED, user="ana", **extra))
        assert reply.status_code == 409
        assert reply.json()["error"]["code"] == "identity_conflict"
    assert not world.llm.calls


async def test_a_key_needs_the_scope_chat_and_that_alone(world: World) -> None:
    await (await world.made()).chat.completions.create(model="memory", messages=MESSAGES, user="ana")
    client = await world.made(scopes="recall,add,review,forget,admin")
    with pytest.raises(openai.PermissionDeniedError):
        await client.chat.completions.create(model="memory", messages=MESSAGES, user="ana")
    with pytest.raises(openai.PermissionDeniedError):
        await client.models.list()


# --- Errors ---------------------------------------------------------------------------------------------
async def test_a_wrong_key_is_an_authentication_error(world: World) -> None:
    client = await world.client_with("wrong-key-0123456789")
    with pytest.raises(openai.AuthenticationError) as caught:
        await client.chat.completions.create(model="memory", messages=MESSAGES)
    assert caught.value.code == "key_refused"
    with pytest.raises(openai.AuthenticationError):
        await client.models.list()
    for method, path in (("GET", "/v1/models"), ("POST", "/v1/chat/completions")):
        reply = await world.api.stranger.request(method, path)
        assert reply.status_code == 401
        assert reply.headers["www-authenticate"] == "Bearer"
        assert reply.json()["error"]["type"] == "authentication_error"
        assert "not a network block" in reply.json()["error"]["message"]


UNUSABLE: list[tuple[dict[str, Any], int, str]] = [
    ({"model": "none-such", "messages": MESSAGES}, 404, "model_not_found"),
    ({"messages": MESSAGES}, 404, "model_not_found"),
    ({"model": "memory"}, 400, "invalid_request"),
    ({"model": "memory", "messages": []}, 400, "invalid_request"),
    ({"model": "memory", "messages": ["hello"]}, 400, "invalid_request"),
    (said("x", n=0), 400, "invalid_request"),
    (said("x", n=10_000), 400, "invalid_request"),
    (said("x", stream="yes"), 400, "invalid_request"),
    (said("x", user=5), 400, "invalid_request"),
    (said("x", memory="on"), 400, "invalid_request"),
    (said("x", memory={"modus": "recall"}), 400, "invalid_request"),
    (said("x", memory={"max_memories": 500}), 400, "invalid_request"),
    (said("x", memory={"response_schema": "no"}), 400, "invalid_request"),
    (said("x", memory={"metadata": [1]}), 400, "invalid_request"),
]


async def test_what_cannot_be_used_is_said_in_openais_shape(world: World) -> None:
    for body, status, code in UNUSABLE:
        reply = await world.post(body)
        assert reply.status_code == status, (body, reply.text)
        error = reply.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["type"] == "invalid_request_error"
        assert error["code"] == code
    assert not world.llm.calls


FAILURES: list[tuple[Mode, type[openai.APIStatusError], str]] = [
    ("400", openai.BadRequestError, "model_refused"),
    ("401", openai.InternalServerError, "llm_misconfigured"),
    ("429", openai.RateLimitError, "rate_limit_exceeded"),
    ("500", openai.InternalServerError, "llm_unavailable"),
]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_model_that_fails_is_said_without_its_words(world: World, stream: bool) -> None:
    # What is no answer at all is seen before a stream begins only without litellm.
    failures = list(FAILURES)
    if not stream:
        failures.append(("not_json", openai.InternalServerError, "llm_unavailable"))
    for number, (mode, kind, code) in enumerate(failures, 1):
        world.llm.behave(mode, times=1)
        with pytest.raises(kind) as caught:
            await world.client.chat.completions.create(
                model="memory", messages=MESSAGES, user="ana", stream=stream
            )
        assert caught.value.code == code
        assert "planned fault" not in str(caught.value)
        assert len(world.llm.calls) == number


async def test_a_model_that_hangs_is_given_up_in_time(redis_server: RedisServer, direct: bool) -> None:
    async with chat_world(redis_server, gateway_direct=direct, gateway_timeout_s=1) as world:
        await world.post(said("load litellm"))
        world.llm.behave("hang")
        reply = await world.post(said(ASKED, user="ana"))
        assert reply.status_code == 504
        assert reply.json()["error"]["code"] == "model_timed_out"


async def test_a_model_of_nobody_is_said_to_be_so(redis_server: RedisServer) -> None:
    async with chat_world(redis_server, gateway_model="nonsense", gateway_base_url=None) as world:
        reply = await world.post(said(ASKED, user="ana") | {"model": "nonsense"})
        assert reply.status_code == 503, reply.text
        assert reply.json()["error"]["code"] == "llm_misconfigured"


async def test_broken_unicode_is_mended_and_endless_nesting_refused(world: World) -> None:
    headers = {"content-type": "application/json"}
    body = b'{"model": "memory", "user": "ana", "messages": [{"role": "user", "content": "a\\ud800b"}]}'
    reply = await world.api.client.post("/v1/chat/completions", content=body, headers=headers)
    assert reply.status_code == 200, reply.text
    assert world.shown["messages"] == [{"role": "user", "content": "ab"}]
    nested = b'{"model": "memory", "messages": ' + b"[" * 500 + b"]" * 500 + b"}"
    reply = await world.api.client.post("/v1/chat/completions", content=nested, headers=headers)
    assert reply.status_code == 400
    assert reply.json()["error"]["code"] == "malformed_body"


async def test_without_a_model_there_is_none(api: Any) -> None:
    assert (await api.client.get("/v1/models")).json()["data"] == []
    reply = await api.client.post("/v1/chat/completions", json=said("x"))
    assert reply.status_code == 404
    assert "MEMORY_GATEWAY_MODEL" in reply.json()["error"]["message"]


# --- Memory trouble never fails the chat ----------------------------------------------------------------
@pytest.mark.parametrize("fault", ["hang", "status", "garbage"])
async def test_a_broken_hindsight_is_a_chat_without_memory(world: World, fault: FaultKind) -> None:
    await world.post(said("load litellm"))
    world.hindsight.fail("*", fault)
    reply = await world.post(said(ASKED, user="ana", memory={"timeout_ms": 300, "debug": True}))
    assert reply.status_code == 200
    assert reply.headers["x-memory-status"] == "degraded"
    assert reply.headers["x-memory-stored"] == "queued"
    assert reply.json()["memory"]["degraded"] is True
    world.hindsight.heal()


async def test_a_dead_redis_is_a_chat_all_the_same(world: World, redis_server: RedisServer) -> None:
    await world.post(said("load litellm"))
    await redis_server.stop()
    try:
        reply = await world.post(said(ASKED, user="ana"))
    finally:
        await redis_server.start()
    assert reply.status_code == 200, reply.text
    assert reply.json()["choices"][0]["message"]["content"].endswith(ASKED)


# --- Streams that end early -----------------------------------------------------------------------------
async def test_a_killed_upstream_is_an_error_in_the_stream_and_a_partial_turn(world: World) -> None:
    world.llm.behave("cut")
    pieces: list[str] = []

    async def read() -> None:
        async for chunk in await world.client.chat.completions.create(
            model="memory", messages=[{"role": "user", "content": FACT}], user="ana", stream=True
        ):
            pieces.append(chunk.choices[0].delta.content or "")  # noqa: PERF401 - kept when it raises

    with pytest.raises(openai.APIError):
        await read()
    text = "".join(pieces)
    assert text.startswith("I remember")
    assert not text.endswith("nurse.")

    async def is_stored() -> bool:
        await world.settle()
        return any(FACT in document and text.strip() in document for document in world.stored("ana"))

    await wait_until(is_stored, "the partial turn is stored")


async def test_a_killed_upstream_leaves_nothing_if_so_set(redis_server: RedisServer, direct: bool) -> None:
    async with chat_world(redis_server, gateway_direct=direct, gateway_store_partial=False) as world:
        world.llm.behave("cut", times=1)
        reply = await world.post(said(FACT, user="ana", stream=True))
        assert '"error"' in reply.text
        assert "[DONE]" not in reply.text
        await world.post(said("Another turn.", user="ana"))
        await world.settle()
        assert len(world.stored("ana")) == 1


async def test_64_streams_at_once_each_with_its_own_memory(world: World) -> None:
    users = [f"user-{number}" for number in range(64)]
    await asyncio.gather(*(world.api.add(user, f"My code word is w{user}w.") for user in users))
    await world.settle()

    async def ask(client: AsyncOpenAI, user: str) -> str:
        stream = await client.chat.completions.create(
            model="memory",
            messages=[{"role": "user", "content": "What is my code word?"}],
            user=user,
            stream=True,
            extra_body={"memory": {"timeout_ms": 10_000}},
        )
        return "".join([c.choices[0].delta.content or "" async for c in stream if c.choices])

    answers = await asyncio.gather(*(ask(world.client, user) for user in users))
    for user, answer in zip(users, answers, strict=True):
        assert f"w{user}w" in answer
        assert answer.count("My code word") == 1
