"""`dify-memory up`: the whole stack on this machine, until Ctrl-C."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import click

from service.embedded import stack
from service.embedded.console import Console
from service.embedded.data_dir import DataDir
from service.embedded.errors import ChildFailed, LocalStackError
from service.embedded.stack import Plan
from service.settings import Settings


@click.command()
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, readable=False),
    help="Folder for data and logs [.dify-memory].",
)
@click.option("--port", type=click.IntRange(1, 65535), help="Port of the API [8000, or the next free one].")
@click.option("--host", help="Address the API listens on [127.0.0.1]; 0.0.0.0 lets containers in.")
@click.option("--redis-url", help="Use this Redis instead of a local one; it needs AOF and noeviction.")
@click.option("--hindsight-url", help="Use this Hindsight instead of a local one.")
def up(
    data_dir: Path | None,
    port: int | None,
    host: str | None,
    redis_url: str | None,
    hindsight_url: str | None,
) -> None:
    """Start Redis, PostgreSQL, embeddings, Hindsight, the API and the worker; Ctrl-C stops them all."""
    options: dict[str, Any] = {
        "data_dir": data_dir,
        "port": port,
        "host": host,
        "redis_url": redis_url,
        "hindsight_url": hindsight_url,
    }
    if sys.platform != "linux":
        raise click.ClickException("The local stack runs on Linux only.")
    settings = Settings(**{name: value for name, value in options.items() if value is not None})
    os.umask(0o077)
    try:
        with DataDir(settings.data_dir) as data:
            console = Console(click.echo, data.logs / "up.log")
            console.say(f"Starting the memory stack in {data.root}")
            asyncio.run(stack.run(settings, data, console, lambda plan: _tell(console, data, plan, settings)))
            console.say("Stopped.")
    except ChildFailed as exc:
        if exc.log_tail:
            click.echo(f"\nLast lines of the log of {exc.name}:\n{exc.log_tail}\n", err=True)
        raise click.ClickException(str(exc)) from exc
    except LocalStackError as exc:
        raise click.ClickException(str(exc)) from exc


def _tell(console: Console, data: DataDir, plan: Plan, settings: Settings) -> None:
    """The final summary. The key is shown on the terminal only, never in the log."""
    console.note(f"ready at {plan.url}")
    wanted = settings.port
    if plan.port != wanted:
        console.show(
            f"\nPort {wanted} is in use, so the API took {plan.port}; --port or MEMORY_PORT picks another."
        )
    in_docker = f"http://host.docker.internal:{plan.port}"
    is_local = settings.host in {"127.0.0.1", "localhost", "::1"}
    for_dify = settings.public_url or (plan.url if is_local else in_docker)
    lines = [
        "",
        "Memory is ready.",
        "",
        f"  API address    {plan.url}",
        f"  API key        {plan.api_key}",
        "",
        "Paste into Dify:",
        f"  Base URL       {for_dify}",
        f"  Custom tool    {for_dify}/dify/openapi.json",
        f"  Header         Authorization: Bearer {plan.api_key}",
        "",
    ]
    if is_local:
        lines += [
            f"  Dify in Docker reaches this machine as {in_docker}, and only if the API",
            "  listens on all addresses: stop this and start it with MEMORY_HOST=0.0.0.0",
        ]
    else:
        lines += [f"  Dify in Docker reaches this machine as {in_docker}"]
    lines += [
        "",
        f"  Data           {data.root}",
        f"  Logs           {data.logs}",
        f"  Stop           Ctrl-C here, or: kill {os.getpid()}",
        "",
    ]
    for line in lines:
        console.show(line)
