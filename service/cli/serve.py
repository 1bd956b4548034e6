"""`dify-memory serve`: the API's process."""

import gc

import click
import uvicorn

from service import logs
from service.app import create_app
from service.settings import Settings


@click.command()
def serve() -> None:
    """Run the API in the foreground (settings: MEMORY_* variables)."""
    settings = Settings()
    if settings.api_key is None:
        raise click.ClickException(
            "Set MEMORY_API_KEY (16 characters or more): without a key nobody may call."
        )
    logs.configure(settings.log_level)
    app = create_app(settings)
    # What is loaded by now stays; without this each full collection walks all of it while requests wait.
    gc.collect()
    gc.freeze()
    uvicorn.run(
        app,
        host=settings.host,
        port=settings.port,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=15,
    )
