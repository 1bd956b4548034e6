"""Requests in every representation, replies to the byte, statuses, jobs."""

import asyncio
import json
from typing import Any

import pytest

from tests.fakes.hindsight import HindsightStandIn
from tests.integration.conftest import Api, Workshop, run_api, settings_for
from tests.integration.edge import checked, code_of, shared, texts_of
from tests.support import RedisServer

pytestmark = pytest.mark.anyio
__all__ = ["shared"]

TEXT = "My locker code is quokka"


async def test_a_recall_reply_has_exactly_the_documented_fields(
    api: Api, workshop: Workshop, user: str
) -> None:
    checked(await api.add(user, TEXT, timestamp="2026-01-31T09:30:00+08:00"), 202)
    for is_pending in (True, False):
        reply = await api.recall(user, TEXT)
        recalled = checked(reply, 200)
        assert list(recalled) == [
            "context",
            "memories",
            "count",
            "filtered_count",
            "cached",
            "stale",
            "degraded",
            "reason",
            "request_id",
        ]
        (memory,) = recalled["memories"]
        assert list(memory) == ["id", "text", "kind", "score", "importance", "created_at", "pending"]
        assert memory["pending"] is is_pending
        assert memory["created_at"].startswith("2026-01-31T")
        assert 0 <= memory["score"] <= 1
        assert recalled["count"] == 1
        flags = recalled["cached"], recalled["stale"], recalled["degraded"], recalled["reason"]
        assert flags == (False, False, False, "")
        again = checked(await api.recall(user, TEXT), 200)
        assert again.pop("request_id") != recalled.pop("request_id")
        assert again == {**recalled, "cached": True}
        await workshop.work()


async def test_an_add_reply_has_exactly_the_documented_fields(shared: Api, user: str) -> None:
    added = checked(await shared.add(user, TEXT, "Noted."), 202)
    job_id = added["job_id"]
    assert list(added) == [
        "status",
        "job_id",
        "accepted",
        "skipped",
        "redacted",
        "searchable_now",
        "request_id",
    ]
    assert job_id.isalnum()
    expected = {"status": "queued", "accepted": 2, "skipped": 0, "redacted": 0, "searchable_now": True}
    assert {name: added[name] for name in expected} == expected
    # One job per turn: a repetition gets the first one's.
    repeated = checked(await shared.add(user, TEXT, "Noted."), 202)
    assert (repeated["status"], repeated["job_id"]) == ("duplicate", job_id)
    skipped = checked(await shared.add(user, "", ""), 200)
    assert (skipped["status"], skipped["job_id"], skipped["accepted"]) == ("skipped", "", 0)


async def test_a_job_reply_has_exactly_the_documented_fields(api: Api, workshop: Workshop, user: str) -> None:
    job_id = checked(await api.add(user, TEXT), 202)["job_id"]
    job = checked(await api.client.get(f"/memory/jobs/{job_id}"), 200)
    assert list(job) == ["job_id", "status", "memories_kept", "reason", "accepted_at", "finished_at"]
    assert (job["job_id"], job["status"], job["memories_kept"], job["finished_at"]) == (
        job_id,
        "queued",
        0,
        None,
    )
    waiting = asyncio.create_task(api.client.get(f"/memory/jobs/{job_id}", params={"wait_s": "30"}))
    await workshop.work()
    done = checked(await waiting, 200)
    assert (done["status"], done["memories_kept"], done["reason"]) == ("done", 1, "")
    assert done["accepted_at"] == job["accepted_at"] <= done["finished_at"]


async def test_a_count_that_is_not_known_is_null(
    api: Api, workshop: Workshop, stand_in: HindsightStandIn, user: str
) -> None:
    stand_in.fail("document", "status", status=503)
    job_id = checked(await api.add(user, TEXT), 202)["job_id"]
    await workshop.work()
    job = checked(await api.client.get(f"/memory/jobs/{job_id}"), 200)
    assert (job["status"], job["memories_kept"], job["reason"]) == ("done", None, "")
    document: Any = (await api.client.get("/openapi.json")).json()
    kept = document["components"]["schemas"]["JobReply"]["properties"]["memories_kept"]
    assert kept["anyOf"] == [{"type": "integer"}, {"type": "null"}]
    assert "null" in kept["description"]


async def test_waiting_for_a_job_that_does_not_end_ends_itself(shared: Api, user: str) -> None:
    job_id = checked(await shared.add(user, TEXT), 202)["job_id"]
    job = checked(await shared.client.get(f"/memory/jobs/{job_id}", params={"wait_s": "0.05"}), 200)
    assert job["status"] == "queued"


async def test_a_failed_job_gives_a_reason_that_is_not_empty(
    api: Api, workshop: Workshop, stand_in: HindsightStandIn, user: str
) -> None:
    stand_in.fail("retain", "status", status=422)
    job_id = checked(await api.add(user, TEXT), 202)["job_id"]
    await workshop.work()
    job = checked(await api.client.get(f"/memory/jobs/{job_id}"), 200)
    assert job["status"] == "failed"
    assert job["reason"]
    assert job["finished_at"]
    assert "quokka" not in json.dumps(job)


@pytest.mark.parametrize("representation", ["form", "json", "json of texts", "json with nothing"])
async def test_one_recall_in_every_representation(shared: Api, user: str, representation: str) -> None:
    checked(await shared.add(user, TEXT, conversation_id="elsewhere"), 202)
    fields: dict[str, Any] = {
        "user_id": user,
        "query": TEXT,
        "top_k": 3,
        "max_chars": 50,
        "max_total_chars": 500,
        "min_score": 0,
        "budget": "mid",
        "conversation_id": "here",
        "format": "json",
        "language": "en",
        "fresh": True,
        "on_error": "empty",
        "timeout_ms": 1500,
    }
    nothing = {"kinds": "", "tags": "null", "tags_match": ""}
    if representation == "form":
        reply = await shared.client.post(
            "/memory/recall", data={k: str(v) for k, v in fields.items()} | nothing
        )
    elif representation == "json":
        reply = await shared.client.post("/memory/recall", json=fields)
    elif representation == "json of texts":
        reply = await shared.client.post(
            "/memory/recall", json={k: str(v) for k, v in fields.items()} | nothing
        )
    else:
        least: dict[str, Any] = {"user_id": user, "query": TEXT}
        reply = await shared.client.post("/memory/recall", json=dict.fromkeys(fields, None) | least | nothing)
    assert texts_of(checked(reply, 200)) == [TEXT]


@pytest.mark.parametrize("value", [1, 1.0, "1", "1.0", " 1 "])
async def test_top_k_counts_in_each_of_its_forms(shared: Api, user: str, value: object) -> None:
    for number in range(3):
        checked(await shared.add(user, f"{TEXT} {number}"), 202)
    reply = await shared.client.post("/memory/recall", json={"user_id": user, "query": TEXT, "top_k": value})
    recalled = checked(reply, 200)
    assert (recalled["count"], len(recalled["memories"])) == (1, 1)


async def test_the_default_is_five_memories_of_a_hundred_characters(shared: Api, user: str) -> None:
    for number in range(8):
        checked(await shared.add(user, f"{TEXT} {number} " + "and on it goes " * 20), 202)
    recalled = checked(await shared.recall(user, TEXT), 200)
    assert len(recalled["memories"]) == 5
    assert all(0 < len(text) <= 100 for text in texts_of(recalled))


@pytest.mark.parametrize(
    "fields",
    [
        {"top_k": "0"},
        {"top_k": "51"},
        {"top_k": "5.5"},
        {"top_k": "five"},
        {"max_chars": "0"},
        {"max_chars": "10001"},
        {"max_total_chars": "-1"},
        {"max_total_chars": "100001"},
        {"min_score": "1.5"},
        {"min_score": "-nan"},
        {"budget": "huge"},
        {"tags_match": "some"},
        {"format": "xml"},
        {"language": "fr"},
        {"fresh": "maybe"},
        {"on_error": "ignore"},
        {"timeout_ms": "60001"},
        {"tags": ",".join("abcdefghijklmnopqrstuvwxyz")},
        {"kinds": "x" * 65},
        {"conversation_id": "x" * 1025},
    ],
)
async def test_a_recall_field_out_of_its_limits_is_refused_by_name(
    shared: Api, user: str, fields: dict[str, str]
) -> None:
    reply = await shared.recall(user, TEXT, **fields)
    assert code_of(reply, 422) == "invalid_request"
    assert next(iter(fields)) in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    "fields",
    [
        {"timestamp": "yesterday"},
        {"timestamp": "0001-01-01"},
        {"tags": "x" * 65},
        {"metadata": "a=b"},
        {"metadata": "[]"},
        {"metadata": '{"a": ["b"]}'},
        {"turn_id": "x" * 1025},
        {"conversation_id": "x" * 1025},
    ],
)
async def test_an_add_field_out_of_its_limits_is_refused_by_name(
    shared: Api, user: str, fields: dict[str, str]
) -> None:
    reply = await shared.add(user, TEXT, **fields)
    assert code_of(reply, 422) == "invalid_request"
    assert next(iter(fields)) in reply.json()["error"]["message"]
    assert checked(await shared.recall(user, TEXT), 200)["memories"] == []


async def test_format_text_is_exactly_the_block_and_empty_when_there_is_nothing(
    api: Api, workshop: Workshop, user: str
) -> None:
    nothing = await api.recall(user, TEXT, format="text")
    assert (nothing.status_code, nothing.content) == (200, b"")
    checked(await api.add(user, "我的储物柜密码是考拉"), 202)
    for _ in range(2):  # computed, then from the cache
        block = await api.recall(user, "我的储物柜密码是考拉", format="text")
        assert block.status_code == 200
        assert "考拉" in block.text
        assert block.text == checked(await api.recall(user, "我的储物柜密码是考拉"), 200)["context"]
        for reply in (nothing, block):
            assert reply.headers["content-type"] == "text/plain; charset=utf-8"
            assert reply.headers["cache-control"] == "no-store"
            assert reply.headers["x-request-id"]
            assert int(reply.headers["content-length"]) == len(reply.content)
    # A refusal is JSON all the same.
    code_of(await api.recall("", TEXT, format="text"), 422)


async def test_a_query_without_a_word_is_answered_empty_with_a_reason(shared: Api, user: str) -> None:
    checked(await shared.add(user, TEXT), 202)
    for query in ("", " ", "???", "😀", "。。。", "\x00", "null" * 0):
        recalled = checked(await shared.recall(user, query), 200)
        assert (recalled["memories"], recalled["context"], recalled["reason"]) == ([], "", "no_words")
        assert not recalled["degraded"]


async def test_a_query_may_hold_anything_text_can_hold(shared: Api, user: str) -> None:
    checked(await shared.add(user, TEXT), 202)
    for odd in (
        "\x00",
        "\ud800",
        "\udfff",
        "\\",
        '"',
        "\r\n",
        "\u202e",
        "ﷺ",
        "字",
        "😀",
        "\ufeff",
        "%00",
        "{{#x#}}",
    ):
        body = json.dumps({"user_id": user, "query": f"{TEXT}{odd} {odd}"})
        assert texts_of(checked(await shared.client.post("/memory/recall", content=body), 200)) == [TEXT]


async def test_a_query_of_many_characters_is_taken_by_its_end(
    redis_server: RedisServer, stand_in: HindsightStandIn, user: str
) -> None:
    async with run_api(settings_for(redis_server.url, stand_in.url)) as api:
        checked(await api.add(user, TEXT), 202)
        checked(await api.recall(user, "x" * 500_000 + f" {TEXT}"), 200)
        (request,) = stand_in.requests_for("recall")
        assert request.body["query"].endswith(TEXT)
        assert len(request.body["query"]) <= 1000


async def test_a_memory_out_of_reach_is_an_empty_answer_or_an_error_if_asked_for(
    api: Api, stand_in: HindsightStandIn, user: str
) -> None:
    stand_in.fail("recall", "status", status=503)
    recalled = checked(await api.recall(user, TEXT), 200)
    assert recalled["memories"] == []
    assert recalled["degraded"] is True
    assert recalled["reason"]
    reply = await api.recall(user, f"{TEXT}!", on_error="fail")
    assert code_of(reply, 503) == "unavailable"
    assert int(reply.headers["retry-after"]) > 0


async def test_a_log_out_of_reach_is_no_acknowledgement(
    api: Api, redis_server: RedisServer, user: str
) -> None:
    await redis_server.stop()
    try:
        reply = await api.add(user, TEXT)
        if reply.status_code != 202:
            code = checked(reply, 503)["error"]["code"]
            assert code in ("turns_log_unavailable", "unavailable")
            assert int(reply.headers["retry-after"]) > 0
    finally:
        await redis_server.start()


async def test_health_and_metrics_answer(api: Api) -> None:
    assert checked(await api.stranger.get("/health/live"), 200) == {"status": "alive"}
    ready = checked(await api.stranger.get("/health/ready"), 200)
    assert ready["status"] in ("ok", "degraded")
    metrics = await api.stranger.get("/metrics")
    assert metrics.headers["content-type"].startswith("text/plain")
    assert 'memory_requests_total{route="/health/live",status="200"} 1.0' in metrics.text
