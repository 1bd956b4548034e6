"""`python -m tests.sizes [--write]`: the sizing tables of `deploy/`, from what `make bench` has measured.

The sizes are of 1,000 recalls a second, of which 3 in 10 are answered from the cache, 600 turns a second, and
a million users with 10 turns each.
"""

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from tests.bench import report
from tests.deployment import DEPLOY

BEGIN: Final = "<!-- sizes: made by `python -m tests.sizes --write`, held to the measurements by a test -->\n"
END: Final = "<!-- /sizes -->"
_RECALLS: Final = 1000
_HITS: Final = 0.3
_TURNS: Final = 600
_KEPT: Final = 10 * 1_000_000
_WAITING: Final = 200_000
# What a role may be busy on average: the rest is for peaks.
_BUSY: Final = 0.6
_DAY_S: Final = 86_400

Row = tuple[str, str, str, str]
_HEAD: Final[dict[str, Row]] = {
    "README.md": ("what", "measured", "formula", "1,000 recalls/s, h = 0.3, 600 turns/s, 1 M users"),
    "README.zh.md": ("项目", "实测", "公式", "每秒 1,000 次 recall、h = 0.3、每秒 600 条对话、100 万用户"),
}
# What is measured, how it is said, the formula, and the size. {0}, {1}: what `_filled` puts there.
_ROWS: Final[dict[str, Sequence[Row]]] = {
    "README.md": (
        ("API, a hit", "{0} ms", "cores = r · h · {0} ms", "{1} cores"),
        ("API, a miss", "{0} ms", "cores = r · (1 − h) · {0} ms", "{1} cores"),
        ("API, an add", "{0} ms", "cores = t · {0} ms", "{1} cores"),
        ("API processes", "one core each", "sum ÷ 0.6 (room for peaks)", "{1}"),
        ("worker, a turn stored word for word", "{0} ms", "processes = t · {0} ms ÷ 0.6", "{1} processes"),
        ("Redis, a turn that waits", "{0} kB", "`MEMORY_MAX_WAITING` · {0} kB", "{1} GB at 200,000"),
        (
            "Redis, what is known of a stored turn",
            "{0} kB",
            "t · `MEMORY_TURN_ID_TTL_S` · {0} kB",
            "{1} GB at 7 days, {2} GB at 2 hours",
        ),
        (
            "cache, an answer",
            "{0} kB",
            "r · (1 − h) · `MEMORY_STALE_TTL_S` · {0} kB",
            "{1} GB at 1 hour, {2} GB at 5 minutes",
        ),
        (
            "PostgreSQL, a turn kept word for word",
            "{0} kB with its indexes",
            "turns kept · {0} kB",
            "{1} GB at 10 turns a user",
        ),
        (
            "Hindsight with PostgreSQL, a recall",
            "{0} ms, asked one after the other",
            "cores = r · (1 − h) · {0} ms ÷ 0.6",
            "{1} cores",
        ),
    ),
    "README.zh.md": (
        ("API，缓存命中", "{0} ms", "核 = r · h · {0} ms", "{1} 核"),
        ("API，未命中", "{0} ms", "核 = r · (1 − h) · {0} ms", "{1} 核"),
        ("API，add", "{0} ms", "核 = t · {0} ms", "{1} 核"),
        ("API 进程数", "每个一核", "总和 ÷ 0.6（留出峰值余量）", "{1}"),
        ("worker，逐字存一条对话", "{0} ms", "进程 = t · {0} ms ÷ 0.6", "{1} 个进程"),
        ("Redis，等待中的一条对话", "{0} kB", "`MEMORY_MAX_WAITING` · {0} kB", "200,000 条时 {1} GB"),
        (
            "Redis，已存对话留下的记录",
            "{0} kB",
            "t · `MEMORY_TURN_ID_TTL_S` · {0} kB",
            "7 天 {1} GB，2 小时 {2} GB",
        ),
        (
            "缓存，一个回答",
            "{0} kB",
            "r · (1 − h) · `MEMORY_STALE_TTL_S` · {0} kB",
            "1 小时 {1} GB，5 分钟 {2} GB",
        ),
        ("PostgreSQL，逐字保存的一条对话", "含索引 {0} kB", "保留的对话数 · {0} kB", "每用户 10 条时 {1} GB"),
        (
            "Hindsight 与 PostgreSQL，一次 recall",
            "逐个提问时 {0} ms",
            "核 = r · (1 − h) · {0} ms ÷ 0.6",
            "{1} 核",
        ),
    ),
}

_PLAYED: Final = {
    "README.md": (
        "Played by the simulation below on {apis} API processes, {workers} workers and {cores} cores of "
        "Hindsight:\n{rate} recalls a second, {hits} of them hits, p50 {p50} ms, p99 {p99} ms.\n"
    ),
    "README.zh.md": (
        "下文的模拟用 {apis} 个 API 进程、{workers} 个 worker 和 {cores} 个 Hindsight 核："
        "每秒 {rate} 次 recall，其中 {hits} 命中，\np50 {p50} ms，p99 {p99} ms。\n"
    ),
}


def _filled(measured: Mapping[str, float]) -> list[tuple[str, ...]]:
    """Per row: the measured number as it is shown, and what follows from the number as it is shown."""

    def ms(name: str) -> float:
        return float(f"{measured[name] / 1000:.2g}")

    def kilobytes(name: str) -> float:
        return float(f"{measured[name] / 1000:.2g}")

    hit, miss, add = ms("cpu_us_hit_unseen_bytes"), ms("cpu_us_miss"), ms("cpu_us_add")
    stored, recall = ms("cpu_us_stored_turn"), round(measured["recall_direct_ms_p50_banks_10000"])
    misses = _RECALLS * (1 - _HITS)
    api = [_RECALLS * _HITS * hit / 1000, misses * miss / 1000, _TURNS * add / 1000]
    waiting, known = kilobytes("bytes_per_waiting_turn"), kilobytes("bytes_per_stored_turn")
    answer, kept = kilobytes("bytes_per_cached_answer"), kilobytes("postgres_bytes_per_turn")
    known_gb_s, answer_gb_s = _TURNS * known / 1e6, misses * answer / 1e6
    return [
        *((f"{each:g}", f"{cores:.2g}") for each, cores in zip((hit, miss, add), api, strict=True)),
        ("", str(math.ceil(sum(api) / _BUSY))),
        (f"{stored:g}", str(math.ceil(_TURNS * stored / 1000 / _BUSY))),
        (f"{waiting:g}", f"{_WAITING * waiting / 1e6:.2g}"),
        (f"{known:g}", f"{known_gb_s * 7 * _DAY_S:.0f}", f"{known_gb_s * 7200:.1f}"),
        (f"{answer:g}", f"{answer_gb_s * 3600:.1f}", f"{answer_gb_s * 300:.1f}"),
        (f"{kept:g}", f"{_KEPT * kept / 1e6:.0f}"),
        (f"{recall:g}", str(math.ceil(misses * recall / 1000 / _BUSY))),
    ]


def table(name: str, measured: Mapping[str, float]) -> str:
    """The table of one of the handbooks."""
    head = _HEAD[name]
    rows = [head, ("---",) * len(head)]
    for cells, values in zip(_ROWS[name], _filled(measured), strict=True):
        rows.append(tuple(cell.format(*values) for cell in cells))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows).replace(
        "| --- | --- | --- | --- |", "|---|---|---|---|"
    )


def rendered(name: str, measured: Mapping[str, float]) -> str:
    """A handbook with the table as it should be."""
    before, _, rest = (DEPLOY / name).read_text("utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + table(name, measured) + "\n" + played(name, measured) + END + after


def played(name: str, measured: Mapping[str, float]) -> str:
    """What the simulation has found, as one of the handbooks says it."""
    return _PLAYED[name].format(
        apis=round(measured["simulation_api_processes"]),
        workers=round(measured["simulation_workers"]),
        cores=round(measured["simulation_hindsight_cores"]),
        rate=f"{measured['simulation_recalls_per_s']:,.0f}",
        hits=f"{measured['simulation_hit_ratio']:.0%}",
        p50=round(measured["simulation_recall_ms_p50"]),
        p99=round(measured["simulation_recall_ms_p99"]),
    )


def main() -> int:
    """Write both, or say which is out of date."""
    measured = report.numbers()
    wanted = {DEPLOY / name: rendered(name, measured) for name in _HEAD}
    if "--write" in sys.argv[1:]:
        for path, text in wanted.items():
            path.write_text(text, "utf-8")
        return 0
    old = [path.name for path, text in wanted.items() if path.read_text("utf-8") != text]
    for name in old:
        sys.stderr.write(f"deploy/{name} is out of date: run python -m tests.sizes --write\n")
    return 1 if old else 0


if __name__ == "__main__":
    sys.exit(main())
