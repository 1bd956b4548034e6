"""External knowledge: registered as Dify registers it, asked as Dify asks."""

import json
from typing import Any

import httpx
import pytest

from tests.fakes.hindsight import HindsightStandIn
from tests.integration.conftest import KEY, Api, Workshop, run_api, settings_for
from tests.integration.edge import shared
from tests.support import RedisServer

pytestmark = pytest.mark.anyio
__all__ = ["shared"]

PATH = "/dify/knowledge/retrieval"


def _is(value: object, operator: str | None = "is", name: object = "user_id") -> dict[str, object]:
    return {"name": name, "comparison_operator": operator, "value": value}


def _body(
    *conditions: dict[str, object], query: str = "Where do I live?", **changes: object
) -> dict[str, Any]:
    body: dict[str, Any] = {
        "retrieval_setting": {"top_k": 4, "score_threshold": 0.0},
        "query": query,
        "knowledge_id": "memory",
        "metadata_condition": {"logical_operator": "and", "conditions": list(conditions)},
    }
    return body | changes


def _read(reply: httpx.Response) -> dict[str, Any]:
    """The reply as Dify reads it: 200, and every record of the contract's shape."""
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"] == "application/json"
    body: dict[str, Any] = reply.json()
    assert reply.text == json.dumps(body, ensure_ascii=False)
    for record in body["records"]:
        assert set(record) == {"content", "score", "title", "metadata"}
        assert isinstance(record["content"], str)
        assert isinstance(record["title"], str)
        assert record["title"]
        assert isinstance(record["score"], float)
        assert 0 <= record["score"] <= 1
        assert isinstance(record["metadata"], dict)
        assert None not in record["metadata"].values()
    return body


def _contents(reply: httpx.Response) -> list[str]:
    return [record["content"] for record in _read(reply)["records"]]


async def test_the_check_of_an_address_passes(shared: Api) -> None:
    """Registration is an empty POST without a content type; 403, 404, 429 and 5xx fail it."""
    reply = await shared.client.post(PATH)
    assert _read(reply) == {"records": [], "reason": "query_required"}


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong-key-0123456789"}])
@pytest.mark.parametrize("body", [None, {}, _body(_is("alice"))])
async def test_a_wrong_key_fails_the_check_of_an_address(
    shared: Api, headers: dict[str, str], body: object
) -> None:
    reply = await shared.stranger.post(PATH, headers=headers, json=body)
    assert reply.status_code == 403, "Dify takes a 401 for a good answer and registers the wrong key"
    assert reply.json()["error_code"] == 1002
    assert "not a network block" in reply.json()["error_msg"]


async def test_finds_one_users_memories_and_nobody_elses(api: Api, workshop: Workshop, user: str) -> None:
    await api.add(user, "I live in Lisbon.")
    await api.add(f"{user}-2", "I live in Porto.")
    for _ in range(2):  # accepted, then stored
        (content,) = _contents(await api.client.post(PATH, json=_body(_is(user))))
        assert "Lisbon" in content
        (content,) = _contents(await api.client.post(PATH, json=_body(_is(f"{user}-2"))))
        assert "Porto" in content
        assert _contents(await api.client.post(PATH, json=_body(_is(f"{user}-3")))) == []
        await workshop.work()


async def test_records_say_when_and_of_what_kind(api: Api, workshop: Workshop, user: str) -> None:
    await api.add(user, "我住在杭州。", timestamp="2026-03-05T10:00:00Z")
    (pending,) = _read(await api.client.post(PATH, json=_body(_is(user), query="我住在哪里？")))["records"]
    assert pending["title"] == "记忆 2026-03-05"
    assert pending["metadata"]["pending"] is True
    await workshop.work()
    (stored,) = _read(await api.client.post(PATH, json=_body(_is(user), query="我住在哪里？")))["records"]
    assert stored["metadata"]["pending"] is False
    assert stored["metadata"]["created_at"].startswith("2026-03-05")
    assert stored["metadata"]["memory_id"]


@pytest.mark.parametrize("operator", ["is", "=", "in", " IS "])
@pytest.mark.parametrize("name", ["user_id", ["user_id"]])
async def test_a_user_is_named_in_each_form_of_a_condition(
    shared: Api, user: str, operator: str, name: object
) -> None:
    await shared.add(user, "I live in Lisbon.")
    for value in (user, [user]):
        assert _contents(await shared.client.post(PATH, json=_body(_is(value, operator, name))))


@pytest.mark.parametrize(
    ("condition", "reason"),
    [
        (None, "user_id_required"),
        ({}, "user_id_required"),
        ({"conditions": []}, "user_id_required"),
        ({"conditions": [_is("")]}, "user_id_required"),
        ({"conditions": [_is(None)]}, "user_id_required"),
        ({"conditions": [_is([])]}, "user_id_required"),
        ({"conditions": [_is(True)]}, "user_id_required"),
        ({"conditions": [_is("DEFAULT-USER")]}, "user_id_required"),
        ({"conditions": [_is("{{#sys.user_id#}}")]}, "user_id_required"),
        ({"conditions": [_is("sys.user_id")]}, "user_id_required"),
        ({"conditions": [_is("preference", name="kind")]}, "user_id_required"),
        ({"conditions": [_is("USER"), _is("USER-2")]}, "identity_conflict"),
        ({"conditions": [_is(["USER", "USER-2"], "in")]}, "identity_conflict"),
        ({"conditions": [_is("USER"), _is("")]}, "identity_conflict"),
        ({"conditions": [_is("USER"), _is("x", name="city")]}, "condition_not_understood"),
        ({"conditions": [_is("USER", "not in", "kind"), _is("USER")]}, "condition_not_understood"),
        (
            {"logical_operator": "or", "conditions": [_is("USER"), _is("x", name="tag")]},
            "condition_not_understood",
        ),
        ({"conditions": "USER"}, "condition_not_understood"),
        ({"conditions": ["USER"]}, "condition_not_understood"),
        *(
            ({"conditions": [_is("USER", operator)]}, "condition_not_understood")
            for operator in (
                "contains", "not contains", "start with", "end with", "is not", "not in", "empty",
                "not empty", "≠", ">", "<", "≥", "≤", "before", "after", "", None,
            )
        ),
    ],
)  # fmt: skip
async def test_without_exactly_one_user_there_is_nothing(
    shared: Api, user: str, condition: object, reason: str
) -> None:
    await shared.add(user, "I live in Lisbon.")
    await shared.add(f"{user}-2", "I live in Porto.")
    body = json.loads(
        json.dumps(_body(metadata_condition=condition))
        .replace("USER", user)
        .replace(f"DEFAULT-{user}", "DEFAULT-USER")
    )
    assert _read(await shared.client.post(PATH, json=body)) == {"records": [], "reason": reason}


async def test_two_identities_in_one_request_find_nothing(shared: Api, user: str) -> None:
    await shared.add(user, "I live in Lisbon.")
    reply = await shared.client.post(PATH, json=_body(_is(user)), params={"user_id": "somebody"})
    assert _read(reply) == {"records": [], "reason": "identity_conflict"}


async def test_the_number_of_records_and_their_least_score(api: Api, workshop: Workshop, user: str) -> None:
    for number in range(8):
        await api.add(user, f"I live in Lisbon, street {number}.", turn_id=f"t-{number}")
    await workshop.work()
    for top_k, most in ((1, 1), (3, 3), ("2", 2), (0, 1), (10**9, 8), (None, 5), ("many", 5)):
        setting = {"top_k": top_k, "score_threshold": 0.0}
        reply = await api.client.post(PATH, json=_body(_is(user), retrieval_setting=setting))
        assert 0 < len(_contents(reply)) <= most, top_k
    everything = _read(await api.client.post(PATH, json=_body(_is(user))))["records"]
    least = everything[0]["score"]
    reply = await api.client.post(
        PATH, json=_body(_is(user), retrieval_setting={"top_k": 50, "score_threshold": least})
    )
    assert all(record["score"] >= least for record in _read(reply)["records"])
    odd: tuple[object, ...] = (
        None,
        "x",
        {"top_k": True, "score_threshold": "high"},
        {"score_threshold": None},
    )
    for value in odd:
        assert _contents(await api.client.post(PATH, json=_body(_is(user), retrieval_setting=value)))


async def test_conditions_on_tags_narrow(shared: Api, user: str) -> None:
    await shared.add(user, "I live in Lisbon.", tags="home")
    await shared.add(user, "I live for music.", tags="hobby")
    (content,) = _contents(
        await shared.client.post(PATH, json=_body(_is(user), _is("home", "contains", "tag")))
    )
    assert "Lisbon" in content


@pytest.mark.parametrize("query", ["", "   ", None, 5, ["x"]])
async def test_a_question_that_is_none_finds_nothing(shared: Api, user: str, query: Any) -> None:
    assert _contents(await shared.client.post(PATH, json=_body(_is(user), query=query))) == []


@pytest.mark.parametrize("content", [b"{", b"[1]", b'"x"', b'{"query": "a", "query": "b"}'])
async def test_a_body_that_cannot_be_read_is_said_in_dify_s_form(shared: Api, content: bytes) -> None:
    reply = await shared.client.post(PATH, content=content, headers={"Content-Type": "application/json"})
    assert reply.status_code == 400
    assert reply.json()["error_code"] == 400
    assert reply.json()["error_msg"].endswith(".")


async def test_a_hanging_hindsight_is_answered_within_dify_s_patience(
    redis_server: RedisServer, stand_in: HindsightStandIn, user: str
) -> None:
    """Dify waits 5 s, whatever the deadline of other recalls is."""
    stand_in.fail("*", "hang")
    settings = settings_for(redis_server.url, stand_in.url, recall_deadline_ms=1000)
    async with run_api(settings) as api:
        await api.add(user, "I live in Lisbon.")
        body = _read(await api.client.post(PATH, json=_body(_is(user)), timeout=5))
    stand_in.heal()
    assert ["Lisbon" in record["content"] for record in body["records"]] == [True], (
        "accepted turns need no one"
    )
    assert body["reason"] == "hindsight_unavailable"


async def test_the_key_as_dify_sends_it_here(shared: Api, user: str) -> None:
    reply = await shared.stranger.post(
        PATH, headers={"Authorization": f"Bearer {KEY}"}, json=_body(_is(user))
    )
    assert _read(reply) == {"records": [], "reason": ""}


async def test_nothing_that_was_asked_is_logged_or_counted(
    shared: Api, user: str, caplog: pytest.LogCaptureFixture
) -> None:
    marker = "quagga-4711"
    await shared.add(f"{user}-{marker}", f"My word is {marker}.")
    caplog.set_level("DEBUG", logger="service")
    bodies = [
        _body(_is(f"{user}-{marker}"), query=f"What is {marker}?"),
        _body(_is(f"{user}-{marker}"), _is(marker), query=marker),
        _body(_is(marker, "contains"), query=marker, knowledge_id=marker),
        _body(_is(marker, name=marker), query=marker),
        {"query": marker, "retrieval_setting": {"top_k": marker}, marker: marker},
    ]
    for body in bodies:
        _read(await shared.client.post(PATH, json=body))
    refused = await shared.client.post(PATH, content=f'{{"query": "{marker}"')
    assert refused.status_code == 400
    told = [refused.text, (await shared.stranger.get("/metrics")).text]
    told += [
        f"{record.getMessage()} {vars(record)}" for record in caplog.records if record.name[:7] == "service"
    ]
    assert any("knowledge_without_records" in text for text in told)
    assert [text for text in told if marker in text] == []


async def test_a_key_of_one_user_needs_no_condition_and_finds_nobody_else(shared: Api, user: str) -> None:
    await shared.add(user, "I live in Lisbon.")
    await shared.add(f"{user}-2", "I live in Porto.")
    fields = {"name": "one", "scopes": "recall", "identity": "bound", "user_id": user}
    made = await shared.client.post("/admin/keys", data=fields)
    assert made.status_code == 201, made.text
    headers = {"Authorization": f"Bearer {made.json()['key']}"}
    for body in (_body(), _body(_is(user)), _body(metadata_condition=None)):
        (content,) = _contents(await shared.stranger.post(PATH, headers=headers, json=body))
        assert "Lisbon" in content
    other = await shared.stranger.post(PATH, headers=headers, json=_body(_is(f"{user}-2")))
    assert _read(other) == {"records": [], "reason": "identity_conflict"}


async def test_a_key_without_the_scope_fails_the_check_of_an_address(shared: Api) -> None:
    made = await shared.client.post("/admin/keys", data={"name": "adder", "scopes": "add"})
    headers = {"Authorization": f"Bearer {made.json()['key']}"}
    reply = await shared.stranger.post(PATH, headers=headers)
    assert (reply.status_code, reply.json()["error_code"]) == (403, 1002)
