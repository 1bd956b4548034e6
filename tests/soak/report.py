"""What a soak has shown → `results.json` and `RESULTS.md`."""

import argparse
import json
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from tests.bench.machine import describe
from tests.soak.load import Counts

_FOLDER: Final = Path(__file__).parent
_SHOWN: Final = 20
_MEANS: Final = """\
## What it means

* The load: a recall before each answer and an add after it, with more forgets than in life, by users of whom
  some talk much more than others, over two processes of the API. A caller that finds a process dead goes to
  the other one, and repeats adds and forgets until they are answered, as a load balancer and a flow do.
* Broken promises are counted over the whole run and once more in the end, when everything is stored: each
  acknowledged turn is one document, no forgotten one is there or is ever recalled, nobody is told another's,
  each recall is a 200 within its deadline of 2 s (and 1 s for the machine, which runs everything and the
  clients), no process that nobody hurt leaves a request without an answer or ends, nothing is dead, no key
  of Redis stays for ever.
* `api 1` and `worker 1` are spared so that growth has time to show; memory is compared between the middle
  third and the last third of the longest life of each process. Redis and Hindsight hold what was said.
* Hindsight is a stand-in that keeps what it has acknowledged: the real one answers about ten recalls a second
  on two cores, which would make it a test of Hindsight.
"""


def numbers(
    *,
    given: argparse.Namespace,
    took_s: float,
    settled_s: float,
    counts: Counts,
    states: Counter[str],
    blows: Counter[str],
    trends: Mapping[str, Mapping[str, float | None]],
    breaches: Sequence[tuple[str, str]],
    late_ms: Sequence[float],
    load_averages: Sequence[float],
) -> dict[str, Any]:
    """Everything that goes into the files."""
    return {
        "when": f"{datetime.now(UTC):%Y-%m-%d}",
        "machine": describe(),
        "note": given.note,
        "load_average": [round(min(load_averages), 1), round(max(load_averages), 1)],
        "minutes": given.minutes,
        "users": given.users,
        "seed": given.seed,
        "answers": sum(map(len, counts.latencies_ms.values())),
        "answers_per_s": round(sum(map(len, counts.latencies_ms.values())) / took_s, 1),
        "latency_ms": {name: _spread(values) for name, values in sorted(counts.latencies_ms.items())},
        "clients_late_ms": _spread(late_ms),
        "seen": dict(sorted(counts.answers.items())),
        "turns": dict(sorted(states.items())),
        "settled_s": round(settled_s, 1),
        "blows": dict(sorted(blows.items())),
        "processes": {name: dict(trend) for name, trend in trends.items()},
        "breaches": dict(Counter(kind for kind, _ in breaches)),
        "first_breaches": [f"{kind}: {what}" for kind, what in breaches[:_SHOWN]],
    }


def _spread(values: Sequence[float]) -> dict[str, float]:
    cuts = statistics.quantiles(values, n=1000, method="inclusive") if len(values) > 1 else [values[0]] * 999
    names = {"p50": cuts[499], "p95": cuts[949], "p99": cuts[989], "p999": cuts[998], "max": max(values)}
    return {"count": len(values), **{name: round(value, 1) for name, value in names.items()}}


def write(found: Mapping[str, Any], folder: Path = _FOLDER) -> None:
    """Leave both files in `folder`."""
    (folder / "results.json").write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n", "utf-8")
    (folder / "RESULTS.md").write_text(page(found), "utf-8")


def page(found: Mapping[str, Any]) -> str:
    """The same to read."""
    kept = "**None was broken.**" if not found["breaches"] else "**Some were broken:**"
    size = f"{found['users']:,} users, seed {found['seed']}"
    answers = f"{found['answers']:,} answers, {found['answers_per_s']:g} a second"
    lines = [
        f"# Everything at once for {found['minutes']:g} minutes",
        "",
        f"{found['when']}, {found['machine']}.",
        "",
        *_busy(found),
        f"{size}: {answers}. Everything was stored {found['settled_s']:g} s after the end.",
        "",
        f"## Promises\n\n{kept}",
        *(f"* {kind}: {count}" for kind, count in found["breaches"].items()),
        *(f"  * {text}" for text in found["first_breaches"]),
        "",
        "## Answers\n",
        "| | count | p50 ms | p95 | p99 | p99.9 | max |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, spread in found["latency_ms"].items():
        lines.append(f"| {name} | " + " | ".join(f"{value:g}" for value in spread.values()) + " |")
    lines += ["", _table("seen by the callers", found["seen"]), ""]
    lines += [_table("turns in the end", found["turns"]), "", _table("blows", found["blows"]), ""]
    lines += [
        "## Processes\n",
        "| | lives | longest, s | memory, MiB | later | per hour | descriptors | later |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, trend in found["processes"].items():
        cells = ("" if value is None else f"{value:g}" for value in trend.values())
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + f"\n\n{_MEANS}"


def _busy(found: Mapping[str, Any]) -> list[str]:
    """How busy the machine was. A process that wants to run and may not is late, whoever it is."""
    least, most = found["load_average"]
    said = f"Load average from {least:g} to {most:g}."
    if late := found["clients_late_ms"]:  # None in runs from before this was measured
        spread = f"{late['p50']:g} ms (p50), {late['p99']:g} ms (p99), at most {late['max']:g} ms"
        said += f" The clients came to run late themselves, by {spread}."
    return [said, "", *([found["note"], ""] if found["note"] else [])]


def _table(title: str, counts: Mapping[str, int]) -> str:
    rows = "\n".join(f"| {name} | {count} |" for name, count in counts.items())
    return f"| {title} | |\n|---|---|\n{rows}"
