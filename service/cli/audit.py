"""`dify-memory audit`: who did what to whose memories."""

import json
import time
from dataclasses import asdict
from datetime import UTC, datetime

import click

from service.adapters.audit import AuditTrail
from service.cli.keys import DURATION
from service.cli.running import run
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
def export(since: int | None, tenant: str, user: str) -> None:
    """Write events as JSON lines, oldest first.

    One event is what one key did to one memory with one outcome within a second, and how often. `subject`
    is a digest of the user, or a key's id.
    """

    async def step(settings: Settings) -> None:
        subject = bank_of(tenant or settings.tenant, user) if user else ""
        since_ms = 0 if since is None else int((time.time() - since) * 1000)
        async with AuditTrail.from_settings(settings) as trail:
            async for event in trail.read(since_ms):
                if tenant in ("", event.tenant) and subject in ("", event.subject):
                    fields = asdict(event)
                    at = datetime.fromtimestamp(fields.pop("at_ms") / 1000, UTC)
                    click.echo(json.dumps({"at": at.isoformat(timespec="milliseconds"), **fields}))

    run(step)
