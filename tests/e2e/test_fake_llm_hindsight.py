"""The fake LLM is good enough for the real Hindsight: it extracts, consolidates and reflects with it.

`llm_stack` has `hindsight_url` and `llm_url`: a Hindsight whose LLM is `tests.fakes.llm`.
"""

import uuid
from collections.abc import AsyncIterator
from typing import Any, Protocol

import httpx
import pytest
from hindsight_client import Hindsight
from service.scope import bank_of

from tests.integration.conftest import run_api, settings_for
from tests.integration.edge import checked
from tests.support import wait_until

pytestmark = [pytest.mark.anyio, pytest.mark.hindsight]


class LlmStack(Protocol):
    hindsight_url: str
    llm_url: str


@pytest.fixture
async def client(llm_stack: LlmStack) -> AsyncIterator[Any]:
    hindsight: Any = Hindsight(base_url=llm_stack.hindsight_url, timeout=60)
    yield hindsight
    await hindsight.aclose()


@pytest.fixture
async def llm(llm_stack: LlmStack) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=llm_stack.llm_url, timeout=30) as http:
        (await http.post("/reset")).raise_for_status()
        yield http
        (await http.post("/reset")).raise_for_status()


@pytest.fixture
async def bank_id(client: Any) -> AsyncIterator[str]:
    bank = f"fake-llm-{uuid.uuid4().hex}"
    await client.acreate_bank(bank)
    yield bank
    await client.adelete_bank(bank)


async def say(client: Any, bank_id: str, text: str, at: str, **fields: Any) -> None:
    """Retain one turn, its observations shared by the bank."""
    await client.aretain(
        bank_id, text, timestamp=at, document_id=uuid.uuid4().hex, observation_scopes="shared", **fields
    )


async def facts(client: Any, bank_id: str, kind: str = "world") -> list[str]:
    """The texts of a bank's memories of one type, oldest first."""
    return [item.text for item in reversed((await client.alist_memories(bank_id, type=kind)).items)]


async def until_consolidated(client: Any, bank_id: str) -> None:
    """Wait until no fact of the bank is still to be worked into observations."""

    async def is_done() -> bool:
        waiting = (await client.alist_memories(bank_id, consolidation_state="pending")).total
        return bool(waiting == 0)

    await wait_until(is_done, "every fact is consolidated", timeout_s=60, poll_s=0.2)


async def kinds(llm: httpx.AsyncClient) -> set[str]:
    return {call["kind"] for call in (await llm.get("/calls")).json()}


@pytest.mark.parametrize(
    ("turn", "expected"),
    [
        ("用户：我在杭州做后端\n助手：好的，记住了。", ["用户在杭州做后端"]),
        ("User: I live in Hangzhou\nAssistant: Nice.", ["The user lives in Hangzhou"]),
        ("User: I moved to Shanghai", ["The user moved to Shanghai"]),
        ("用户：我每个月预算三千块找健身房", ["用户每个月预算三千块找健身房"]),
        ("用户：嗯嗯\n助手：我们聊聊杭州吧", []),
        ("User: hello\nAssistant: Hello! How can I help?", []),
    ],
)
async def test_turns_become_facts(
    client: Any, llm: httpx.AsyncClient, bank_id: str, turn: str, expected: list[str]
) -> None:
    await say(client, bank_id, turn, "2026-01-01T10:00:00Z")
    assert await facts(client, bank_id) == expected
    assert "extraction" in await kinds(llm)


async def test_labels_become_tags(client: Any, llm: httpx.AsyncClient, bank_id: str) -> None:
    kind_values = [{"value": value, "description": value} for value in ("profile", "preference", "other")]
    weight_values = [{"value": value, "description": value} for value in ("low", "medium", "high")]
    labels = [
        {"key": "memory_type", "description": "kind", "type": "value", "tag": True, "values": kind_values},
        {"key": "importance", "description": "weight", "type": "value", "tag": True, "values": weight_values},
    ]
    await client.aupdate_bank_config(bank_id, entity_labels=labels)
    await say(client, bank_id, "用户：我喜欢喝美式咖啡", "2026-01-01T10:00:00Z", tags=["c:1"])
    (memory,) = (await client.alist_memories(bank_id, type="world")).items
    assert set(memory.tags) == {"c:1", "memory_type:preference", "importance:medium"}


@pytest.mark.parametrize(
    ("turns", "old", "new"),
    [
        (["用户：我在杭州做后端", "用户：我搬到上海了"], "杭州", "上海"),
        (["User: I live in Hangzhou", "User: I moved to Shanghai"], "Hangzhou", "Shanghai"),
    ],
)
async def test_the_new_city_replaces_the_old_one(
    client: Any, llm: httpx.AsyncClient, bank_id: str, turns: list[str], old: str, new: str
) -> None:
    for number, turn in enumerate(turns, start=1):
        # The same day, seconds apart, as in one conversation.
        await say(client, bank_id, turn, f"2026-01-01T10:00:0{number}Z", tags=[f"c:{number}"])
        await until_consolidated(client, bank_id)
    (observation,) = await facts(client, bank_id, "observation")
    assert new in observation
    assert old not in observation
    found = await client.arecall(
        bank_id, new, types=["observation", "world"], prefer_observations=True, budget="low"
    )
    assert [row.text for row in found.results] == [observation]
    assert "consolidation" in await kinds(llm)


async def test_each_subject_has_an_observation_of_its_own(
    client: Any, llm: httpx.AsyncClient, bank_id: str
) -> None:
    for day, turn in enumerate(("我住在北京", "我每个月预算三千块找健身房", "我的猫叫小黑"), start=1):
        await say(client, bank_id, turn, f"2026-01-0{day}T10:00:00Z")
    await until_consolidated(client, bank_id)
    found = await facts(client, bank_id, "observation")
    assert sorted(found) == sorted(["用户住在北京", "用户每个月预算三千块找健身房", "我的猫叫小黑"])


@pytest.mark.parametrize(
    ("turn", "question", "expected"),
    [
        ("用户：我在杭州做后端", "我在哪个城市工作？", "据我所知：用户在杭州做后端。"),
        (
            "User: I live in Hangzhou",
            "Where do I live?",
            "As far as I know: The user lives in Hangzhou.",
        ),
    ],
)
async def test_a_reflection_answers_from_what_it_finds(
    client: Any, llm: httpx.AsyncClient, bank_id: str, turn: str, question: str, expected: str
) -> None:
    await say(client, bank_id, turn, "2026-01-01T10:00:00Z")
    await until_consolidated(client, bank_id)
    assert (await client.areflect(bank_id, question)).text == expected
    assert "reflect" in await kinds(llm)


async def test_a_reflection_knows_when_it_knows_nothing(
    client: Any, llm: httpx.AsyncClient, bank_id: str
) -> None:
    assert (await client.areflect(bank_id, "我住在哪里？")).text == "我没有关于这件事的记忆。"


async def test_a_reflection_fills_a_schema(client: Any, llm: httpx.AsyncClient, bank_id: str) -> None:
    await say(client, bank_id, "User: I live in Hangzhou", "2026-01-01T10:00:00Z")
    await until_consolidated(client, bank_id)
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    found = await client.areflect(bank_id, "Where do I live?", response_schema=schema)
    assert "Hangzhou" in found.structured_output["city"]


async def test_a_model_that_answers_garbage_once_is_asked_again(
    client: Any, llm: httpx.AsyncClient, bank_id: str
) -> None:
    fault = {"mode": "garbage", "times": 1, "kind": "extraction"}
    (await llm.post("/control", json=fault)).raise_for_status()
    await say(client, bank_id, "用户：我住在北京", "2026-01-01T10:00:00Z")
    assert await facts(client, bank_id) == ["用户住在北京"]


@pytest.mark.parametrize("mode", ["hindsight", "auto"])
async def test_a_turn_that_went_past_a_dead_redis_is_its_own_words(
    llm_stack: LlmStack, client: Any, llm: httpx.AsyncClient, mode: str
) -> None:
    user = uuid.uuid4().hex
    bank, words = bank_of("default", user), "User: I live in Hangzhou\nAssistant: Nice."
    settings = settings_for(
        "redis://127.0.0.1:1/0", llm_stack.hindsight_url, extraction=mode, retain_timeout_s=20
    )
    async with run_api(settings) as api:

        async def is_accepted() -> bool:
            # A busy machine may need more than its two seconds for a new bank.
            return (await api.add(user, "I live in Hangzhou", "Nice.", turn_id="t1")).status_code == 202

        await wait_until(is_accepted, "the turn is accepted", timeout_s=30)
        job_id = checked(await api.add(user, "I live in Hangzhou", "Nice.", turn_id="t1"), 202)["job_id"]
        job = await api.job(job_id, wait_s=30)
        assert job["status"] == "done", job
        await until_consolidated(client, bank)
        assert "extraction" not in await kinds(llm)
        assert await facts(client, bank) == [words]
        assert await facts(client, bank, "observation") == []
        [memory] = checked(await api.recall(user, "Hangzhou", timeout_ms="8000"), 200)["memories"]
        assert memory["text"] == " ".join(words.split())
    # The same words, as the worker sends them, are no work for Hindsight.
    [document] = (await client.documents.list_documents(bank)).items
    [said] = (await client.alist_memories(bank, type="world")).items
    again = {"document_id": document.id, "tags": said.tags, "observation_scopes": "shared"}
    await client.aretain(bank, words, **again)
    assert await facts(client, bank) == [words]
    await client.adelete_bank(bank)
