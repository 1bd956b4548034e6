"""No secret is compared by `==`, whose time tells how much of a guess was right: `hmac.compare_digest` is."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SERVICE = Path(__file__).parents[2] / "service"
_SECRET = re.compile(r"(?i)(secret|password|pepper|signature|seal|token|digest|form_key|api_key|proof)")
# What is compared there is no secret, or is the own one: words of a text, settings, names of files.
_NO_SECRETS = ("policy/", "cli/", "embedded/postgres.py")


def comparisons(tree: ast.AST) -> Iterator[ast.Compare]:
    """`a == b` and the like where a name sounds secret and neither side is written out."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Compare) or not any(
            isinstance(one, ast.Eq | ast.NotEq | ast.In | ast.NotIn) for one in node.ops
        ):
            continue
        sides = [node.left, *node.comparators]
        if any(isinstance(side, ast.Constant) for side in sides):
            continue
        names = {part.id for side in sides for part in ast.walk(side) if isinstance(part, ast.Name)}
        names |= {part.attr for side in sides for part in ast.walk(side) if isinstance(part, ast.Attribute)}
        if any(_SECRET.search(name) for name in names):
            yield node


@pytest.mark.parametrize(
    ("code", "is_found"),
    [
        ("sent == secret", True),
        ("x.signature != expected", True),
        ("token in self._tokens", True),
        ("kind == 'token'", False),
        ("hmac.compare_digest(secret, sent)", False),
        ("count == limit", False),
    ],
)
def test_the_search_finds_what_it_should(code: str, is_found: bool) -> None:
    assert bool(list(comparisons(ast.parse(code)))) is is_found


def test_secrets_are_compared_in_constant_time() -> None:
    found = [
        f"{file.relative_to(SERVICE)}:{node.lineno}: {ast.unparse(node)}"
        for file in sorted(SERVICE.rglob("*.py"))
        if not str(file.relative_to(SERVICE)).startswith(_NO_SECRETS)
        for node in comparisons(ast.parse(file.read_text("utf-8")))
    ]
    assert found == [], found


def test_it_is_used_where_secrets_come_in() -> None:
    users = {
        str(file.relative_to(SERVICE))
        for file in SERVICE.rglob("*.py")
        if "hmac.compare_digest(" in file.read_text("utf-8")
    }
    assert {"auth.py", "routes/me.py", "memory/events.py", "memory/fallback.py"} <= users
