"""`/memory/export` and `/memory/import`: carrying memories away and back."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from service.scope import bank_of, conversation_of

from tests.fakes.hindsight import HindsightStandIn
from tests.integration.conftest import Api, Workshop, open_workshop, run_api, settings_for
from tests.support import RedisServer

pytestmark = pytest.mark.anyio

ANNE = bank_of("default", "anne")


async def export(api: Api, user: str = "anne") -> list[dict[str, Any]]:
    """The lines of an export."""
    reply = await api.client.get("/memory/export", params={"user_id": user})
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"] == "application/x-ndjson"
    assert reply.headers["cache-control"] == "no-store"
    return [json.loads(line) for line in reply.text.splitlines()]


async def take_in(api: Api, lines: list[dict[str, Any]], user: str = "anne") -> httpx.Response:
    """Import lines."""
    return await api.client.post(
        "/memory/import",
        params={"user_id": user},
        content="\n".join(json.dumps(line, ensure_ascii=False) for line in lines).encode(),
        headers={"Content-Type": "application/x-ndjson"},
    )


async def test_an_export_holds_all_and_no_ids(
    api: Api, stand_in: HindsightStandIn, workshop: Workshop
) -> None:
    await api.add(
        "anne",
        "我养蜜蜂",
        conversation_id="talk",
        tags="hobby",
        metadata='{"source": "chat"}',
        timestamp="2026-01-02T03:04:05+00:00",
    )
    await workshop.work()
    (memory_id,) = stand_in.banks[ANNE].memories
    stand_in.add_memory(ANNE, "Anne keeps bees.", type="observation", source_fact_ids=[memory_id])
    await api.add("anne", "I like tea.", conversation_id="talk")
    observation, memory, pending, end = await export(api)
    assert observation["type"] == "observation"
    assert memory == {
        "type": "memory",
        "text": "用户：我养蜜蜂",
        "kind": None,
        "said_at": "2026-01-02T03:04:05+00:00",
        "tags": ["hobby"],
        "metadata": {"source": "chat"},
        "conversation": conversation_of(ANNE, "talk"),
    }
    assert (pending["type"], pending["text"]) == ("pending", "User: I like tea.")
    assert end == {"type": "end", "memories": 2, "pending": 1}
    assert memory_id not in json.dumps([observation, memory, pending, end])


async def test_an_export_of_nobody_is_empty_and_of_another_user_too(api: Api) -> None:
    await api.add("anne", "I keep bees.")
    assert await export(api, "bert") == [{"type": "end", "memories": 0, "pending": 0}]


async def test_many_memories_come_page_by_page(api: Api, stand_in: HindsightStandIn) -> None:
    for number in range(450):
        stand_in.add_memory(ANNE, f"fact {number}")
    lines = await export(api)
    assert len({line["text"] for line in lines[:-1]}) == 450
    assert lines[-1] == {"type": "end", "memories": 450, "pending": 0}
    assert [request.query.count("limit=200") for request in stand_in.requests_for("memories")] == [1] * 3


async def test_a_client_sees_that_an_export_broke_off(api: Api, stand_in: HindsightStandIn) -> None:
    for number in range(250):
        stand_in.add_memory(ANNE, f"fact {number}")
    stand_in.fail("memories", "slow", times=1)
    stand_in.fail("memories", "status", status=500)
    with pytest.raises(httpx.RemoteProtocolError):
        await api.client.get("/memory/export", params={"user_id": "anne"})
    assert len(stand_in.requests_for("memories")) == 2


async def test_an_export_that_cannot_begin_says_so(api: Api, stand_in: HindsightStandIn) -> None:
    stand_in.fail("memories", "close")
    reply = await api.client.get("/memory/export", params={"user_id": "anne"})
    assert reply.status_code == 503


@pytest.mark.parametrize("user", ["a:b/../c d", "用户 一", "a+b%20c&x=1", "é"])
async def test_any_user_id_can_be_encoded_into_the_query(api: Api, user: str) -> None:
    await api.add(user, "I keep bees.")
    assert (await export(api, user))[0]["text"] == "User: I keep bees."


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("", 422),
        ("user_id=", 422),
        ("user_id=%20", 422),
        ("user_id=null", 422),
        ("user_id=%FF", 422),
        ("user_id=anne&user_id=bert", 409),
        ("user_id=%7B%7B%23sys.user_id%23%7D%7D", 422),
    ],
)
async def test_a_user_that_is_nobody_is_refused(api: Api, query: str, status: int) -> None:
    assert (await api.client.get(f"/memory/export?{query}")).status_code == status
    assert (await api.client.post(f"/memory/import?{query}", content=b"")).status_code == status


async def test_what_was_carried_away_comes_back_and_is_recalled(
    api: Api, stand_in: HindsightStandIn, workshop: Workshop
) -> None:
    await api.add("anne", "我养蜜蜂", conversation_id="talk", tags="hobby", timestamp="2026-01-02T03:04:05Z")
    await api.add("anne", "My cat is called Biscuit.", conversation_id="talk")
    await workshop.work()
    await api.add("anne", "I like tea.", conversation_id="other")
    lines = await export(api)
    before = sorted(stand_in.banks[ANNE].texts)
    stand_in.store.delete_bank(ANNE)
    await workshop.work()
    stand_in.store.delete_bank(ANNE)

    reply = await take_in(api, lines)
    assert reply.status_code == 202, reply.text
    assert {name: reply.json()[name] for name in ("accepted", "duplicate", "skipped")} == {
        "accepted": 3,
        "duplicate": 0,
        "skipped": 0,
    }
    await workshop.work()
    assert sorted(stand_in.banks[ANNE].texts) == sorted([*before, "User: I like tea."])
    assert "Biscuit" in (await api.recall("anne", "What is my cat called?")).json()["context"]
    again = await export(api)
    assert sorted(map(json.dumps, again)) == sorted(
        json.dumps({**line, "type": "memory"} if line["type"] == "pending" else line)
        for line in [*lines[:-1], {"type": "end", "memories": 3, "pending": 0}]
    )


async def test_an_import_is_idempotent_by_line(
    api: Api, stand_in: HindsightStandIn, workshop: Workshop
) -> None:
    lines = [{"type": "memory", "text": f"fact {number}", "said_at": "2026-01-02"} for number in range(3)]
    assert (await take_in(api, lines[:2])).json()["accepted"] == 2
    assert (await take_in(api, lines)).json()["duplicate"] == 2
    await workshop.work()
    reply = (await take_in(api, [*lines, lines[0]])).json()
    assert (reply["accepted"], reply["duplicate"]) == (0, 4)
    await workshop.work()
    assert sorted(stand_in.banks[ANNE].texts) == ["fact 0", "fact 1", "fact 2"]


async def test_what_is_there_still_is_not_stored_beside_it(
    api: Api, stand_in: HindsightStandIn, workshop: Workshop
) -> None:
    await api.add("anne", "我养蜜蜂", conversation_id="talk", tags="hobby", metadata='{"source": "chat"}')
    await api.add("anne", "My cat is called Biscuit.", conversation_id="talk", timestamp="2026-01-02")
    await workshop.work()
    stand_in.add_memory(ANNE, "Anne keeps bees.", type="observation")
    await api.add("anne", "I like tea.", conversation_id="other")
    lines = await export(api)

    async def take_in_again() -> tuple[int, int, int]:
        reply = (await take_in(api, lines)).json()
        return reply["accepted"], reply["duplicate"], reply["skipped"]

    assert await take_in_again() == (0, 3, 1)
    await workshop.work()
    assert await take_in_again() == (0, 3, 1)
    before = sorted(stand_in.banks[ANNE].texts)
    # Only what is missing comes back.
    forgotten = await api.client.post("/memory/forget", json={"user_id": "anne", "conversation_id": "other"})
    assert forgotten.json()["verified"]
    assert await take_in_again() == (1, 2, 1)
    await workshop.work()
    assert sorted(stand_in.banks[ANNE].texts) == before
    assert (await take_in(api, lines, "bert")).json()[
        "accepted"
    ] == 3  # another user's are no concern of hers


async def test_an_import_waits_for_knowing_what_is_there(api: Api, stand_in: HindsightStandIn) -> None:
    line = {"type": "memory", "text": "fact", "said_at": "2026-01-02"}
    stand_in.fail("memories", "close")
    reply = await take_in(api, [line])
    assert reply.status_code == 503
    stand_in.heal()
    assert (await take_in(api, [line])).json()["accepted"] == 1


async def test_turns_of_a_conversation_come_back_in_the_order_they_were_said(
    api: Api, stand_in: HindsightStandIn, workshop: Workshop
) -> None:
    lines = [
        {"type": "memory", "text": f"fact {day}", "said_at": f"2026-01-{day:02}T00:00:00Z"}
        for day in (3, 1, 4, 2)
    ]
    assert (await take_in(api, lines)).status_code == 202
    await workshop.work()
    assert [text for _, text in stand_in.banks[ANNE].written] == ["fact 1", "fact 2", "fact 3", "fact 4"]


async def test_an_import_is_redacted_like_an_add(api: Api, stand_in: HindsightStandIn) -> None:
    line = {
        "type": "memory",
        "text": "Anne pays with card 4111 1111 1111 1111.",
        "tags": ["anne@example.com"],
        "metadata": {"mail": "anne@example.com"},
    }
    assert (await take_in(api, [line])).json()["accepted"] == 1
    (pending, _) = await export(api)
    assert "4111" not in json.dumps(pending)
    assert "anne@" not in json.dumps(pending)
    # What was redacted once is the same line when it comes again.
    assert (await take_in(api, [line, pending])).json()["duplicate"] >= 1


async def test_an_export_with_as_much_metadata_as_there_can_be_comes_in_again(
    api: Api, stand_in: HindsightStandIn, workshop: Workshop
) -> None:
    own = {f"name {number}": "v" for number in range(20)}
    metadata = {**own, "importance": "0.80", "subject": "user", "partial": "true"}
    tags = ["memory_type:preference", conversation_of(ANNE, "talk")]
    stand_in.add_memory(ANNE, "Anne keeps bees.", tags=tags, metadata=metadata)
    lines = await export(api)
    stand_in.store.delete_bank(ANNE)
    reply = await take_in(api, lines)
    assert reply.status_code == 202, reply.text
    await workshop.work()
    assert await export(api) == lines


async def test_what_redaction_made_longer_comes_in_again(api: Api, workshop: Workshop) -> None:
    spoken = "password: a1, password: b2, password: c3"
    added = await api.add(
        "anne",
        "I keep bees.",
        tags="a@b.cc " * 9 + ", bees",
        metadata=json.dumps({"mails": "a@b.cc " * 70, "words": spoken}),
    )
    assert added.status_code == 202, added.text
    lines = await export(api)
    assert len(lines[0]["tags"][0]) > 64
    assert len(lines[0]["metadata"]["mails"]) > 500
    assert (await take_in(api, lines, "bert")).json()["accepted"] == 1
    await workshop.work()
    for user in ("anne", "bert"):
        memory, _ = await export(api, user)
        assert (memory["tags"], memory["metadata"]) == (lines[0]["tags"], lines[0]["metadata"])


async def test_a_long_memory_comes_in_again_where_turns_must_be_short(
    stand_in: HindsightStandIn, redis_server: RedisServer
) -> None:
    await redis_server.command("FLUSHALL")
    stand_in.add_memory(ANNE, "bees " * 1000)
    async with run_api(settings_for(redis_server.url, stand_in.url, max_turn_chars=100)) as api:
        assert (await take_in(api, await export(api), "bert")).json()["accepted"] == 1


async def test_memories_that_differ_in_tags_or_metadata_alone_are_all_kept(
    api: Api, stand_in: HindsightStandIn, workshop: Workshop
) -> None:
    line = {"type": "memory", "text": "Anne ran.", "said_at": "2026-01-02T00:00:00+00:00"}
    others: list[dict[str, Any]] = [
        {"metadata": {"source": "a"}},
        {"metadata": {"source": "b"}},
        {"metadata": {"source": "b", "x": "y"}},
        {"tags": ["source", "b"]},
        {"tags": ["source"]},
        {"kind": "preference"},
        {},
    ]
    lines: list[dict[str, Any]] = [{**line, **other} for other in others]
    assert (await take_in(api, lines)).json()["accepted"] == len(lines)
    # The order of names and tags says nothing.
    again: list[dict[str, Any]] = [
        {**line, "metadata": {"x": "y", "source": "b"}},
        {**line, "tags": ["b", "source"]},
    ]
    assert (await take_in(api, again)).json()["duplicate"] == 2
    await workshop.work()
    assert len(stand_in.banks[ANNE].memories) == len(lines)


async def test_tags_that_are_not_taken_do_not_count(api: Api) -> None:
    tags = ["importance:1", *(f"tag {number}" for number in range(20)), f"t-{'b' * 48}"]
    assert (await take_in(api, [{"type": "memory", "text": "Anne ran.", "tags": tags}])).status_code == 202
    assert len((await export(api))[0]["tags"]) == 20


async def test_tags_that_only_the_service_gives_are_not_taken_from_a_line(
    api: Api, stand_in: HindsightStandIn, workshop: Workshop
) -> None:
    forged = [
        f"c-{'a' * 48}",
        f"t-{'b' * 48}",
        "memory_type:user_profile",
        "importance:1",
        "Importance:\u00001",
    ]
    line = {
        "type": "memory",
        "text": "Anne ran.",
        "tags": [*forged, " memory_type:x", "sport"],
        "metadata": {},
    }
    assert (await take_in(api, [line])).json()["accepted"] == 1
    await workshop.work()
    (memory,) = stand_in.banks[ANNE].memories.values()
    assert memory.tags == ["sport", conversation_of(ANNE, "")]


@pytest.mark.parametrize(
    ("kind", "tags"),
    [
        ("preference", ["memory_type:preference"]),
        ("gossip", []),
        ("Preference", []),
        ("", []),
        ("preference ", []),
        (f"x{'y' * 100}", []),
    ],
)
async def test_a_kind_is_taken_only_if_the_policy_has_it(
    api: Api, stand_in: HindsightStandIn, workshop: Workshop, kind: str, tags: list[str]
) -> None:
    line = {"type": "memory", "text": "Anne ran.", "kind": kind}
    assert (await take_in(api, [line])).json()["accepted"] == 1
    await workshop.work()
    (memory,) = stand_in.banks[ANNE].memories.values()
    assert memory.tags == [*tags, conversation_of(ANNE, "")]


async def test_kinds_and_redaction_are_those_of_the_policy_file(
    stand_in: HindsightStandIn, redis_server: RedisServer, tmp_path: Path
) -> None:
    await redis_server.command("FLUSHALL")
    policy = tmp_path / "policy.yaml"
    policy.write_text("version: 1\ndefault: {kinds: [{name: hobby}], redaction: {email: drop}}\n")
    settings = settings_for(redis_server.url, stand_in.url, policy_file=policy)
    # What is left of the tag once its first sentence is dropped is one of those not taken.
    tags = ["Mail anne@example.com. importance:1", "sport"]
    lines: list[dict[str, Any]] = [
        {"type": "memory", "text": "Anne ran.", "kind": kind, "tags": tags}
        for kind in ("hobby", "preference")
    ]
    async with run_api(settings) as api, open_workshop(settings) as workshop:
        assert (await take_in(api, lines)).json()["accepted"] == 2
        await workshop.work()
    kept = sorted(memory.tags for memory in stand_in.banks[ANNE].memories.values())
    conversation = conversation_of(ANNE, "")
    assert kept == [["sport", conversation], ["sport", "memory_type:hobby", conversation]]


async def test_observations_and_empty_lines_are_left_out(api: Api) -> None:
    reply = await take_in(
        api,
        [
            {"type": "observation", "text": "Anne keeps bees."},
            {"type": "memory", "text": " \u0000 "},
            {"type": "end", "memories": 2, "pending": 0},
        ],
    )
    assert (reply.json()["accepted"], reply.json()["skipped"]) == (0, 2)


@pytest.mark.parametrize(
    "line",
    [
        "no json",
        "[]",
        "1",
        "[" * 5000,
        '{"text": "no type"}',
        '{"type": "memory"}',
        '{"type": "memory", "text": 5}',
        '{"type": "memory", "text": "x", "said_at": "soon"}',
        '{"type": "memory", "text": "x", "said_at": 5}',
        '{"type": "memory", "text": "x", "tags": "x"}',
        '{"type": "memory", "text": "x", "tags": [1]}',
        '{"type": "memory", "text": "x", "tags": ["' + "y" * 1000 + '"]}',
        json.dumps({"type": "memory", "text": "x", "tags": [f"tag {number}" for number in range(21)]}),
        '{"type": "memory", "text": "x", "metadata": []}',
        json.dumps({"type": "memory", "text": "x", "metadata": {str(number): "" for number in range(21)}}),
        json.dumps({"type": "memory", "text": "x", "metadata": {"y" * 65: "1"}}),
        json.dumps({"type": "memory", "text": "x", "metadata": {"a": "y" * 7000}}),
        '{"type": "memory", "text": "x", "metadata": {"a": null}}',
        '{"type": "memory", "text": "x", "metadata": {"a": {"b": 1}}}',
        '{"type": "memory", "text": "x", "kind": 1}',
        '{"type": "memory", "text": "x", "conversation": 1}',
    ],
)
async def test_a_line_that_is_none_is_named_and_nothing_is_taken(api: Api, line: str) -> None:
    body = '{"type": "memory", "text": "good"}\n\n' + line
    reply = await api.client.post("/memory/import", params={"user_id": "anne"}, content=body.encode())
    assert reply.status_code == 422, reply.text
    assert "Line 3 " in reply.json()["error"]["message"]
    assert await export(api) == [{"type": "end", "memories": 0, "pending": 0}]


async def test_an_import_over_the_limit_can_be_sent_again(
    stand_in: HindsightStandIn, redis_server: RedisServer
) -> None:
    await redis_server.command("FLUSHALL")
    lines = [{"type": "memory", "text": f"fact {number}"} for number in range(5)]
    async with run_api(settings_for(redis_server.url, stand_in.url, max_waiting_per_user=3)) as api:
        assert (await take_in(api, lines)).status_code == 429
        assert len(await export(api)) == 4
    async with run_api(settings_for(redis_server.url, stand_in.url)) as api:
        reply = (await take_in(api, lines)).json()
        assert (reply["accepted"], reply["duplicate"]) == (2, 3)


async def test_a_line_that_is_too_long_is_refused(api: Api) -> None:
    reply = await take_in(api, [{"type": "memory", "text": "x" * 200_001}])
    assert reply.status_code == 413
    assert "Line 1 " in reply.json()["error"]["message"]


async def test_a_body_that_is_too_large_is_refused(
    stand_in: HindsightStandIn, redis_server: RedisServer
) -> None:
    async with run_api(settings_for(redis_server.url, stand_in.url, max_body_bytes=1024)) as api:
        reply = await take_in(api, [{"type": "memory", "text": "x" * 2000}])
    assert reply.status_code == 413
