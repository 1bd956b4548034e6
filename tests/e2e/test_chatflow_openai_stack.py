"""The template whose model remembers, in Dify's engine against a whole stack: only the model is a fake."""

import asyncio

import pytest
from service.policy.dify_template import LANGUAGES, render
from service.policy.dify_texts import Language

from tests.e2e.conftest import Stack
from tests.fakes.dify_engine import DifyEngine
from tests.fakes.dify_openai import ProviderModel
from tests.support import wait_until

pytestmark = [pytest.mark.anyio, pytest.mark.hindsight]

FACTS: dict[Language, tuple[str, str, str]] = {
    "en": ("I live in Lisbon and work as a nurse.", "Where do I live?", "Lisbon"),
    "zh": ("我住在杭州，是一名后端工程师。", "我住在哪里？", "杭州"),
}


async def stored(stack: Stack, user: str) -> list[str]:
    """A user's memories, once nothing waits any more."""

    async def all_of_them() -> list[str] | None:
        async with stack.client as client:
            listed = (await client.post("/memory/list", data={"user_id": user})).json()
        return None if listed["pending"] else [str(memory["text"]) for memory in listed["memories"]]

    return await wait_until(all_of_them, "the turns are stored", timeout_s=60, poll_s=0.2)


@pytest.mark.parametrize("language", LANGUAGES)
async def test_a_chat_remembers_one_and_not_another(stack: Stack, language: Language) -> None:
    fact, asked, word = FACTS[language]
    connection = stack.connection
    model = ProviderModel(base_url=f"{connection.url}/v1", key=connection.api_key)
    await asyncio.to_thread(model.check)
    engine = DifyEngine(render("chatflow-openai", language), {}, model)

    async def say(text: str, user: str, conversation: str) -> str:
        model.end_user = user
        run = await engine.chat(text, user=user, conversation=conversation)
        assert run.status == "succeeded", run.error
        assert run.streamed == run.answer
        return run.answer.partition("You said")[0]

    me, other = f"0b0e6a5c-8a0e-4d3c-9a39-{language}", f"5d1c7a52-3f0e-4f0f-9f6b-{language}"
    assert word not in await say(fact, me, "c-1")
    assert [word in text for text in await stored(stack, me)] == [True]
    assert word in await say(asked, me, "c-2")
    assert word not in await say(asked, other, "c-3")
    mine = await stored(stack, me)
    assert len(mine) == 2
    assert not any("ping" in text for text in mine)
    assert not any(word in text for text in await stored(stack, other))
