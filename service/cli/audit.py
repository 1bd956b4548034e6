"""`dify-memory audit`: who did what to whose memories."""

import time

import click

from service.adapters.audit import AuditTrail
from service.cli.keys import DURATION, note
from service.cli.running import run
from service.memory.audit import Wanted
from service.memory.audit import export as lines_of
from service.scope import bank_of
from service.settings import Settings


@click.group()
def audit() -> None:
    """The audit trail, which is kept for MEMORY_AUDIT_DAYS (0: there is none).

    It is that in MEMORY_REDIS_URL or, if that is not set, of the local stack that runs in MEMORY_DATA_DIR.
    """


@audit.command()
@click.option("--since", type=DURATION, help="Only the last part of it, such as 7d [all].")
@click.option("--tenant", default="", help="Only what keys of this tenant did.")
@click.option(
    "--user", default="", help="Only what was done to this user's memories; of --tenant or MEMORY_TENANT."
)
@click.option("--key", default="", help="Only what the key of this id did; cli: what commands did.")
@click.option("--action", default="", help="Only this, such as /memory/forget.")
def export(since: int | None, tenant: str, user: str, key: str, action: str) -> None:
    """Write events as JSON lines, oldest first.

    One event is what one key did to one memory with one outcome within a second, and how often. `subject`
    is a digest of the user, or a key's id.
    """

    async def step(settings: Settings) -> None:
        subject = bank_of(tenant or settings.tenant, user) if user else ""
        wanted = Wanted(
            tenant=tenant,
            key_id=key,
            action=action,
            subject=subject,
            since_ms=0 if since is None else int((time.time() - since) * 1000),
        )
        async with AuditTrail.from_settings(settings) as trail:
            async for line in lines_of(trail, wanted):
                click.echo(line)
        await note(settings, tenant or settings.tenant, "audit export", subject)

    run(step)
