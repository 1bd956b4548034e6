"""Turns that are in Hindsight word for word, beside or before the memories that are made of turns."""

from asyncio import CancelledError, TaskGroup
from contextlib import AsyncExitStack

import pytest
from service.adapters.cache import RecallCache
from service.adapters.hindsight import HindsightAdapter
from service.adapters.turns import NewTurn
from service.memory.fallback import Fallback
from service.memory.store import StoreOptions, Storer
from service.metrics import Metrics
from service.scope import BankId, conversation_of, document_of

from tests.fakes.llm import FakeLlm
from tests.integration.conftest import run_api
from tests.integration.test_extract import USER, Scene, llm, scene, scene_with
from tests.support import RedisServer, wait_until
from tests.turns_log import pass_time

pytestmark = [
    pytest.mark.anyio,
    # Of a provider that litellm loads at the first call.
    pytest.mark.filterwarnings("ignore:Items? .* on TypedDict class:UserWarning"),
]
__all__ = ["llm", "scene"]


async def send_past_the_log(scene: Scene, *turns: NewTurn) -> None:
    """What an API does whose Redis does not answer."""
    conversation = conversation_of(scene.bank, "main")
    async with HindsightAdapter.from_settings(
        scene.settings, {"retain_extraction_mode": "chunks"}
    ) as hindsight:
        await Fallback.from_settings(scene.settings, hindsight).send(
            "default", scene.bank, conversation, turns
        )


def turn_of(scene: Scene, text: str, turn: str = "1") -> NewTurn:
    return NewTurn(document_of(scene.bank, conversation_of(scene.bank, "main"), turn, 0), text)


# --- Both ways ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("text", ["我在杭州做后端", "今天真热"])
async def test_a_turn_that_took_both_ways_leaves_its_memories_alone(scene: Scene, text: str) -> None:
    job = await scene.add(text)
    [turn] = await scene.log.pending(scene.bank)
    await send_past_the_log(scene, NewTurn(turn.document_id, turn.text))
    await scene.work()
    assert (await scene.job(job)).status == "done"
    assert scene.texts == (["用户在杭州做后端"] if text == "我在杭州做后端" else [])
    assert all(document.endswith(".0") for document in scene.stand_in.banks[scene.bank].documents)


async def test_one_that_hindsight_has_not_stored_yet_is_waited_for(scene: Scene) -> None:
    job = await scene.add("我在杭州做后端")
    [turn] = await scene.log.pending(scene.bank)
    scene.stand_in.hold_operations("pending")
    await send_past_the_log(scene, NewTurn(turn.document_id, turn.text))
    await scene.work()
    assert (await scene.job(job)).status == "retaining"
    scene.stand_in.release_operations()

    async def is_done() -> bool:
        await scene.work()
        return (await scene.job(job)).status == "done"

    await wait_until(is_done, "the words were stored and taken away")
    assert scene.texts == ["用户在杭州做后端"]
    assert scene.asked == 1


async def test_the_words_of_other_turns_stay(scene: Scene) -> None:
    await send_past_the_log(scene, turn_of(scene, "用户：我喜欢茶"))
    await scene.tell("我在杭州做后端")
    assert sorted(scene.texts) == ["用户在杭州做后端", "用户：我喜欢茶"]


# --- Outdated words -------------------------------------------------------------------------------------
async def test_words_that_say_one_thing_become_outdated(scene: Scene) -> None:
    await send_past_the_log(scene, turn_of(scene, "用户：我在杭州做后端\n助手：好的"))

    async def are_stored() -> bool:
        return bool(scene.texts)

    await wait_until(are_stored, "the words are stored")
    await scene.tell("我搬到上海了")
    [text] = scene.texts
    assert "上海" in text
    [old] = [memory for memory in scene.memories if memory.state == "invalidated"]
    assert (old.text, old.invalidation_reason) == (
        "用户：我在杭州做后端\n助手：好的",
        "superseded by a newer memory",
    )
    async with run_api(scene.settings) as api:
        assert "杭州" not in (await api.recall(USER, "我在哪个城市做后端？", min_score="0")).text


async def test_words_that_were_kept_since_the_model_failed_do_as_well(scene: Scene) -> None:
    scene.llm.behave("400", kind="memories")
    await scene.tell("我在杭州做后端")
    scene.llm.reset()
    await scene.tell("我搬到上海了")
    assert [text for text in scene.texts if "杭州" in text] == []


@pytest.mark.parametrize("text", ["用户：我在杭州做后端，喜欢咖啡", "用户：我姐姐在杭州做后端"])
async def test_words_that_say_more_or_of_somebody_else_stay(scene: Scene, text: str) -> None:
    await send_past_the_log(scene, turn_of(scene, text))
    await scene.tell("我搬到上海了")
    assert text in scene.texts


# --- Looking up what is known ---------------------------------------------------------------------------
@pytest.mark.parametrize(("status", "times"), [(400, 1), (500, 3)])
async def test_known_memories_that_cannot_be_looked_up_are_done_without(
    scene: Scene, status: int, times: int
) -> None:
    scene.stand_in.fail("recall", "status", status=status)
    job = await scene.add("我在杭州做后端")
    await scene.work(times)
    assert (await scene.job(job)).status == "done"
    assert scene.texts == ["用户在杭州做后端"]


async def test_a_look_up_that_fails_is_no_failure_of_the_model(
    redis_server: RedisServer, scene: Scene, llm: tuple[FakeLlm, str]
) -> None:
    async with scene_with(
        redis_server, scene.stand_in, *llm, extraction_max_tries=1, max_attempts=10
    ) as strict:
        job = await strict.add("我在杭州做后端")
        scene.stand_in.fail("recall", "status", status=500, times=3)
        await strict.work(3)
        strict.llm.behave("500", kind="memories", times=1)
        await strict.work()
        assert (await strict.job(job)).status == "waiting"
        await strict.work()
        assert (await strict.job(job)).status == "done"
        assert strict.texts == ["用户在杭州做后端"], "the model was given another try"


# --- The end of a batch ---------------------------------------------------------------------------------
class Watched(RecallCache):
    """A cache that notes how many turns wait when it is told of a write; a worker may die at one of them."""

    scene: Scene
    waiting: list[int]
    dies_at: int = 0

    async def note_write(self, bank: BankId) -> None:
        self.waiting.append(len(await self.scene.log.pending(bank)))
        if len(self.waiting) == self.dies_at:
            raise CancelledError
        await super().note_write(bank)


@pytest.mark.parametrize("dies_at", [0, 2])
async def test_the_cache_hears_of_a_batch_before_and_after_its_end(
    redis_server: RedisServer, scene: Scene, llm: tuple[FakeLlm, str], dies_at: int
) -> None:
    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(run_api(scene.settings))
        cache = await stack.enter_async_context(Watched.from_settings(scene.settings))
        hindsight = await stack.enter_async_context(HindsightAdapter.from_settings(scene.settings))
        cache.scene, cache.waiting, cache.dies_at = scene, [], dies_at
        storer = Storer(scene.log, cache, hindsight, Metrics(), StoreOptions(3, 600))
        await scene.add("我在杭州做后端")
        # The asking conversation does not see its own pending turns: empty, and cached so.
        asked = {"min_score": "0", "conversation_id": "main"}
        assert (await api.recall(USER, "我在哪个城市做后端？", **asked)).json()["count"] == 0
        await pass_time(scene.redis)
        [claim] = await scene.log.claim(1)
        try:
            async with TaskGroup() as group:
                group.create_task(storer.drain(claim))
        except CancelledError:
            pytest.fail("only the task was to end")
        assert cache.waiting == [1, 0]
        assert (await api.recall(USER, "我在哪个城市做后端？", **asked)).json()["count"] == 1
