"""On what and of what something was measured."""

import os
import platform
import subprocess
from pathlib import Path


def commit() -> str:
    """The commit, with `-dirty` if there was more than that."""
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        capture_output=True, check=False, text=True, cwd=Path(__file__).parent,
    )  # fmt: skip
    return done.stdout.strip() or "unknown"


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
