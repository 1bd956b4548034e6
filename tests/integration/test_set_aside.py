"""What was set aside can be looked at with its reason and taken back; what was forgotten cannot."""

import asyncio

import pytest
from click.testing import CliRunner, Result
from service.cli.main import main
from service.scope import bank_of

from tests.integration.conftest import run_api
from tests.integration.test_extract import USER, Scene, llm, scene

pytestmark = [
    pytest.mark.anyio,
    # Of a provider that litellm loads at the first call.
    pytest.mark.filterwarnings("ignore:Items? .* on TypedDict class:UserWarning"),
]
__all__ = ["llm", "scene"]


async def command(scene: Scene, *words: str) -> Result:
    env = {
        "MEMORY_REDIS_URL": scene.settings.redis_url,
        "MEMORY_HINDSIGHT_URL": scene.settings.hindsight_url,
    }
    # With a loop of its own, as in a shell.
    return await asyncio.to_thread(CliRunner().invoke, main, ["memories", *words], env=env)


async def moved(scene: Scene) -> str:
    """Somebody who has moved; the id of the memory of the old city."""
    await scene.tell("我在杭州做后端")
    await scene.tell("我搬到上海了")
    [old] = [memory for memory in scene.memories if memory.state == "invalidated"]
    return old.id


async def test_the_reason_is_shown_and_the_words_only_when_asked_for(scene: Scene) -> None:
    old = await moved(scene)
    shown = await command(scene, "set-aside", USER)
    assert shown.exit_code == 0, shown.output
    [line] = shown.output.splitlines()
    assert line.startswith(f"{old}  ")
    assert line.endswith("  user_profile  superseded by a newer memory")
    assert "    | 用户在杭州做后端\n" in (await command(scene, "set-aside", USER, "--show")).output


async def test_a_memory_is_taken_back_and_recalled_at_once(scene: Scene) -> None:
    old = await moved(scene)
    async with run_api(scene.settings) as api:
        before = (await api.recall(USER, "我在哪个城市做后端？", min_score="0")).text
        assert "杭州" not in before
        done = await command(scene, "restore", USER, old)
        assert (done.exit_code, done.output) == (0, "Restored.\n")
        # It was cached a moment ago.
        assert "杭州" in (await api.recall(USER, "我在哪个城市做后端？", min_score="0")).text
    assert sorted(scene.texts) == ["用户在上海做后端", "用户在杭州做后端"]
    assert (await command(scene, "set-aside", USER)).output == "Nothing was set aside.\n"


async def test_what_was_forgotten_is_not_listed_and_stays_so(scene: Scene) -> None:
    old = await moved(scene)
    bank = scene.stand_in.banks[scene.bank]
    bank.memories[old].text, bank.memories[old].invalidation_reason = "-", "forgotten"
    assert (await command(scene, "set-aside", USER)).output == "Nothing was set aside.\n"
    refused = await command(scene, "restore", USER, old)
    assert refused.exit_code == 1
    assert "No such memory of this user was set aside." in refused.output
    assert bank.memories[old].state == "invalidated"


@pytest.mark.parametrize("has_neighbour", [False, True])
async def test_forgetting_one_by_its_id_takes_its_words(scene: Scene, has_neighbour: bool) -> None:
    old = await moved(scene)
    bank = scene.stand_in.banks[scene.bank]
    if has_neighbour:  # as Hindsight's own extraction makes of one document
        scene.stand_in.add_memory(scene.bank, "用户喜欢茶", document_id=bank.memories[old].document_id)
    async with run_api(scene.settings) as api:
        receipt = (await api.client.post("/memory/forget", data={"user_id": USER, "memory_id": old})).json()
        assert (receipt["forgotten"]["memories"], receipt["verified"]) == (1, True)
        again = (await api.client.post("/memory/forget", data={"user_id": USER, "memory_id": old})).json()
        assert (again["forgotten"]["memories"], again["verified"]) == (0, True)
    assert not any("杭州" in memory.text for memory in scene.memories)
    assert sorted(scene.texts) == sorted(["用户在上海做后端"] + ["用户喜欢茶"] * has_neighbour)
    assert (await command(scene, "restore", USER, old)).exit_code == 1
    assert (await command(scene, "set-aside", USER)).output == "Nothing was set aside.\n"


async def test_nobody_else_s_and_nothing_that_is_recalled(scene: Scene) -> None:
    old = await moved(scene)
    [current] = [memory.id for memory in scene.memories if memory.state == "valid"]
    for user, memory in (("mallory", old), (USER, current), (USER, "0" * 8 + "-0000-4000-8000-" + "0" * 12)):
        assert (await command(scene, "restore", user, memory)).exit_code == 1
    assert (await command(scene, "restore", USER, old, "--tenant", "other")).exit_code == 1
    assert (await command(scene, "set-aside", "mallory")).output == "Nothing was set aside.\n"
    assert bank_of("default", "mallory") not in scene.stand_in.banks
    assert scene.texts == ["用户在上海做后端"]


async def test_an_observation_matters_as_much_as_the_most_important_of_its_facts(scene: Scene) -> None:
    facts = [
        scene.stand_in.add_memory(scene.bank, text, tags=["memory_type:user_profile", *tags]).id
        for text, tags in (
            ("Zoe lived in Hangzhou.", ["importance:0.9"]),
            ("Zoe moved to Shanghai.", ["importance:0.7"]),
            ("Zoe is tall.", []),
        )
    ]
    tags = ["memory_type:user_profile"]
    for text, sources in (("Zoe lives in Shanghai.", facts[:2]), ("Zoe is tall and thin.", facts[2:])):
        scene.stand_in.add_memory(scene.bank, text, type="observation", source_fact_ids=sources, tags=tags)
    async with run_api(scene.settings) as api:
        listed = (await api.client.post("/memory/list", data={"user_id": USER})).json()["memories"]
    told = {memory["text"]: (memory["kind"], memory["importance"]) for memory in listed}
    assert told == {
        "Zoe lives in Shanghai.": ("user_profile", 0.9),
        "Zoe is tall and thin.": ("user_profile", None),
    }
