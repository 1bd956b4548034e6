"""The templates in Dify's engine against the whole stack, everything real but the model."""

import asyncio
import secrets
from collections.abc import Sequence

import pytest
from service.policy.dify_template import LANGUAGES, TemplateName
from service.policy.dify_texts import Language

from tests.e2e.conftest import Stack
from tests.e2e.template_stories import (
    WITH_MEMORY,
    Deployment,
    a_repeated_run_is_one_turn,
    follow,
    job_of,
    remembers_one_and_not_another,
    says_what_it_knows_and_forgets,
    texts_never_reach_another_user,
)
from tests.fakes.dify_engine import Run
from tests.fakes.dify_nasty_texts import NASTY, VICTIM

pytestmark = [pytest.mark.anyio, pytest.mark.hindsight]


@pytest.fixture
def deployment(stack: Stack) -> Deployment:
    async def settle(runs: Sequence[Run]) -> None:
        states = await asyncio.gather(*(follow(made, job_of(run)) for run in runs))
        assert set(states) == {"done"}

    made = Deployment(stack.connection.url, stack.connection.api_key, settle)
    return made


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("template", WITH_MEMORY)
async def test_remembers_one_and_not_another(
    deployment: Deployment, template: TemplateName, language: Language
) -> None:
    await remembers_one_and_not_another(deployment, template, language)


@pytest.mark.parametrize("template", WITH_MEMORY)
async def test_texts_never_reach_another_user(deployment: Deployment, template: TemplateName) -> None:
    victim = f"{VICTIM}-{secrets.token_hex(4)}"
    texts = [text.replace(VICTIM, victim) for text in NASTY if VICTIM in text]
    await texts_never_reach_another_user(deployment, template, texts, victim)


@pytest.mark.parametrize("language", LANGUAGES)
async def test_support_says_what_it_knows_and_forgets(deployment: Deployment, language: Language) -> None:
    await says_what_it_knows_and_forgets(deployment, language)


@pytest.mark.parametrize("template", WITH_MEMORY)
async def test_a_repeated_run_is_one_turn(deployment: Deployment, template: TemplateName) -> None:
    await a_repeated_run_is_one_turn(deployment, template)
