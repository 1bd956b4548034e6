"""`dify-memory worker`: the process that stores accepted turns."""

import asyncio

import click

from service import logs
from service.memory.policies import policy_of
from service.settings import Settings
from service.worker import run_until_stopped


@click.command()
def worker() -> None:
    """Run the worker in the foreground (settings: MEMORY_* variables)."""
    settings = Settings()
    policy_of(settings)  # a file that is wrong ends it here, with its lines, and not in a job
    logs.configure(settings.log_level)
    asyncio.run(run_until_stopped())
