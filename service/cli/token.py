"""`dify-memory token`: a user token, for trying out keys whose identity is `signed`."""

import asyncio

import click

from service.adapters.user_tokens import MAX_TTL_S, UserTokens
from service.cli.keys import DURATION, note
from service.cli.running import settings_of_running
from service.embedded.errors import LocalStackError
from service.errors import ServiceError
from service.scope import bank_of, checked_user_id


@click.command()
@click.argument("user_id")
@click.option("--tenant", default="", help="Whose user it is [MEMORY_TENANT].")
@click.option("--ttl", type=DURATION, default="24h", show_default=True, help="How long it is good.")
def token(user_id: str, tenant: str, ttl: int) -> None:
    """Make a user token for USER_ID, signed with the first of MEMORY_TOKEN_KEYS.

    Without that setting they are those of the local stack that runs in MEMORY_DATA_DIR. A flow passes the
    token as user_id with a key whose identity is signed. It is made without Redis, too; only the audit
    trail does not know of it then, which is told.
    """
    try:
        settings = settings_of_running()
    except LocalStackError as exc:
        raise click.ClickException(str(exc)) from exc
    tokens = UserTokens.from_settings(settings)
    if tokens is None:
        raise click.ClickException("Set MEMORY_TOKEN_KEYS, as the service has it, or MEMORY_DATA_DIR.")
    if not 60 <= ttl <= MAX_TTL_S:
        raise click.BadParameter("use between 60s and 31d", param_hint="--ttl")
    try:
        checked = checked_user_id(user_id, allow_anonymous=settings.allow_anonymous_users)
    except ServiceError as exc:
        raise click.ClickException(str(exc)) from exc
    owner = tenant or settings.tenant
    bank = bank_of(owner, checked)
    click.echo(tokens.make(owner, bank, ttl).text)
    asyncio.run(note(settings, owner, "token", bank))
