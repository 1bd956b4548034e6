"""The `dify-memory` command."""

import click


@click.group()
@click.version_option(package_name="dify-memory")
def main() -> None:
    """Long-term memory for Dify, on Hindsight."""
