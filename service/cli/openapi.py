"""`dify-memory openapi`: writes the OpenAPI documents, or says whether the written ones are current."""

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click

from service.app import create_app
from service.policy.dify_document import EXAMPLE_URL, as_yaml, build_document
from service.settings import Settings


@click.command()
@click.option(
    "--server-url",
    default=EXAMPLE_URL,
    show_default=True,
    help="URL under which Dify reaches this service, such as https://memory.your-company.com.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("openapi"),
    show_default=True,
    help="Folder of the documents.",
)
@click.option("--check", is_flag=True, help="Write nothing; exit with 1 if a document is not current.")
def openapi(server_url: str, out: Path, *, check: bool) -> None:
    """Write the OpenAPI documents: dify-tool.json and .yaml for Dify, full.json for everybody else."""
    if not server_url.startswith(("http://", "https://")):
        raise click.BadParameter("Give a whole URL, with http:// or https://.", param_hint="--server-url")
    documents = render_documents(server_url)
    if check:
        stale = [name for name, text in documents.items() if _read(out / name) != text]
        if stale:
            raise click.ClickException(
                f"Not current: {', '.join(stale)}. Run `dify-memory openapi` with the same options."
            )
        click.echo(f"{len(documents)} documents in {out} are current.")
        return
    out.mkdir(parents=True, exist_ok=True)
    for name, text in documents.items():
        (out / name).write_text(text, encoding="utf-8")
        click.echo(f"{out / name}")


def render_documents(server_url: str) -> dict[str, str]:
    """File name → text of each document for a service at `server_url`."""
    tool = build_document(server_url, version("dify-memory"))
    # Built from defaults, not from the environment: the routes are the same for every setting.
    whole = create_app(Settings.model_construct()).openapi()
    # FastAPI writes none, and without one Dify and many generators refuse the document (dify#2914).
    whole = {**whole, "servers": [{"url": server_url.rstrip("/")}]}
    return {"dify-tool.json": _pretty(tool), "dify-tool.yaml": as_yaml(tool), "full.json": _pretty(whole)}


def _pretty(document: dict[str, Any]) -> str:
    return json.dumps(document, ensure_ascii=False, indent=2) + "\n"


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None
