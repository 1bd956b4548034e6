"""What hindsight-litellm offers and this service has under another name (see deploy/examples/model.md).

Tests of rows that are not here are named there.
"""

import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from service.scope import bank_of

from tests.integration.chat_world import World, chat_world, said
from tests.integration.conftest import KEY
from tests.support import RedisServer

pytestmark = [
    pytest.mark.anyio,
    # litellm's own: of a provider that it loads at the first call, and of how it reads its models.
    pytest.mark.filterwarnings("ignore:Items? .* on TypedDict class:UserWarning"),
    pytest.mark.filterwarnings("ignore:Accessing the 'model_:DeprecationWarning"),
]
FACT = "I live in Lisbon and work as a nurse."
ASKED = "Where do I live?"
ANA = bank_of("default", "ana")
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}


@pytest.fixture
async def world(redis_server: RedisServer) -> AsyncIterator[World]:
    async with chat_world(redis_server) as made:
        yield made


async def ask(world: World, text: str = ASKED, **memory: Any) -> httpx.Response:
    reply = await world.post(said(text, user="ana", memory={"debug": True, **memory}))
    assert reply.status_code == 200, reply.text
    return reply


def sent_to(world: World, operation: str) -> Any:
    """The body of the last such request to Hindsight."""
    return world.hindsight.requests_for(operation)[-1].body


# --- set_defaults(budget, fact_types, max_memory_tokens, …) ----------------------------------------------
async def test_budget_and_fact_types_reach_hindsight(world: World) -> None:
    world.hindsight.add_memory(ANA, "I live in Lisbon, fact.", type="world")
    world.hindsight.add_memory(ANA, "I live in Lisbon, observed.", type="observation")
    for types, expected in (
        ("observation", ["observed"]),
        (["world", "experience"], ["fact"]),
        ("", ["fact", "observed"]),
    ):
        await ask(world, budget="high", fact_types=types, store=False)
        block = world.shown["messages"][0]["content"]
        assert [word for word in ("fact", "observed") if f"Lisbon, {word}." in block] == expected
        assert sent_to(world, "recall")["budget"] == "high"
    reply = await world.post(said(ASKED, user="ana", memory={"fact_types": "opinion"}))
    assert reply.status_code == 400
    assert "world, experience, observation" in reply.json()["error"]["message"]


async def test_a_header_names_fact_types_too(world: World) -> None:
    await world.post(said(ASKED, user="ana"), **{"X-Memory-Fact-Types": "world,experience"})
    assert sorted(sent_to(world, "recall")["types"]) == ["experience", "world"]


# --- tags, recall_tags, recall_tags_match ----------------------------------------------------------------
async def test_what_is_looked_for_and_what_is_put_on_the_turn_may_differ(world: World) -> None:
    await ask(world, "The door code is heron.", tags="work", store_tags=["door", "code"])
    await world.settle()
    [document] = world.hindsight.banks[ANA].documents.values()
    assert {"door", "code"} <= set(document.tags)
    assert "work" not in document.tags
    for match, tags, knows in (
        ("any", "door,other", True),
        ("all", "door,other", False),
        ("all", "door,code", True),
    ):
        await ask(world, "What is the door code?", tags=tags, tags_match=match, store=False)
        assert ("heron" in json.dumps(world.shown)) is knows, (match, tags)


# --- use_reflect, reflect_context, reflect_response_schema, reflect_include_facts ------------------------
async def test_reflect_answers_in_words_from_the_memories_it_names(world: World) -> None:
    memory = world.hindsight.add_memory(ANA, "I live in Lisbon.")
    reply = await ask(world, mode="reflect", context="An invitation.", budget="mid", store=False)
    debug = reply.json()["memory"]
    assert (debug["mode"], debug["status"], debug["count"]) == ("reflect", "on", 1)
    assert debug["ids"] == [memory.id]
    assert reply.headers["x-memory-mode"] == "reflect"
    block = world.shown["messages"][0]["content"]
    assert block.startswith("<user_memories>")
    assert "I live in Lisbon." in block
    asked = sent_to(world, "reflect")
    assert asked["query"] == f"{ASKED}\n\nAdditional context: An invitation."
    assert asked["budget"] == "mid"
    assert not world.hindsight.requests_for("recall")


async def test_reflect_answers_in_the_form_that_is_asked_for(world: World) -> None:
    world.hindsight.add_memory(ANA, "I live in Lisbon.")
    # A header cannot hold an object, but its text.
    for memory, headers in (
        ({"response_schema": SCHEMA}, {}),
        ({"response_schema": json.dumps(SCHEMA)}, {}),
        ({}, {"X-Memory-Response-Schema": json.dumps(SCHEMA)}),
    ):
        body = said(ASKED, user="ana", memory={"mode": "reflect", "store": False, **memory})
        assert (await world.post(body, **headers)).status_code == 200
        assert sent_to(world, "reflect")["response_schema"] == SCHEMA
        assert '{"city": "I live in Lisbon."}' in world.shown["messages"][0]["content"]


async def test_reflect_looks_at_the_tags_kinds_and_types_that_are_asked_for_alone(world: World) -> None:
    for text, tags, kind in (
        ("I live in Lisbon.", ["home", "memory_type:user_profile"], "world"),
        ("I live in a hotel in Porto.", ["work", "memory_type:task_state"], "world"),
        ("I live in Faro.", ["home", "memory_type:user_profile"], "observation"),
    ):
        world.hindsight.add_memory(ANA, text, tags=tags, type=kind)

    async def shown(**memory: Any) -> list[str]:
        await ask(world, mode="reflect", store=False, **memory)
        whole = json.dumps(world.shown)
        return [city for city in ("Lisbon", "Porto", "Faro") if city in whole]

    assert await shown() == ["Lisbon", "Porto", "Faro"]
    assert await shown(tags="home") == ["Lisbon", "Faro"]
    assert await shown(tags="home,work", tags_match="any") == ["Lisbon", "Porto", "Faro"]
    assert await shown(tags="home,work", tags_match="all") == []
    assert await shown(kinds="task_state") == ["Porto"]
    assert await shown(kinds="task_state,user_profile", tags="home", fact_types="world") == ["Lisbon"]


@pytest.mark.parametrize(
    ("fault", "code"),
    [("status", "language_model_missing"), ("close", "hindsight_unavailable"), ("hang", "deadline")],
)
async def test_reflect_that_fails_is_a_chat_without_memory(world: World, fault: Any, code: str) -> None:
    world.hindsight.add_memory(ANA, "I live in Lisbon.")
    world.hindsight.fail("reflect", fault, status=400)
    reply = await ask(world, mode="reflect", timeout_ms=400)
    assert reply.headers["x-memory-status"] == "degraded"
    assert reply.headers["x-memory-reason"] == code
    assert reply.headers["x-memory-stored"] == "queued"
    assert world.shown["messages"] == said(ASKED)["messages"]
    assert reply.json()["memory"]["reason"].startswith(f"{code}: ")


async def test_reflect_of_nobody_knows_nothing_and_asks_no_model(world: World) -> None:
    reply = await ask(world, mode="reflect", store=False)
    assert reply.headers["x-memory-status"] == "on"
    assert reply.headers["x-memory-count"] == "0"
    assert reply.headers["x-memory-reason"] == "nothing_remembered"
    assert not world.hindsight.requests_for("reflect")


# --- document_id, session_id -----------------------------------------------------------------------------
async def test_a_conversation_is_not_told_what_it_just_said_and_can_be_forgotten(world: World) -> None:
    await ask(world, FACT, conversation_id="c-1")
    assert (await ask(world, conversation_id="c-1", store=False)).json()["memory"]["count"] == 0
    assert (await ask(world, conversation_id="c-2", store=False)).json()["memory"]["count"] == 1
    await world.settle()
    receipt = await world.api.client.post("/memory/forget", data={"user_id": "ana", "conversation_id": "c-1"})
    assert receipt.json()["forgotten"]["documents"] == 1
    assert (await ask(world, conversation_id="c-2", store=False)).json()["memory"]["count"] == 0


# --- sync_storage, get_pending_retain_errors -------------------------------------------------------------
async def test_a_turn_that_cannot_be_stored_says_so_in_its_job(world: World) -> None:
    reply = await ask(world, FACT, inject=False)
    world.hindsight.fail("retain", "status", status=422)
    await world.settle()
    job = await world.api.job(reply.headers["x-memory-job-id"])
    assert job["status"] == "failed"
    assert job["reason"]


# --- configure, set_defaults, per call -------------------------------------------------------------------
async def test_a_key_has_defaults_of_its_own_and_a_call_goes_before_them(
    redis_server: RedisServer, folder: Path
) -> None:
    key_id = hashlib.sha256(KEY.encode()).hexdigest()[:8]
    file = folder / "models.yaml"
    file.write_text(
        f"""
model_list:
  - model_name: fast
    litellm_params: {{model: openai/fast-1, api_key: key-one, api_base: "{{llm}}"}}
memory:
  defaults: {{injection_mode: user, max_memories: 3, debug: true}}
  keys:
    "{key_id}": {{max_memories: 1, store: false}}
""",
        "utf-8",
    )
    async with chat_world(redis_server, gateway_model=None, gateway_models_file=file) as world:
        for number in range(4):
            world.hindsight.add_memory(ANA, f"I live in Lisbon, house {number}.")
        reply = await world.post(said(ASKED, user="ana"))
        assert reply.json()["memory"]["count"] == 1, "the key's"
        assert reply.headers["x-memory-stored"] == "off", "the key's"
        assert world.shown["messages"][0]["role"] == "user", "of all keys"
        reply = await world.post(said(ASKED, user="ana", memory={"max_memories": 2, "store": True}))
        assert reply.json()["memory"]["count"] == 2, "the call's"
        assert reply.headers["x-memory-stored"] == "queued", "the call's"
        other = await world.made()
        raw = await other.chat.completions.with_raw_response.create(
            model="memory", messages=[{"role": "user", "content": f"{ASKED} Now."}], user="ana"
        )
        assert raw.headers["x-memory-count"] == "3", "of all keys"


# --- Its faults ------------------------------------------------------------------------------------------
async def test_the_asyncio_client_is_shown_memory(world: World) -> None:
    # hindsight-litellm's acompletion never injects.
    await world.knows("ana", FACT)
    reply = await world.client.chat.completions.create(
        model="memory", messages=[{"role": "user", "content": ASKED}], user="ana"
    )
    assert "Lisbon" in (reply.choices[0].message.content or "").partition("You said")[0]


async def test_a_stream_is_shown_memory_and_stored(world: World) -> None:
    # hindsight-litellm's callbacks skip streams.
    await world.knows("ana", FACT)
    reply = await world.post(said(ASKED, user="ana", stream=True))
    assert reply.headers["x-memory-count"] == "1"
    await world.settle()
    assert any(ASKED in document and "I remember" in document for document in world.stored("ana"))
