"""The benchmarks' page: which run a number is from, how far it spreads, and what is not measured."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.bench import report
from tests.bench.machine import commit
from tests.bench.report import Aim, Run

_MISS = "recall_miss_added_ms_p50"


def _rows(page: str) -> dict[str, list[str]]:
    lines = [line for line in page.splitlines() if line.startswith("| `")]
    return {cells[0].strip("`"): cells[1:] for line in lines if (cells := line.strip("| ").split(" | "))}


def test_a_number_keeps_the_run_it_is_from(tmp_path: Path) -> None:
    report.write({"add_vs_xadd": 0.7, "add_per_s": 1800}, Run("2026-01-01 00:00:00"), tmp_path)
    second = Run("2026-02-02 00:00:00")
    report.write({"add_vs_xadd": 0.8}, second, tmp_path)
    page = report.write({_MISS: 4}, second, tmp_path)
    runs = json.loads((tmp_path / "runs.json").read_text("utf-8"))
    assert [(run["began"], run["names"]) for run in runs] == [
        ("2026-01-01 00:00:00", ["add_per_s"]),
        ("2026-02-02 00:00:00", ["add_vs_xadd", _MISS]),
    ]
    assert all(run["on"].startswith("commit ") for run in runs)
    assert "\n1. 2026-01-01 00:00:00, commit " in page
    rows = _rows(page)
    assert [rows[name][4] for name in ("add_per_s", "add_vs_xadd", _MISS)] == ["1", "2", "2"]
    assert page == (tmp_path / "RESULTS.md").read_text("utf-8")
    assert json.loads((tmp_path / "results.json").read_text("utf-8")) == {
        "add_per_s": 1800,
        "add_vs_xadd": 0.8,
        _MISS: 4,
    }


def test_a_run_of_which_nothing_is_left_is_not_named(tmp_path: Path) -> None:
    report.write({"add_per_s": 1}, Run("2026-01-01 00:00:00"), tmp_path)
    page = report.write({"add_per_s": 2}, Run("2026-02-02 00:00:00"), tmp_path)
    assert "2026-01-01" not in page


def test_the_spread_is_shown_and_judged(tmp_path: Path) -> None:
    found = report.spread([{_MISS: 4.7, "add_per_s": 1}, {_MISS: 7.3, "add_per_s": 3}, {_MISS: 6.3}])
    assert found == {_MISS: 6.3, f"{_MISS}_min": 4.7, f"{_MISS}_max": 7.3, "add_per_s": 2}
    rows = _rows(report.write(found, Run(), tmp_path))
    assert rows[_MISS][:4] == ["6.3", "4.7 … 7.3", "≤ 5", "**not always**"]
    assert f"{_MISS}_min" not in rows
    rows = _rows(report.write({_MISS: 4}, Run("later"), tmp_path))  # measured once: the old spread is gone
    assert rows[_MISS][:4] == ["4", "", "≤ 5", "yes"]
    assert set(json.loads((tmp_path / "results.json").read_text("utf-8"))) == {_MISS, "add_per_s"}


@pytest.mark.parametrize(
    ("values", "verdict"), [([0.5, 0.6], "yes"), ([0.4, 0.5], "**not always**"), ([0.3, 0.4], "**no**")]
)
def test_an_aim_is_met_if_each_go_meets_it(values: list[float], verdict: str) -> None:
    assert Aim("x", 0.5, True, "").verdict(values) == verdict


def test_ratios_come_first_and_what_is_missing_is_said() -> None:
    found = {"aaa_ms": 1.0, "zzz_vs_aaa": 2.0, _MISS: 4.0}
    rows = _rows(report.page(found, [Run("now", "here", list(found))]))
    names = list(rows)
    assert names.index("zzz_vs_aaa") < names.index(_MISS) < names.index("aaa_ms")
    assert rows["add_vs_xadd"][0] == "not measured"


def test_how_well_paths_find_is_one_table_by_part_and_path() -> None:
    found = {
        "recall_ours_hit_at_5": 0.7,
        "recall_ours_without_floor_held_out_en_hit_at_5": 0.9,
        "recall_ours_without_floor_held_out_en_mrr": 0.6,
        "recall_hit_per_s_c1": 4000.0,
    }
    page = report.page(found, [Run("now", "here", list(found))])
    rows = [line.split("|")[1:5] for line in page.splitlines() if "| ours" in line]
    assert [[cell.strip() for cell in row] for row in rows] == [
        ["all", "ours", "0.7", ""],
        ["held_out_en", "ours_without_floor", "0.9", ""],
    ]
    assert "recall_hit_per_s_c1" in _rows(page)
    assert "recall_ours_hit_at_5" not in _rows(page)


def test_results_that_a_run_has_written_make_its_commit_no_other(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        who = ["-c", "user.name=n", "-c", "user.email=n@example.com"]
        subprocess.run(["git", *who, *words], check=True, capture_output=True, cwd=tmp_path)

    folder = tmp_path / "tests" / "bench"
    folder.mkdir(parents=True)
    for name in ("RESULTS.md", "results.json", "add.py"):
        (folder / name).write_text("as committed")
    git("init")
    git("add", ".")
    git("commit", "-m", "first")
    clean = commit(folder)
    assert re.fullmatch("[0-9a-f]{7,}", clean)
    for name in ("RESULTS.md", "results.json"):
        (folder / name).write_text("measured")
    assert commit(folder) == clean
    (folder / "add.py").write_text("changed")
    assert commit(folder) == f"{clean}-dirty"


def test_all_numbers_in_the_tree_name_their_run() -> None:
    folder = Path(report.__file__).parent
    found = json.loads((folder / "results.json").read_text("utf-8"))
    runs = [Run(**run) for run in json.loads((folder / "runs.json").read_text("utf-8"))]
    assert sorted(name for run in runs for name in run.names) == sorted(found)
    assert _rows((folder / "RESULTS.md").read_text("utf-8")) == _rows(report.page(found, runs))
