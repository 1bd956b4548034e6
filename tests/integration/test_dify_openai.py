"""The template whose model remembers, in Dify's engine, with the model served from here."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from service.policy.dify_template import LANGUAGES, render
from service.policy.dify_texts import Language

from tests.fakes.dify_engine import DifyEngine
from tests.fakes.dify_openai import ProviderModel
from tests.integration.chat_world import World, chat_world
from tests.integration.conftest import KEY
from tests.support import RedisServer

pytestmark = [
    pytest.mark.anyio,
    # litellm's own: of a provider that it loads at the first call, and of how it reads its models.
    pytest.mark.filterwarnings("ignore:Items? .* on TypedDict class:UserWarning"),
    pytest.mark.filterwarnings("ignore:Accessing the 'model_:DeprecationWarning"),
]
FACTS: dict[Language, tuple[str, str, str]] = {
    "en": ("I live in Lisbon and work as a nurse.", "Where do I live?", "Lisbon"),
    "zh": ("我住在杭州，是一名后端工程师。", "我住在哪里？", "杭州"),
}


@pytest.fixture
async def world(redis_server: RedisServer) -> AsyncIterator[World]:
    async with chat_world(redis_server) as made:
        yield made


@pytest.mark.parametrize("language", LANGUAGES)
async def test_a_chat_remembers_one_and_not_another(world: World, language: Language) -> None:
    fact, asked, word = FACTS[language]
    model = ProviderModel(base_url=f"{world.api.url}/v1", key=KEY)
    await asyncio.to_thread(model.check)
    engine = DifyEngine(render("chatflow-openai", language), {}, model)

    async def say(text: str, user: str, conversation: str) -> str:
        model.end_user = user
        run = await engine.chat(text, user=user, conversation=conversation)
        assert run.status == "succeeded", run.error
        assert run.streamed == run.answer
        return run.answer.partition("You said")[0]

    me, other = "0b0e6a5c-8a0e-4d3c-9a39-5a2f4c1d7e10", "5d1c7a52-3f0e-4f0f-9f6b-6f1b7d0f3a21"
    assert word not in await say(fact, me, "c-1")
    await world.settle()
    assert word in await say(asked, me, "c-2")
    assert word not in await say(asked, other, "c-3")
    await world.settle()
    assert len(world.stored(me)) == 2
    assert not any("ping" in turn for turn in world.stored(me))
