"""`dify-memory demo`: does it remember, and only for the right person?

Two people, two languages, two conversations days apart, against a running stack; a stranger must
see nothing. Exits with 1 and says what is wrong if anything is not as it should be.
"""

import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import httpx

from service.embedded.connection import Connection, read_connection
from service.settings import Settings

_START_TIMEOUT_S = 240
_JOB_TIMEOUT_S = 120


@dataclass(frozen=True)
class _Story:
    """One person: what is said first, what is asked days later, a word the memory must hold."""

    title: str
    user: str
    said: tuple[tuple[str, str], ...]
    question: str
    expected: str


_STORIES = (
    _Story(
        "中文",
        "demo-zh",
        (
            ("我在杭州做后端开发，主要写 Go。", "好的，记住了。"),
            ("我对花生过敏，点餐的时候帮我避开。", "明白，会避开花生。"),
        ),
        "我有什么食物不能吃？",
        "花生",
    ),
    _Story(
        "English",
        "demo-en",
        (
            ("I live in Lisbon and I am training for a marathon in October.", "Good luck with the training!"),
            ("Please always answer me in short bullet points.", "Will do."),
        ),
        "Which race am I training for?",
        "marathon",
    ),
)


class _Failed(Exception):
    """Something is not as it should be."""


@click.command()
@click.option("--data-dir", type=click.Path(path_type=Path), help="Folder of the local stack.")
def demo(data_dir: Path | None) -> None:
    """Two people, two languages, two conversations: does it remember?"""
    folder = data_dir or Settings().data_dir
    try:
        with _stack(folder) as connection, _client(connection) as client:
            for story in _STORIES:
                _tell(client, story)
    except _Failed as exc:
        raise click.ClickException(str(exc)) from exc
    click.secho("Everything as it should be.", fg="green")


@contextmanager
def _stack(folder: Path) -> Iterator[Connection]:
    """The running stack, started for the demo (and stopped after it) if there is none."""
    running = read_connection(folder)
    if running is not None:
        click.echo(f"Using the stack at {running.url}.")
        yield running
        return
    click.echo("Starting the stack (stopped again after the demo) …")
    argv = [sys.executable, "-m", "service.cli.main", "up", "--data-dir", str(folder)]
    process = subprocess.Popen(argv)  # noqa: S603 - our own command, no shell
    try:
        deadline = time.monotonic() + _START_TIMEOUT_S
        connection: Connection | None = None
        while connection is None or not _is_ready(connection):
            if process.poll() is not None:
                raise _Failed("The stack could not be started; see above.")
            if time.monotonic() > deadline:
                raise _Failed("The stack did not become ready in time; see its logs.")
            time.sleep(0.2)
            connection = read_connection(folder)
        yield connection
    finally:
        process.terminate()
        process.wait()


def _is_ready(connection: Connection) -> bool:
    try:
        reply = httpx.get(f"{connection.url}/health/ready", timeout=5)
    except httpx.HTTPError:
        return False
    return reply.status_code == 200 and reply.json()["status"] == "ok"


@contextmanager
def _client(connection: Connection) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {connection.api_key}"}
    with httpx.Client(base_url=connection.url, headers=headers, timeout=60, trust_env=False) as client:
        yield client


def _tell(client: httpx.Client, story: _Story) -> None:
    run = secrets.token_hex(4)
    user, stranger = f"{story.user}-{run}", f"stranger-{run}"
    click.secho(f"\n── {story.title} " + "─" * 50, bold=True)
    days_ago = datetime.now(UTC) - timedelta(days=3)
    jobs: list[str] = []
    for number, (said, answered) in enumerate(story.said):
        click.echo(f"  3 days ago   {said}")
        reply, ms = _post(
            client,
            "/memory/add",
            user_id=user,
            conversation_id=f"first-{run}",
            turn_id=f"{run}-{number}",
            user_message=said,
            assistant_message=answered,
            timestamp=(days_ago + timedelta(minutes=number)).isoformat(),
        )
        _expect(reply.get("status") == "queued", "A turn was not queued.")
        click.echo(f"               queued in {ms:.0f} ms, job {reply['job_id']}")
        jobs.append(str(reply["job_id"]))

    again, _ = _post(
        client,
        "/memory/add",
        user_id=user,
        conversation_id=f"first-{run}",
        turn_id=f"{run}-0",
        user_message=story.said[0][0],
        assistant_message=story.said[0][1],
        timestamp=days_ago.isoformat(),
    )
    _expect(
        again.get("status") == "duplicate" and again.get("job_id") == jobs[0],
        "A repeated turn was not recognised.",
    )

    click.echo("               (a conversation is stored once it has been quiet for a while)")
    started = time.monotonic()
    # A language model may find nothing worth keeping in one of them; what is not known the recall shows.
    kept = [_follow(client, job) for job in jobs]
    _expect(None in kept or any(kept), "The turns were stored without leaving a memory.")
    click.echo(f"  stored       in {time.monotonic() - started:.1f} s")

    asked = {"user_id": user, "query": story.question, "conversation_id": f"second-{run}"}
    first, first_ms = _post(client, "/memory/recall", **asked)
    second, second_ms = _post(client, "/memory/recall", **asked)
    click.echo(f"  today        {story.question}")
    click.echo(f"               recalled in {first_ms:.1f} ms, from the cache in {second_ms:.1f} ms\n")
    click.echo("\n".join(f"      {line}" for line in str(first["context"]).splitlines()) + "\n")
    texts = " ".join(str(memory["text"]) for memory in first["memories"])
    _expect(story.expected in texts, f"The memory does not hold “{story.expected}”.")
    _expect(not first["degraded"], "The recall was degraded.")
    _expect(second["cached"] is True, "The repeated recall did not come from the cache.")

    other, _ = _post(client, "/memory/recall", **{**asked, "user_id": stranger})
    _expect(other["count"] == 0 and other["context"] == "", "A stranger sees memories.")
    click.echo("  a stranger   sees nothing")


def _follow(client: httpx.Client, job: str) -> int | None:
    """Memories kept once the job is done; None: not known."""
    deadline = time.monotonic() + _JOB_TIMEOUT_S
    while time.monotonic() < deadline:
        reply = client.get(f"/memory/jobs/{job}", params={"wait_s": 20})
        _expect(reply.status_code == 200, f"A job answers {reply.status_code}.")
        state = reply.json()
        if state["status"] == "done":
            kept: int | None = state["memories_kept"]
            return kept
        _expect(state["status"] not in ("failed", "cancelled"), f"A job ended badly: {state['reason']}")
    raise _Failed("A job did not end in time; see the worker's log.")


def _post(client: httpx.Client, path: str, **fields: str) -> tuple[dict[str, Any], float]:
    started = time.perf_counter()
    reply = client.post(path, data=fields)
    ms = (time.perf_counter() - started) * 1000
    _expect(reply.status_code in (200, 202), f"{path} answers {reply.status_code}: {reply.text}")
    body: dict[str, Any] = reply.json()
    return body, ms


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise _Failed(otherwise)
