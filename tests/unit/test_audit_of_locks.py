"""`python -m tests.audit`: what it makes of a report, and what it does without one."""

import sys
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from tests.audit import ALLOWED, Allowed, NotDone, allowed_in, ask, problems

TODAY = date(2026, 6, 1)
LOCKS = {"requirements.txt": "jinja2==3.1.0 \\\n", "requirements-dev.txt": "jinja2==3.1.0\npytest==9.0.0\n"}
CLEAN: dict[str, Any] = {"name": "jinja2", "version": "3.1.0", "vulns": []}
FLAW = {"id": "PYSEC-2026-1", "aliases": ["CVE-2026-1", "GHSA-1"], "fix_versions": ["3.1.9"]}
ENTRY = Allowed("CVE-2026-1", "jinja2", "it is not reached from here", date(2026, 6, 30))


def report(*packages: dict[str, Any]) -> dict[str, Any]:
    return {"dependencies": list(packages), "fixes": []}


def test_nothing_known_is_no_problem() -> None:
    assert problems(report(CLEAN, {"name": "x", "skip_reason": "unknown"}), [], TODAY, LOCKS) == []


def test_what_is_found_is_named_with_its_smallest_lock_and_its_cure() -> None:
    flawed = [
        CLEAN | {"vulns": [FLAW]},
        {"name": "PyTest", "version": "9.0.0", "vulns": [FLAW | {"fix_versions": []}]},
    ]
    assert problems(report(*flawed), [], TODAY, LOCKS) == [
        "requirements.txt: jinja2 3.1.0 has PYSEC-2026-1, fixed in 3.1.9",
        "requirements-dev.txt: pytest 9.0.0 has PYSEC-2026-1, fixed in nothing yet",
    ]


def test_an_allowed_one_is_let_by_until_its_day_by_any_of_its_names() -> None:
    flawed = report(CLEAN | {"vulns": [FLAW]})
    assert problems(flawed, [ENTRY], date(2026, 6, 30), LOCKS) == []
    [late] = problems(flawed, [ENTRY], date(2026, 7, 1), LOCKS)
    assert late.endswith("; it was allowed until 2026-06-30")
    [other] = problems(flawed, [Allowed("CVE-2026-2", "jinja2", "r", TODAY)], TODAY, LOCKS)[:1]
    assert "PYSEC-2026-1" in other


def test_an_entry_that_is_over_is_told() -> None:
    assert problems(report(CLEAN), [ENTRY], TODAY, LOCKS) == [
        "audit_allowed.toml: jinja2 has no CVE-2026-1 any more"
    ]


@pytest.mark.parametrize(
    "entry",
    [
        'id = "X"\npackage = "p"\nuntil = 2026-01-01',
        'id = "X"\npackage = "p"\nreason = "because"\nuntil = 2026-01-01',
        'id = "X"\npackage = "p"\nreason = "it is never reached"',
        'id = "X"\npackage = "p"\nreason = "it is never reached"\nuntil = "soon"',
    ],
)
def test_an_entry_without_a_reason_or_a_day_is_refused(entry: str) -> None:
    with pytest.raises(ValueError, match="reason"):
        allowed_in(f"[[allowed]]\n{entry}\n")


def test_the_list_can_be_read() -> None:
    assert isinstance(allowed_in(ALLOWED.read_text("utf-8")), list)


def stub(tmp_path: Path, code: str) -> list[str]:
    """A command in the place of pip-audit; `out` is where the report has to go."""
    file = tmp_path / "stub.py"
    file.write_text(f"import sys\nout = sys.argv[sys.argv.index('--output') + 1]\n{code}\n", "utf-8")
    return [sys.executable, str(file)]


def test_a_report_is_read_whatever_the_exit_code(tmp_path: Path) -> None:
    command = stub(tmp_path, "open(out, 'w').write('{\"dependencies\": [{}]}')\nsys.exit(1)")
    assert ask(command, tmp_path / "lock") == {"dependencies": [{}]}


@pytest.mark.parametrize(
    "code",
    [
        "sys.exit('ERROR: Could not connect to the vulnerability service')",
        "open(out, 'w').write('{\"depend')\nsys.exit('cut')",
        "open(out, 'w').write('{\"dependencies\": []}')",
    ],
)
def test_without_a_whole_report_the_audit_is_not_done(tmp_path: Path, code: str) -> None:
    with pytest.raises(NotDone):
        ask(stub(tmp_path, code), tmp_path / "lock")


def test_a_wrong_call_is_no_matter_of_the_network(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="ended with 2"):
        ask(stub(tmp_path, "sys.exit(2)"), tmp_path / "lock")
