"""`dify-memory worker`: the process that stores accepted turns."""

import asyncio

import click
from arq.worker import run_worker

from service import logs
from service.settings import Settings
from service.worker import WorkerSettings


@click.command()
def worker() -> None:
    """Run the worker in the foreground (settings: MEMORY_* variables)."""
    logs.configure(Settings().log_level)
    # arq asks for the current loop, which Python 3.14 no longer makes by itself.
    asyncio.set_event_loop(asyncio.new_event_loop())
    run_worker(WorkerSettings)  # type: ignore[arg-type]
