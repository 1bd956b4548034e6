"""Review on the real Hindsight: list, correct, export and import, reflect, retention."""

import asyncio
import json
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from service.scope import bank_of

from tests.e2e.conftest import LlmStack, Stack, clean_environment
from tests.support import wait_until

pytestmark = [pytest.mark.anyio, pytest.mark.hindsight]


async def add(stack: Stack, user: str, message: str, **fields: str) -> None:
    """Add a turn and wait until it is stored."""
    async with stack.client as client:
        reply = await client.post(
            "/memory/add",
            data={"user_id": user, "user_message": message, "assistant_message": "OK", **fields},
        )
        assert reply.status_code == 202, reply.text
        await done(stack, reply.json()["job_id"])


async def done(stack: Stack, job_id: str) -> None:
    """Wait until a job is done."""

    async def is_done() -> bool:
        async with stack.client as client:
            state = (await client.get(f"/memory/jobs/{job_id}", params={"wait_s": 10})).json()
        assert state["status"] not in ("failed", "cancelled"), state
        return bool(state["status"] == "done")

    await wait_until(is_done, "the turn is stored", timeout_s=90, not_yet=())


async def post(stack: Stack, path: str, user: str, **fields: str) -> dict[str, Any]:
    """A form to one of our routes; its reply."""
    async with stack.client as client:
        reply = await client.post(f"/memory/{path}", data={"user_id": user, **fields})
    assert reply.status_code == 200, reply.text
    body: dict[str, Any] = reply.json()
    return body


async def listed(stack: Stack, user: str, **fields: str) -> list[dict[str, Any]]:
    """All memories of a user, over all pages."""
    found: list[dict[str, Any]] = []
    cursor = ""
    while True:
        page = await post(stack, "list", user, cursor=cursor, **fields)
        found += page["memories"]
        cursor = page["next_cursor"]
        if not cursor:
            return found


async def context(stack: Stack, user: str, query: str) -> str:
    """The block that recall answers."""
    reply = await post(stack, "recall", user, query=query, timeout_ms="8000")
    assert reply["degraded"] is False, reply
    return str(reply["context"])


async def retention(stack: Stack, *words: str) -> str:
    """What `dify-memory retention` says."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "service.cli.main", "retention", *words,
        env={**clean_environment(), "MEMORY_DATA_DIR": str(stack.data_dir)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    said, _ = await process.communicate()
    assert process.returncode == 0, said.decode()
    return said.decode()


def days_ago(days: int) -> str:
    """A moment that many days ago, ISO 8601."""
    return (datetime.now(UTC) - timedelta(days=days)).isoformat(timespec="seconds")


async def test_a_list_shows_each_memory_once_newest_first_and_finds_words(stack: Stack, user: str) -> None:
    said = ["My cat is called Biscuit.", "我喜欢龙井茶，100%", "I drive a blue Volvo.", "I play the cello."]
    for number, message in enumerate(said):
        await add(stack, user, message, timestamp=days_ago(10 - number), conversation_id="one")
    found = await listed(stack, user, limit="1")
    assert [next(text for text in said if text in memory["text"]) for memory in found] == said[::-1]
    assert all(memory["created_at"] for memory in found)
    assert len({memory["conversation"] for memory in found}) == 1
    for query in ("龙井", "0%"):
        assert [memory["text"] for memory in await listed(stack, user, query=query)] == [found[2]["text"]]
    # The neighbours' context holds it, too; it is not what they say.
    assert len(await listed(stack, user, query="biscuit")) == 1
    assert await listed(stack, user, query="c_ll") == []
    assert await listed(stack, f"{user}x") == []


async def test_a_corrected_memory_is_found_by_its_new_meaning(stack: Stack, user: str) -> None:
    await add(stack, user, "我对花生过敏。", conversation_id="one")
    await add(stack, user, "I live in Oslo.", conversation_id="two")
    assert "花生" in await context(stack, user, "我有什么食物不能吃？")
    (memory,) = await listed(stack, user, query="花生")
    corrected = await post(stack, "correct", user, memory_id=memory["id"], text="用户最喜欢的运动是羽毛球。")
    assert corrected["memory"]["text"] == "用户最喜欢的运动是羽毛球。"
    assert "花生" not in await context(stack, user, "我有什么食物不能吃？")
    reply = await post(stack, "recall", user, query="我常打什么球？", top_k="1", timeout_ms="8000")
    assert "羽毛球" in reply["context"], reply
    assert sorted(memory["text"] for memory in await listed(stack, user)) == sorted(
        ["用户最喜欢的运动是羽毛球。", "User: I live in Oslo.\nAssistant: OK"]
    )
    async with stack.client as client:
        foreign = await client.post(
            "/memory/correct", data={"user_id": f"{user}x", "memory_id": memory["id"], "text": "wrong"}
        )
    assert foreign.status_code == 404


async def test_what_was_carried_away_comes_back_after_all_was_forgotten(stack: Stack, user: str) -> None:
    await add(stack, user, "My cat is called Biscuit.", conversation_id="one", tags="pets")
    await add(stack, user, "我住在杭州。", conversation_id="two", timestamp=days_ago(30))
    async with stack.client as client:
        exported = (await client.get("/memory/export", params={"user_id": user})).text
        assert [json.loads(line)["type"] for line in exported.splitlines()] == ["memory", "memory", "end"]
        forgotten = await client.post("/memory/forget", data={"user_id": user, "all": "true"})
        assert forgotten.status_code == 200, forgotten.text
    assert await listed(stack, user) == []
    assert await context(stack, user, "What is my cat called?") == ""

    async def take_in() -> dict[str, Any]:
        async with stack.client as client:
            reply = await client.post(
                "/memory/import", params={"user_id": user}, content=exported.encode("utf-8")
            )
        assert reply.status_code == 202, reply.text
        body: dict[str, Any] = reply.json()
        return body

    async def is_back() -> bool:
        return len(await listed(stack, user)) == 2 and not (await post(stack, "list", user))["pending"]

    assert (await take_in())["accepted"] == 2
    await wait_until(is_back, "what was imported is stored", timeout_s=60, poll_s=0.2)
    assert "Biscuit" in await context(stack, user, "What is my cat called?")
    assert (await take_in())["duplicate"] == 2
    async with stack.client as client:
        again = (await client.get("/memory/export", params={"user_id": user})).text
    assert sorted(again.splitlines()) == sorted(exported.splitlines())


async def test_without_a_language_model_reflect_says_what_is_missing(stack: Stack, user: str) -> None:
    assert (await post(stack, "reflect", user, query="Where do I live?"))["reason"].startswith("nothing_")
    await add(stack, user, "I live in Oslo.")
    reply = await post(stack, "reflect", user, query="Where do I live?")
    assert reply["degraded"] is True
    assert reply["reason"].startswith("language_model_missing: ")


async def test_retention_deletes_by_when_it_was_said(stack: Stack, user: str) -> None:
    await add(stack, user, "My first cat was called Crumb.", conversation_id="old", timestamp=days_ago(100))
    await add(stack, user, "My cat is called Biscuit.", conversation_id="new", timestamp=days_ago(80))
    assert "Crumb" in await context(stack, user, "What was my first cat called?")
    assert "Would delete" in await retention(stack, "--dry-run")
    assert len(await listed(stack, user)) == 2
    assert "Deleted" in await retention(stack)
    (left,) = await listed(stack, user)
    assert "Biscuit" in left["text"]
    assert "Crumb" not in await context(stack, user, "What was my first cat called?")
    assert "0 documents with 0 memories" in await retention(stack, "--dry-run")


async def test_observations_are_listed_corrected_and_expired_with_their_facts(
    llm_stack: LlmStack, user: str
) -> None:
    stack = llm_stack.stack

    async def say(text: str, document: str, said_at: str) -> None:
        # Straight to Hindsight, whose own extraction and consolidation this is about.
        item = {
            "content": text,
            "document_id": document,
            "timestamp": said_at,
            "observation_scopes": "shared",
        }
        bank = bank_of("default", user)
        async with httpx.AsyncClient(base_url=llm_stack.hindsight_url, timeout=60) as client:
            reply = await client.post(f"/v1/default/banks/{bank}/memories", json={"items": [item]})
        assert reply.status_code == 200, reply.text

    await say("我在杭州做后端", "a", days_ago(20))
    await say("我搬到上海了", "b", days_ago(10))

    async def words(**fields: str) -> str:
        return "\n".join(memory["text"] for memory in await listed(stack, user, **fields))

    async def is_shanghai_only() -> bool:
        text = await words()
        return "上海" in text and "杭州" not in text

    await wait_until(is_shanghai_only, "the old city is summed up", timeout_s=60, poll_s=0.5)
    assert "杭州" in await words(include_superseded="true")
    observation = next(memory for memory in await listed(stack, user) if memory["type"] == "observation")
    await post(stack, "correct", user, memory_id=observation["id"], text="用户住在成都")
    text = await words(include_superseded="true")
    assert "成都" in text
    assert "上海" not in text
    assert "杭州" not in text
    assert "上海" not in await context(stack, user, "我住在哪个城市？")

    answer = await post(stack, "reflect", user, query="我住在哪个城市？")
    assert (answer["degraded"], "成都" in answer["text"]) == (False, True), answer

    await say("My first cat was called Crumb.", "c", days_ago(400))

    async def has_observation() -> bool:
        return any("Crumb" in memory["text"] and memory["source_ids"] for memory in await listed(stack, user))

    await wait_until(has_observation, "the old fact is summed up", timeout_s=60, poll_s=0.5)
    await retention(stack)
    text = await words(include_superseded="true")
    assert "Crumb" not in text
    assert "成都" in text
