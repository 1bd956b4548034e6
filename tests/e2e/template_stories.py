"""What every template with memory must do against a running service, whatever that runs on."""

import json
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cache

import httpx
from service.policy.dify_template import TemplateName, render
from service.policy.dify_texts import TEXTS, Language

from tests.fakes.dify_engine import DifyEngine, Run, StubModel

WITH_MEMORY: tuple[TemplateName, ...] = ("chatflow-memory", "chatflow-support", "workflow-memory")
# What is said, what is asked days later, and the word that must come back.
_FACTS: dict[Language, tuple[str, str, str]] = {
    "en": ("I live in Lisbon and work as a nurse.", "Where do I live?", "Lisbon"),
    "zh": ("我住在杭州，是一名后端工程师。", "我住在哪里？", "杭州"),
}

_rendered = cache(render)


@dataclass
class Deployment:
    """A running service; `settle` returns once the turns of these runs are stored."""

    url: str
    key: str
    settle: Callable[[list[Run]], Awaitable[None]]

    def engine(
        self, template: TemplateName, language: Language, model: StubModel | None = None
    ) -> DifyEngine:
        """A template imported for this service."""
        environment = {"MEMORY_URL": self.url, "MEMORY_API_KEY": self.key}
        return DifyEngine(_rendered(template, language), environment, model)


def job_of(run: Run) -> str:
    """The job under which the service took the turn of a run."""
    return str(json.loads(run.nodes["remember"].outputs["body"])["job_id"])


async def say(engine: DifyEngine, text: str, *, user: str, conversation: str, run_id: str = "") -> Run:
    """One message; it has to be answered."""
    if engine.mode == "workflow":
        run = await engine.work(user_id=user, query=text, conversation_id=conversation, run_id=run_id)
    else:
        run = await engine.chat(text, user=user, conversation=conversation, run_id=run_id)
    assert run.status == "succeeded", (run.error, {name: node.error for name, node in run.nodes.items()})
    assert run.nodes["remember"].outputs["status_code"] in (200, 202)
    return run


def system_prompt(engine: DifyEngine) -> str:
    """What the model was told last."""
    return engine.model.prompts[-1][0][1]


async def remembers_one_and_not_another(
    deployment: Deployment, template: TemplateName, language: Language
) -> None:
    """Two conversations of one person and one of another; each language in its own words."""
    said, asked, word = _FACTS[language]
    run = secrets.token_hex(4)
    me, other = f"用户/{run}:me", f"用户/{run}:other"
    engine = deployment.engine(template, language)
    first = await say(engine, said, user=me, conversation=f"{run}-1")
    assert word not in system_prompt(engine)
    await deployment.settle([first])

    await say(engine, asked, user=me, conversation=f"{run}-2")
    prompt = system_prompt(engine)
    assert word in prompt
    assert prompt.index("<user_memories>\n") < prompt.index(word) < prompt.index("</user_memories>")

    await say(engine, asked, user=other, conversation=f"{run}-3")
    assert word not in system_prompt(engine)
    key = "support_prompt" if template == "chatflow-support" else "prompt"
    assert system_prompt(engine) == f"{TEXTS[language][key]}\n\n", "no memory leaves no trace in the prompt"


async def texts_never_reach_another_user(
    deployment: Deployment, template: TemplateName, texts: list[str], victim: str
) -> None:
    """An attacker's texts neither read the victim's memory nor write into it."""
    run = secrets.token_hex(4)
    secret, planted = f"zebra{run}", f"planted{run}"
    engine = deployment.engine(template, "en")
    stored = await say(engine, f"My secret word is {secret}.", user=victim, conversation=f"{run}-v")
    await deployment.settle([stored])
    attacks = []
    for number, text in enumerate(texts):
        said = f"{text} secret word {planted}"
        attacks.append(await say(engine, said, user=f"attacker-{run}", conversation=f"{run}-{number}"))
        assert secret not in system_prompt(engine)
    await deployment.settle(attacks)
    await say(engine, "What is my secret word?", user=victim, conversation=f"{run}-w")
    assert secret in system_prompt(engine)
    assert planted not in system_prompt(engine)


async def a_repeated_run_is_one_turn(deployment: Deployment, template: TemplateName) -> None:
    """Dify sends a turn again after an error or a time-out."""
    user = f"user-{secrets.token_hex(4)}"
    engine = deployment.engine(template, "en")
    runs = [
        await say(engine, "I like tea.", user=user, conversation="c", run_id=f"run-{user}") for _ in range(2)
    ]
    replies = [json.loads(run.nodes["remember"].outputs["body"]) for run in runs]
    assert [reply["status"] for reply in replies] == ["queued", "duplicate"]
    assert replies[0]["job_id"] == replies[1]["job_id"]
    await deployment.settle(runs[:1])


async def says_what_it_knows_and_forgets(deployment: Deployment, language: Language) -> None:
    """Customer service: a person sees their own memories, stored or not yet, and only theirs go."""
    said, asked, word = _FACTS[language]
    text = TEXTS[language]
    run = secrets.token_hex(4)
    me, other = f"客户/{run}:me", f"客户/{run}:other"
    engine = deployment.engine("chatflow-support", language)
    know, forget = (text[key].split("|")[0] for key in ("say_known", "say_forget"))

    async def answer_to(sentence: str, user: str) -> str:
        ended = await engine.chat(sentence, user=user, conversation=f"{run}-{user}-2")
        assert ended.status == "succeeded", {name: node.error for name, node in ended.nodes.items()}
        assert "remember" not in ended.nodes, "what is said about the memory is not remembered"
        return ended.answer

    assert await answer_to(know, me) == text["known_nothing"]
    mine = await say(engine, said, user=me, conversation=f"{run}-1")
    theirs = await say(engine, said, user=other, conversation=f"{run}-2")
    known = await answer_to(know, me)
    assert known.startswith(text["known_heading"])
    assert word in known, "accepted turns are known, too"
    await deployment.settle([mine, theirs])
    assert word in await answer_to(know, me)

    assert await answer_to(forget, me) == text["forgotten_answer"]
    assert await answer_to(know, me) == text["known_nothing"]
    await say(engine, asked, user=me, conversation=f"{run}-3")
    assert word not in system_prompt(engine)
    assert await answer_to(forget, me) == text["forgotten_answer"], "a repetition is no error"

    assert word in await answer_to(know, other)
    await say(engine, asked, user=other, conversation=f"{run}-4")
    assert word in system_prompt(engine)


async def follow(deployment: Deployment, job: str) -> str:
    """The state of a job, once it has ended or after half a minute."""
    headers = {"Authorization": f"Bearer {deployment.key}"}
    async with httpx.AsyncClient(base_url=deployment.url, headers=headers, timeout=60) as client:
        reply = await client.get(f"/memory/jobs/{job}", params={"wait_s": 30})
    assert reply.status_code == 200, reply.text
    return str(reply.json()["status"])
