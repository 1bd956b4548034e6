"""`/memory/reflect`: answers from memory, and what is said when there can be none."""

import asyncio
import json
import time

import httpx
import pytest
from service.scope import bank_of

from tests.fakes.hindsight import HindsightStandIn
from tests.integration.conftest import Api

pytestmark = pytest.mark.anyio

ANNE = bank_of("default", "anne")


async def reflect(api: Api, query: str = "Where does Anne live?", **fields: str) -> httpx.Response:
    """`POST /memory/reflect` as a form."""
    return await api.client.post("/memory/reflect", data={"user_id": "anne", "query": query, **fields})


@pytest.fixture
def remembered(stand_in: HindsightStandIn) -> None:
    """Something that can be answered from."""
    stand_in.add_memory(ANNE, "Anne does live in Shanghai.")


@pytest.mark.usefixtures("remembered")
async def test_an_answer_in_words(api: Api, stand_in: HindsightStandIn) -> None:
    reply = await reflect(api, context="For an invitation.", budget="mid")
    assert reply.status_code == 200, reply.text
    body = reply.json()
    assert body["text"] == "Anne does live in Shanghai."
    assert (body["structured"], body["degraded"], body["reason"]) == (None, False, "")
    (asked,) = stand_in.requests_for("reflect")
    assert asked.body["query"] == "Where does Anne live?\n\nAdditional context: For an invitation."
    assert asked.body["budget"] == "mid"


@pytest.mark.usefixtures("remembered")
async def test_an_answer_in_the_form_asked_for(api: Api) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    body = (await reflect(api, response_schema=json.dumps(schema))).json()
    # What a model gives as an object arrives from Dify as Python prints it.
    assert (await reflect(api, response_schema=str(schema))).json()["structured"] == body["structured"]
    assert body["structured"] == {"city": "Anne does live in Shanghai."}
    as_json = await api.client.post(
        "/memory/reflect",
        json={"user_id": "anne", "query": "Where does Anne live?", "response_schema": schema},
    )
    assert as_json.json()["structured"] == body["structured"]


def _nested(levels: int) -> object:
    schema: object = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"x": schema}}
    return schema


@pytest.mark.parametrize(
    "schema",
    [
        "no json",
        "[]",
        "17",
        "{}",
        '{"type": "string"}',
        '{"type": ["object"]}',
        '{"type": "object", "properties": {"x": {"$ref": "http://127.0.0.1/x"}}}',
        '{"type": "object", "properties": {"x": {"$ref": "#"}}}',
        json.dumps(_nested(30)),
        "[" * 5000,
        json.dumps({"type": "object", "description": "x" * 10_000}),
    ],
)
async def test_a_schema_that_cannot_be_used_is_refused(
    api: Api, stand_in: HindsightStandIn, schema: str
) -> None:
    reply = await reflect(api, response_schema=schema)
    assert reply.status_code == 422, reply.text
    assert "response_schema" in reply.json()["error"]["message"]
    assert not stand_in.requests


@pytest.mark.parametrize("query", ["", " ", "\u0000"])
async def test_a_question_needs_words(api: Api, query: str) -> None:
    assert (await reflect(api, query)).status_code == 422


async def test_nothing_remembered_asks_no_model_and_makes_no_bank(
    api: Api, stand_in: HindsightStandIn
) -> None:
    body = (await reflect(api)).json()
    assert (body["text"], body["degraded"]) == ("", False)
    assert body["reason"].startswith("nothing_remembered: ")
    assert not stand_in.requests_for("reflect")
    assert ANNE not in stand_in.banks


@pytest.mark.usefixtures("remembered")
async def test_without_a_language_model_the_reason_says_what_to_set(
    api: Api, stand_in: HindsightStandIn
) -> None:
    stand_in.fail("reflect", "status", status=400)
    reply = await reflect(api)
    assert reply.status_code == 200
    body = reply.json()
    assert (body["text"], body["structured"], body["degraded"]) == ("", None, True)
    assert body["reason"].startswith("language_model_missing: ")
    assert "MEMORY_LLM_MODEL" in body["reason"]


@pytest.mark.usefixtures("remembered")
@pytest.mark.parametrize("operation", ["reflect", "memories"])
async def test_hindsight_away_is_an_empty_answer(
    api: Api, stand_in: HindsightStandIn, operation: str
) -> None:
    stand_in.fail(operation, "close")
    reply = await reflect(api)
    assert reply.status_code == 200
    assert reply.json()["degraded"] is True
    assert reply.json()["reason"].startswith("hindsight_unavailable: ")


@pytest.mark.usefixtures("remembered")
async def test_the_deadline_is_kept(api: Api, stand_in: HindsightStandIn) -> None:
    stand_in.fail("reflect", "hang")
    started = time.monotonic()
    body = (await reflect(api, timeout_ms="300")).json()
    assert time.monotonic() - started < 5
    assert body["degraded"] is True
    assert body["reason"].startswith("deadline: ")


@pytest.mark.usefixtures("remembered")
async def test_only_a_few_are_answered_at_once_and_the_others_keep_their_deadline(
    api: Api, stand_in: HindsightStandIn
) -> None:
    stand_in.fail("reflect", "hang")
    replies = await asyncio.gather(*(reflect(api, timeout_ms="400") for _ in range(7)))
    assert [reply.json()["reason"].partition(":")[0] for reply in replies] == ["deadline"] * 7
    assert len(stand_in.requests_for("reflect")) == 4


@pytest.mark.usefixtures("remembered")
async def test_what_was_forgotten_meanwhile_is_not_answered(api: Api, stand_in: HindsightStandIn) -> None:
    stand_in.fail("reflect", "slow", seconds=0.3)
    memory_id = next(iter(stand_in.banks[ANNE].memories))

    async with httpx.AsyncClient(base_url=api.url, headers=dict(api.client.headers)) as other:

        async def asked() -> None:
            while not stand_in.requests_for("reflect"):
                await other.get("/health/live")

        answer = asyncio.create_task(reflect(api))
        await asked()
        corrected = await other.post(
            "/memory/correct",
            data={"user_id": "anne", "memory_id": memory_id, "text": "Anne does live in Chengdu."},
        )
        assert corrected.status_code == 200
        body = (await answer).json()
    assert "Shanghai" not in body["text"]
    assert body["reason"].startswith("memory_changed: ")
