"""On what and of what something was measured."""

import os
import platform
import subprocess
from pathlib import Path
from typing import Final

# What the benchmarks themselves write is no other code.
_WRITTEN: Final = [
    f":(top,exclude,glob)tests/**/{name}" for name in ("RESULTS.md", "results.json", "runs.json")
]


def commit(folder: Path = Path(__file__).parent) -> str:
    """The commit that `folder` has, with `-dirty` if there was more than that and results."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], capture_output=True, check=False, text=True, cwd=folder)
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", ":(top)", *_WRITTEN)
    return f"{git('rev-parse', '--short', 'HEAD') or 'unknown'}{'-dirty' if changed else ''}"


def cpu() -> str:
    """The processor's name."""
    for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown processor"


def describe() -> str:
    """Commit, Python, cores, processor and how busy it is, in one line."""
    loads = ", ".join(f"{load:.1f}" for load in os.getloadavg())
    return (
        f"commit {commit()}, Python {platform.python_version()}, {os.cpu_count()} cores, {cpu()}; "
        f"load average at the end {loads}"
    )
