"""`dify-memory policy`: check a policy file, and try out what it would do to a text, without storing it."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import click

from service.adapters.llm import LlmAdapter
from service.errors import ServiceError
from service.memory.policies import policy_in
from service.policy.content import Message, Turn, render
from service.policy.extraction import SCHEMA_NAME, Spoken, prompt, schema
from service.policy.extraction_answer import UnusableAnswer, Vetted, read_answer, vet
from service.policy.kinds import KeepPolicy
from service.policy.redaction import RedactionPolicy, redact
from service.policy.redaction_types import KINDS
from service.policy.sentences import sentence_ends
from service.policy.small_talk import is_small_talk
from service.policy.takeover import is_instruction_like
from service.policy.tenant_policy import PolicyFile, PolicyFileError, TenantPolicy, read_policy_file
from service.settings import Settings

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_EVERYTHING = RedactionPolicy()
_ACTIONS = {"mask": "masked", "drop": "its sentence is dropped", "keep": "kept as it is"}
# Who makes memories where it is not our language model.
_NOT_OURS = {
    "none": "none are made (MEMORY_EXTRACTION=none): the text above is kept word for word",
    "hindsight": "Hindsight makes them when this is stored (MEMORY_EXTRACTION=hindsight); "
    "what is not of the kinds and the importance above is then set aside",
}
_WHY = {
    "ignored": "the language model did not find it worth keeping",
    "shape": "it is no memory",
    "kind": "its kind is not kept",
    "importance": "it matters less than importance_threshold, or has no readable importance",
    "source": "the words it claims to come from were not said by the user",
    "ungrounded": "it says something else than the words it comes from",
    "subject": "it takes somebody else for the user",
    "instruction": "it tries to give orders to a model",
    "repeated": "it says what another one says",
    "too_many": "there are more important ones",
}


@click.group()
def policy() -> None:
    """Check a policy file (MEMORY_POLICY_FILE), or try it out on a text."""


@policy.command()
@click.argument("file", type=_FILE)
def check(file: Path) -> None:
    """Tell every mistake in FILE with its line; exit code 1 if there is one."""
    found = _read(file)
    click.secho(f"{file}: good", fg="green")
    for name, one in (("default", found.default), *sorted(found.tenants.items())):
        click.echo(f"  {name}: {_summary(one)}")


@policy.command(name="try")
@click.argument("file", type=_FILE)
@click.option("--text", required=True, help="What a user might say.")
@click.option("--tenant", help="Whose policy [MEMORY_TENANT].")
def try_(file: Path, text: str, tenant: str | None) -> None:
    """Show what FILE would do to a text: redacted, kept, dropped, and why. Nothing is stored.

    Which memories are made of it is shown if MEMORY_LLM_MODEL makes them: that language model is asked, with
    the redacted text. This one call does not count towards the tenant's budget of the day.
    """
    settings = Settings()
    owner = tenant or settings.tenant
    chosen = _read(file).of(owner)
    click.echo(f"Policy:    {owner} {_summary(chosen)}")
    for line in _tried(text, chosen, settings):
        click.echo(line)


def _read(file: Path) -> PolicyFile:
    try:
        return read_policy_file(file.read_text("utf-8"), policy_in(Settings()))
    except UnicodeDecodeError:
        raise click.ClickException(f"{file} is not a text file (UTF-8).") from None
    except PolicyFileError as exc:
        for mistake in exc.mistakes:
            click.secho(f"{file}:{mistake.line}: {mistake.message}", fg="red", err=True)
        raise click.exceptions.Exit(1) from None


def _summary(one: TenantPolicy) -> str:
    kinds = ", ".join(
        kind.name
        + ("" if kind.keep else " (dropped)")
        + (f" ({one.expiring[kind.name]} days)" if kind.name in one.expiring else "")
        for kind in one.keep.kinds
    )
    parts = [
        f"keeps {kinds}",
        f"from importance {one.keep.threshold:g} on",
        f"all of it for {one.retention_days} days" if one.retention_days else "for ever",
    ]
    spared = {kind: one.redaction.action(kind) for kind in KINDS if one.redaction.action(kind) != "mask"}
    if spared:
        parts.append("redaction: " + ", ".join(f"{kind} {action}" for kind, action in spared.items()))
    if one.llm_daily_usd or one.llm_daily_tokens:
        limits = [f"{one.llm_daily_usd:g} US dollars"] if one.llm_daily_usd else []
        limits += [f"{one.llm_daily_tokens} tokens"] if one.llm_daily_tokens else []
        parts.append(f"extraction costs at most {' and '.join(limits)} a day")
    return "; ".join(parts)


def _tried(text: str, chosen: TenantPolicy, settings: Settings) -> Iterator[str]:
    done = redact(text, chosen.redaction)
    found = sorted(redact(text, _EVERYTHING).counts.items())
    counts = ", ".join(
        f"{kind} x{count} ({_ACTIONS[chosen.redaction.action(kind)]})" for kind, count in found
    )
    yield f"Sensitive: {counts or 'nothing'}"
    yield f"Kept text: {done.text or '(nothing)'}"
    if not done.text.strip():
        yield "Dropped:   nothing is left"
        return
    if is_small_talk(render(Turn((Message("user", done.text),)))):
        yield "Dropped:   small talk"
        return
    for sentence in _sentences(done.text):
        if is_instruction_like(sentence):
            yield f"Orders:    {sentence}  (never kept as an extracted memory)"
    if settings.extraction_mode in _NOT_OURS:
        yield f"Memories:  {_NOT_OURS[settings.extraction_mode]}"
        return
    if not settings.llm_models:
        yield "Memories:  set MEMORY_LLM_MODEL to see them; without it the text above is kept word for word"
        return
    try:
        vetted = asyncio.run(_asked(done.text, chosen.keep, settings))
    except (ServiceError, UnusableAnswer) as exc:
        raise click.ClickException(str(exc)) from exc
    yield from _memories(vetted)


def _sentences(text: str) -> Iterator[str]:
    begin = 0
    for end in sentence_ends(text):
        yield text[begin:end].strip()
        begin = end


def _memories(vetted: Vetted) -> Iterator[str]:
    for fact in vetted.facts:
        about = "" if fact.subject == "user" else ", about somebody else"
        yield f"Kept:      {fact.text}  ({fact.kind}, importance {fact.importance:.2f}{about})"
    for dropped in vetted.dropped:
        yield f"Dropped:   {dropped.text or '(no text)'}  ({dropped.reason}: {_WHY[dropped.reason]})"
    if not vetted.facts and not vetted.dropped:
        yield "Dropped:   the language model found nothing worth keeping"


async def _asked(text: str, keep: KeepPolicy, settings: Settings) -> Vetted:
    turns = [Spoken(text, "")]
    async with LlmAdapter.from_settings(settings) as llm:
        answer = await llm.complete(prompt(turns, (), keep), schema(keep), name=SCHEMA_NAME)
    return vet(read_answer(answer.text), turns, (), keep)
