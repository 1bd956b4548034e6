"""Read your writes: an accepted turn is in every answer from then on, once, whoever has it at the moment."""

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from service.settings import Settings

from tests.fakes.hindsight import HindsightStandIn
from tests.integration.conftest import Api, Workshop, open_workshop, settings_for
from tests.integration.recall_parts import HIT, MISS, QUERY, bank, how, remember, said, stored, texts
from tests.support import RedisServer, wait_until

pytestmark = pytest.mark.anyio
LONG = {"max_chars": "500", "top_k": "20"}


@pytest.fixture
async def settings(redis_server: RedisServer, stand_in: HindsightStandIn) -> Settings:
    """Without a floor, so that nothing here depends on the ranking."""
    await redis_server.command("FLUSHALL")
    return settings_for(redis_server.url, stand_in.url, min_score=0)


async def test_an_accepted_turn_is_in_the_next_answer(
    api: Api, stand_in: HindsightStandIn, user: str
) -> None:
    remember(stand_in, user, "first")
    assert len(texts(await api.recall(user, QUERY, **LONG))) == 1
    added = await api.add(user, said("Anna"))
    assert added.json()["searchable_now"] is True
    reply = await api.recall(user, QUERY, **LONG)
    assert how(reply) == MISS
    by_pending = {memory["pending"]: memory for memory in reply.json()["memories"]}
    assert stored("first") in by_pending[False]["text"]
    assert said("Anna") in by_pending[True]["text"]
    assert said("Anna") in reply.json()["context"]
    assert how(await api.recall(user, QUERY, **LONG)) == HIT


async def test_a_pending_turn_becomes_a_memory_when_the_worker_has_stored_it(
    api: Api, workshop: Workshop, user: str
) -> None:
    await api.add(user, said("Anna"))
    [pending] = (await api.recall(user, QUERY, **LONG)).json()["memories"]
    assert pending["pending"]
    assert await workshop.work() == 1
    [memory] = (await api.recall(user, QUERY, **LONG)).json()["memories"]
    assert not memory["pending"]
    assert memory["text"] == pending["text"]


@pytest.mark.parametrize("fresh", ["false", "true"])
async def test_in_every_answer_exactly_once_while_the_worker_stores(
    api: Api, stand_in: HindsightStandIn, settings: Settings, user: str, fresh: str
) -> None:
    markers = ["Anna", "Berthold", "Chiara", "Dimitri", "Emilia"]
    stand_in.operation_delay_s = 0.15
    answers: list[list[str]] = []
    is_over = asyncio.Event()
    accepted: list[str] = []

    async def look() -> None:
        while not is_over.is_set():
            expected = list(accepted)
            found = texts(await api.recall(user, QUERY, fresh=fresh, **LONG))
            answers.append(found)
            seen = Counter(marker for marker in markers for text in found if marker in text)
            assert all(seen[marker] == 1 for marker in expected), (expected, seen)
            assert all(count == 1 for count in seen.values()), seen

    async with open_workshop(settings) as workshop:
        looking = asyncio.create_task(look())
        for marker in markers:
            await api.add(user, f"{marker} likes {said(marker)}", conversation_id=f"about {marker}")
            accepted.append(marker)
            working = asyncio.create_task(workshop.work())
            await asyncio.wait([working, looking], return_when=asyncio.FIRST_COMPLETED)
            if looking.done():
                await working
                await looking
        await wait_until(lambda: all_done(api, user), "nothing is pending any more")
        is_over.set()
        await looking
    assert len(answers) > 10


async def all_done(api: Api, user: str) -> bool:
    """Whether no memory is pending."""
    reply = await api.recall(user, QUERY, **LONG)
    return not any(memory["pending"] for memory in reply.json()["memories"])


async def test_a_turn_that_hindsight_has_already_is_shown_once(
    api: Api, stand_in: HindsightStandIn, workshop: Workshop, user: str
) -> None:
    await api.add(user, said("Anna"))
    # Stored, and the worker dies before it can say so.
    stand_in.fail("operation", "hang")
    [claim] = await workshop.claims()
    working = asyncio.create_task(workshop.storer.drain(claim))
    await wait_until(lambda: stand_in.banks.get(bank(user)), "Hindsight has the bank")
    await wait_until(lambda: stand_in.banks[bank(user)].memories, "Hindsight has the turn")
    for fresh in ("true", "false"):
        [memory] = (await api.recall(user, QUERY, fresh=fresh, **LONG)).json()["memories"]
        assert said("Anna") in memory["text"]
    working.cancel()
    stand_in.heal()
    await asyncio.wait([working])


async def test_the_asking_conversations_own_turns_are_left_out(api: Api, user: str) -> None:
    await api.add(user, said("Anna"), conversation_id="mine")
    await api.add(user, said("Berthold"), conversation_id="another")
    await api.add(user, said("Chiara"))
    seen = {
        asking: sorted(text.split("User: ")[-1].split()[0] for text in texts(reply))
        for asking in ("", "mine", "another", "a third")
        for reply in [await api.recall(user, QUERY, conversation_id=asking, **LONG)]
    }
    assert seen == {
        "": ["Anna", "Berthold", "Chiara"],
        "mine": ["Berthold", "Chiara"],
        "another": ["Anna", "Chiara"],
        "a third": ["Anna", "Berthold", "Chiara"],
    }


async def test_tags_are_respected(api: Api, user: str) -> None:
    await api.add(user, said("Anna"), tags="work, travel")
    await api.add(user, said("Berthold"), tags="work")
    await api.add(user, said("Chiara"))

    async def names(**fields: str) -> list[str]:
        return sorted(
            text.split("User: ")[-1].split()[0]
            for text in texts(await api.recall(user, QUERY, **LONG, **fields))
        )

    assert await names() == ["Anna", "Berthold", "Chiara"]
    assert await names(tags="work") == ["Anna", "Berthold"]
    assert await names(tags="work,travel") == ["Anna"]
    assert await names(tags="work,travel", tags_match="any") == ["Anna", "Berthold"]
    assert await names(tags="none of them") == []
    # Nobody knows yet of which kind or type a turn is.
    assert await names(kinds="preference") == []
    assert await names(fact_types="world") == []


async def test_ranked_by_shared_words_then_by_age(api: Api, user: str) -> None:
    now = datetime.now(UTC)

    async def add(marker: str, text: str, days: int) -> None:
        when = (now - timedelta(days=days)).isoformat()
        await api.add(user, f"{marker} {text}", timestamp=when, conversation_id=marker)

    await add("unrelated", "the weather was bad and we stayed at home all day", 0)
    await add("little", "a harbour for boats is planned in the north", 0)
    await add("much-old", "they serve grilled sardines at a restaurant by the harbour, it seems", 400)
    await add("much-new", "he said that grilled sardines are the harbour restaurant's best, as always", 1)
    order = [
        text.split("User: ")[-1].split()[0]
        for text in texts(await api.recall(user, QUERY, max_chars="500", top_k="10", min_score="0"))
    ]
    assert order.index("little") > order.index("much-new")
    assert order.index("little") > order.index("much-old")
    assert order[-1] == "unrelated"
    with_floor = texts(await api.recall(user, QUERY, max_chars="500", top_k="10", min_score="0.25"))
    assert with_floor
    assert not any("unrelated" in text for text in with_floor)


async def test_new_turns_are_not_crowded_out(api: Api, stand_in: HindsightStandIn, user: str) -> None:
    for n in range(12):
        remember(stand_in, user, f"{n} " + " ".join(f"w{n}x{m}" for m in range(6)))
    await api.add(user, "Anna says the harbour is closed")
    reply = await api.recall(user, QUERY, max_chars="500")
    assert reply.json()["count"] == 5
    assert [memory["pending"] for memory in reply.json()["memories"]].count(True) == 1


async def test_nobody_elses_turns(api: Api, user: str) -> None:
    await api.add(user, said("Anna"), conversation_id="same")
    await api.add(f"{user} ", said("Berthold"), conversation_id="same")
    assert texts(await api.recall(f"{user}-other", QUERY, **LONG)) == []
