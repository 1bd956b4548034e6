"""Forget, from the outside: what is gone, what stays, what the receipt says, and that nothing comes back."""

import asyncio
import uuid
from collections.abc import AsyncIterator

import pytest
from service import keyspace
from service.scope import bank_of, conversation_of, fact_document_of

from tests.fakes.hindsight_store import Fact, Operation
from tests.integration.conftest import run_api
from tests.integration.edge import checked, code_of
from tests.integration.forget_world import World, counts, open_world
from tests.support import RedisServer, wait_until
from tests.turns_log import look, pass_time

pytestmark = pytest.mark.anyio


@pytest.fixture
async def world(redis_server: RedisServer) -> AsyncIterator[World]:
    async with open_world(redis_server) as opened:
        yield opened


SCOPES = [{"all": "true"}, {"conversation_id": "c1"}]


# Replay 11 (LongMemory 186, mem0 3695): recall, delete, the same recall from every replica.
@pytest.mark.parametrize("scope", [*SCOPES, {"memory_id": ""}])
async def test_a_cached_answer_is_gone_at_once_from_every_replica(
    world: World, user: str, scope: dict[str, str]
) -> None:
    await world.add(user, "I keep bees on the roof", conversation_id="c1")
    await world.store()
    async with run_api(world.api.settings) as other:
        for api in (world.api, other):
            before = checked(await api.recall(user, "bees"), 200)
            assert before["count"] == 1
            assert checked(await api.recall(user, "bees"), 200)["cached"] is True
        if "memory_id" in scope:
            scope = {"memory_id": before["memories"][0]["id"]}
        receipt = await world.forget(user, **scope)
        assert counts(receipt) == (1, 1, 0, 0)
        assert receipt["forgotten"]["cache_entries"] == 1
        assert [key async for key in world.redis.scan_iter(match="mem:recall:*")] == []
        for api in (world.api, other):
            after = checked(await api.recall(user, "bees"), 200)
            assert (after["memories"], after["context"], after["degraded"]) == ([], "", False)
    assert world.texts(user) == []


@pytest.mark.parametrize("scope", SCOPES)
async def test_what_waits_is_gone_and_its_job_says_so(world: World, user: str, scope: dict[str, str]) -> None:
    job = await world.add(user, "I keep bees", conversation_id="c1")
    assert await world.recalled(user, "bees", conversation_id="other") == ["I keep bees"]
    assert counts(await world.forget(user, **scope)) == (0, 0, 1, 1)
    assert await world.recalled(user, "bees", conversation_id="other") == []
    state = await world.api.job(job)
    assert (state["status"], state["memories_kept"]) == ("cancelled", 0)
    assert state["finished_at"] is not None
    await world.store()
    assert world.texts(user) == []
    assert counts(await world.forget(user, **scope)) == (0, 0, 0, 0)


async def test_a_pending_turn_is_forgotten_by_the_id_that_recall_shows(world: World, user: str) -> None:
    await world.add(user, "I keep bees", conversation_id="c1")
    job = await world.add(user, "I keep wasps", conversation_id="c1")
    shown = checked(await world.api.recall(user, "wasps"), 200)["memories"]
    [wasps] = [memory["id"] for memory in shown if "wasps" in memory["text"]]
    assert counts(await world.forget(user, memory_id=wasps)) == (0, 0, 1, 1)
    assert (await world.api.job(job))["status"] == "cancelled"
    await world.store()
    assert world.texts(user) == ["I keep bees"]


async def test_one_conversation_goes_and_the_others_stay(world: World, user: str) -> None:
    await world.add(user, "stored in one", conversation_id="one")
    await world.add(user, "stored in two", conversation_id="two")
    await world.add(user, "stored in none")
    await world.store()
    await world.add(user, "waits in one", conversation_id="one")
    waits = await world.add(user, "waits in two", conversation_id="two")
    assert counts(await world.forget(user, conversation_id="one")) == (1, 1, 1, 1)
    await world.store()
    assert sorted(world.texts(user)) == ["stored in none", "stored in two", "waits in two"]
    assert (await world.api.job(waits))["status"] == "done"


# Replay 13 (mem0 3746, 3928): delete-all of one user drops everybody; a blank user deletes all.
async def test_only_that_user(world: World, user: str) -> None:
    other = f"{user}x"
    for name in (user, other):
        await world.add(name, "I keep bees", conversation_id="c1")
    await world.store()
    for name in (user, other):
        await world.add(name, "I keep wasps", conversation_id="c1")
    [memory] = world.stand_in.banks[bank_of("default", other)].memories
    assert counts(await world.forget(user, memory_id=memory)) == (0, 0, 0, 0)
    [shown] = [
        found["id"]
        for found in checked(await world.api.recall(other, "wasps"), 200)["memories"]
        if found["pending"]
    ]
    assert counts(await world.forget(user, memory_id=shown)) == (0, 0, 0, 0)
    assert counts(await world.forget(user, all="true")) == (1, 1, 1, 1)
    await world.store()
    assert sorted(world.texts(other)) == ["I keep bees", "I keep wasps"]
    assert world.texts(user) == []


@pytest.mark.parametrize("name", ["", " ", "null", "DEFAULT-USER", "{{#sys.user_id#}}", None])
async def test_a_blank_user_widens_nothing(world: World, user: str, name: str | None) -> None:
    await world.add(user, "I keep bees")
    fields = {"all": "true"} if name is None else {"user_id": name, "all": "true"}
    for reply in (
        await world.api.client.post("/memory/forget", data=fields),
        await world.api.client.post("/memory/forget", json=fields),
    ):
        assert code_of(reply, 422) in ("user_id_required", "invalid_request")
    await world.store()
    assert world.texts(user) == ["I keep bees"]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"all": "false"},
        {"all": ""},
        {"memory_id": "", "conversation_id": ""},
        {"memory_id": "m", "conversation_id": "c"},
        {"memory_id": "m", "all": "true"},
        {"conversation_id": "c", "all": "true"},
        {"conversation_id": "{{#sys.conversation_id#}}", "all": "true"},
        {"memory_id": "{{#node.id#}}", "conversation_id": "c1"},
        {"memory_id": "sys.memory", "conversation_id": "c1"},
        {"memory_id": "m-{{#node.id#}}"},
        {"all": "yes please"},
        {"everything": "true"},
    ],
)
async def test_exactly_one_thing_is_to_be_named(world: World, user: str, fields: dict[str, str]) -> None:
    await world.add(user, "I keep bees", conversation_id="c1")
    reply = await world.api.client.post("/memory/forget", data={"user_id": user, **fields})
    assert code_of(reply, 422) == "invalid_request"
    assert len(await world.workshop.log.pending(bank_of("default", user))) == 1


@pytest.mark.parametrize("memory_id", ["x", "../..", "0" * 36, "t-" + "0" * 48, "t-zz", "记忆", "a b"])
async def test_a_memory_that_is_not_there(world: World, user: str, memory_id: str) -> None:
    assert counts(await world.forget(user, memory_id=memory_id)) == (0, 0, 0, 0)
    await world.add(user, "I keep bees")
    await world.store()
    assert counts(await world.forget(user, memory_id=memory_id)) == (0, 0, 0, 0)
    assert world.texts(user) == ["I keep bees"]


async def test_a_user_without_a_memory(world: World, user: str) -> None:
    for scope in SCOPES:
        assert counts(await world.forget(user, **scope)) == (0, 0, 0, 0)
    assert world.stand_in.banks == {}


@pytest.mark.parametrize("scope", [*SCOPES, {"memory_id": "?"}])
@pytest.mark.parametrize("is_stored", [True, False])
@pytest.mark.parametrize("turn_id", ["", "run-1"])
async def test_the_same_words_after_a_forget_are_new(
    world: World, user: str, scope: dict[str, str], is_stored: bool, turn_id: str
) -> None:
    fields = {"conversation_id": "c1", "turn_id": turn_id}
    first = await world.add(user, "I keep bees", **fields)
    if is_stored:
        await world.store()
    if "memory_id" in scope:
        [memory] = checked(await world.api.recall(user, "bees"), 200)["memories"]
        scope = {"memory_id": memory["id"]}
    await world.forget(user, **scope)
    again = checked(await world.api.add(user, "I keep bees", **fields), 202)
    assert again["status"] == "queued"
    assert again["job_id"] != first
    repeated = checked(await world.api.add(user, "I keep bees", **fields), 202)
    assert (repeated["status"], repeated["job_id"]) == ("duplicate", again["job_id"])
    assert await world.recalled(user, "bees", conversation_id="x") == ["I keep bees"]
    await world.store()
    assert world.texts(user) == ["I keep bees"]
    assert (await world.api.job(again["job_id"]))["status"] == "done"
    assert await world.recalled(user, "bees") == ["I keep bees"]


async def test_what_was_not_forgotten_is_still_a_repetition(world: World, user: str) -> None:
    kept = await world.add(user, "I keep bees", conversation_id="kept", turn_id="run-1")
    await world.add(user, "I keep bees", conversation_id="gone", turn_id="run-1")
    await world.store()
    await world.forget(user, conversation_id="gone")
    again = checked(await world.api.add(user, "I keep bees", conversation_id="kept", turn_id="run-1"), 202)
    assert (again["status"], again["job_id"]) == ("duplicate", kept)


async def test_one_fact_of_a_turn_that_has_several(world: World, user: str) -> None:
    facts = [Fact("The user keeps bees."), Fact("The user plays the flute.")]
    world.stand_in.extract_with({"bees": facts})
    await world.add(user, "I keep bees and play the flute", conversation_id="c1")
    await world.store()
    bank = world.stand_in.banks[bank_of("default", user)]
    [bees] = [memory.id for memory in bank.memories.values() if "bees" in memory.text]
    assert counts(await world.forget(user, memory_id=bees)) == (1, 0, 0, 0)
    assert world.texts(user) == ["The user plays the flute."]
    assert "bees" not in str([memory.text for memory in bank.memories.values()])
    assert await world.recalled(user, "bees") == []
    assert counts(await world.forget(user, memory_id=bees)) == (0, 0, 0, 0)
    [flute] = [memory.id for memory in bank.memories.values() if "flute" in memory.text]
    assert counts(await world.forget(user, memory_id=flute))[1] == 1  # nothing else keeps the document
    assert bank.documents == {}


async def test_an_observation_goes_with_what_it_was_made_from(world: World, user: str) -> None:
    for text in ("I moved to Shanghai", "I like Shanghai", "I play the flute"):
        await world.add(user, text)
    await world.store()
    bank = world.stand_in.banks[bank_of("default", user)]
    sources = [memory.id for memory in bank.memories.values() if "Shanghai" in memory.text]
    seen = world.stand_in.add_memory(
        bank.id, "The user lives in Shanghai.", type="observation", source_fact_ids=sources
    )
    assert counts(await world.forget(user, memory_id=seen.id)) == (2, 2, 0, 0)
    assert world.texts(user) == ["I play the flute"]


@pytest.mark.parametrize("done_before", [0, 1])
async def test_an_interrupted_forget_of_an_observation_is_finished_by_its_repetition(
    world: World, user: str, done_before: int
) -> None:
    # The first source that goes takes the observation along: nobody could tell then what it was made from.
    for text in ("I moved to Shanghai", "I like Shanghai", "I play the flute"):
        await world.add(user, text)
        await world.store()
    bank = bank_of("default", user)
    sources = [m.id for m in world.stand_in.banks[bank].memories.values() if "Shanghai" in m.text]
    seen = world.stand_in.add_memory(
        bank, "The user lives in Shanghai.", type="observation", source_fact_ids=sources
    )
    form = {"user_id": user, "memory_id": seen.id}
    if done_before:
        world.stand_in.fail("document_delete", "slow", times=done_before)
    world.stand_in.fail("document_delete", "status", times=1)
    assert code_of(await world.api.client.post("/memory/forget", data=form), 503)
    assert await world.redis.exists(keyspace.meant(bank))
    assert (await world.forget(user, memory_id=seen.id))["verified"]
    assert world.texts(user) == ["I play the flute"]
    assert await world.recalled(user, "Shanghai") == []
    assert not await world.redis.exists(keyspace.meant(bank))
    # Nothing is left to be done, and nothing else is.
    assert counts(await world.forget(user, memory_id=seen.id)) == (0, 0, 0, 0)
    assert world.texts(user) == ["I play the flute"]


@pytest.mark.parametrize("repetitions", [1, 2])
async def test_a_request_on_its_way_is_late_for_a_forget_of_everything_after_one_of_its_conversation(
    world: World, user: str, repetitions: int
) -> None:
    # The first forget has used up the id of the request's operation; a bank that is deleted frees it.
    await world.add(user, "I keep bees on the roof", conversation_id="c1")
    await pass_time(world.redis)
    world.stand_in.fail("retain", "slow", seconds=0.8, times=1)
    [claim] = await world.workshop.claims()
    storing = asyncio.create_task(world.workshop.storer.drain(claim))
    await wait_until(lambda: bool(world.stand_in.requests_for("retain")), "it is on its way")
    assert (await world.forget(user, conversation_id="c1"))["verified"]
    for _ in range(repetitions):
        assert (await world.forget(user, all="true"))["verified"]
    assert not storing.done()
    await storing
    assert world.stand_in.requests_for("retain")[0].status == 200, "it came in the end"
    assert world.texts(user) == []
    assert await world.recalled(user, "bees") == []


async def test_a_forget_after_an_interrupted_correction_takes_what_the_observation_was_made_from(
    world: World, user: str
) -> None:
    for text in ("I lived in Hangzhou", "I moved to Shanghai", "I play the flute"):
        await world.add(user, text)
        await world.store()
    bank = bank_of("default", user)
    sources = [m.id for m in world.stand_in.banks[bank].memories.values() if "flute" not in m.text]
    seen = world.stand_in.add_memory(
        bank, "The user lives in Shanghai.", type="observation", source_fact_ids=sources
    )
    world.stand_in.fail("memory_update", "commit_then_close", times=1)
    form = {"user_id": user, "memory_id": seen.id, "text": "The user lives in Chengdu."}
    assert code_of(await world.api.client.post("/memory/correct", data=form), 503)
    assert (await world.forget(user, memory_id=seen.id))["verified"]
    assert world.texts(user) == ["I play the flute"]
    assert not await world.redis.exists(keyspace.meant(bank))


async def test_the_words_of_a_turn_go_with_one_of_its_memories_and_the_others_stay(
    world: World, user: str
) -> None:
    # A turn that took both ways is there word for word, too, until it is settled.
    await world.add(user, "I keep bees and play the flute", conversation_id="c1")
    bank = bank_of("default", user)
    [turn] = await world.workshop.log.pending(bank)
    world.stand_in.store.retain(
        bank, [{"content": "User: I keep bees and play the flute", "document_id": turn.document_id}]
    )
    for number, text in enumerate(("The user keeps bees.", "The user plays the flute.")):
        document = fact_document_of(turn.document_id, number)
        item = {"content": text, "document_id": document, "tags": [turn.document_id]}
        world.stand_in.store.retain(bank, [item])
    memories = world.stand_in.banks[bank].memories.values()
    [bees] = [m.id for m in memories if m.text == "The user keeps bees."]
    assert (await world.forget(user, memory_id=bees))["verified"]
    assert world.texts(user) == ["The user plays the flute."]


async def test_a_forget_waits_for_a_consolidation_that_may_have_read_what_goes(
    world: World, user: str
) -> None:
    await world.add(user, "I moved to Shanghai")
    await world.store()
    bank = bank_of("default", user)
    [memory] = world.stand_in.banks[bank].memories.values()
    consolidation = Operation(str(uuid.uuid4()), bank, "consolidation", [], status="processing")
    world.stand_in.store.operations[consolidation.id] = consolidation
    forgetting = asyncio.create_task(world.forget(user, memory_id=memory.id))
    await wait_until(
        lambda: len(world.stand_in.requests_for("operations")) >= 6, "it has looked three times what runs"
    )
    assert not forgetting.done()
    assert world.texts(user) == ["I moved to Shanghai"]
    consolidation.move("completed")
    assert (await forgetting)["verified"]
    assert world.texts(user) == []


@pytest.mark.parametrize("is_pending", [True, False])
async def test_what_was_extracted_from_a_turn_goes_with_it(world: World, user: str, is_pending: bool) -> None:
    # Extracted memories have documents of their own, tagged with their turn, which is not settled yet.
    await world.add(user, "I keep bees and play the flute", conversation_id="c1")
    bank = bank_of("default", user)
    [turn] = await world.workshop.log.pending(bank)
    for number, text in enumerate(("The user keeps bees.", "The user plays the flute.")):
        document = fact_document_of(turn.document_id, number)
        item = {"content": text, "document_id": document, "tags": [turn.document_id]}
        world.stand_in.store.retain(bank, [item])
    if is_pending:
        assert counts(await world.forget(user, memory_id=turn.document_id)) == (2, 2, 1, 1)
        assert world.texts(user) == []
    else:
        [bees] = [m.id for m in world.stand_in.banks[bank].memories.values() if "bees" in m.text]
        assert counts(await world.forget(user, memory_id=bees)) == (1, 1, 1, 1)
        assert world.texts(user) == ["The user plays the flute."]
        await world.store()  # the turn is not there to be read again
        assert world.texts(user) == ["The user plays the flute."]


async def test_a_dead_letter_is_forgotten(world: World, user: str) -> None:
    for conversation in ("c1", "c2"):
        await world.add(user, "I keep bees", conversation_id=conversation)
    world.stand_in.fail("retain", "status", status=422)
    await world.store()
    assert len((await look(world.redis)).dead) == 2
    world.stand_in.heal()
    assert counts(await world.forget(user, conversation_id="c1")) == (0, 0, 1, 1)
    assert len((await look(world.redis)).dead) == 1
    assert counts(await world.forget(user, all="true")) == (0, 0, 1, 1)
    assert (await look(world.redis)).dead == set()


async def test_a_long_conversation_is_forgotten_whole(world: World, user: str) -> None:
    bank = bank_of("default", user)
    tag = conversation_of(bank, "c1")
    items = [
        {"content": f"text {number}", "document_id": f"d{number}", "tags": [tag]} for number in range(230)
    ]
    world.stand_in.store.retain(bank, items)
    world.stand_in.store.retain(bank, [{"content": "other", "document_id": "d", "tags": []}])
    assert counts(await world.forget(user, conversation_id="c1")) == (230, 230, 0, 0)
    assert world.texts(user) == ["other"]


async def test_a_job_of_which_a_part_was_forgotten(world: World, user: str) -> None:
    long = "\n".join(f"Line {number} of a long story about bees." for number in range(400))
    job = await world.add(user, long, conversation_id="c1", turn_id="run-1")
    bank = bank_of("default", user)
    documents = [turn.document_id for turn in await world.workshop.log.pending(bank)]
    assert len(documents) > 1
    await world.forget(user, memory_id=documents[0])
    assert (await world.api.job(job))["status"] == "queued"
    # The whole turn again, while the rest of it waits: what is missing is taken, nothing is there twice.
    again = checked(await world.api.add(user, long, conversation_id="c1", turn_id="run-1"), 202)
    assert again["status"] == "queued"
    assert sorted(turn.document_id for turn in await world.workshop.log.pending(bank)) == sorted(documents)
    await world.store()
    assert (await world.api.job(job))["status"] == "cancelled"
    assert (await world.api.job(again["job_id"]))["status"] == "done"
    assert sorted(world.stand_in.banks[bank].documents) == sorted(documents)
