"""Answers of a language model that are not what was asked for, all the way to what is stored."""

import json

import pytest

from tests.fakes.llm import Scripted
from tests.integration.test_extract import Scene, llm, scene

pytestmark = [
    pytest.mark.anyio,
    # Of a provider that litellm loads at the first call.
    pytest.mark.filterwarnings("ignore:Items? .* on TypedDict class:UserWarning"),
]
__all__ = ["llm", "scene"]

SAID = "我种了茉莉，也养了一只猫"


def fact(**changes: object) -> str:
    good = {
        "turn": 1,
        "source": "我种了茉莉",
        "text": "用户种了茉莉",
        "kind": "user_profile",
        "importance": 0.9,
        "subject": "user",
        "action": "add",
        "replaces": [],
    }
    return json.dumps(good | changes, ensure_ascii=False)


CAT = fact(source="养了一只猫", text="用户养了一只猫")


@pytest.mark.parametrize(
    ("answer", "kept"),
    [
        (f"[{fact()}, {CAT}]", ["用户种了茉莉", "用户养了一只猫"]),
        (f'{{"facts": [{CAT}, {fact()[:60]}', ["用户养了一只猫"]),
        (f'Sure:\n```json\n{{"facts": [{fact()}]}}\n```', ["用户种了茉莉"]),
        (f'{{"facts": [{fact(kind="hobby")}, {CAT}]}}', ["用户养了一只猫"]),
        (f'{{"facts": [{fact(importance="high")}]}}', ["用户种了茉莉"]),
        (f'{{"facts": [{fact(importance=3.7)}, {CAT}]}}', ["用户养了一只猫"]),
        (f'{{"facts": [{fact(importance=float("nan"))}, {CAT}]}}', ["用户养了一只猫"]),
        (f'{{"facts": [{fact(text="The user grows jasmine")}]}}', ["我种了茉莉"]),
        (f'{{"facts": [{fact(source=None)}, null, 7, "x", {CAT}]}}', ["用户养了一只猫"]),
        ('{"facts": []}', []),
    ],
    ids=["array", "cut", "prose", "kind", "high", "3.7", "nan", "language", "shapes", "nothing"],
)
async def test_what_can_be_used_of_it_is_kept(scene: Scene, answer: str, kept: list[str]) -> None:
    scene.llm.script.append(Scripted(contains="茉莉", content=answer))
    job = await scene.tell(SAID)
    assert (job.status, job.memories_kept) == ("done", len(kept))
    assert sorted(scene.texts) == sorted(kept)
    assert scene.asked == 1


async def test_five_hundred_facts_are_a_few(scene: Scene) -> None:
    facts = [fact(text=f"用户种了茉莉{n}") for n in range(500)]
    scene.llm.script.append(Scripted(contains="茉莉", content=f'{{"facts": [{", ".join(facts)}]}}'))
    job = await scene.tell(f"{SAID} {' '.join(map(str, range(500)))}")
    assert (job.status, job.memories_kept, len(scene.texts)) == ("done", 10, 10)


async def test_an_answer_that_comes_too_late_is_asked_for_again_and_stored_once(scene: Scene) -> None:
    await scene.tell("我喜欢茶")  # loads litellm
    scene.llm.behave("slow", seconds=6, times=1, kind="memories")
    job = await scene.tell(SAID)
    assert (job.status, job.reason) == ("waiting", "The LLM does not answer in time.")
    await scene.work()
    assert (await scene.job(job.job_id)).status == "done"
    assert len(scene.texts) == len(set(scene.texts))
    assert scene.asked == 3
