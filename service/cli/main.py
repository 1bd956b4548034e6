"""The `dify-memory` command.

Each subcommand is a module of its own and is imported when it is called, so that the API does not
load what only the local stack needs, nor the worker what only the API needs.
"""

from importlib import import_module
from typing import Any

import click
from pydantic import ValidationError

from service.policy.policy_mistakes import PolicyFileError
from service.settings import Settings, explain

_COMMANDS = (
    "audit",
    "dead",
    "demo",
    "doctor",
    "keys",
    "link",
    "memories",
    "openapi",
    "policy",
    "retention",
    "serve",
    "templates",
    "token",
    "up",
    "worker",
)


class _Lazy(click.Group):
    """A group that imports `service.cli.<name>` when <name> is called for, and explains wrong settings."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the subcommand; settings that are not valid end it with a sentence for each."""
        try:
            return super().invoke(ctx)
        except ValidationError as exc:
            if exc.title != Settings.__name__:
                raise
            raise click.ClickException(explain(exc)) from None
        except PolicyFileError as exc:
            raise click.ClickException(f"MEMORY_POLICY_FILE is not valid:\n{exc}") from None

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all subcommands."""
        del ctx
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The subcommand, or None when there is none of that name."""
        del ctx
        if cmd_name not in _COMMANDS:
            return None
        command = getattr(import_module(f"service.cli.{cmd_name}"), cmd_name)
        if not isinstance(command, click.Command):
            raise TypeError(f"service.cli.{cmd_name} has no command of that name")
        return command


@click.group(cls=_Lazy)
@click.version_option(package_name="dify-memory")
def main() -> None:
    """Long-term memory for Dify, on Hindsight."""


if __name__ == "__main__":
    main()
