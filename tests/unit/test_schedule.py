"""The order of the tests names files that exist, and keeps together what shares a stack."""

import re
from pathlib import Path

import pytest

from tests.schedule import LONGEST_FIRST, TOGETHER, rank_of, scope_of

TESTS = Path(__file__).parents[1]
BEHAVIOURS = "tests/e2e/test_behaviours_stack.py::test_a_story_is_remembered_as_it_ended"


def uses_stack(text: str) -> bool:
    """Whether a test file asks for a stack of the session: by itself, by what is its, or by a mark."""
    return bool(
        re.search(r"[(\s](?:stack|llm_stack|hindsight_url): ", text)
        or re.search(
            r"""(?:usefixtures|getfixturevalue)\([^)]*["'](?:stack|llm_stack|hindsight_url)["']""", text
        )
    )


@pytest.mark.parametrize(
    ("text", "uses"),
    [
        ("async def test_x(stack: Stack) -> None:", True),
        ("async def test_x(\n    llm_stack: LlmStack,\n) -> None:", True),
        ("async def test_x(user: str, hindsight_url: str) -> None:", True),
        ('pytestmark = pytest.mark.usefixtures("stack")', True),
        ('@pytest.mark.usefixtures("user", "llm_stack")', True),
        ("@pytest.mark.usefixtures('hindsight_url')", True),
        ('request.getfixturevalue("stack")', True),
        ("async with running_stack(folder) as stack:", False),
        ('{"MEMORY_HINDSIGHT_URL": stack.hindsight_url}', False),
        ('@pytest.mark.usefixtures("user")', False),
    ],
)
def test_a_file_that_uses_a_stack_of_the_session_is_known(text: str, uses: bool) -> None:
    assert uses_stack(text) is uses


def test_every_file_exists_and_is_named_once() -> None:
    together = [name for group in TOGETHER for name in group]
    for names in (LONGEST_FIRST, together):
        assert len(set(names)) == len(names)
        assert [name for name in names if not (TESTS / name).is_file()] == []


def test_a_group_is_as_long_as_its_first() -> None:
    for first, *others in TOGETHER:
        assert first in LONGEST_FIRST
        assert not set(others) & set(LONGEST_FIRST)


def test_every_file_that_uses_the_stacks_of_the_session_is_in_a_group() -> None:
    grouped = {name for group in TOGETHER for name in group}
    for path in (TESTS / "e2e").glob("test_*.py"):
        if uses_stack(path.read_text("utf-8")) and path.name not in (
            "test_behaviours_stack.py",
            "test_backup_stack.py",
        ):
            assert f"e2e/{path.name}" in grouped, path.name


@pytest.mark.parametrize(
    ("node_id", "scope"),
    [
        ("tests/unit/test_scope.py::test_x[a-b]", "unit/test_scope.py"),
        ("tests/e2e/test_dead_stack.py::test_x", "e2e/test_templates_stack.py"),
        (f"{BEHAVIOURS}[hindsight-moved]", "e2e/test_behaviours_stack.py[hindsight]"),
        ("tests/e2e/test_behaviours_stack.py::test_x[none]", "e2e/test_behaviours_stack.py[none]"),
    ],
)
def test_a_test_belongs_to_its_file_or_its_stack(node_id: str, scope: str) -> None:
    assert scope_of(node_id) == scope


def test_the_longest_come_first_and_unit_tests_last() -> None:
    found = [
        "tests/unit/test_unknown.py::test_x",
        "tests/integration/test_unknown.py::test_x",
        "tests/integration/test_worker_process.py::test_x",
        f"{BEHAVIOURS}[none-moved]",
        "tests/e2e/test_templates_stack.py::test_x",
    ]
    assert sorted(found, key=rank_of) == found[::-1]
