"""Numbers → `results.json` (names → numbers), `runs.json` (which run each is from) and `RESULTS.md`."""

import json
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from tests.bench.machine import describe

_FOLDER: Final = Path(__file__).parent
_COLUMNS: Final = ("hit_at_5", "words_at_5", "mrr", "withheld", "characters", "ms_p50")
_PATHS: Final = ("ours_without_floor", "ours", "hindsight_two_arms_off", "hindsight_defaults")
_QUALITY: Final = re.compile(rf"recall_({'|'.join(_PATHS)})(?:_(\w+?))?_({'|'.join(_COLUMNS)})")
# "Flat" is a word of the aims; this much is noise on a shared machine.
_FLAT: Final = 1.25


@dataclass
class Run:
    """One run of a benchmark: when it began (UTC), commit and machine, and the names it has measured."""

    began: str = field(default_factory=lambda: f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}")
    on: str = ""
    names: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Aim:
    """What a number should be: at least or at most `bound`."""

    name: str
    bound: float
    at_least: bool
    meaning: str

    @property
    def is_ratio(self) -> bool:
        """Whether it compares with something."""
        return _is_ratio(self.name)

    @property
    def wanted(self) -> str:
        """To read."""
        return f"{'≥' if self.at_least else '≤'} {self.bound:g}"

    def verdict(self, values: Sequence[float]) -> str:
        """Whether all of the values, some or none of them are what they should be."""
        met = [value >= self.bound if self.at_least else value <= self.bound for value in values]
        return "yes" if all(met) else "**not always**" if any(met) else "**no**"


AIMS: Final = (
    Aim("recall_hit_vs_raw_asgi", 0.5, True, "a hit against a bare ASGI app that answers the same bytes"),
    Aim("recall_hit_vs_fastapi_redis", 1, True, "a hit against FastAPI, a model and redis-py"),
    Aim("recall_miss_added_ms_p50", 5, False, "what we add to a recall that Hindsight has to answer"),
    Aim("recall_hit_users_100000_vs_1", 1 / _FLAT, True, "a hit with 100,000 users' answers and with one's"),
    Aim("recall_direct_ms_banks_10000_vs_10", _FLAT, False, "Hindsight's recall with 10,000 banks and 10"),
    Aim("bank_creation_ms_banks_10000_vs_10", _FLAT, False, "making a bank with as many there"),
    Aim("recall_direct_ms_banks_100000_vs_10", _FLAT, False, "Hindsight's recall with 100,000 banks and 10"),
    Aim("bank_creation_ms_banks_100000_vs_10", _FLAT, False, "making a bank with as many there"),
    Aim("identical_misses_64_backend_calls", 1, False, "64 equal new questions at once, calls to Hindsight"),
    Aim("add_vs_xadd", 0.7, True, "adds a second against a FastAPI handler with one bare `XADD`"),
    Aim("add_p95_vs_xadd", 2, False, "the same for the 95th percentile of its time"),
    Aim("due_selection_us_100k_vs_1k", _FLAT, False, "selecting what is due of so many conversations"),
    Aim("gateway_first_token_added_ms", 3, False, "what `/v1` adds to a first token, memory cached"),
    Aim("gateway_stream_ratio", 0.9, True, "16 streams of 200 tokens a second, through `/v1` and direct"),
    Aim("api_imports_litellm", 0, False, "1 if the API's process loads litellm"),
    Aim("recall_hit_at_5_vs_hindsight", 2.5, True, "the right turn among the first 5, ours against plain"),
    Aim("recall_ours_characters", 500, False, "characters of an answer"),
    Aim("recall_ours_unanswerable_withheld", 0.8, True, "questions without an answer that get none"),
    Aim("redaction_ms_zh_en_sensitive_median", 5, False, "20,000 characters of talk with sensitive data"),
)
_NOTES: Final = """\
* `from … to`: the least and the most of several goes, each with processes of its own (for a miss: with a
  local stack of its own); `measured` is their median. An aim that only some goes reach is met `not always`;
  without a range there was one go. What should be flat may differ by a quarter.
* Ratios are of requests a second, taken within a round (ours, raw, FastAPI, ours, …) and then the median of
  the rounds, so that a machine that gets slower meanwhile does not look like a result. `_cN`: N connections.
  `_users_N`: that many users have an answer in the cache. The plain names are 32 connections and one user.
* Server, load generator and Redis share the cores named above.
* `redis_mget_per_s` stands in for `redis-benchmark`, which the server's wheel does not hold: a bare pipelined
  client that asks for the same three keys from 32 tasks. `recall_hit_vs_redis_mget` is of two loads that ran
  one after the other.
* `recall_hit_…`: the same question in the same bytes, as a flow repeats it; where it is cached is known from
  the second time on. `…_unseen_bytes_…`: each request in bytes no process has read before, so that all of
  reading, validating and naming it is paid each time.
* `cpu_us_…`: processor time a request of a server process that does more and more of a hit: `raw` answers
  fixed bytes, `body` reads the body our way, `look_up` asks Redis as well, `hit` is the API. What lies
  between the last two is the key, the digest of the bytes, the comparison of epochs, the request's id and
  counting.
* `hit_step_us_…`: steps of reading a request in our own code, alone and warm; in a busy server they cost
  about twice that.
* `gateway_…`: the same fake model asked directly and through `/v1`, in turn, over kept connections; the
  answer of the memory is in the cache and the turn is not stored. `gateway_stream_ratio` is of streams that
  are paced like a fast model's, `…_c64` of 64 with a token each 20 ms, `…_unpaced…` of a model that sends as
  fast as it can, far faster than any real one. `gateway_litellm_…`: with litellm in between.
* `recall_direct_…` is Hindsight asked by its own client with the arguments that we use.
* `shape_…`: traffic as chats make it (see load_shape.py), one process of each role; `size_…` is what the
  formulas of deploy/README.md make of `cpu_us_miss`, `cpu_us_add`, `cpu_us_stored_turn` and `bytes_per_…`.
* `simulation_…`: no measurement but a discrete-event simulation with the processor times of this page, of a
  million users and 1,000 recalls a second on as many servers as are busy for 60 % (see simulation.py);
  `…_scarce_…` with a fifth fewer cores of Hindsight than there is work for. `late`: answered at the deadline.
* `postgres_bytes_per_turn`: what the database grew by, indexes included, for each turn kept word for word.
* `bank_creation_…` and `recall_direct_ms_p50_banks_N`: the last tenth of the banks up to N, and a recall
  with N banks there; all but one of them are empty. Of the 100,000, Hindsight made the first 10,000 and the
  last 1,000, the rest are copies of a row of its table of banks.
"""


def spread(goes: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The median of each name over several goes; what has an aim also with `_min` and `_max`."""
    aimed = {aim.name for aim in AIMS}
    found: dict[str, float] = {}
    for name in {name: None for go in goes for name in go}:
        values = [go[name] for go in goes if name in go]
        found[name] = statistics.median(values)
        if name in aimed and len(values) > 1:
            found |= {f"{name}_min": min(values), f"{name}_max": max(values)}
    return found


def numbers(folder: Path = _FOLDER) -> dict[str, float]:
    """All numbers that were written down, by name."""
    found: dict[str, float] = _read(folder / "results.json", {})
    return found


def write(found: Mapping[str, float], run: Run, folder: Path = _FOLDER) -> str:
    """Leave the files in `folder` and answer the page.

    What this run has not measured stays as it was and keeps the name of its own run. A run may write again
    and again while it gets on.
    """
    before = numbers(folder)
    runs = [Run(**entry) for entry in _read(folder / "runs.json", [])]
    # A spread belongs to its median: one that was measured once now has none.
    left_over = {f"{name}_{end}" for name in found for end in ("min", "max")} - set(found)
    merged = dict(
        sorted({name: v for name, v in {**before, **found}.items() if name not in left_over}.items())
    )
    for earlier in runs:
        earlier.names = [name for name in earlier.names if name not in found and name in merged]
    run.on = describe()
    run.names = sorted({*run.names, *found})
    runs = [*(earlier for earlier in runs if earlier.names and earlier.began != run.began), run]
    _leave(folder / "results.json", merged)
    _leave(folder / "runs.json", [asdict(each) for each in runs])
    text = page(merged, runs)
    (folder / "RESULTS.md").write_text(text, encoding="utf-8")
    return text


def page(found: Mapping[str, float], runs: Sequence[Run]) -> str:
    """The numbers to read, each with the run that it is from."""
    rows = "\n".join(_rows(found, {name: str(n) for n, run in enumerate(runs, 1) for name in run.names}))
    found_by = "\n".join(_qualities(found))
    origins = "\n".join(f"{n}. {run.began}, {run.on}" for n, run in enumerate(runs, 1))
    return f"""\
# How fast it is

Ratios first, and of these and of the others first what has an aim; units are part of the names.

| name | measured | from … to | wanted | met | run | what it is |
|---|---|---|---|---|---|---|
{rows}

## Finding the turn that answers

By path and by part of the questions; all names are `recall_` + path + part + column in results.json.

{found_by}

## Runs

{origins}

## How it was measured

{_NOTES}"""


def _rows(found: Mapping[str, float], run_of: Mapping[str, str]) -> Iterator[str]:
    """One table: ratios before absolute numbers, aims before what has none."""
    aims = {aim.name: aim for aim in AIMS}
    ends = {f"{name}_{end}" for name in found for end in ("min", "max")}
    others = [
        name for name in found if name not in aims and name not in ends and not _QUALITY.fullmatch(name)
    ]
    for wants_ratio in (True, False):
        for name in (*aims, *others):
            if _is_ratio(name) == wants_ratio:
                yield _row(name, found, run_of.get(name, ""), aims.get(name))


def _row(name: str, found: Mapping[str, float], run: str, aim: Aim | None) -> str:
    wanted, meaning = (aim.wanted, aim.meaning) if aim is not None else ("", "")
    if name not in found:
        return f"| `{name}` | not measured | | {wanted} | – | | {meaning} |"
    ends = [found[end] for end in (f"{name}_min", f"{name}_max") if end in found]
    verdict = aim.verdict(ends or [found[name]]) if aim is not None else ""
    spanned = " … ".join(f"{value:g}" for value in ends)
    return f"| `{name}` | {found[name]:g} | {spanned} | {wanted} | {verdict} | {run} | {meaning} |"


def _qualities(found: Mapping[str, float]) -> Iterator[str]:
    """How well each path finds what was asked for, one row for each part of the questions."""
    by_row: dict[tuple[str, str], dict[str, float]] = {}
    for name, value in found.items():
        if match := _QUALITY.fullmatch(name):
            path, part, column = match.groups()
            by_row.setdefault((part or "all", path), {})[column] = value
    yield f"| part | path | {' | '.join(_COLUMNS)} |"
    yield f"|---|---|{'---|' * len(_COLUMNS)}"
    for (part, path), row in sorted(by_row.items(), key=lambda each: (each[0][0] != "all", each[0])):
        cells = (f"{row[column]:g}" if column in row else "" for column in _COLUMNS)
        yield f"| {part} | {path} | {' | '.join(cells)} |"


def _is_ratio(name: str) -> bool:
    return "_vs_" in name or "_ratio" in name


def _read(path: Path, otherwise: Any) -> Any:
    return json.loads(path.read_text("utf-8")) if path.exists() else otherwise


def _leave(path: Path, what: object) -> None:
    path.write_text(json.dumps(what, indent=2) + "\n", encoding="utf-8")
