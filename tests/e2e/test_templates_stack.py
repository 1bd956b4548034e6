"""The templates in Dify's engine against the whole stack, everything real but the model."""

import asyncio
import json
import secrets
from collections.abc import Sequence

import httpx
import pytest
from service.policy.content import parse_rendered
from service.policy.dify_template import LANGUAGES, TemplateName
from service.policy.dify_texts import Language
from service.policy.sentences import split_long

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
from tests.fakes.dify_engine import Run, StubModel
from tests.fakes.dify_nasty_texts import NASTY, VICTIM
from tests.support import wait_until

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


async def test_nasty_texts_are_remembered_as_they_were_said(deployment: Deployment) -> None:
    """Byte for byte, from Dify's node to Hindsight's database and back, apart from blanks at the ends."""
    texts = [text for text in NASTY if text.strip() not in ("null", "None")]
    assert len(texts) >= 40
    # An answer with something in it: a turn of courtesies alone may be left out.
    engine = deployment.engine("chatflow-memory", "en", StubModel(answer=lambda _: "The Nile is long."))
    user = f"alice-{secrets.token_hex(4)}"
    # Two conversations, so that they are stored in a few batches.
    runs = [
        await engine.chat(text, user=user, conversation=f"c-{number % 2}")
        for number, text in enumerate(texts)
    ]
    for run in runs:

        async def is_done(job_id: str = job_of(run)) -> bool:
            return await follow(deployment, job_id) == "done"

        await wait_until(is_done, "the turn is stored", timeout_s=120)
    headers = {"Authorization": f"Bearer {deployment.key}"}
    async with httpx.AsyncClient(base_url=deployment.url, headers=headers, timeout=60) as client:
        exported = await client.get("/memory/export", params={"user_id": user})
    lines = [json.loads(line) for line in exported.text.splitlines()]
    assert lines[-1]["type"] == "end"
    said = "\n".join(message.text for line in lines[:-1] for message in parse_rendered(line.get("text", "")))
    for text in texts:
        # Long ones are several documents, cut at sentences: their parts have to be there.
        for part in (piece.strip() for piece in split_long(text.replace("\r\n", "\n"), 2_000)):
            assert part in said, part[:200]


@pytest.mark.parametrize("language", LANGUAGES)
async def test_support_says_what_it_knows_and_forgets(deployment: Deployment, language: Language) -> None:
    await says_what_it_knows_and_forgets(deployment, language)


@pytest.mark.parametrize("template", WITH_MEMORY)
async def test_a_repeated_run_is_one_turn(deployment: Deployment, template: TemplateName) -> None:
    await a_repeated_run_is_one_turn(deployment, template)
