"""`dify-memory worker`: the process that stores accepted turns."""

import asyncio

import click

from service import logs
from service.settings import Settings
from service.worker import run_until_stopped


@click.command()
def worker() -> None:
    """Run the worker in the foreground (settings: MEMORY_* variables)."""
    logs.configure(Settings().log_level)
    asyncio.run(run_until_stopped())
