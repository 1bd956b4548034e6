"""`/memory/list` and `/memory/correct`: what one user's memory holds, and putting it right."""

import hashlib
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import httpx
import pytest
from fastapi import FastAPI
from service.adapters.hindsight_review import HindsightReview
from service.auth import ALL_SCOPES, Caller, KeyRing, Scope
from service.errors import InvalidRequest, ServiceError
from service.memory.review import Position, list_page, walk
from service.policy.redaction import RedactionPolicy
from service.problems import on_service_error
from service.routes import memories
from service.routes.services import Services
from service.schemas_review import ListRequest
from service.scope import BankId, bank_of, conversation_of
from service.settings import Settings

from tests.fakes.hindsight import HindsightStandIn
from tests.integration.conftest import KEY, Api, Workshop
from tests.support import serve

pytestmark = pytest.mark.anyio

_NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
ANNE = bank_of("default", "anne")


async def listed(api: Api, user: str = "anne", **fields: str) -> httpx.Response:
    """`POST /memory/list` as a form."""
    return await api.client.post("/memory/list", data={"user_id": user, **fields})


async def correct(api: Api, memory_id: str, text: str, user: str = "anne") -> httpx.Response:
    """`POST /memory/correct` as a form."""
    return await api.client.post(
        "/memory/correct", data={"user_id": user, "memory_id": memory_id, "text": text}
    )


def texts(reply: httpx.Response) -> list[str]:
    """Texts of the memories of a list."""
    assert reply.status_code == 200, reply.text
    return [memory["text"] for memory in reply.json()["memories"]]


def put(stand_in: HindsightStandIn, text: str, minutes: int, bank: BankId = ANNE, **fields: object) -> str:
    """A memory said that many minutes after noon; its id."""
    moment = (_NOON + timedelta(minutes=minutes)).isoformat()
    return stand_in.add_memory(bank, text, mentioned_at=moment, **fields).id


@pytest.mark.parametrize("path", ["list", "correct", "import", "reflect"])
async def test_without_a_key_nothing_is_told(api: Api, path: str) -> None:
    assert (await api.stranger.post(f"/memory/{path}")).status_code == 401
    assert (await api.stranger.get("/memory/export")).status_code == 401


@pytest.mark.parametrize(
    ("method", "path", "missing"),
    [
        ("POST", "list", "review"),
        ("POST", "correct", "review"),
        ("GET", "export", "review"),
        ("POST", "import", "review"),
        ("POST", "import", "add"),
        ("POST", "reflect", "recall"),
    ],
)
async def test_a_key_without_the_scope_is_refused(
    settings: Settings, method: str, path: str, missing: str
) -> None:
    caller = Caller("default", "k", ALL_SCOPES - {cast("Scope", missing)})
    known: dict[str, Any] = {
        "settings": settings,
        "keys": KeyRing({hashlib.sha256(KEY.encode()).digest(): caller}),
    }
    parts: dict[str, Any] = {field.name: known.get(field.name) for field in fields(Services)}
    services = Services(**parts)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[dict[str, Any]]:
        yield {"services": services}

    app = FastAPI(lifespan=lifespan, exception_handlers={ServiceError: on_service_error})
    app.include_router(memories.router)
    async with (
        serve(app) as url,
        httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {KEY}"}) as client,
    ):
        reply = await client.request(method, f"/memory/{path}", params={"user_id": "anne"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (403, "scope_missing")


async def test_a_list_has_all_of_a_memory_newest_first(api: Api, stand_in: HindsightStandIn) -> None:
    conversation = conversation_of(ANNE, "talk")
    put(stand_in, "Anne keeps bees.", 0, tags=["memory_type:user_profile", "hobby", conversation])
    newer = put(stand_in, "Anne likes tea.", 5, metadata={"importance": "0.8"})
    reply = (await listed(api)).json()
    assert [memory["text"] for memory in reply["memories"]] == ["Anne likes tea.", "Anne keeps bees."]
    assert reply["next_cursor"] == ""
    assert reply["pending"] == []
    first, second = reply["memories"]
    assert first == {
        "id": newer,
        "text": "Anne likes tea.",
        "kind": None,
        "score": None,
        "importance": 0.8,
        "created_at": "2026-03-01T12:05:00+00:00",
        "pending": False,
        "type": "fact",
        "tags": [],
        "conversation": "",
        "source_ids": [],
    }
    assert (second["kind"], second["tags"], second["conversation"]) == (
        "user_profile",
        ["hobby"],
        conversation,
    )


async def test_nobody_sees_another_users_memories(api: Api, stand_in: HindsightStandIn) -> None:
    put(stand_in, "Anne keeps bees.", 0)
    assert texts(await listed(api, "bert")) == []


async def test_pages_show_everything_once_while_more_is_added(api: Api, stand_in: HindsightStandIn) -> None:
    expected = []
    for minute in range(12):
        # Three of them at the same moment, across the edge of a page.
        moment = 6 if minute in (5, 6, 7) else minute
        expected.append(put(stand_in, f"fact {minute}", moment))
    found: list[str] = []
    cursor = ""
    for _ in range(12):
        reply = (await listed(api, limit="2", cursor=cursor)).json()
        found += [memory["id"] for memory in reply["memories"]]
        put(stand_in, "said meanwhile", 100 + len(found))
        cursor = reply["next_cursor"]
        if not cursor:
            break
    assert sorted(found) == sorted(expected)
    assert len(found) == len(set(found))


async def test_more_memories_of_one_moment_than_a_page_holds(
    stand_in: HindsightStandIn, workshop: Workshop
) -> None:
    ids = {put(stand_in, f"fact {number}", 0) for number in range(7)}
    found = [row.id async for rows in walk(HindsightReview(workshop.hindsight), ANNE, page=2) for row in rows]
    assert len(found) == 7
    assert set(found) == ids


async def test_many_memories_of_one_moment_are_read_once(
    stand_in: HindsightStandIn, workshop: Workshop
) -> None:
    put(stand_in, "newest", 1)
    for number in range(500):
        put(stand_in, f"fact {number}", 0)
    put(stand_in, "oldest", -1)
    found = [
        row.text async for rows in walk(HindsightReview(workshop.hindsight), ANNE, page=20) for row in rows
    ]
    assert (len(found), len(set(found))) == (502, 502)
    # Every page begins with the last memory of the page before.
    assert len(stand_in.requests_for("memories")) <= 502 / 19 + 2


async def test_what_is_removed_or_added_at_the_same_moment_meanwhile_hides_nothing(
    stand_in: HindsightStandIn, workshop: Workshop
) -> None:
    ids = sorted(put(stand_in, f"fact {number}", 0) for number in range(12))
    stored = stand_in.banks[ANNE].memories
    found: list[str] = []
    async for rows in walk(HindsightReview(workshop.hindsight), ANNE, page=4):
        found += [row.id for row in rows]
        if len(found) == 4:
            del stored[ids[0]], stored[ids[3]]
        elif len(found) < 9:
            put(stand_in, "said meanwhile", 0)
    assert len(found) == len(set(found))
    assert set(found) >= set(ids)


async def test_a_list_goes_on_inside_a_moment_that_has_more_than_a_page(
    stand_in: HindsightStandIn, workshop: Workshop
) -> None:
    ids = sorted(put(stand_in, f"fact {number}", 0) for number in range(12))
    older = put(stand_in, "older", -1)
    pages = walk(HindsightReview(workshop.hindsight), ANNE, after=Position(_NOON, ids[8]), page=3)
    assert [row.id async for rows in pages for row in rows] == [*ids[9:], older]


async def test_a_query_is_redacted_before_hindsight_sees_it(api: Api, stand_in: HindsightStandIn) -> None:
    await api.add("anne", "My mail is anne@example.com.")
    put(stand_in, "Anne's mail is [email].", 0)
    put(stand_in, "Anne keeps bees.", 1)
    reply = await listed(api, query="anne@example.com", include_superseded="true")
    assert texts(reply) == ["Anne's mail is [email]."]
    assert len(reply.json()["pending"]) == 1
    (request,) = stand_in.requests_for("memories")
    assert "example.com" not in request.query
    assert "email" in request.query


async def test_a_query_is_masked_where_texts_are_dropped(
    settings: Settings, stand_in: HindsightStandIn, workshop: Workshop
) -> None:
    put(stand_in, "Anne's mail is [email].", 0)
    put(stand_in, "Anne keeps bees.", 1)
    page = await list_page(
        ListRequest.read({"user_id": "anne", "query": "anne@example.com"}),
        ANNE,
        review=HindsightReview(workshop.hindsight),
        log=workshop.log,
        redaction=RedactionPolicy(email="drop"),
    )
    assert [memory.text for memory in page.memories] == ["Anne's mail is [email]."]


@pytest.mark.parametrize("cursor", ["x", "!!!", "MjAyNg", "2026", Position(_NOON, "a" * 32).encode() + "A"])
async def test_a_cursor_that_is_not_ours_is_refused(api: Api, cursor: str) -> None:
    reply = await listed(api, cursor=cursor)
    assert reply.status_code == 422
    assert "cursor" in reply.json()["error"]["message"]
    assert reply.json()["error"]["code"] == "invalid_request"


def test_a_cursor_names_its_place_and_nothing_else() -> None:
    place = Position(_NOON, str(uuid.uuid4()))
    assert Position.decode(place.encode()) == place
    with pytest.raises(InvalidRequest):
        Position.decode(Position(datetime.max.replace(tzinfo=UTC), place.id).encode())


async def test_a_query_finds_words_in_the_text_alone_and_takes_them_as_they_are(
    api: Api, stand_in: HindsightStandIn
) -> None:
    put(stand_in, "我住在杭州", 0)
    put(stand_in, "Discount: 50% for Anne_B", 1)
    put(stand_in, "Anne likes tea.", 2, context="we spoke about 杭州")
    assert texts(await listed(api, query="杭州")) == ["我住在杭州"]
    assert texts(await listed(api, query="LIKES TEA")) == ["Anne likes tea."]
    assert texts(await listed(api, query="50%")) == ["Discount: 50% for Anne_B"]
    assert texts(await listed(api, query="e_B")) == ["Discount: 50% for Anne_B"]
    assert texts(await listed(api, query="%")) == ["Discount: 50% for Anne_B"]
    assert texts(await listed(api, query="Anne\\")) == []


async def test_kinds_filter_and_leave_the_pending_out(api: Api, stand_in: HindsightStandIn) -> None:
    put(stand_in, "Anne keeps bees.", 0, tags=["memory_type:user_profile"])
    put(stand_in, "Anne likes tea.", 1, tags=["memory_type:preference"])
    put(stand_in, "Anne said hello.", 2)
    await api.add("anne", "I also like coffee.")
    assert texts(await listed(api, kinds="preference")) == ["Anne likes tea."]
    assert texts(await listed(api, kinds="preference, user_profile")) == [
        "Anne likes tea.",
        "Anne keeps bees.",
    ]
    assert (await listed(api, kinds="preference")).json()["pending"] == []


async def test_facts_that_an_observation_sums_up_are_left_out_unless_asked_for(
    api: Api, stand_in: HindsightStandIn
) -> None:
    old = put(stand_in, "Anne lives in Hangzhou.", 0)
    new = put(stand_in, "Anne moved to Shanghai.", 5)
    put(stand_in, "Anne lives in Shanghai.", 5, type="observation", source_fact_ids=[old, new])
    assert texts(await listed(api)) == ["Anne lives in Shanghai."]
    (observation,) = (await listed(api)).json()["memories"]
    assert observation["type"] == "observation"
    assert observation["source_ids"] == [old, new]
    everything = texts(await listed(api, include_superseded="true"))
    assert sorted(everything) == [
        "Anne lives in Hangzhou.",
        "Anne lives in Shanghai.",
        "Anne moved to Shanghai.",
    ]


async def test_accepted_turns_are_pending_on_the_first_page_until_they_are_stored(
    api: Api, workshop: Workshop
) -> None:
    await api.add("anne", "I like tea.", timestamp="2026-01-02T03:04:05+08:00")
    await api.add("anne", "I like coffee.")
    reply = (await listed(api)).json()
    assert reply["memories"] == []
    assert ["coffee" in reply["pending"][0]["text"], "tea" in reply["pending"][1]["text"]] == [True, True]
    assert reply["pending"][1]["created_at"] == "2026-01-02T03:04:05+08:00"
    assert reply["pending_count"] == 2
    found = (await listed(api, query="coffee", limit="1")).json()
    assert (len(found["pending"]), found["pending_count"]) == (1, 1)

    await workshop.work()
    reply = (await listed(api, limit="1")).json()
    assert reply["pending"] == []
    assert len(reply["memories"]) == 1
    second = (await listed(api, limit="1", cursor=reply["next_cursor"])).json()
    assert [memory["created_at"] for memory in second["memories"]] == ["2026-01-01T19:04:05+00:00"]


async def test_a_list_that_would_lack_something_is_an_error(api: Api, stand_in: HindsightStandIn) -> None:
    stand_in.fail("memories", "status", status=503)
    reply = await listed(api)
    assert reply.status_code == 503
    assert reply.json()["error"]["code"] == "hindsight_unavailable"


async def test_a_corrected_memory_is_all_that_is_known_from_then_on(
    api: Api, stand_in: HindsightStandIn
) -> None:
    memory_id = put(stand_in, "Anne's cat is called Biscuit.", 0)
    cached = await api.recall("anne", "What is the cat called?")
    assert "Biscuit" in cached.json()["context"]

    reply = await correct(api, memory_id, "Anne's cat is called Marmalade.")
    assert reply.status_code == 200, reply.text
    assert reply.json()["memory"]["id"] == memory_id
    assert reply.json()["memory"]["text"] == "Anne's cat is called Marmalade."
    assert texts(await listed(api)) == ["Anne's cat is called Marmalade."]
    recalled = (await api.recall("anne", "What is the cat called?")).json()
    assert recalled["cached"] is False
    assert "Marmalade" in recalled["context"]
    assert "Biscuit" not in recalled["context"]


async def test_correcting_an_observation_replaces_what_it_rests_on(
    api: Api, stand_in: HindsightStandIn
) -> None:
    old = put(stand_in, "Anne lives in Hangzhou.", 0)
    new = put(stand_in, "Anne moved to Shanghai.", 5)
    other = put(stand_in, "Anne keeps bees.", 1)
    observation = put(stand_in, "Anne lives in Shanghai.", 5, type="observation", source_fact_ids=[old, new])
    reply = await correct(api, observation, "Anne lives in Chengdu.")
    assert reply.status_code == 200, reply.text
    assert reply.json()["memory"]["id"] == new
    assert sorted(stand_in.banks[ANNE].texts) == ["Anne keeps bees.", "Anne lives in Chengdu."]
    assert other in stand_in.banks[ANNE].memories


@pytest.mark.parametrize("done_before", [0, 1])
async def test_an_interrupted_correction_of_an_observation_is_finished_by_its_repetition(
    api: Api, stand_in: HindsightStandIn, done_before: int
) -> None:
    old = put(stand_in, "Anne lives in Hangzhou.", 0)
    new = put(stand_in, "Anne moved to Shanghai.", 5)
    observation = put(stand_in, "Anne lives in Shanghai.", 5, type="observation", source_fact_ids=[old, new])
    if done_before:
        stand_in.fail("memory_update", "slow", times=done_before)
    stand_in.fail("memory_update", "commit_then_close", times=1)
    assert (await correct(api, observation, "Anne lives in Chengdu.")).status_code == 503
    reply = await correct(api, observation, "Anne lives in Chengdu.")
    assert reply.status_code == 200, reply.text
    assert stand_in.banks[ANNE].texts == ["Anne lives in Chengdu."]
    assert (await correct(api, observation, "Anne lives in Wuhan.")).status_code == 404


@pytest.mark.parametrize("memory_id", [str(uuid.UUID(int=7)), "t-nothing", "../x", "0"])
async def test_what_is_not_there_cannot_be_corrected(api: Api, memory_id: str) -> None:
    reply = await correct(api, memory_id, "something")
    assert reply.status_code == 404
    assert reply.json()["error"]["code"] == "not_found"


async def test_another_users_memory_is_not_found_and_stays(api: Api, stand_in: HindsightStandIn) -> None:
    memory_id = put(stand_in, "Anne keeps bees.", 0)
    assert (await correct(api, memory_id, "Anne keeps wasps.", user="bert")).status_code == 404
    assert texts(await listed(api)) == ["Anne keeps bees."]


async def test_what_waits_to_be_stored_says_so_and_can_be_corrected_later(
    api: Api, workshop: Workshop
) -> None:
    await api.add("anne", "I like tea.")
    pending_id = (await listed(api)).json()["pending"][0]["id"]
    reply = await correct(api, pending_id, "Anne likes coffee.")
    assert (reply.status_code, reply.json()["error"]["code"]) == (409, "not_stored_yet")
    await workshop.work()
    assert (await correct(api, pending_id, "Anne likes coffee.")).status_code == 200
    assert texts(await listed(api)) == ["Anne likes coffee."]


async def test_a_correction_is_redacted_like_an_add(api: Api, stand_in: HindsightStandIn) -> None:
    memory_id = put(stand_in, "Anne pays by card.", 0)
    reply = await correct(api, memory_id, "Anne pays with card 4111 1111 1111 1111.")
    assert "4111" not in reply.text
    assert stand_in.banks[ANNE].texts == [reply.json()["memory"]["text"]]


@pytest.mark.parametrize("text", ["", "  ", "\u0000", "x" * 8001])
async def test_a_correction_needs_words(api: Api, stand_in: HindsightStandIn, text: str) -> None:
    memory_id = put(stand_in, "Anne keeps bees.", 0)
    assert (await correct(api, memory_id, text)).status_code == 422
    assert stand_in.banks[ANNE].texts == ["Anne keeps bees."]


async def test_nothing_is_changed_while_hindsight_is_away(api: Api, stand_in: HindsightStandIn) -> None:
    memory_id = put(stand_in, "Anne keeps bees.", 0)
    stand_in.fail("memory_update", "status", times=1, status=503)
    assert (await correct(api, memory_id, "Anne keeps wasps.")).status_code == 503
    assert (await correct(api, memory_id, "Anne keeps wasps.")).status_code == 200
