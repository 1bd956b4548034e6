"""What a turn is: in which shapes it may come, when it is a repetition, and what is stored of it."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from service.policy.content import Message, parse_rendered
from service.settings import Settings

from tests.fakes.hindsight import HindsightStandIn
from tests.integration.conftest import Api, Workshop, open_workshop, run_api, settings_for
from tests.integration.edge import checked, code_of, shared, texts_of
from tests.support import RedisServer, wait_until

pytestmark = pytest.mark.anyio
__all__ = ["shared"]

TEXT = "My locker code is quokka"


def documents(stand_in: HindsightStandIn) -> list[str]:
    """Every stored text, in the order of commit."""
    return [text for bank in stand_in.banks.values() for _, text in bank.written]


def said(stand_in: HindsightStandIn) -> list[Message]:
    """Who is on record with what, in the order of commit."""
    return [message for text in documents(stand_in) for message in parse_rendered(text)]


async def add(api: Api, status: int = 202, **fields: Any) -> Any:
    """`POST /memory/add` as JSON."""
    return checked(await api.client.post("/memory/add", content=json.dumps(fields)), status)


# --- Shapes ---------------------------------------------------------------------------------------------
TURN = [{"role": "user", "content": TEXT}, {"role": "assistant", "content": "Noted."}]


@pytest.mark.parametrize(
    "messages",
    [TURN, json.dumps(TURN), json.dumps(json.dumps(TURN)), repr(TURN), f"\n{tuple(TURN)} "],
)
async def test_messages_as_an_array_as_json_and_as_python_writes_it(
    api: Api, workshop: Workshop, stand_in: HindsightStandIn, user: str, messages: object
) -> None:
    added = await add(api, user_id=user, messages=messages)
    assert (added["status"], added["accepted"], added["skipped"]) == ("queued", 2, 0)
    # However it came, it is the same turn.
    again = await api.add(user, TEXT, "Noted.")
    assert checked(again, 202)["status"] == "duplicate"
    await workshop.work()
    assert said(stand_in) == [Message("user", TEXT), Message("assistant", "Noted.")]


@pytest.mark.parametrize(
    "messages", ["hello", "{", "[1, 2]", 5, True, ["hello"], [[TURN]], "[" * 1000, '[{"role"', "a" * 50_000]
)
async def test_messages_of_another_shape_are_refused(shared: Api, user: str, messages: object) -> None:
    refused = await add(shared, 422, user_id=user, messages=messages)
    assert refused["error"]["code"] == "invalid_request"
    assert "messages must be" in refused["error"]["message"] or "too deeply" in refused["error"]["message"]


async def test_messages_and_a_message_together_are_refused(shared: Api, user: str) -> None:
    for other in ({"user_message": "hi"}, {"assistant_message": "hi"}):
        refused = await add(shared, 422, user_id=user, messages=TURN, **other)
        assert "not both" in refused["error"]["message"]
    nothings: list[object] = ["", "null", "None", "[]", [], None]
    for nothing in nothings:
        added = await add(shared, user_id=user, messages=nothing, user_message=f"hi {nothing!r}")
        assert (added["status"], added["accepted"], added["skipped"]) == ("queued", 1, 0)


# mem0#4435: with an empty or blank message list the model invents memories.
@pytest.mark.parametrize(
    ("fields", "skipped"),
    [
        ({}, 0),
        ({"messages": []}, 0),
        ({"messages": "[]"}, 0),
        ({"messages": ""}, 0),
        ({"messages": "null"}, 0),
        ({"user_message": "", "assistant_message": ""}, 0),
        ({"user_message": " \n\t"}, 1),
        ({"user_message": "\u200b", "assistant_message": "\x00"}, 2),
        ({"messages": [{"role": "user", "content": ""}, {"role": "assistant", "content": "  "}]}, 2),
        ({"messages": [{"role": "user", "content": None}, {"role": "user"}, None]}, 3),
        ({"messages": [{"role": "system", "content": "You are a pirate."}]}, 1),
    ],
)
async def test_nothing_to_keep_is_skipped_and_nothing_is_stored(
    api: Api, workshop: Workshop, stand_in: HindsightStandIn, user: str, fields: dict[str, Any], skipped: int
) -> None:
    added = await add(api, 200, user_id=user, **fields)
    assert (added["status"], added["job_id"], added["accepted"]) == ("skipped", "", 0)
    assert added["skipped"] == skipped
    assert await workshop.work() == 0
    assert stand_in.requests == []
    assert checked(await api.recall(user, "anything at all"), 200)["memories"] == []


# mem0#3646, mem0#5068, xiaozhi#3139: parts with an image, the role `tool`, null content beside tool calls.
async def test_texts_are_kept_and_the_rest_is_dropped_and_counted(
    api: Api, workshop: Workshop, stand_in: HindsightStandIn, user: str
) -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    messages: Sequence[object] = [
        {"role": "system", "content": "You are a pirate."},
        {"role": "user", "content": [{"type": "text", "text": "What is this?"}, picture]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "sunny"},
        {"role": "function", "name": "weather", "content": "22 degrees"},
        {"role": "assistant", "content": "A sunny day."},
        {"role": "user", "content": [picture]},
        {"role": "user", "content": 42},
        "stray",
    ]
    added = await add(api, user_id=user, messages=messages)
    assert (added["status"], added["accepted"], added["skipped"]) == ("queued", 5, 5)
    await workshop.work()
    assert said(stand_in) == [
        Message("user", "What is this?"),
        Message("tool", "sunny"),
        Message("tool", "22 degrees"),
        Message("assistant", "A sunny day."),
        Message("user", "42"),
    ]
    assert (await api.job(added["job_id"]))["status"] == "done"


# hindsight#3908, hindsight#238: a NUL inside a text is a database error, retried for ever.
@pytest.mark.parametrize("odd", ["\x00", "\ud800", "\x07"])
async def test_what_no_store_can_hold_is_taken_out_and_the_turn_is_stored(
    api: Api, workshop: Workshop, stand_in: HindsightStandIn, user: str, odd: str
) -> None:
    first = await add(api, user_id=user, user_message=f"My locker{odd} code is quokka{odd}")
    # The same words: whatever else came with them.
    listed = await add(api, user_id=user, messages=[{"role": "user", "content": f"{odd}{TEXT}"}])
    assert (listed["status"], listed["job_id"]) == ("duplicate", first["job_id"])
    extras: dict[str, Any] = {"tags": "a\x00b", "turn_id": "t\x00", "conversation_id": "c\x00"}
    extras["metadata"] = {f"k{odd}": f"v{odd}"}
    second = await add(api, user_id=user, user_message="And my shoe size is forty", **extras)
    while await workshop.work():
        pass
    assert said(stand_in) == [Message("user", TEXT), Message("user", "And my shoe size is forty")]
    for added in (first, second):
        job = await api.job(added["job_id"])
        assert (job["status"], job["memories_kept"]) == ("done", 1)
    stored = json.dumps([request.body for request in stand_in.requests_for("retain")])
    assert json.dumps(odd)[1:-1] not in stored


# Marinara#3596, MemOS#2255: an emoji at the cut becomes half a character; CJK comes back as \uXXXX.
async def test_every_cut_is_whole_characters_and_cjk_is_literal(
    api: Api, workshop: Workshop, user: str
) -> None:
    text = "👨‍👩‍👧我喜欢喝龙井茶🍵👍🏽 e\u0301té 🇨🇳"
    checked(await api.add(user, text), 202)
    for is_stored in (False, True):
        for max_chars in (*range(1, 16), 100):
            reply = await api.recall(user, "我喜欢喝龙井茶", max_chars=str(max_chars), min_score="0")
            recalled = checked(reply, 200)
            body = reply.content.decode()  # strict: half a character would raise
            assert "\\u" not in body
            assert "\ufffd" not in body
            assert len(recalled["memories"]) == 1
            (cut,) = texts_of(recalled)
            assert not cut.startswith(("\u200d", "\u0301", "\U0001f3fd"))
            assert not cut.rstrip("…").endswith("\u200d")
            # A single visible character may be longer than the least budgets.
            assert len(cut) <= max(max_chars, 8), (is_stored, max_chars)
        assert "我喜欢喝龙井茶" in reply.text
        await workshop.work()


# dify-tool-LongTermMemory#8, dify#21889: a quote, newline or backslash in the user's text breaks the node.
EXACT = (
    'She said "hi"',
    "it's",
    "C:\\temp\\new",
    "a trailing backslash \\",
    "line one\nline two\n\n  indented",
    "tab\there",
    '```json\n{"a": 1}\n```',
    '{"user_id": "victim"}',
    'hi", "user_id": "victim',
    "\\frac{1}{2} $x^2$",
    "100% & more; a=b+c",
    "<b>bold</b> &amp; <!-- x -->",
    "{{#sys.query#}} {% raw %}",
    "我说：“你好”，他答：‘好’",
    "مرحبا \u202eabc",
    "e\u0301 vs é",
    "👍🏽 👨‍👩‍👧 Ada",
    "User: I am not a label\nAssistant: nor am I",
)


@pytest.mark.parametrize("is_form", [True, False])
async def test_a_text_is_stored_to_the_byte(
    api: Api, workshop: Workshop, stand_in: HindsightStandIn, user: str, is_form: bool
) -> None:
    for number, text in enumerate(EXACT):
        fields = {"user_id": user, "user_message": text, "assistant_message": text, "turn_id": str(number)}
        body: dict[str, Any] = {"data": fields} if is_form else {"json": fields}
        assert checked(await api.client.post("/memory/add", **body), 202)["accepted"] == 2
    for text in EXACT[:3]:
        recalled = checked(await api.recall(user, text, top_k="50", max_chars="1000", min_score="0"), 200)
        assert any(text in memory for memory in texts_of(recalled)), (text, recalled)
    while await workshop.work():
        pass
    assert [message.text for message in said(stand_in)] == [text for text in EXACT for _ in range(2)]


# --- Repetitions ----------------------------------------------------------------------------------------
async def test_a_turn_that_comes_again_is_the_same_turn(api: Api, workshop: Workshop, user: str) -> None:
    for turn_id in ("", "run-1"):
        first = checked(await api.add(user, TEXT, "Noted.", turn_id=turn_id), 202)
        assert first["status"] == "queued"
        for _ in range(3):  # before it is stored, and after
            for tags in ("", "a"):
                again = checked(await api.add(user, TEXT, "Noted.", turn_id=turn_id, tags=tags), 202)
                assert (again["status"], again["job_id"]) == ("duplicate", first["job_id"])
            await workshop.work()


async def test_other_words_under_one_turn_id_are_another_turn(
    api: Api, workshop: Workshop, stand_in: HindsightStandIn, user: str
) -> None:
    # Two add nodes of one workflow run share the run's id.
    jobs = {
        checked(await api.add(user, message, answer, turn_id="run-1"), 202)["job_id"]
        for message, answer in ((TEXT, ""), (TEXT, "Noted."), ("", TEXT), (f"{TEXT}.", ""))
    }
    assert len(jobs) == 4
    await workshop.work()
    assert len(documents(stand_in)) == 4


async def test_the_same_words_are_another_turn_elsewhere(shared: Api, user: str) -> None:
    statuses = [
        checked(reply, 202)["status"]
        for reply in (
            await shared.add(user, TEXT),
            await shared.add(user, TEXT, conversation_id="1"),
            await shared.add(user, TEXT, conversation_id="2"),
            await shared.add(user, TEXT, conversation_id="2", turn_id="a"),
            await shared.add(user, TEXT, conversation_id="2", turn_id="b"),
            await shared.add(user, TEXT, conversation_id="2", timestamp="2026-01-31"),
            await shared.add(f"{user}2", TEXT),
        )
    ]
    assert statuses == ["queued"] * 7


async def test_the_same_words_after_the_window_are_another_turn(
    settings: Settings, stand_in: HindsightStandIn, user: str
) -> None:
    brief = settings.model_copy(update={"repeat_window_s": 1})
    async with run_api(brief) as api, open_workshop(brief) as workshop:
        first = checked(await api.add(user, "the blue one"), 202)["job_id"]
        await workshop.work()

        async def is_new() -> bool:
            return bool(checked(await api.add(user, "the blue one"), 202)["job_id"] != first)

        await wait_until(is_new, "the window is over")
        await workshop.work()
        assert documents(stand_in) == ["User: the blue one"] * 2
        (bank,) = stand_in.banks.values()
        assert len(bank.documents) == 2


# hindsight#360, hindsight#826, mem0#4573: the recalled block is stored again, turn after turn.
async def test_the_recalled_block_is_not_stored_again(
    api: Api, workshop: Workshop, stand_in: HindsightStandIn, user: str
) -> None:
    checked(await api.add(user, TEXT), 202)
    await workshop.work()
    for turn in range(20):
        block = checked(await api.recall(user, TEXT, fresh="true"), 200)["context"]
        assert "quokka" in block
        echoes = [
            {"role": "system", "content": block},
            {"role": "user", "content": block},
            {"role": "assistant", "content": f"{block}\n"},
        ]
        added = await add(api, 200, user_id=user, messages=echoes, turn_id=str(turn))
        assert (added["status"], added["skipped"]) == ("skipped", 3)
    await workshop.work()
    assert len(documents(stand_in)) == 1
    # With words of their own around it, only those are kept.
    checked(await api.add(user, f"{block}\n\nWhere is my locker?", f"Here: {block}", turn_id="x"), 202)
    await workshop.work()
    assert said(stand_in)[1:] == [Message("user", "Where is my locker?"), Message("assistant", "Here:")]


# --- What goes with a turn ------------------------------------------------------------------------------
def retained(stand_in: HindsightStandIn) -> list[dict[str, Any]]:
    """The items that Hindsight was asked to retain."""
    return [item for request in stand_in.requests_for("retain") for item in request.body["items"]]


@pytest.mark.parametrize(
    ("timestamp", "moment"),
    [
        ("2026-01-31T09:30:00+08:00", "2026-01-31T09:30:00+08:00"),
        ("2026-01-31T09:30:00Z", "2026-01-31T09:30:00+00:00"),
        ("2026-01-31 09:30", "2026-01-31T09:30:00+00:00"),
        ("2026-01-31", "2026-01-31T00:00:00+00:00"),
    ],
)
async def test_a_timestamp_goes_with_its_turn(
    api: Api, workshop: Workshop, stand_in: HindsightStandIn, user: str, timestamp: str, moment: str
) -> None:
    checked(await api.add(user, TEXT, timestamp=timestamp), 202)
    await workshop.work()
    (item,) = retained(stand_in)
    assert item["timestamp"] == moment
    recalled = checked(await api.recall(user, TEXT), 200)
    assert "2026-01-31" in recalled["context"]


@pytest.mark.parametrize(
    "metadata", ['{"city": "杭州", "floor": 3, "vip": true}', {"city": "杭州", "floor": 3, "vip": True}]
)
async def test_metadata_and_tags_go_with_their_turn(
    api: Api, workshop: Workshop, stand_in: HindsightStandIn, user: str, metadata: object
) -> None:
    await add(api, user_id=user, user_message=TEXT, metadata=metadata, tags="work, 私人，work")
    await workshop.work()
    (item,) = retained(stand_in)
    assert item["metadata"] == {"city": "杭州", "floor": "3", "vip": "true"}
    assert item["tags"][:2] == ["work", "私人"]
    asked = [("work", "all", 1), ("work,x", "any", 1), ("work,x", "all", 0), ("x", "any", 0)]
    for tags, match, count in asked:
        recalled = checked(await api.recall(user, TEXT, tags=tags, tags_match=match), 200)
        assert recalled["count"] == count, tags


async def test_no_id_of_the_caller_reaches_hindsight(
    api: Api, workshop: Workshop, stand_in: HindsightStandIn
) -> None:
    ids = {"conversation_id": "conversation-quokka", "turn_id": "turn-quokka"}
    checked(await api.add("user-quokka", "hello there", **ids), 202)
    await workshop.work()
    checked(await api.recall("user-quokka", "hello there", conversation_id="conversation-quokka"), 200)
    for request in stand_in.requests:
        assert "quokka" not in f"{request.path} {request.query} {request.body} {request.headers}"


# --- Long turns -----------------------------------------------------------------------------------------
# supermemory#1203, hindsight#1817: over 64 KiB wedges the queue.
async def test_a_long_turn_becomes_several_documents_and_one_job(
    api: Api, workshop: Workshop, stand_in: HindsightStandIn, user: str
) -> None:
    question = " ".join(f"Question {number} is about the harbour." for number in range(800))
    answer = "".join(f"第{number}句话讲的是港口。" for number in range(6000))
    added = checked(await api.add(user, question, answer, conversation_id="1"), 202)
    assert (added["status"], added["accepted"]) == ("queued", 2)
    later = checked(await api.add(user, TEXT, conversation_id="2"), 202)
    while await workshop.work():
        pass
    parts = documents(stand_in)[:-1]
    assert len(parts) > 8
    assert all(len(part) <= 8000 for part in parts)
    messages = [message for part in parts for message in parse_rendered(part)]
    # Every part says who speaks, and nothing is lost between them.
    assert "".join(m.text for m in messages if m.role == "user") == question
    assert "".join(m.text for m in messages if m.role == "assistant") == answer
    job = await api.job(added["job_id"])
    assert job["status"] == "done"
    assert isinstance(job["memories_kept"], int)
    assert job["memories_kept"] >= len(parts)
    assert (await api.job(later["job_id"]))["status"] == "done"


async def test_a_turn_over_the_limit_is_refused_and_later_ones_are_taken(
    redis_server: RedisServer, stand_in: HindsightStandIn, user: str
) -> None:
    async with run_api(settings_for(redis_server.url, stand_in.url, max_turn_chars=1000)) as api:
        assert checked(await api.add(user, "字" * 600, "字" * 400), 202)["accepted"] == 2
        reply = await api.add(user, "字" * 600, "字" * 401)
        assert code_of(reply, 413) == "too_large"
        assert "1000" in reply.json()["error"]["message"]
        assert checked(await api.add(user, TEXT), 202)["status"] == "queued"


async def test_several_turns_in_one_request_are_documents_of_their_own_in_order(
    api: Api, workshop: Workshop, stand_in: HindsightStandIn, user: str
) -> None:
    turns = [(f"Question {number}?", f"Answer {number}.") for number in range(5)]
    messages = [
        {"role": role, "content": text}
        for turn in turns
        for role, text in zip(("user", "assistant"), turn, strict=True)
    ]
    added = await add(api, user_id=user, messages=messages)
    assert added["accepted"] == 10
    await workshop.work()
    assert documents(stand_in) == [f"User: {question}\nAssistant: {answer}" for question, answer in turns]
    job = await api.job(added["job_id"])
    assert (job["status"], job["memories_kept"]) == ("done", 5)


async def test_a_request_full_of_tiny_turns_holds_nobody_up(shared: Api, user: str) -> None:
    messages = [{"role": role, "content": "a"} for _ in range(5000) for role in ("user", "assistant")]
    reply = await shared.client.post("/memory/add", json={"user_id": user, "messages": messages})
    checked(reply, 202, 413)
    checked(await shared.add(f"{user}2", TEXT), 202)
