"""`dify-memory doctor`: from where the user is, what works, what does not, and what to do about it."""

import asyncio
import json
import locale
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import click

from service.cli import doctor_checks as checks
from service.cli.doctor_client import Finding, ServiceClient
from service.cli.doctor_round_trip import round_trip
from service.cli.doctor_texts import Language, sentence
from service.embedded.connection import read_connection
from service.embedded.errors import LocalStackError
from service.policy.dify_network import address_faults
from service.settings import Settings

_MARKS: Final = {
    "ok": ("✓", "green"),
    "warn": ("!", "yellow"),
    "fail": ("✗", "red"),
    "skipped": ("–", "white"),
}
# Without these nothing else can be asked; without those no turn would ever be stored.
_NOTHING_WITHOUT: Final = frozenset({"reach", "key"})
_NO_ROUND_TRIP_WITHOUT: Final = frozenset({"reach", "key", "ready", "worker"})


@click.command()
@click.option(
    "--url",
    help="URL of the memory service, from here. Default: the running local stack or, with MEMORY_API_KEY, "
    "the API of these settings on this machine.",
)
@click.option("--key", help="API key. Default: MEMORY_API_KEY, or the running local stack's.")
@click.option("--dify-url", default="", help="URL under which Dify reaches the service, if it is another.")
@click.option("--data-dir", type=click.Path(path_type=Path), help="Folder of the local stack.")
@click.option(
    "--patience",
    type=click.FloatRange(0, 3600),
    default=90,
    show_default=True,
    help="Seconds to wait for a turn to be stored.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(0.1, 300),
    default=10,
    show_default=True,
    help="Seconds to wait for any one answer.",
)
@click.option("--quick", is_flag=True, help="Change nothing: leave out the round trip with a test user.")
@click.option("--lang", type=click.Choice(["auto", "en", "zh"]), default="auto", help="Language.")
@click.option("--json", "as_json", is_flag=True, help="Findings as JSON.")
def doctor(
    url: str | None,
    key: str | None,
    dify_url: str,
    data_dir: Path | None,
    patience: float,
    timeout: float,
    lang: str,
    *,
    quick: bool,
    as_json: bool,
) -> None:
    """Say what works between Dify and the memory service, and what to do about the rest.

    Exits with 1 if anything does not work. The round trip stores one turn of a test user and forgets it.
    """
    language = _language(lang)
    address, secret = _where(url, key, data_dir)
    if "not_a_url" in address_faults(address):
        raise click.BadParameter("Give a whole URL, with http:// or https://.", param_hint="--url")
    if not as_json:
        click.echo(address)
    run = _examine(address, secret, dify_url, patience_s=patience, timeout_s=timeout, is_quick=quick)
    findings = asyncio.run(_collect(run, None if as_json else language))
    failures = sum(finding.status == "fail" for finding in findings)
    warnings = sum(finding.status == "warn" for finding in findings)
    if as_json:
        report = {
            "ok": not failures,
            "url": address,
            "findings": [_as_data(finding, language) for finding in findings],
        }
        click.echo(json.dumps(report, ensure_ascii=False, indent=2))
    else:
        code, count = ("sum_failures", failures) if failures else ("sum_warnings", warnings)
        code = code if count else "sum_all_ok"
        color = "red" if failures else "green"
        click.secho(sentence(code, language, {"count": str(count)}), fg=color, bold=True)
    if failures:
        raise click.exceptions.Exit(1)


async def _collect(run: AsyncIterator[Finding], language: Language | None) -> list[Finding]:
    """All findings, each shown as soon as it is there (None: not at all)."""
    findings = []
    async for finding in run:
        findings.append(finding)
        if language:
            mark, color = _MARKS[finding.status]
            told = sentence(finding.code, language, finding.facts)
            title = sentence(f"check_{finding.check}", language, {})
            colon = ": " if language == "en" else "："
            click.echo(click.style(f"{mark} {title}{colon}", fg=color) + told)
    return findings


async def _examine(
    url: str, key: str, dify_url: str, *, patience_s: float, timeout_s: float, is_quick: bool
) -> AsyncIterator[Finding]:
    """Every check in turn; what rests on something broken is not asked, so that one fault is one line."""
    async with ServiceClient(url, key, timeout_s) as client:
        steps: list[tuple[str, checks.Check]] = [
            ("reach", lambda: checks.reach(client)),
            ("document", lambda: checks.document(client, dify_url)),
            ("key", lambda: checks.key(client, key)),
            ("knowledge", lambda: checks.knowledge(client)),
            ("storage", lambda: checks.diagnosis(client)),
            ("ready", lambda: checks.ready(client)),
        ]
        broken: set[str] = set()
        for check, run in steps:
            for finding in await checks.guarded(check, run):
                if finding.status == "fail":
                    broken.add(finding.check)
                yield finding
            if broken & _NOTHING_WITHOUT:
                break
        if broken & _NO_ROUND_TRIP_WITHOUT:
            yield Finding("round_trip", "skipped", "not_asked")
        elif not is_quick:
            async for finding in round_trip(client, patience_s):
                yield finding


def _where(url: str | None, key: str | None, data_dir: Path | None) -> tuple[str, str]:
    """Address and key: what was given, else the running local stack's, else those of the API beside us.

    The last is for a container of the API. Who names a folder means the stack in it and no other service.
    """
    settings = Settings()
    try:
        running = None if url and key else read_connection(data_dir or settings.data_dir)
    except LocalStackError as exc:
        raise click.ClickException(str(exc)) from exc
    if not url and running is None:
        if settings.api_key is None or data_dir is not None:
            raise click.UsageError(
                "Give --url (and --key); no local stack is running"
                + (" in this folder." if data_dir else ", and MEMORY_API_KEY is not set.")
            )
        url = _beside(settings)
    if key is None and settings.api_key is not None:
        key = settings.api_key.get_secret_value()
    if key is None and running is not None and (not url or url.rstrip("/") == running.url):
        key = running.api_key
    address = url or (running.url if running else "")
    return address.rstrip("/"), key or ""


def _beside(settings: Settings) -> str:
    """Where the API of these settings is reached from its own machine or container."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)
    return f"http://[{host}]:{settings.port}" if ":" in host else f"http://{host}:{settings.port}"


def _language(lang: str) -> Language:
    if lang in ("en", "zh"):
        return "zh" if lang == "zh" else "en"
    names = [os.environ.get(name, "") for name in ("LC_ALL", "LC_MESSAGES", "LANG")]
    name = next((name for name in names if name), "") or (locale.getlocale()[0] or "")
    return "zh" if name.lower().startswith(("zh", "chinese")) else "en"


def _as_data(finding: Finding, language: Language) -> dict[str, Any]:
    return {
        "check": finding.check,
        "status": finding.status,
        "code": finding.code,
        "message": sentence(finding.code, language, finding.facts),
        "facts": dict(finding.facts),
    }
