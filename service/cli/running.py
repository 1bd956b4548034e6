"""Which installation a command works on: the one in the settings or, without them, the local stack."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import click
from pydantic import SecretStr

from service.adapters.data_version import DataUnusable, refuse_newer
from service.cli.exits import Unusable
from service.embedded.connection import read_connection
from service.embedded.errors import LocalStackError
from service.errors import ServiceError
from service.settings import Settings

T = TypeVar("T")


def settings_of_running() -> Settings:
    """The settings; if MEMORY_REDIS_URL is not set, those of the local stack that runs in MEMORY_DATA_DIR.

    What is set goes before what the local stack has chosen for itself: its address and its secrets.
    """
    settings = Settings()
    if "redis_url" in settings.model_fields_set:
        return settings
    running = read_connection(settings.data_dir)
    if running is None:
        return settings
    found: dict[str, object] = {"redis_url": running.redis_url}
    if settings.token_keys is None:
        found["token_keys"] = SecretStr(running.token_keys)
    if settings.me_url is None and settings.public_url is None:
        found["me_url"] = running.url
    return settings.model_copy(update=found)


def run(step: Callable[[Settings], Awaitable[T]]) -> T:
    """Do something with that installation; what goes wrong ends the command with its one sentence."""

    async def whole() -> T:
        settings = settings_of_running()
        await refuse_newer(settings.redis_url)
        return await step(settings)

    try:
        return asyncio.run(whole())
    except DataUnusable as exc:
        raise Unusable(str(exc)) from exc
    except (ServiceError, LocalStackError) as exc:
        raise click.ClickException(str(exc)) from exc
