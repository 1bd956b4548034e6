"""Asks every question in every way; makes one table and one flat dictionary of numbers of the answers."""

import pathlib
import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

import httpx

from tests.bench.recall import dataset
from tests.bench.recall.paths import Banks, FewerArms, Ours, OursWithoutFloor, Path, PlainHindsight
from tests.bench.recall.scoring import Figure, Outcome, groups, measure
from tests.bench.recall.stack import product

_COLUMNS: Final = ("hit_at_5", "mrr", "words_at_5", "characters", "withheld")
_TIMEOUT_S: Final = 300


async def run(
    data_dir: pathlib.Path | None = None,
    tell: Callable[[str], None] = print,
    users: Collection[str] = (),
) -> dict[str, float]:
    """Load, ask, print, for all users or those named, in the stack that runs on `data_dir` or one of its own.

    Returns the numbers by name, e.g. `recall_ours_hit_at_5` or `recall_ours_zh_hit_at_5`.
    """
    people = [person for person in dataset.load() if not users or person.user in users]
    outcomes: dict[str, list[Outcome]] = {}
    prefix = f"bench-{secrets.token_hex(4)}-"
    async with (
        product(data_dir) as stack,
        httpx.AsyncClient(base_url=stack.hindsight_url, timeout=_TIMEOUT_S, trust_env=False) as hindsight,
        httpx.AsyncClient(
            base_url=stack.url,
            headers={"Authorization": f"Bearer {stack.api_key}"},
            timeout=_TIMEOUT_S,
            trust_env=False,
        ) as ours,
    ):
        banks = Banks(hindsight, prefix)
        paths: Sequence[Path] = (
            PlainHindsight(banks),
            FewerArms(banks),
            Ours(ours, prefix),
            OursWithoutFloor(ours, prefix),
        )
        for path in paths:
            started = time.perf_counter()
            for person in people:
                await path.prepare(person)
            tell(f"{path.name}: ready after {time.perf_counter() - started:.0f} s")
            outcomes[path.name] = [await path.answer(q) for person in people for q in person.questions]
    figures = {
        name: {group: measure(members) for group, members in groups(found).items()}
        for name, found in outcomes.items()
    }
    for line in table(figures):
        tell(line)
    return numbers(figures, outcomes)


def table(figures: Mapping[str, Mapping[str, Mapping[str, Figure]]]) -> list[str]:
    """Lines of text: one block per way, one line per group, means with their 95% intervals."""
    lines: list[str] = []
    for name, by_group in figures.items():
        lines.append("")
        lines.append(f"{name:24}" + "".join(f"{column:>26}" for column in _COLUMNS))
        for group, found in by_group.items():
            cells = (_cell(column, found.get(column)) for column in _COLUMNS)
            lines.append(f"  {group:22}" + "".join(f"{cell:>26}" for cell in cells))
    return lines


def numbers(
    figures: Mapping[str, Mapping[str, Mapping[str, Figure]]], outcomes: Mapping[str, Sequence[Outcome]]
) -> dict[str, float]:
    """The flat form for a results file; the ratio that matters most is `recall_hit_at_5_vs_hindsight`."""
    flat: dict[str, float] = {}
    for name, by_group in figures.items():
        for group, found in by_group.items():
            middle = "" if group == "all" else group.replace(" ", "_").replace("-", "_") + "_"
            for column, figure in found.items():
                flat[f"recall_{name}_{middle}{column}"] = round(figure.mean, 4)
        times = sorted(outcome.took_ms for outcome in outcomes[name])
        flat[f"recall_{name}_ms_p50"] = round(times[len(times) // 2], 1)
    for split in ("", "dev_", "held_out_"):
        plain = flat.get(f"recall_hindsight_defaults_{split}hit_at_5")
        if plain:
            flat[f"recall_{split}hit_at_5_vs_hindsight"] = round(
                flat[f"recall_ours_{split}hit_at_5"] / plain, 3
            )
    return flat


def _cell(column: str, figure: Figure | None) -> str:
    if figure is None:
        return "-"
    if column == "characters":
        return f"{figure.mean:.0f}"
    return f"{figure.mean:.3f} [{figure.low:.2f}, {figure.high:.2f}] n={figure.count}"
