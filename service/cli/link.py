"""`dify-memory link`: a link to somebody's own page, and the end of all their links."""

import click

from service.adapters.me_links import MAX_LINK_S, EndedLinks
from service.cli.keys import DURATION, note
from service.cli.running import run
from service.memory.me import Me
from service.memory.policies import Policies
from service.scope import bank_of, checked_user_id
from service.settings import Settings


@click.command()
@click.argument("user_id")
@click.option("--tenant", default="", help="Whose user it is [MEMORY_TENANT].")
@click.option("--ttl", type=DURATION, default="1h", show_default=True, help="How long it is good.")
@click.option("--end", is_flag=True, help="Make none, but end all links there are of this user.")
def link(user_id: str, tenant: str, ttl: int, end: bool) -> None:
    """Make a link to the page /me of USER_ID, signed with the first of MEMORY_TOKEN_KEYS.

    Whoever has it sees, corrects and deletes what is remembered about USER_ID: give it to them alone.
    """
    if not 60 <= ttl <= MAX_LINK_S:
        raise click.BadParameter("use between 60s and 7d", param_hint="--ttl")

    async def step(settings: Settings) -> str:
        owner = tenant or settings.tenant
        bank = bank_of(owner, checked_user_id(user_id, allow_anonymous=settings.allow_anonymous_users))
        async with EndedLinks.from_settings(settings) as ended:
            me = Me.from_settings(settings, ended, Policies())
            if end:
                await me.end(bank)
                await note(settings, owner, "link end", bank)
                return "All links of this user are ended."
            made = await me.make(owner, bank, ttl)
            await note(settings, owner, "link create", bank)
            return me.address_of(made)

    click.echo(run(step))
