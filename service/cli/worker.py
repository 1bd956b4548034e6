"""`dify-memory worker`: the process that stores accepted turns."""

import asyncio

import click

from service import logs
from service.adapters.data_version import DataUnusable
from service.cli.exits import Unusable
from service.memory.policies import Policies
from service.settings import Settings
from service.worker import run_until_stopped


@click.command()
def worker() -> None:
    """Run the worker in the foreground (settings: MEMORY_* variables)."""
    settings = Settings()
    Policies.from_settings(settings)  # a file that is wrong ends it here, with its lines, and not in a job
    logs.configure(settings.log_level)
    try:
        asyncio.run(run_until_stopped())
    except DataUnusable as exc:
        raise Unusable(str(exc)) from None
