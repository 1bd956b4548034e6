"""`dify-memory dead`: turns that could not be stored, for whoever runs the service."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import TypeVar

import click

from service.adapters.cache import RecallCache
from service.adapters.data_version import DataUnusable, refuse_newer
from service.adapters.dead_letters import DeadLetter, DeadLetters
from service.adapters.turns import TurnsLog
from service.cli.exits import Unusable
from service.cli.keys import note
from service.embedded.connection import read_connection
from service.embedded.errors import LocalStackError
from service.errors import ServiceError
from service.memory import dead_letters
from service.memory.dead_letters import Action, Choice, DeadLettersReply, Note
from service.settings import Settings

T = TypeVar("T")


@click.group()
def dead() -> None:
    """Turns that could not be stored: list them, try them again, drop them.

    They are those in MEMORY_REDIS_URL or, if that is not set, of the local stack that runs in
    MEMORY_DATA_DIR.
    """


@dead.command("list")
@click.option("--limit", type=click.IntRange(1, 1000), default=100, help="About how many [100].")
@click.option("--cursor", default="", help="The cursor that the page before has ended with.")
@click.option("--bank", default="", help="Only those of this bank.")
@click.option("--show", is_flag=True, help="Also what was said: it is somebody's private talk.")
def list_(limit: int, cursor: str, bank: str, *, show: bool) -> None:
    """Show dead letters with their reasons, without what was said."""

    async def page(letters: DeadLetters, _: RecallCache, seen: Note) -> DeadLettersReply:
        return await dead_letters.page(
            letters, tenant=None, cursor=cursor, limit=limit, bank=bank, shows_text=show, note=seen
        )

    found = _run(page, "dead list --show" if show else "dead list")
    for letter in found.dead_letters:
        click.echo(f"{letter.id}  {letter.accepted_at}  {letter.bank}  {letter.chars} characters")
        click.echo(f"    {letter.reason}")
        if letter.text is not None:
            click.echo("".join(f"    | {line}\n" for line in letter.text.splitlines()), nl=False)
    if not found.dead_letters and not cursor:
        click.echo("There are no dead letters.")
    if found.next_cursor:
        click.echo(f"More with --cursor {found.next_cursor}")


@dead.command()
@click.argument("ids", nargs=-1)
@click.option("--all", "is_all", is_flag=True, help="Every dead letter.")
def replay(ids: tuple[str, ...], *, is_all: bool) -> None:
    """Put dead letters back into their conversations: the worker tries them again."""
    click.echo(f"Replayed: {_settle(ids, is_all, 'replay')}")


@dead.command()
@click.argument("ids", nargs=-1)
@click.option("--all", "is_all", is_flag=True, help="Every dead letter.")
@click.confirmation_option("--yes", prompt="What they say is lost then. Go on?")
def drop(ids: tuple[str, ...], *, is_all: bool) -> None:
    """Drop dead letters for good."""
    click.echo(f"Dropped: {_settle(ids, is_all, 'drop')}")


def _settle(ids: tuple[str, ...], is_all: bool, action: Action) -> int:
    async def settle(letters: DeadLetters, cache: RecallCache, seen: Note) -> int:
        choice = Choice.read({"ids": list(ids), "all": is_all})
        return await dead_letters.settle(letters, cache, choice, tenant=None, action=action, note=seen)

    return _run(settle, f"dead {action}")


def _run(step: Callable[[DeadLetters, RecallCache, Note], Awaitable[T]], action: str) -> T:
    async def run(settings: Settings) -> T:
        await refuse_newer(settings.redis_url)
        banks: defaultdict[str, set[str]] = defaultdict(set)

        def seen(letter: DeadLetter) -> None:
            banks[letter.tenant].add(letter.bank)

        try:
            async with TurnsLog.from_settings(settings) as log, RecallCache.from_settings(settings) as cache:
                return await step(DeadLetters(log), cache, seen)
        finally:
            # Also what was done before something went wrong.
            for tenant, of_tenant in banks.items():
                await note(settings, tenant, action, *sorted(of_tenant))

    try:
        return asyncio.run(run(_settings()))
    except DataUnusable as exc:
        raise Unusable(str(exc)) from exc
    except (ServiceError, LocalStackError) as exc:
        raise click.ClickException(str(exc)) from exc


def _settings() -> Settings:
    settings = Settings()
    if "redis_url" in settings.model_fields_set:
        return settings
    running = read_connection(settings.data_dir)
    if running is None:
        return settings
    return settings.model_copy(
        update={"redis_url": running.redis_url, "cache_redis_url": running.cache_redis_url}
    )
