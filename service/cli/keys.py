"""`dify-memory keys`: API keys, for whoever runs the service."""

import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import click

from service.adapters.audit import AuditEvent, AuditTrail
from service.adapters.keys import ALL_SCOPES, KeyRecord, KeyStore
from service.cli.running import run
from service.errors import KeysUnavailable
from service.memory.keys import ExpireKey, Keys, NewKey, RevokeKey, RotateKey, moment
from service.settings import Settings

T = TypeVar("T")

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


class Duration(click.ParamType[int]):
    """Seconds, or a number with one of the units s, m, h, d."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """`90m` as 5400."""
        text = str(value).strip()
        number, unit = (text[:-1], text[-1]) if text[-1:] in _UNITS else (text, "s")
        if not (number.isascii() and number.isdigit() and len(number) <= 10):
            self.fail("use a number of seconds, or one with a unit: 90m, 12h, 30d", param, ctx)
        return int(number) * _UNITS[unit]


DURATION = Duration()


@click.group()
def keys() -> None:
    """API keys: make, list, rotate, expire and revoke them.

    They are those in MEMORY_REDIS_URL or, if that is not set, of the local stack that runs in
    MEMORY_DATA_DIR. MEMORY_API_KEY is not among them: it has all scopes and is good as long as it is set.
    """


@keys.command()
@click.argument("name")
@click.option(
    "--scopes", default="recall,add", show_default=True, help=f"Of {', '.join(sorted(ALL_SCOPES))}."
)
@click.option("--tenant", default="", help="Whose key it is [MEMORY_TENANT].")
@click.option(
    "--identity",
    type=click.Choice(["trusted", "signed", "bound"]),
    default="trusted",
    show_default=True,
    help="How the user is known: user_id says it, user_id is a user token, the key is one user's.",
)
@click.option("--user", default="", help="Only for bound: whose key it is.")
@click.option("--user-prefix", default="", help="Only for trusted: user ids have to begin with this.")
@click.option("--rate", type=int, default=0, help="Most requests a minute [MEMORY_KEY_RATE_LIMIT].")
@click.option("--expires-in", type=DURATION, help="When it ends, such as 90d [never].")
def create(
    name: str,
    scopes: str,
    tenant: str,
    identity: str,
    user: str,
    user_prefix: str,
    rate: int,
    expires_in: int | None,
) -> None:
    """Make a key for NAME and show it this once."""
    ask = {
        "name": name,
        "scopes": scopes,
        "identity": identity,
        "user_id": user,
        "user_prefix": user_prefix,
        "rate_per_minute": rate,
        "expires_in_s": expires_in,
    }

    async def step(store: KeyStore, settings: Settings) -> tuple[str, KeyRecord]:
        made = await Keys(store, settings, tenant=None).create(NewKey.read(ask), tenant or settings.tenant)
        await note(settings, made[1].grant.tenant, "keys create", made[1].key_id)
        return made

    _show(*_with_store(step))


@keys.command("list")
def list_() -> None:
    """Show all keys, the ended ones too."""

    async def step(store: KeyStore, settings: Settings) -> list[KeyRecord]:
        return await Keys(store, settings, tenant=None).all()

    found = _with_store(step)
    for record in found:
        click.echo(_line(record))
    if not found:
        click.echo("There are no keys besides MEMORY_API_KEY.")


@keys.command()
@click.argument("key_id")
@click.option(
    "--overlap", type=DURATION, default="24h", show_default=True, help="How long the old key stays good."
)
def rotate(key_id: str, overlap: int) -> None:
    """Make another key that may do what KEY_ID may, and show it; the old one ends after a while."""

    async def step(store: KeyStore, settings: Settings) -> tuple[str, KeyRecord]:
        ask = RotateKey.read({"id": key_id, "overlap_s": overlap})
        made = await Keys(store, settings, tenant=None).rotate(ask)
        await note(settings, made[1].grant.tenant, "keys rotate", made[1].key_id)
        return made

    _show(*_with_store(step))


@keys.command()
@click.argument("key_id")
@click.option("--in", "in_s", type=DURATION, required=True, help="When it ends, such as 7d.")
def expire(key_id: str, in_s: int) -> None:
    """Let KEY_ID end at some time."""

    async def step(store: KeyStore, settings: Settings) -> KeyRecord:
        record = await Keys(store, settings, tenant=None).expire(ExpireKey.read({"id": key_id, "in_s": in_s}))
        await note(settings, record.grant.tenant, "keys expire", record.key_id)
        return record

    click.echo(_line(_with_store(step)))


@keys.command()
@click.argument("key_id")
def revoke(key_id: str) -> None:
    """End KEY_ID for good: every process refuses it within seconds."""

    async def step(store: KeyStore, settings: Settings) -> KeyRecord:
        record = await Keys(store, settings, tenant=None).revoke(RevokeKey.read({"id": key_id}))
        await note(settings, record.grant.tenant, "keys revoke", record.key_id)
        return record

    click.echo(_line(_with_store(step)))


def _with_store(step: Callable[[KeyStore, Settings], Awaitable[T]]) -> T:
    async def opened(settings: Settings) -> T:
        async with KeyStore.from_settings(settings) as store:
            return await step(store, settings)

    return run(opened)


async def note(settings: Settings, tenant: str, action: str, *subjects: str) -> None:
    """Into the audit trail, as what somebody with a shell has done to each of `subjects`."""
    if not settings.audit_days or not subjects:
        return
    now_ms = int(time.time() * 1000)
    events = [AuditEvent(now_ms, tenant, "cli", action, subject, 0, 1) for subject in subjects]
    async with AuditTrail.from_settings(settings) as trail:
        try:
            await trail.append(events)
        except KeysUnavailable:
            # What is done is done, and a new key is shown only now.
            click.echo("This is not in the audit trail: Redis did not take it.", err=True)


def _show(key: str, record: KeyRecord) -> None:
    click.echo(_line(record), err=True)
    click.echo("Keep this key, it is not shown again:", err=True)
    click.echo(key)


def _line(record: KeyRecord) -> str:
    grant = record.grant
    if record.revoked_s is not None:
        state = f"revoked {moment(record.revoked_s)}"
    elif not record.is_good(time.time()):
        state = f"ended {moment(record.expires_s)}"
    else:
        state = f"good until {moment(record.expires_s)}" if record.expires_s else "good"
    prefix = f" prefix={grant.user_prefix}" if grant.user_prefix else ""
    rate = f" rate={record.rate_per_minute}/min" if record.rate_per_minute else ""
    return (
        f"{record.key_id}  {state}  {record.name}  tenant={grant.tenant} scopes={','.join(grant.scopes)} "
        f"{grant.identity}{prefix}{rate}"
    )
