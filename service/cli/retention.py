"""`dify-memory retention`: delete what is too old now, or say how much that would be."""

import asyncio
from datetime import UTC, datetime

import click

from service.adapters.cache import RecallCache
from service.adapters.hindsight import HindsightAdapter
from service.adapters.hindsight_erase import HindsightEraser
from service.adapters.hindsight_review import HindsightReview
from service.adapters.turns import TurnsLog
from service.embedded.connection import read_connection
from service.embedded.errors import LocalStackError
from service.errors import ServiceError
from service.memory.retention import Expired, Retention
from service.settings import Settings


@click.command()
@click.option("--dry-run", is_flag=True, help="Only count what would be deleted.")
def retention(*, dry_run: bool) -> None:
    """Delete what was said more than MEMORY_RETENTION_DAYS ago, in all memories, now.

    The worker does the same every night. It works on MEMORY_REDIS_URL and MEMORY_HINDSIGHT_URL or, if
    they are not set, on the local stack that runs in MEMORY_DATA_DIR.
    """
    try:
        settings = _settings()
        expired = asyncio.run(_sweep(settings, is_dry=dry_run))
    except (ServiceError, LocalStackError) as exc:
        raise click.ClickException(str(exc)) from exc
    if not settings.retention_days:
        click.echo("MEMORY_RETENTION_DAYS is 0: everything is kept.")
        return
    what = "Would delete" if dry_run else "Deleted"
    click.echo(
        f"{what} what was said more than {settings.retention_days} days ago: {expired.documents} documents "
        f"with {expired.memories} memories, of {expired.banks} users."
    )


async def _sweep(settings: Settings, *, is_dry: bool) -> Expired:
    async with (
        TurnsLog.from_settings(settings) as log,
        RecallCache.from_settings(settings) as cache,
        HindsightAdapter.from_settings(settings) as hindsight,
    ):
        keeper = Retention(
            HindsightReview(hindsight),
            HindsightEraser(hindsight),
            log,
            cache,
            days=settings.retention_days,
            zone=settings.zone,
        )
        return await keeper.sweep(datetime.now(UTC), is_dry=is_dry)


def _settings() -> Settings:
    settings = Settings()
    if {"redis_url", "hindsight_url"} & settings.model_fields_set:
        return settings
    running = read_connection(settings.data_dir)
    if running is None:
        return settings
    return settings.model_copy(
        update={
            "redis_url": running.redis_url,
            "cache_redis_url": running.cache_redis_url,
            "hindsight_url": running.hindsight_url,
        }
    )
