"""Forgetting on the real stack: what Hindsight really does when it is told to delete."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hindsight_client import Hindsight
from service.adapters.hindsight import HindsightAdapter, Item
from service.adapters.hindsight_erase import HindsightEraser, Running
from service.scope import BankId, ConversationId, DocumentId, OperationId, bank_of

from tests.e2e.conftest import LlmStack, Stack
from tests.e2e.test_stack import add, recalled
from tests.support import wait_until

pytestmark = [pytest.mark.anyio, pytest.mark.hindsight]

Json = dict[str, object]


async def forget(stack: Stack, user: str, **fields: str) -> dict[str, int]:
    """The counts of a receipt, which must be verified."""
    async with stack.client as client:
        reply = await client.post("/memory/forget", data={"user_id": user, **fields})
    assert reply.status_code == 200, reply.text
    assert reply.json()["verified"] is True
    counts: dict[str, int] = reply.json()["forgotten"]
    return counts


async def texts(stack: Stack, user: str, query: str) -> list[str]:
    """What is recalled."""
    memories = (await recalled(stack, user, query))["memories"]
    assert isinstance(memories, list)
    return [memory["text"] for memory in memories]


@asynccontextmanager
async def eraser_of(url: str) -> AsyncIterator[tuple[HindsightAdapter, HindsightEraser]]:
    """Our adapters on a real Hindsight."""
    async with HindsightAdapter(url, None, recall_timeout_s=10, retain_timeout_s=15) as hindsight:
        yield hindsight, HindsightEraser(hindsight)


@asynccontextmanager
async def hindsight_of(url: str) -> AsyncIterator[Any]:
    """The vendor's own client."""
    client: Any = Hindsight(base_url=url, timeout=60)
    try:
        yield client
    finally:
        await client.aclose()


def item(document: str, text: str, *tags: str) -> Item:
    return Item(DocumentId(document), text, "", "", tags, {})


def new_operation() -> OperationId:
    return OperationId(str(uuid.uuid4()))


async def test_one_memory_one_conversation_everything(stack: Stack, user: str) -> None:
    said = {
        "My bees live on the roof.": "one",
        "My bees are called Ada and Grace.": "one",
        "My bees make lavender honey.": "two",
        "My bees sleep in winter.": "three",
    }
    for text, conversation in said.items():
        assert (await add(stack, user, text, conversation_id=conversation))["status"] == "done"
    assert len(await texts(stack, user, "bees")) == 4
    stranger = f"{user}x"
    assert (await add(stack, stranger, "My bees are mine."))["status"] == "done"

    memories = (await recalled(stack, user, "bees"))["memories"]
    assert isinstance(memories, list)
    [roof] = [memory["id"] for memory in memories if "roof" in memory["text"]]
    assert (await forget(stack, stranger, memory_id=roof))["memories"] == 0
    counts = await forget(stack, user, memory_id=roof)
    assert (counts["memories"], counts["documents"]) == (1, 1)
    assert not any("roof" in text for text in await texts(stack, user, "bees"))
    assert (await forget(stack, user, memory_id=roof))["memories"] == 0

    assert (await forget(stack, user, conversation_id="one"))["documents"] == 1
    assert len(await texts(stack, user, "bees")) == 2

    assert (await forget(stack, user, all="true"))["documents"] == 2
    assert await texts(stack, user, "bees") == []
    assert (await forget(stack, user, all="true"))["documents"] == 0
    assert len(await texts(stack, stranger, "bees")) == 1

    # The same words are new words.
    assert (await add(stack, user, "My bees live on the roof.", conversation_id="one"))["status"] == "done"
    assert len(await texts(stack, user, "bees")) == 1


@pytest.mark.parametrize("scope", [{"all": "true"}, {"conversation_id": "c1"}])
async def test_while_it_is_being_stored(stack: Stack, user: str, scope: dict[str, str]) -> None:
    async with stack.client as client:
        for delay_s in (0.0, 0.5, 0.8, 1.2):
            jobs = []
            for number in range(3):
                reply = await client.post(
                    "/memory/add",
                    data={
                        "user_id": user,
                        "user_message": f"My {number} bees were seen after {delay_s} s.",
                        "conversation_id": "c1",
                    },
                )
                jobs.append(reply.json()["job_id"])
            await asyncio.sleep(delay_s)  # somewhere between waiting and stored: the moment is not the point
            await forget(stack, user, **scope)
            assert await texts(stack, user, "bees") == []
            for job in jobs:
                state = (await client.get(f"/memory/jobs/{job}", params={"wait_s": 20})).json()
                assert state["status"] in ("cancelled", "done"), state
            assert await texts(stack, user, f"bees after {delay_s}") == []


async def test_operations_tell_what_they_hold_and_their_ids_are_used_once(
    hindsight_url: str, user: str
) -> None:
    bank = BankId(f"u-{user}")
    tag = ConversationId("c-" + "1" * 48)
    async with eraser_of(hindsight_url) as (hindsight, eraser):
        await hindsight.make_bank(bank, "default")
        operation = new_operation()
        await hindsight.retain(
            bank, [item("d1", "An apple a day.", tag), item("d2", "A pear a day.", tag)], operation
        )
        seen: list[Running] = []

        async def ended() -> bool:
            seen.extend(await eraser.running(bank, asks_what=True))
            return await hindsight.operation(bank, operation) == "completed"

        await wait_until(ended, "the operation has ended", timeout_s=60)
        retains = [running for running in seen if running.kind == "retain"]
        assert retains, "none was seen running"
        assert all(running.is_known for running in retains)
        assert retains[0].documents == {"d1", "d2"}
        assert tag in retains[0].tags
        assert sorted(await eraser.conversation(bank, tag)) == ["d1", "d2"]
        assert await eraser.count(bank, tag) == (2, 2)
        assert await eraser.delete_documents(bank, [DocumentId("d1"), DocumentId("d9")]) == (1, 1)
        assert await eraser.has_document(bank, DocumentId("d1")) is False

        # A late repetition stores nothing, until the bank and with it the id is gone.
        await hindsight.retain(bank, [item("d1", "An apple a day.", tag)], operation)
        running_now = await eraser.running(bank, asks_what=True)
        assert [running for running in running_now if running.kind == "retain"] == []
        assert await eraser.has_document(bank, DocumentId("d1")) is False
        await eraser.delete_bank(bank)
        assert await eraser.count(bank) == (0, 0)
        assert await eraser.running(bank, asks_what=True) == []
        await hindsight.retain(bank, [item("d1", "An apple a day.", tag)], operation)

        async def stored() -> bool:
            return await eraser.has_document(bank, DocumentId("d1"))

        await wait_until(stored, "the id is free again", timeout_s=60)
        await eraser.delete_bank(bank)


async def test_a_fact_that_shares_its_document_is_blanked(llm_stack: LlmStack, user: str) -> None:
    bank = BankId(f"u-{user}")
    async with eraser_of(llm_stack.hindsight_url) as (hindsight, eraser):
        await hindsight.make_bank(bank, "default")
        operation = new_operation()
        said = "My name is Wei. I live in Hangzhou. I love hiking. I am allergic to peanuts."
        await hindsight.retain(bank, [item("d1", said)], operation)

        async def ended() -> bool:
            return await hindsight.operation(bank, operation) == "completed"

        await wait_until(ended, "it is stored", timeout_s=60)
        facts = sorted(await eraser.facts_in(bank, DocumentId("d1")))
        assert len(facts) > 1, facts
        assert await eraser.blank(bank, facts[0]) is True
        assert await eraser.memory(bank, facts[0]) is None
        assert await eraser.blank(bank, facts[0]) is False
        assert await eraser.facts_in(bank, DocumentId("d1")) == set(facts[1:])
        assert await eraser.blank(bank, str(uuid.uuid4())) is False
        await eraser.delete_bank(bank)


async def test_an_observation_is_forgotten_with_its_sources(llm_stack: LlmStack, user: str) -> None:
    stack = llm_stack.stack
    async with eraser_of(llm_stack.hindsight_url) as (hindsight, _):
        await hindsight.make_bank(bank_of_user(user), "default")
        said = [item("d1", "User: I live in Hangzhou", "c:1")]
        await hindsight.retain(bank_of_user(user), said, new_operation())

    async with hindsight_of(llm_stack.hindsight_url) as client:

        async def observed() -> str | None:
            page = await client.alist_memories(bank_of_user(user), type="observation")
            return page.items[0].id if page.items else None

        observation = await wait_until(observed, "there is an observation", timeout_s=60, poll_s=0.5)
    assert await texts(stack, user, "Where do I live?") != []
    await forget(stack, user, memory_id=observation)
    assert await texts(stack, user, "Where do I live?") == []
    async with eraser_of(llm_stack.hindsight_url) as (_, eraser):
        assert await eraser.count(bank_of_user(user)) == (0, 0)


def bank_of_user(user: str) -> BankId:
    return bank_of("default", user)
