"""`dify-memory templates`: renders the Dify templates for a deployment, or checks somebody's own export."""

from pathlib import Path

import click

from service.policy.dify_check import check_template
from service.policy.dify_template import DEFAULT_BASE_URL, LANGUAGES, TEMPLATES, file_name, render


@click.command()
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--base-url",
    default=DEFAULT_BASE_URL,
    show_default=True,
    help="URL of the memory service as Dify's containers reach it.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("dify_templates"),
    show_default=True,
    help="Folder for the rendered templates.",
)
@click.option("--check", is_flag=True, help="Check FILES (apps exported from Dify) instead of rendering.")
@click.option("--strict", is_flag=True, help="With --check: warnings count as errors.")
def templates(files: tuple[Path, ...], base_url: str, out: Path, *, check: bool, strict: bool) -> None:
    """Render the Dify templates, or check FILES for what would break.

    A template never holds a key: fill MEMORY_API_KEY in after the import.
    """
    if check:
        if not files:
            raise click.UsageError("Name the files to check.")
        _check(files, is_strict=strict)
        return
    if files:
        raise click.UsageError("FILES only go with --check.")
    texts = {
        file_name(template, language): render(template, language, base_url)
        for template in TEMPLATES
        for language in LANGUAGES
    }
    # An address that Dify cannot reach is best told before anything is imported.
    findings = {finding for text in texts.values() for finding in check_template(text)}
    if any(finding.severity == "error" for finding in findings):
        raise click.ClickException("\n".join(sorted(map(str, findings))))
    out.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (out / name).write_text(text, encoding="utf-8")
        click.echo(f"{out / name}")
    for finding in sorted(findings, key=str):
        click.secho(str(finding), fg="yellow", err=True)


def _check(files: tuple[Path, ...], *, is_strict: bool) -> None:
    is_bad = False
    for path in files:
        try:
            findings = check_template(path.read_text(encoding="utf-8"))
        except UnicodeDecodeError as exc:
            raise click.ClickException(f"{path} is not a text file (UTF-8).") from exc
        is_bad |= any(is_strict or finding.severity == "error" for finding in findings)
        if not findings:
            click.secho(f"{path}: nothing found", fg="green")
        for finding in findings:
            click.secho(f"{path}: {finding}", fg="red" if finding.severity == "error" else "yellow")
    if is_bad:
        raise click.exceptions.Exit(1)
