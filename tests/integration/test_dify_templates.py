"""The templates in Dify's engine against the real API, on a stand-in for Hindsight."""

import secrets
from collections.abc import Sequence

import pytest
from service.policy.content import parse_rendered
from service.policy.dify_template import LANGUAGES, TemplateName
from service.policy.dify_texts import Language
from service.settings import Settings

from tests.e2e.template_stories import (
    WITH_MEMORY,
    Deployment,
    a_repeated_run_is_one_turn,
    follow,
    job_of,
    remembers_one_and_not_another,
    say,
    says_what_it_knows_and_forgets,
    system_prompt,
    texts_never_reach_another_user,
)
from tests.fakes.dify_engine import Run, StubModel
from tests.fakes.dify_nasty_texts import NASTY, VICTIM
from tests.fakes.hindsight import HindsightStandIn
from tests.integration.conftest import KEY, Api, Workshop, settings_for
from tests.support import RedisServer

pytestmark = pytest.mark.anyio


@pytest.fixture
async def settings(redis_server: RedisServer, stand_in: HindsightStandIn) -> Settings:
    """Without a floor: the stand-in's scores are not those of a real embedding model."""
    await redis_server.command("FLUSHALL")
    return settings_for(redis_server.url, stand_in.url, min_score=0)


@pytest.fixture
def deployment(api: Api, workshop: Workshop) -> Deployment:
    async def settle(runs: Sequence[Run]) -> None:
        while await workshop.work():
            pass
        for run in runs:
            assert await follow(made, job_of(run)) == "done"

    made = Deployment(api.url, KEY, settle)
    return made


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("template", WITH_MEMORY)
async def test_remembers_one_and_not_another(
    deployment: Deployment, template: TemplateName, language: Language
) -> None:
    await remembers_one_and_not_another(deployment, template, language)


@pytest.mark.parametrize("template", WITH_MEMORY)
async def test_texts_never_reach_another_user(
    deployment: Deployment, template: TemplateName, stand_in: HindsightStandIn
) -> None:
    victim = f"{VICTIM}-{secrets.token_hex(4)}"
    texts = [text.replace(VICTIM, victim) for text in NASTY if VICTIM in text]
    assert len(texts) >= 8
    await texts_never_reach_another_user(deployment, template, texts, victim)
    assert len(stand_in.banks) == 2


@pytest.mark.parametrize("language", LANGUAGES)
async def test_support_says_what_it_knows_and_forgets(deployment: Deployment, language: Language) -> None:
    await says_what_it_knows_and_forgets(deployment, language)


@pytest.mark.parametrize("template", WITH_MEMORY)
async def test_a_repeated_run_is_one_turn(
    deployment: Deployment, template: TemplateName, stand_in: HindsightStandIn
) -> None:
    await a_repeated_run_is_one_turn(deployment, template)
    (bank,) = stand_in.banks.values()
    assert len(bank.documents) == 1


async def test_nasty_texts_are_stored_as_they_were_said(
    deployment: Deployment, stand_in: HindsightStandIn
) -> None:
    """Byte for byte, apart from what no store can hold and blanks at the ends."""
    texts = [text for text in NASTY if text.strip() not in ("null", "None") and len(text) < 5000]
    # An answer with something in it: a turn of courtesies alone may be left out.
    engine = deployment.engine("chatflow-memory", "en", StubModel(answer=lambda _: "The Nile is long."))
    runs = [
        await say(engine, text, user="alice", conversation=f"c-{number}") for number, text in enumerate(texts)
    ]
    await deployment.settle(runs)
    (bank,) = stand_in.banks.values()
    stored = {
        message.text for document in bank.documents.values() for message in parse_rendered(document.text)
    }
    for text in texts:
        assert text.replace("\r\n", "\n").strip() in stored, text


async def test_a_hanging_hindsight_holds_nobody_up(
    deployment: Deployment, stand_in: HindsightStandIn
) -> None:
    engine = deployment.engine("chatflow-memory", "en")
    stand_in.fail("*", "hang")
    run = await say(engine, "hello", user="alice", conversation="c-1")
    assert run.answer == "Echo: hello"
    assert run.nodes["recall"].outputs["status_code"] == 200
    assert run.nodes["remember"].outputs["status_code"] == 202
    stand_in.heal()


async def test_support_knows_that_a_hanging_hindsight_is_out_of_reach(
    deployment: Deployment, stand_in: HindsightStandIn
) -> None:
    engine = deployment.engine("chatflow-support", "en")
    stand_in.fail("*", "hang")
    run = await engine.chat("hello", user="alice", conversation="c-1")
    stand_in.heal()
    assert run.answer == "Echo: hello"
    assert "llm_without" in run.nodes
    assert "cannot be read at the moment" in system_prompt(engine)


@pytest.mark.parametrize("template", WITH_MEMORY)
async def test_a_refused_key_leaves_the_chat_alone(deployment: Deployment, template: TemplateName) -> None:
    deployment.key = "wrong-key-0123456789"
    engine = deployment.engine(template, "en")
    if engine.mode == "workflow":
        run = await engine.work(user_id="alice", query="hello")
    else:
        run = await engine.chat("hello", user="alice", conversation="c-1")
    assert (run.status, run.answer) == ("partial-succeeded", "Echo: hello")
    assert "401" in run.nodes["recall"].error
    assert "401" in run.nodes["remember"].error


async def test_the_user_dify_does_not_know_is_refused_and_answered(deployment: Deployment) -> None:
    engine = deployment.engine("chatflow-memory", "en")
    run = await engine.chat("hello", user="DEFAULT-USER", conversation="c-1")
    assert (run.status, run.answer) == ("partial-succeeded", "Echo: hello")
    assert "422" in run.nodes["recall"].error
    assert "422" in run.nodes["remember"].error
