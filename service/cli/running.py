"""Which installation a command works on: the one in the settings or, without them, the local stack."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import click

from service.embedded.connection import read_connection
from service.embedded.errors import LocalStackError
from service.errors import ServiceError
from service.settings import Settings

T = TypeVar("T")


def settings_of_running() -> Settings:
    """The settings, with the Redis of the local stack in MEMORY_DATA_DIR if MEMORY_REDIS_URL is not set."""
    settings = Settings()
    if "redis_url" in settings.model_fields_set:
        return settings
    running = read_connection(settings.data_dir)
    return settings.model_copy(update={"redis_url": running.redis_url}) if running else settings


def run(step: Callable[[Settings], Awaitable[T]]) -> T:
    """Do something with that installation; what goes wrong ends the command with its one sentence."""

    async def whole() -> T:
        return await step(settings_of_running())

    try:
        return asyncio.run(whole())
    except (ServiceError, LocalStackError) as exc:
        raise click.ClickException(str(exc)) from exc
