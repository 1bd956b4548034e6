"""`python -m tests.audit [--required]`: does a pinned package have a known vulnerability?

Asks pip-audit about `requirements-dev.txt`, which has every pin of the three locks (see `tests.locks`). What
is found fails, unless `audit_allowed.toml` names it with a reason and a day until which that holds. Without
a network, or when the service does not answer, it says so and passes; with `--required` that fails, too.
What was found clean is not asked again on the same day.
"""

import hashlib
import json
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from tests.locks import LOCKS, ROOT, pins

ALLOWED = Path(__file__).with_name("audit_allowed.toml")
_PATIENCE_S = 90


@dataclass(frozen=True)
class Allowed:
    """A vulnerability that is known and lived with: why, and the last day on which that holds."""

    id: str
    package: str
    reason: str
    until: date


class NotDone(Exception):
    """The audit could not be made; the text says why."""


def allowed_in(text: str) -> list[Allowed]:
    """The entries of the list; raises `ValueError` for one without a reason or a day."""
    found = []
    for entry in tomllib.loads(text).get("allowed", []):
        until = entry.get("until")
        if set(entry) != {"id", "package", "reason", "until"} or type(until) is not date:
            raise ValueError("an entry needs id, package, reason and until (a day)")
        if len(entry["reason"].split()) < 4:
            raise ValueError(f"{entry['id']}: the reason is too short to be one")
        found.append(Allowed(entry["id"], canonicalize_name(entry["package"]), entry["reason"], until))
    return found


def problems(
    report: Mapping[str, Any], allowed: Sequence[Allowed], today: date, locks: Mapping[str, str]
) -> list[str]:
    """What is wrong by pip-audit's JSON report: vulnerabilities, and entries of the list that are over.

    `locks` are file names and texts, smallest first: a finding names the first that has the package.
    """
    found = []
    met: set[Allowed] = set()
    holders = {name: pins(text) for name, text in locks.items()}
    for package in report["dependencies"]:
        name = canonicalize_name(package["name"])
        lock = next((lock for lock, pinned in holders.items() if name in pinned), "?")
        for flaw in package.get("vulns", []):
            ids = {flaw["id"], *flaw.get("aliases", [])}
            known = next((one for one in allowed if one.package == name and one.id in ids), None)
            if known is not None:
                met.add(known)
                if today <= known.until:
                    continue
            fixed = ", ".join(flaw.get("fix_versions", [])) or "nothing yet"
            over = f"; it was allowed until {known.until}" if known else ""
            found.append(f"{lock}: {name} {package['version']} has {flaw['id']}, fixed in {fixed}{over}")
    return found + [
        f"{ALLOWED.name}: {one.package} has no {one.id} any more" for one in allowed if one not in met
    ]


def ask(command: Sequence[str], lock: Path) -> dict[str, Any]:
    """pip-audit's report on a lock; raises `NotDone` without one, `ValueError` if it is called wrongly."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "report.json"
        words = [
            *command,
            *("--requirement", str(lock), "--disable-pip", "--no-deps", "--desc", "off"),
            *("--format", "json", "--output", str(output), "--progress-spinner", "off", "--timeout", "10"),
        ]
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=_PATIENCE_S, check=False)
        except subprocess.TimeoutExpired as exc:
            raise NotDone(f"no answer within {_PATIENCE_S} s") from exc
        if done.returncode not in (0, 1):
            raise ValueError(f"pip-audit ended with {done.returncode}: {done.stderr[-300:]}")
        try:
            report = json.loads(output.read_text("utf-8"))
        except (OSError, ValueError) as exc:
            last = (done.stderr.strip().splitlines() or ["no report"])[-1]
            # What went wrong, not where: its text names the index that was asked.
            raise NotDone(last.partition(":")[0][:100]) from exc
    if not isinstance(report, dict) or not report.get("dependencies"):
        raise NotDone("a report about nothing")
    return report


def main(arguments: Sequence[str]) -> int:
    """Exit code: 0 if nothing is wrong, or nothing can be said and need not be."""
    texts = {name: (ROOT / name).read_text("utf-8") for name in LOCKS}
    allowed_text = ALLOWED.read_text("utf-8")
    allowed = allowed_in(allowed_text)
    today = datetime.now(UTC).date()
    asked = hashlib.sha256("\0".join([*texts.values(), allowed_text, str(today)]).encode()).hexdigest()
    mark = Path(sys.prefix) / ".audited"
    if mark.exists() and mark.read_text("ascii") == asked:
        sys.stdout.write("pip-audit: clean, as it was found to be today\n")
        return 0
    try:
        report = ask([sys.executable, "-m", "pip_audit"], ROOT / LOCKS[-1])
    except NotDone as exc:
        sys.stderr.write(f"pip-audit: the audit could not be done ({exc})\n")
        return 1 if "--required" in arguments else 0
    wrong = problems(report, allowed, today, texts)
    for line in wrong:
        sys.stderr.write(f"{line}\n")
    if wrong:
        return 1
    mark.write_text(asked, "ascii")
    known = [one for one in report["dependencies"] if "skip_reason" not in one]
    sys.stdout.write(f"pip-audit: {len(known)} packages, nothing known against them\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
