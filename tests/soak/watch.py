"""Memory and file descriptors of each process, and whether they grow; how busy the machine was with all."""

import asyncio
import os
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.soak.havoc import pause
from tests.support import ServerProcess

_EVERY_S = 2.0
_BEAT_S = 0.05
# The first part of a life fills caches and pools.
_WARM = 1 / 3
# A life that tells whether a process grows.
LONG_S = 300


@dataclass(frozen=True)
class Sample:
    """One look at one life of a process."""

    at: float
    rss_mib: float
    fds: int


@dataclass
class Watch:
    """Samples by process and by its process id: a restart begins a new life."""

    processes: Mapping[str, ServerProcess]
    lives: dict[str, dict[int, list[Sample]]] = field(default_factory=dict)
    load_averages: list[float] = field(default_factory=list)

    async def run(self, is_over: asyncio.Event) -> None:
        """Look every two seconds until it is over."""
        while not is_over.is_set():
            self.load_averages.append(os.getloadavg()[0])
            for name, process in self.processes.items():
                if process.is_running:
                    self._look(name, process.pid)
            await pause(_EVERY_S, is_over)

    def _look(self, name: str, pid: int) -> None:
        folder = Path("/proc") / str(pid)
        try:
            status = (folder / "status").read_text("utf-8")
            fds = sum(1 for _ in (folder / "fd").iterdir())
        except OSError:  # it ended in this moment
            return
        lines = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        if "VmRSS" not in lines:
            return
        rss_mib = int(lines["VmRSS"].split()[0]) / 1024
        self.lives.setdefault(name, {}).setdefault(pid, []).append(Sample(time.monotonic(), rss_mib, fds))

    def trends(self) -> dict[str, dict[str, float | None]]:
        """Of the longest life of each: memory in MiB at two thirds and at the end, per hour, descriptors.

        None per hour in a life too short to tell: a process that starts grows.
        """
        found: dict[str, dict[str, float | None]] = {}
        for name, lives in self.lives.items():
            life = max(lives.values(), key=lambda samples: samples[-1].at - samples[0].at)
            life_s = life[-1].at - life[0].at
            warm = life[int(len(life) * _WARM) :]
            half = max(1, len(warm) // 2)
            early, late = warm[:half], warm[half:] or warm
            found[name] = {
                "lives": len(lives),
                "longest_life_s": round(life_s),
                "rss_mib_before": round(statistics.median(sample.rss_mib for sample in early), 1),
                "rss_mib_after": round(statistics.median(sample.rss_mib for sample in late), 1),
                "rss_mib_per_hour": round(_slope(warm) * 3600, 1) if life_s >= LONG_S else None,
                "fds_before": max(sample.fds for sample in early),
                "fds_after": max(sample.fds for sample in late),
            }
        return found


@dataclass
class Pulse:
    """How late this process comes to run when it wants: clients see that, and nobody they ask is at fault."""

    late_ms: list[float] = field(default_factory=list)

    async def run(self, is_over: asyncio.Event) -> None:
        """Beat until it is over."""
        while not is_over.is_set():
            wanted = time.monotonic() + _BEAT_S
            await asyncio.sleep(_BEAT_S)
            self.late_ms.append((time.monotonic() - wanted) * 1000)


def _slope(samples: list[Sample]) -> float:
    """MiB a second, by least squares."""
    if len(samples) < 3:
        return 0.0
    return statistics.linear_regression([s.at for s in samples], [s.rss_mib for s in samples]).slope
