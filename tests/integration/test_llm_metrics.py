"""What an extraction is counted as and what it costs: calls, tokens, dollars, facts, and a day's limit."""

import json
from typing import Any

import pytest
from service import keyspace
from service.metrics import Metrics
from service.scope import bank_of

from tests.fakes.hindsight_store import Fact
from tests.fakes.llm import Control, FakeLlm, Mode, Scripted
from tests.integration.test_extract import USER, Scene, llm, scene, scene_with
from tests.support import RedisServer
from tests.turns_log import pass_time

pytestmark = [
    pytest.mark.anyio,
    # Of a provider that litellm loads at the first call.
    pytest.mark.filterwarnings("ignore:Items? .* on TypedDict class:UserWarning"),
]
__all__ = ["llm", "scene"]

# One whose price litellm knows.
PRICED = "openai/gpt-4o-mini"


def counted(metrics: Metrics, name: str) -> dict[str, float]:
    """The values of a counter by its label ("" if it has none), those of 0 left out."""
    return {
        next(iter(sample.labels.values()), ""): sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == name and sample.value
    }


def calls(scene: Scene) -> dict[str, float]:
    return counted(scene.metrics, "memory_llm_calls_total")


def tokens(scene: Scene) -> dict[str, float]:
    return counted(scene.metrics, "memory_llm_tokens_total")


def facts(scene: Scene) -> dict[str, float]:
    return counted(scene.metrics, "memory_facts_total")


async def dead(scene: Scene) -> int:
    return int(await scene.redis.hlen(keyspace.DEAD))  # type: ignore[misc]


async def spent(scene: Scene) -> dict[str, int]:
    """What Redis holds of today, of the one tenant."""
    [key] = [key async for key in scene.redis.scan_iter(match="mem:spent:*")]
    assert 0 < await scene.redis.ttl(key) <= 2 * 86_400
    found: dict[str, str] = await scene.redis.hgetall(key)  # type: ignore[misc]
    return {name: int(value) for name, value in found.items()}


def fact(said: str, **changes: object) -> dict[str, object]:
    """A fact as the model gives it, which is kept unless `changes` say otherwise."""
    return {
        "turn": 1,
        "source": said,
        "text": said.replace("我", "用户"),
        "kind": "user_profile",
        "importance": 0.9,
        "subject": "user",
        "action": "add",
        "replaces": [],
        **changes,
    }


def scripted(contains: str, *given: dict[str, object]) -> Scripted:
    return Scripted(contains=contains, content=json.dumps({"facts": given}, ensure_ascii=False))


# --- Counters -------------------------------------------------------------------------------------------
async def test_one_extraction_is_one_call_with_its_tokens_and_every_fact_by_what_became_of_it(
    scene: Scene,
) -> None:
    answer = scripted(
        "茉莉",
        fact("我种了茉莉"),
        fact("我在杭州做后端"),
        fact("我种了茉莉", importance=0.1),
        fact("我种了茉莉", kind="gossip"),
        fact("我住在北京"),
        fact("我种了茉莉", action="ignore"),
    )
    scene.llm.script.append(answer)
    job = await scene.tell("我种了茉莉", "我在杭州做后端")
    assert (job.status, len(scene.texts)) == ("done", 2)
    assert calls(scene) == {"ok": 1}
    assert facts(scene) == {"kept": 2, "importance": 1, "kind": 1, "source": 1, "ignored": 1}

    [asked] = scene.llm.calls_for("memories")
    messages: list[dict[str, Any]] = asked["request"]["messages"]
    # As the stand-in counts them: four characters are a token.
    sent = sum(len(message["content"]) for message in messages) // 4 + 1
    said = len(answer.content) // 4 + 1
    assert tokens(scene) == {"sent": sent, "said": said}
    assert await spent(scene) == {"micro_usd": 0, "tokens": sent + said}
    assert counted(scene.metrics, "memory_llm_cost_usd_total") == {}


async def test_what_a_model_of_known_price_costs_is_counted_in_dollars(
    scene: Scene, redis_server: RedisServer, llm: tuple[FakeLlm, str]
) -> None:
    async with scene_with(redis_server, scene.stand_in, *llm, llm_model=PRICED) as priced:
        await priced.tell("我在杭州做后端")
        first = counted(priced.metrics, "memory_llm_cost_usd_total")[""]
        assert 0 < first < 0.01
        assert (await spent(priced))["micro_usd"] == round(first * 1_000_000)
        await priced.tell("我喜欢咖啡")
        assert counted(priced.metrics, "memory_llm_cost_usd_total")[""] > first
        assert (await spent(priced))["tokens"] == sum(tokens(priced).values())


async def test_what_needs_no_model_is_counted_nowhere(scene: Scene) -> None:
    assert (await scene.tell("嗯嗯", "好的，谢谢")).status == "done"
    assert (calls(scene), tokens(scene), facts(scene)) == ({}, {}, {})


async def test_a_repetition_is_counted_once(scene: Scene) -> None:
    await scene.add("我在杭州做后端")
    scene.stand_in.fail("retain", "close", times=1)
    await scene.work(2)
    assert scene.texts == ["用户在杭州做后端"]
    assert (calls(scene), facts(scene)) == ({"ok": 1}, {"kept": 1})


@pytest.mark.parametrize(
    ("mode", "outcome", "is_paid"),
    [
        ("500", "llm_unavailable", False),
        ("401", "llm_misconfigured", False),
        ("400", "llm_rejected", False),
        ("garbage", "unusable", True),
    ],
)
async def test_a_failed_call_is_counted_by_what_went_wrong(
    scene: Scene, mode: Mode, outcome: str, is_paid: bool
) -> None:
    scene.llm.behave(mode, kind="memories", times=1)
    await scene.tell("我在杭州做后端")
    assert calls(scene) == {outcome: 1}
    assert facts(scene) == {}
    # An answer that cannot be used has been paid for.
    assert bool(tokens(scene)) is is_paid


async def test_facts_that_hindsight_extracts_are_counted_too(
    scene: Scene, redis_server: RedisServer, llm: tuple[FakeLlm, str]
) -> None:
    made = [
        Fact("kept", tags=["memory_type:preference", "importance:0.7"]),
        Fact("unimportant", tags=["memory_type:preference", "importance:0.3"]),
        Fact("another kind", tags=["memory_type:event", "importance:0.9"]),
    ]
    scene.stand_in.store.extract = lambda _: made
    async with scene_with(redis_server, scene.stand_in, *llm, extraction="hindsight") as labelled:
        await labelled.tell("我喜欢咖啡")
        assert facts(labelled) == {"kept": 1, "importance": 1, "kind": 1}
        assert calls(labelled) == {}


# --- A day's dollars ------------------------------------------------------------------------------------
async def test_a_day_s_dollars_end_the_questions_until_the_next_day(
    scene: Scene, redis_server: RedisServer, llm: tuple[FakeLlm, str]
) -> None:
    limits: dict[str, Any] = {"llm_model": PRICED, "llm_daily_usd": 0.000001}
    async with scene_with(redis_server, scene.stand_in, *llm, **limits) as poor:
        assert (await poor.tell("我在杭州做后端")).status == "done"
        assert (await spent(poor))["micro_usd"] >= 1
        waiting = await poor.add("我喜欢咖啡")
        await poor.work(2)
        job = await poor.job(waiting)
        assert (job.status, job.reason) == ("waiting", "Today's budget for the LLM is spent.")
        assert poor.asked == 1
        assert calls(poor) == {"ok": 1, "llm_budget_spent": 2}
        assert poor.texts == ["用户在杭州做后端"]
        # The key is named after the day: the next one has none.
        await poor.redis.delete(*[key async for key in poor.redis.scan_iter(match="mem:spent:*")])
        await poor.work()
        assert (await poor.job(waiting)).status == "done"
        assert poor.texts == ["用户在杭州做后端", "用户喜欢咖啡"]
        assert poor.asked == 2
        assert calls(poor) == {"ok": 2, "llm_budget_spent": 2}


@pytest.mark.parametrize("is_hash", [True, False])
async def test_a_day_s_sum_that_is_broken_holds_up_nobody_and_is_begun_anew(
    scene: Scene, redis_server: RedisServer, llm: tuple[FakeLlm, str], is_hash: bool
) -> None:
    async with scene_with(redis_server, scene.stand_in, *llm, llm_daily_tokens=100_000) as limited:
        assert (await limited.tell("我在杭州做后端")).status == "done"
        first = (await spent(limited))["tokens"]
        [key] = [key async for key in limited.redis.scan_iter(match="mem:spent:*")]
        if is_hash:
            await limited.redis.hset(key, mapping={"micro_usd": "abc", "tokens": "abc"})  # type: ignore[misc]
        else:
            await limited.redis.set(key, "abc")
        assert (await limited.tell("我喜欢咖啡")).status == "done"
        assert (await spent(limited))["tokens"] == sum(tokens(limited).values()) - first
        assert limited.texts == ["用户在杭州做后端", "用户喜欢咖啡"]


async def test_what_was_paid_for_is_stored_although_redis_is_full(scene: Scene) -> None:
    job = await scene.add("我在杭州做后端")
    await pass_time(scene.redis)
    await scene.redis.config_set("maxmemory", "1")
    try:
        [claim] = await scene.log.claim(100)
        await scene.storer.drain(claim)
    finally:
        await scene.redis.config_set("maxmemory", "0")
    assert (await scene.job(job)).status == "done"
    assert scene.asked == 1
    assert (await spent(scene))["tokens"] == sum(tokens(scene).values())


async def test_days_without_a_budget_are_no_failed_tries(
    scene: Scene, redis_server: RedisServer, llm: tuple[FakeLlm, str]
) -> None:
    # Three failed tries would give the turn up.
    limits: dict[str, Any] = {"llm_daily_tokens": 1, "extraction_fallback": "dead_letter"}
    async with scene_with(redis_server, scene.stand_in, *llm, **limits) as poor:
        assert (await poor.tell("我在杭州做后端")).status == "done"
        waiting = await poor.add("我喜欢咖啡")
        await poor.work(6)
        assert (await poor.job(waiting)).status == "waiting"
        assert await dead(poor) == 0
        await poor.redis.delete(*[key async for key in poor.redis.scan_iter(match="mem:spent:*")])
        poor.llm.behave("500", kind="memories", times=1)
        await poor.work()
        assert (await poor.job(waiting)).status == "waiting"
        await poor.work()
        assert (await poor.job(waiting)).status == "done"
        assert poor.texts == ["用户在杭州做后端", "用户喜欢咖啡"]


async def test_a_spent_budget_may_leave_words_as_they_are_instead(
    scene: Scene, redis_server: RedisServer, llm: tuple[FakeLlm, str]
) -> None:
    limits: dict[str, Any] = {"llm_daily_tokens": 1, "extraction_over_budget": "none"}
    async with scene_with(redis_server, scene.stand_in, *llm, **limits) as poor:
        assert (await poor.tell("我在杭州做后端")).status == "done"
        assert (await poor.tell("我喜欢咖啡")).status == "done"
        assert poor.texts == ["用户在杭州做后端", "用户：我喜欢咖啡"]
        assert calls(poor) == {"ok": 1, "llm_budget_spent": 1}


async def test_a_pause_that_a_model_asks_for_is_no_failed_try(
    scene: Scene, redis_server: RedisServer, llm: tuple[FakeLlm, str]
) -> None:
    async with scene_with(redis_server, scene.stand_in, *llm, extraction_fallback="dead_letter") as patient:
        await patient.tell("嗯，我喜欢茶")
        patient.llm.controls.append(Control(mode="429", times=1, kind="memories", retry_after="600"))
        waiting = await patient.add("我在杭州做后端")
        await patient.work(6)
        assert (await patient.job(waiting)).status == "waiting"
        assert await dead(patient) == 0
        assert calls(patient) == {"ok": 1, "llm_unavailable": 1, "llm_paused": 5}
        assert patient.asked == 2


async def test_all_workers_share_a_day_s_dollars(
    scene: Scene, redis_server: RedisServer, llm: tuple[FakeLlm, str]
) -> None:
    limits: dict[str, Any] = {"llm_model": PRICED, "llm_daily_usd": 0.000001}
    async with (
        scene_with(redis_server, scene.stand_in, *llm, **limits) as first,
        scene_with(redis_server, scene.stand_in, *llm, **limits) as second,
    ):
        assert (await first.tell("我在杭州做后端")).status == "done"
        assert (await second.tell("我喜欢咖啡")).status == "waiting"
        assert scene.asked == 1


@pytest.mark.parametrize(
    "limits",
    [
        {"llm_model": PRICED, "llm_daily_usd": 100},
        {"llm_model": PRICED, "llm_daily_usd": 0},
        # Without a known price there are no dollars to count: that is what the limit in tokens is for.
        {"llm_daily_usd": 0.000001},
    ],
)
async def test_what_is_within_a_day_s_dollars_goes_on(
    scene: Scene, redis_server: RedisServer, llm: tuple[FakeLlm, str], limits: dict[str, Any]
) -> None:
    async with scene_with(redis_server, scene.stand_in, *llm, **limits) as rich:
        for text in ("我在杭州做后端", "我喜欢咖啡"):
            assert (await rich.tell(text)).status == "done"
        assert rich.asked == 2
    assert bank_of("default", USER) in scene.stand_in.banks
