"""`dify-memory memories`: what was set aside of one user's memories, and taking it back."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import click

from service.adapters.cache import RecallCache
from service.adapters.hindsight import HindsightAdapter
from service.adapters.hindsight_curate import HindsightCurate, SetAside
from service.cli.keys import note
from service.cli.running import run
from service.embedded.connection import read_connection
from service.memory import set_aside
from service.policy.kinds import kind_of
from service.scope import BankId, bank_of, checked_user_id
from service.settings import Settings

T = TypeVar("T")
_tenant = click.option("--tenant", default="", help="Whose user it is [MEMORY_TENANT].")


@click.group()
def memories() -> None:
    """Memories that are not recalled any more, since newer ones replaced them or they are not to be kept.

    They are those in MEMORY_HINDSIGHT_URL or, if neither that nor MEMORY_REDIS_URL is set, of the local
    stack that runs in MEMORY_DATA_DIR.
    """


@memories.command("set-aside")
@click.argument("user_id")
@_tenant
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, help="How many at most [100].")
@click.option("--show", is_flag=True, help="Also what they say: it is somebody's private life.")
def set_aside_(user_id: str, tenant: str, limit: int, *, show: bool) -> None:
    """Show what was set aside of USER_ID's memories, newest first, with the reasons."""

    async def step(bank: BankId, curate: HindsightCurate, _: RecallCache) -> list[SetAside]:
        return await set_aside.all_set_aside(bank, curate, limit)

    found = _run(user_id, tenant, "memories set-aside", step)
    for one in found:
        click.echo(f"{one.id}  {one.at}  {kind_of(one.tags) or '-'}  {one.reason or '-'}")
        if show:
            click.echo("".join(f"    | {line}\n" for line in one.text.splitlines()), nl=False)
    if not found:
        click.echo("Nothing was set aside.")


@memories.command()
@click.argument("user_id")
@click.argument("memory_id", type=click.UUID)
@_tenant
def restore(user_id: str, memory_id: object, tenant: str) -> None:
    """Let MEMORY_ID of USER_ID be recalled again; what has replaced it stays."""

    async def step(bank: BankId, curate: HindsightCurate, cache: RecallCache) -> None:
        await set_aside.restore(bank, str(memory_id), curate, cache)

    _run(user_id, tenant, "memories restore", step)
    click.echo("Restored.")


def _run(
    user_id: str,
    tenant: str,
    action: str,
    step: Callable[[BankId, HindsightCurate, RecallCache], Awaitable[T]],
) -> T:
    async def whole(settings: Settings) -> T:
        settings = _with_hindsight(settings)
        owner = tenant or settings.tenant
        bank = bank_of(owner, checked_user_id(user_id, allow_anonymous=settings.allow_anonymous_users))
        async with (
            HindsightAdapter.from_settings(settings) as hindsight,
            RecallCache.from_settings(settings) as cache,
        ):
            done = await step(bank, HindsightCurate(hindsight), cache)
        await note(settings, owner, action, bank)
        return done

    return run(whole)


def _with_hindsight(settings: Settings) -> Settings:
    """`run` finds the local stack's Redis; its Hindsight is found in the same place."""
    if {"redis_url", "hindsight_url"} & Settings().model_fields_set:
        return settings
    running = read_connection(settings.data_dir)
    if running is None:
        return settings
    return settings.model_copy(
        update={"cache_redis_url": running.cache_redis_url, "hindsight_url": running.hindsight_url}
    )
