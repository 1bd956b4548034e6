"""The Chinese guide says nothing that the README, the settings, the app and the commands do not say, too."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
from service.app import create_app
from service.cli.main import main
from service.settings import Settings

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "README.zh.md").read_text("utf-8")
README = (ROOT / "README.md").read_text("utf-8")
# Guides that are held to the code by tests of their own.
_OTHERS = ("dify_templates/README.zh.md", "deploy/README.zh.md")
_BASE = "http://host.docker.internal:8000"
# Variables of the tools that install, and how the Makefile calls these.
_TOOLS = {"PIP_INDEX_URL": " -m pip install ", "UV_DEFAULT_INDEX": "$(UV) pip install "}
_FENCE = re.compile(r"^```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_VALUE = re.compile(r"\b(MEMORY_[A-Z0-9_]+)=(\S+)")


def _spans(text: str) -> list[str]:
    return _SPAN.findall(_FENCE.sub("", text))


def _command(line: str) -> str:
    """A line of a shell without its comment, the values it sets, and what a placeholder is called."""
    line = re.sub(r"<[^>]*>", "<>", re.sub(r"\s#\s.*", "", line))
    return " ".join(_VALUE.sub("", line).split())


def _commands(text: str) -> set[str]:
    return {_command(line) for block in _FENCE.findall(text) for line in block.splitlines()} - {""}


@cache
def _routes() -> dict[str, set[str]]:
    """Methods of every path."""
    paths = create_app(Settings.model_validate({"api_key": "test-key-0123456789"})).openapi()["paths"]
    return {path: {method.upper() for method in methods} for path, methods in paths.items()} | {
        "/openapi.json": {"GET"}
    }


def _is_path(path: str) -> bool:
    return any(route == path or route.startswith(f"{path}/") for route in _routes())


def _headings(path: Path) -> set[str]:
    """Anchors of a file, as GitHub makes them."""
    lines = _FENCE.sub("", path.read_text("utf-8")).splitlines()
    titles = [line.lstrip("#").strip().lower() for line in lines if re.match(r"#+ ", line)]
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in titles}


def _called(words: list[str]) -> Iterator[tuple[click.Command, list[str]]]:
    """The command that `words` call, and the options they give it."""
    found: click.Command | None = main
    while isinstance(found, click.Group) and words and not words[0].startswith("-"):
        found, words = found.get_command(click.Context(found), words[0]), words[1:]
    if found is not None:
        yield found, [word for word in words if word.startswith("--")]


def test_every_command_of_a_block_is_in_the_readme() -> None:
    commands = _commands(GUIDE)
    assert {"make up", "make demo"} <= commands
    known = _commands(README)
    assert commands <= known, commands - known


def test_every_make_target_is_in_the_readme() -> None:
    targets = set(re.findall(r"\bmake [a-z][a-z-]*", GUIDE))
    assert targets
    assert targets <= set(re.findall(r"\bmake [a-z][a-z-]*", README))


def test_every_setting_exists_and_takes_the_value_it_is_given() -> None:
    fields = Settings.model_fields
    # A template's own variable.
    named = set(re.findall(r"\bMEMORY_[A-Z0-9_]*[A-Z0-9]\b", GUIDE)) - {"MEMORY_URL"}
    unknown = {name for name in named if name.removeprefix("MEMORY_").lower() not in fields}
    assert not unknown
    values = _VALUE.findall(GUIDE.replace("`", " "))
    assert len(values) >= 5
    given = {name.removeprefix("MEMORY_").lower(): value.rstrip("）") for name, value in values}
    taken = Settings.model_validate({"api_key": "test-key-0123456789", **given})
    assert taken.model_fields_set == {"api_key", *given}


def test_every_default_is_the_code_s() -> None:
    quoted = re.findall(r"`MEMORY_([A-Z0-9_]+)`（默认 `?([\w.]+)`?", GUIDE)
    assert len(quoted) >= 8
    assert quoted == [(name, str(Settings.model_fields[name.lower()].default)) for name, _ in quoted]


def test_every_command_of_ours_has_the_options_it_is_given() -> None:
    lines = [span.removeprefix("dify-memory ").split() for span in _spans(GUIDE)]
    calls = [words for words in lines if words[0] in main.list_commands(click.Context(main))]
    assert len(calls) >= 8
    for words in calls:
        [(command, options)] = _called(words)
        known = {option for parameter in command.params for option in parameter.opts}
        assert set(options) <= known, words
    # One that does not exist is none of the above.
    named = set(re.findall(r"`dify-memory ([a-z-]+)", GUIDE))
    assert named <= set(re.findall(r"`dify-memory ([a-z-]+)", README)), named


def test_every_route_exists() -> None:
    named = re.findall(r"`(GET|POST) (/[^`?]*)", GUIDE)
    assert len(named) >= 5
    for method, path in named:
        assert method in _routes().get(path, set()), path
    bare = [span for span in _spans(GUIDE) if span.startswith("/") and span != "/retrieval"]
    urls = re.findall(r"https?://(?:host\.docker\.internal|127\.0\.0\.1):8000(/[\w./-]+)", GUIDE)
    assert len(bare) >= 2
    assert len(urls) >= 4
    for path in bare + urls:
        assert _is_path(path), path


def test_every_file_and_heading_linked_exists() -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]+))?\)", GUIDE)
    assert len(links) >= 10
    for file, heading in links:
        target = ROOT / (file or "README.zh.md")
        assert target.exists(), file
        assert not heading or heading in _headings(target), heading


def test_the_nodes_send_the_same_fields_in_both() -> None:
    fields = re.compile(r"`(\w+)` = `(\{\{#[^`]+|text)`")
    assert len(fields.findall(README)) == 8
    assert fields.findall(GUIDE) == fields.findall(README)


def test_whatever_is_written_as_code_stands_in_a_document_that_is_held_to_the_code() -> None:
    documents = "\n".join([README, *((ROOT / name).read_text("utf-8") for name in _OTHERS)])
    makefile = (ROOT / "Makefile").read_text("utf-8")
    assert _BASE in README
    unknown = [
        span
        for span in _spans(GUIDE)
        # Of an address the path is looked at among the routes, of a command the options.
        if span.split(f"{_BASE}/")[0] not in {"", "POST "}
        and not span.startswith("dify-memory ")
        and span not in documents
        and not (ROOT / span).exists()
        and not (span in _TOOLS and _TOOLS[span] in makefile)
    ]
    assert unknown == []


def test_the_locks_name_no_index() -> None:
    for name in ("requirements.txt", "requirements-local.txt", "requirements-dev.txt"):
        assert "--index-url" not in (ROOT / name).read_text("utf-8")


def test_every_number_is_in_the_readme() -> None:
    numbers = re.compile(r"\d+(?:\.\d+)*")
    named = set(numbers.findall(GUIDE))
    assert named <= set(numbers.findall(README)), named - set(numbers.findall(README))


def test_what_dify_shows_is_the_same_in_both() -> None:
    row = re.compile(r"^\| (\d{3}(?:[,、] ?\d{3})*) \| ([^|]*) \|", re.MULTILINE)
    told = [
        [
            (re.findall(r"\d{3}", statuses), re.findall(r"[\"“]([^\"”]+)[\"”]", shown))
            for statuses, shown in rows
        ]
        for rows in (row.findall(README), row.findall(GUIDE))
    ]
    assert len(told[0]) == 3
    assert told[0] == told[1]
