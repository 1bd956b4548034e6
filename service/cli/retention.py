"""`dify-memory retention`: delete what is too old now, or say how much that would be."""

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

import click

from service.adapters.cache import RecallCache
from service.adapters.hindsight import HindsightAdapter
from service.adapters.hindsight_erase import HindsightEraser
from service.adapters.hindsight_review import HindsightReview
from service.adapters.keys import KeyStore
from service.adapters.turns import TurnsLog
from service.cli.keys import note
from service.embedded.connection import read_connection
from service.embedded.errors import LocalStackError
from service.errors import ServiceError
from service.memory.policies import Policies
from service.memory.retention import Expired, Retention
from service.scope import BankId
from service.settings import Settings


@click.command()
@click.option("--dry-run", is_flag=True, help="Only count what would be deleted.")
def retention(*, dry_run: bool) -> None:
    """Delete what was said too long ago, in all memories, now; say how much, by tenant.

    How long is too long is in the policy file of each tenant and, for what it leaves out, in
    MEMORY_RETENTION_DAYS. Tenants are known by MEMORY_TENANT, the policy file and their keys; memories of
    any other are kept. The worker does the same every night. It works on MEMORY_REDIS_URL and
    MEMORY_HINDSIGHT_URL or, if they are not set, on the local stack that runs in MEMORY_DATA_DIR.
    """
    try:
        settings = _settings()
        expired, policies = asyncio.run(_sweep(settings, Policies.from_settings(settings), is_dry=dry_run))
    except (ServiceError, LocalStackError) as exc:
        raise click.ClickException(str(exc)) from exc
    if policies.keep_for_ever:
        click.echo("Everything is kept: retention_days is 0 for every tenant.")
        return
    what = "Would delete" if dry_run else "Deleted"
    click.echo(f"{what} what was said too long ago: {_counts(sum(expired.values(), Expired()))}.")
    for line in _by_tenant(expired, policies):
        click.echo(f"  {line}")


def _by_tenant(expired: Mapping[str, Expired], policies: Policies) -> Iterator[str]:
    """A line for each tenant, and one for banks that do not tell theirs (see `memory/retention`)."""
    for mark, counts in sorted(expired.items()):
        name, policy = policies.tenant_of(mark), policies.of_mark(mark)
        if policy is None:
            yield f"{mark[:15]}…: kept, since no key or policy names its tenant"
            continue
        whose = name if mark else f"{name} (or not known: not written to since tenants are noted)"
        limits = [f"after {policy.retention_days} days"] if policy.retention_days else []
        limits += [f"{kind} after {days}" for kind, days in policy.expiring.items()]
        yield f"{whose}, {', '.join(limits) or 'never'}: {_counts(counts)}"


def _counts(counts: Expired) -> str:
    return f"{counts.documents} documents with {counts.memories} memories, of {counts.banks} users"


async def _sweep(
    settings: Settings, policies: Policies, *, is_dry: bool
) -> tuple[Mapping[str, Expired], Policies]:
    """What has gone, by mark, and the policies by which it has, with the tenants that have keys."""
    async with (
        TurnsLog.from_settings(settings) as log,
        RecallCache.from_settings(settings) as cache,
        HindsightAdapter.from_settings(settings) as hindsight,
        KeyStore.from_settings(settings) as keys,
    ):
        _, records = await keys.load()
        policies = policies.knowing({record.grant.tenant for record in records})
        banks: defaultdict[str, list[BankId]] = defaultdict(list)
        keeper = Retention(
            HindsightReview(hindsight),
            HindsightEraser(hindsight),
            log,
            cache,
            policies=policies,
            zone=settings.zone,
            deleted=lambda tenant, bank: banks[tenant].append(bank),
        )
        try:
            expired = await keeper.sweep(datetime.now(UTC), is_dry=is_dry)
        finally:
            # Also what has gone before something went wrong.
            for tenant, of_tenant in banks.items():
                await note(settings, tenant, "retention", *of_tenant)
    return expired, policies


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
