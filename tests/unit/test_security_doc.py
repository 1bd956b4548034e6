"""`SECURITY.md`: every test that it names exists, and every threat names one."""

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
TEXT = (TESTS.parent / "SECURITY.md").read_text("utf-8")
NAMED = re.findall(r"`([\w/]+\.py)::(\w+)`", TEXT)
# What has to be in the table, whatever else is.
THREATS = (
    "reads another's memory",
    "chooses whose memory",
    "DEFAULT-USER",
    "Prompt injection",
    "Instructions kept as memories",
    "Replay",
    "forged or repeated event",
    "SSRF",
    "Oversized",
    "Slow bodies",
    "stolen key",
    "in logs",
    "Cache poisoning",
    "writes to Redis",
    "CSRF",
    "XSS",
    "Ids in URLs",
    "Timing",
    "dependency",
    "uses everything up",
    "does not stick",
    "Backups",
)


def rows() -> list[list[str]]:
    """The cells of the table of threats."""
    table = TEXT.partition("## Threats")[2].partition("\n## ")[0]
    lines = [line for line in table.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def names_in(file: Path) -> set[str]:
    tree = ast.parse(file.read_text("utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_test_that_is_named_exists() -> None:
    assert len(NAMED) > 80
    missing = [
        f"{file}::{name}"
        for file, name in NAMED
        if not (TESTS / file).is_file() or name not in names_in(TESTS / file)
    ]
    assert missing == []


def test_every_threat_has_a_defence_and_a_test() -> None:
    found = rows()
    assert len(found) >= len(THREATS)
    for cells in found:
        assert len(cells) == 3, cells
        assert cells[0].startswith("**"), cells
        assert cells[1], cells
        assert re.search(r"`[\w/]+\.py::test_\w+`", cells[2]), cells


def test_no_threat_is_left_out() -> None:
    names = "\n".join(cells[0] for cells in rows())
    assert [threat for threat in THREATS if threat not in names] == []


def test_it_says_how_to_report_and_what_is_supported() -> None:
    assert {"## Reporting", "## Supported versions", "## What is not defended"} <= set(TEXT.splitlines())
