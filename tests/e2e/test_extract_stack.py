"""What is made of turns on the real Hindsight: what is kept, how it is told, what is gone or never there."""

import contextlib
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from tests.e2e.conftest import Stack, running_stack
from tests.e2e.test_stack import add, recalled
from tests.support import ServerProcess, free_port, wait_until

pytestmark = [pytest.mark.anyio, pytest.mark.hindsight]

USER = "zoe"
ID_NUMBER = "11010519491231002X"


@asynccontextmanager
async def extracting_stack(folder: Path, mode: str) -> AsyncIterator[Stack]:
    """A stack with the fake language model and this mode of extraction."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"

    async def answers() -> bool:
        async with httpx.AsyncClient() as client:
            return (await client.get(f"{url}/v1/models")).status_code == 200

    llm = ServerProcess(
        [sys.executable, "-m", "tests.fakes.llm", "--port", str(port)],
        log_path=folder / "llm.log",
        is_ready=answers,
    )
    await llm.start()
    try:
        async with running_stack(
            folder / "data",
            MEMORY_QUIET_S="0.5",
            MEMORY_EXTRACTION=mode,
            MEMORY_LLM_MODEL="openai/fake-model",
            MEMORY_LLM_API_KEY="fake-key-0123456789",
            MEMORY_LLM_BASE_URL=f"{url}/v1",
        ) as stack:
            yield stack
    finally:
        await llm.stop()


async def memories(stack: Stack, query: str) -> list[dict[str, object]]:
    """What a fresh recall says, whatever its relevance."""
    reply = await recalled(stack, USER, query, fresh="true", min_score="0", top_k="20")
    assert reply["degraded"] is False
    found = reply["memories"]
    assert isinstance(found, list)
    return found


@pytest.mark.parametrize("mode", ["litellm", "hindsight"])
async def test_the_story_of_a_user_who_moves(tmp_path: Path, mode: str) -> None:
    async with extracting_stack(tmp_path, mode) as stack:
        assert (await add(stack, USER, "我在杭州做后端", "好的", conversation_id="a"))["status"] == "done"
        before = await memories(stack, "我住在哪个城市？")
        assert "杭州" in str(before)

        state = await add(stack, USER, "今天真热", "多喝水", conversation_id="b")
        assert (state["status"], state["memories_kept"]) == ("done", 0)
        budget = "我每个月预算三千块找健身房"
        assert (await add(stack, USER, budget, "好的", conversation_id="b"))["status"] == "done"
        assert (await add(stack, USER, "我搬到上海了", "好的", conversation_id="c"))["status"] == "done"

        async def is_shanghai_only() -> bool:
            said = str(await memories(stack, "我住在哪个城市？"))
            return "上海" in said and "杭州" not in said

        # Our own extraction has replaced it by now; Hindsight's consolidation takes its time.
        await wait_until(
            is_shanghai_only,
            "only the new city is told",
            timeout_s=2 if mode == "litellm" else 60,
            poll_s=0.5,
        )
        if mode == "litellm":
            async with stack.client as client:
                listed = (await client.post("/memory/list", data={"user_id": USER})).json()
            said = [memory["text"] for memory in listed["memories"]]
            assert sorted(said) == ["用户在上海做后端", "用户每个月预算三千块找健身房"]
        found = await memories(stack, "我的健身房预算是多少？")
        assert "真热" not in str(found)
        [kept] = [memory for memory in found if "三千" in str(memory["text"])]
        assert kept["kind"] in ("task_state", "preference")
        assert isinstance(kept["importance"], float), kept
        assert kept["importance"] >= 0.7
        if mode == "litellm":
            assert kept["text"] == "用户每个月预算三千块找健身房"


@asynccontextmanager
async def stack_of(folder: Path, mode: str) -> AsyncIterator[Stack]:
    """A stack with this mode of extraction; `none` has no language model at all."""
    if mode == "none":
        async with running_stack(folder / "data", MEMORY_QUIET_S="0.5") as stack:
            yield stack
    else:
        async with extracting_stack(folder, mode) as stack:
            yield stack


def holders(folder: Path, text: str) -> list[str]:
    """Files anywhere below `folder` that hold `text` in UTF-8."""
    needle, found = text.encode(), []
    for path in folder.rglob("*"):
        # Servers remove files of theirs while we read.
        with contextlib.suppress(FileNotFoundError):
            if path.is_file() and needle in path.read_bytes():
                found.append(str(path.relative_to(folder)))
    return found


@pytest.mark.parametrize("mode", ["none", "litellm", "hindsight"])
async def test_an_identity_number_reaches_no_file(tmp_path: Path, mode: str) -> None:
    said = f"我的身份证号是{ID_NUMBER}，我在杭州做后端"
    async with stack_of(tmp_path, mode) as stack:
        state = await add(
            stack,
            USER,
            said,
            f"好的，{ID_NUMBER} 记下了",
            conversation_id=f"c-{ID_NUMBER}",
            turn_id=f"t-{ID_NUMBER}",
            tags=f"plan-a,{ID_NUMBER}",
            metadata=json.dumps({"source": f"form {ID_NUMBER}", "id_card": ID_NUMBER}),
        )
        assert state["status"] == "done", state
        found = await memories(stack, f"身份证号 {ID_NUMBER} 的人在哪里做后端？")
        async with stack.client as client:
            # Facts, too: an observation made from them has no tags of the caller's.
            every = {"user_id": USER, "include_superseded": "true"}
            listed = (await client.post("/memory/list", data=every)).json()
        for told in (str(found), str(listed["memories"])):
            assert "杭州" in told
            assert "[national_id]" in told
            assert ID_NUMBER[:-1] not in told
        assert any("[national_id]" in tag for memory in listed["memories"] for tag in memory["tags"])
        assert holders(tmp_path, ID_NUMBER[:-1]) == []
    # Stopped, all is on the disk; what was not masked is there, so that the number would be found, too.
    kept_in = {name.split("/")[1] for name in holders(tmp_path, "杭州做后端") if name.startswith("data/")}
    assert {"redis", "postgres"} <= kept_in
    assert holders(tmp_path, ID_NUMBER[:-1]) == []
