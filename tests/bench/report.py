"""Numbers → `results.json` and `RESULTS.md`."""

import json
import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

_FOLDER: Final = Path(__file__).parent


@dataclass(frozen=True)
class Aim:
    """What a number should be: at least or at most `bound`."""

    name: str
    bound: float
    at_least: bool
    meaning: str

    def line(self, found: Mapping[str, float]) -> str:
        """One row: measured, wanted, met."""
        value = found.get(self.name)
        if value is None:
            return f"| `{self.name}` | not measured | {self._wanted} | – | {self.meaning} |"
        is_met = value >= self.bound if self.at_least else value <= self.bound
        verdict = "yes" if is_met else "**no**"
        return f"| `{self.name}` | {value:g} | {self._wanted} | {verdict} | {self.meaning} |"

    @property
    def _wanted(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.bound:g}"


AIMS: Final = (
    Aim("recall_hit_vs_raw_asgi", 0.5, True, "a hit against a bare ASGI app that answers the same bytes"),
    Aim("recall_hit_vs_fastapi_redis", 1, True, "a hit against FastAPI, a model and redis-py"),
    Aim("recall_miss_added_ms_p50", 5, False, "what we add to a recall that Hindsight has to answer"),
    Aim("identical_misses_64_backend_calls", 1, False, "64 equal new questions at once, calls to Hindsight"),
    Aim("add_vs_xadd", 0.7, True, "adds a second against a FastAPI handler with one bare `XADD`"),
    Aim("add_p95_vs_xadd", 2, False, "the same for the 95th percentile of its time"),
    Aim("api_imports_litellm", 0, False, "1 if the API's process loads litellm"),
)
_NOTES: Final = """\
* Ratios are of requests a second, taken within a round (ours, raw, FastAPI, ours, …) and then the median of
  the rounds, so that a machine that gets slower meanwhile does not look like a result. `_cN`: N connections.
  `_users_N`: that many users have an answer in the cache. The plain names are 32 connections and one user.
* Server, load generator and Redis share the cores named above.
* `redis_mget_per_s` stands in for `redis-benchmark`, which the server's wheel does not hold: a bare pipelined
  client that asks for the same three keys from 32 tasks.
* `recall_hit_…`: the same question in the same bytes, as a flow repeats it; where it is cached is known from
  the second time on. `…_unseen_bytes_…`: each request in bytes no process has read before, so that all of
  reading, validating and naming it is paid each time.
* `cpu_us_…`: processor time a request of a server process that does more and more of a hit: `raw` answers
  fixed bytes, `body` reads the body our way, `look_up` asks Redis as well, `hit` is the API. What lies
  between the last two is the key, the digest of the bytes, the comparison of epochs, the request's id and
  counting.
* `hit_step_us_…`: steps of reading a request in our own code, alone and warm; in a busy server they cost
  about twice that.
* `recall_direct_…` is Hindsight asked by its own client with the arguments that we use.
* `bank_creation_…` and `recall_direct_ms_p50_banks_N`: the last tenth of the banks up to N, and a recall
  with N banks there.
"""


def write(found: Mapping[str, float], *, is_quick: bool, folder: Path = _FOLDER) -> None:
    """Leave both files in `folder`; numbers that this run has not measured stay as they were."""
    path = folder / "results.json"
    before = json.loads(path.read_text("utf-8")) if path.exists() else {}
    ordered = dict(sorted({**before, **found}.items()))
    path.write_text(json.dumps(ordered, indent=2) + "\n", encoding="utf-8")
    (folder / "RESULTS.md").write_text(_page(ordered, is_quick), encoding="utf-8")


def _page(found: Mapping[str, float], is_quick: bool) -> str:
    aims = "\n".join(aim.line(found) for aim in AIMS)
    ratios = "\n".join(f"| `{name}` | {value:g} |" for name, value in found.items() if "_vs_" in name)
    rest = "\n".join(f"| `{name}` | {value:g} |" for name, value in found.items() if "_vs_" not in name)
    quick = "\nA quick run: few rounds, small counts; good for seeing that it works, not for quoting.\n"
    loads = ", ".join(f"{load:.1f}" for load in os.getloadavg())
    return f"""\
# How fast it is

{datetime.now(UTC):%Y-%m-%d}, commit {_commit()}, Python {platform.python_version()}, \
{os.cpu_count()} cores, {_cpu()}; load average at the end {loads}.
{quick if is_quick else ""}
| aim | measured | wanted | met | what it is |
|---|---|---|---|---|
{aims}

## Ratios

| name | |
|---|---|
{ratios}

## Absolute

| name | |
|---|---|
{rest}

## How it was measured

{_NOTES}"""


def _commit() -> str:
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        capture_output=True, check=False, text=True, cwd=_FOLDER,
    )  # fmt: skip
    return done.stdout.strip() or "unknown"


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown processor"
