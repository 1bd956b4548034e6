"""`python -m tests.bench [--quick]`: all speed benchmarks; leaves the files of report.py unless quick."""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from tests.bench import (
    add,
    gateway,
    hit_ladder,
    hit_steps,
    load_shape,
    process_costs,
    recall_hit,
    redaction,
    report,
    simulation,
    stack_costs,
    stored_bytes,
)
from tests.bench.machine import describe


def _tell(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def _parts(is_quick: bool) -> AsyncIterator[dict[str, float]]:
    """The numbers of each part as soon as it has ended.

    What has an aim is measured in several goes, each with processes of its own, so that its spread is seen.
    """
    goes, rounds, seconds = (1, 1, 0.5) if is_quick else (3, 3, 2.0)
    yield process_costs.imports() | hit_steps.run()
    yield await hit_ladder.run(1 if is_quick else 5, seconds)
    with tempfile.TemporaryDirectory() as folder:
        yield await process_costs.identical_misses(Path(folder))
        yield await process_costs.redis_alone(Path(folder), seconds)
        yield await process_costs.serving(Path(folder))
    yield report.spread([redaction.run() for _ in range(goes)])
    yield report.spread([await add.run(rounds, seconds) for _ in range(goes)])
    yield await add.queue()
    yield report.spread([_named(await recall_hit.run(rounds, seconds, (32,))) for _ in range(goes)])
    yield await recall_hit.run(rounds, seconds, (1, 8, 64))
    for users in (1, 100) if is_quick else (1, 1_000, 100_000):
        many = await recall_hit.run(rounds, seconds, (32,), users)
        yield {f"{name.removesuffix('_c32')}_users_{users}": value for name, value in many.items()}
    count, chat_seconds = (100, 3.0) if is_quick else (1500, 30.0)
    yield await load_shape.run(count=count, seconds=chat_seconds, rate=20 if is_quick else 40)
    yield report.spread([await gateway.run(rounds, is_quick=is_quick) for _ in range(goes)])
    yield await stored_bytes.run(turns=50 if is_quick else 1000)
    questions = 5 if is_quick else 60
    misses = [await stack_costs.run(_tell, questions=questions, bank_counts=()) for _ in range(goes - 1)]
    banks = (10,) if is_quick else (10, 100, 1_000, 10_000)
    copied = 0 if is_quick else 100_000
    last = await stack_costs.run(_tell, questions=questions, bank_counts=banks, copied=copied)
    yield report.spread([*misses, last])


def _named(hits: dict[str, float]) -> dict[str, float]:
    """With 32 connections a number has the plain name, too."""
    names = ("recall_hit_vs_raw_asgi", "recall_hit_vs_fastapi_redis", "recall_hit_unseen_bytes_vs_raw_asgi")
    return hits | {name: hits[f"{name}_c32"] for name in names}


def _compared(found: Mapping[str, float]) -> dict[str, float]:
    """Ratios of numbers of different parts, as far as both were measured."""
    pairs = {
        "recall_hit_vs_redis_mget": ("recall_hit_per_s_c32", "redis_mget_per_s"),
        "recall_hit_users_100000_vs_1": (
            "recall_hit_vs_raw_asgi_users_100000",
            "recall_hit_vs_raw_asgi_users_1",
        ),
        "recall_direct_ms_banks_10000_vs_10": (
            "recall_direct_ms_p50_banks_10000",
            "recall_direct_ms_p50_banks_10",
        ),
        "bank_creation_ms_banks_10000_vs_10": (
            "bank_creation_ms_p50_banks_10000",
            "bank_creation_ms_p50_banks_10",
        ),
        "recall_direct_ms_banks_100000_vs_10": (
            "recall_direct_ms_p50_banks_100000",
            "recall_direct_ms_p50_banks_10",
        ),
        "bank_creation_ms_banks_100000_vs_10": (
            "bank_creation_ms_p50_banks_100000",
            "bank_creation_ms_p50_banks_10",
        ),
    }
    return {
        name: round(found[one] / found[other], 3)
        for name, (one, other) in pairs.items()
        if one in found and other in found
    }


async def _run(is_quick: bool) -> None:
    found: dict[str, float] = {}
    this_run = report.Run()
    page = ""

    def take(part: Mapping[str, float]) -> None:
        nonlocal page
        found.update(part)
        found.update(_compared(found))
        _tell(f"{part}")
        if is_quick:  # good for seeing that it works, not for quoting: nothing is written
            page = report.page(found, [report.Run(on=describe(), names=list(found))])
        else:
            # Each time: a run that breaks off leaves what it had. What it has not come to keeps the number
            # and the name of the run before.
            page = report.write(found, this_run)

    async for part in _parts(is_quick):
        take(part)
    take(simulation.run(report.numbers() | found))
    _tell(page)


def main() -> None:
    """Run everything and write the files."""
    parser = argparse.ArgumentParser(description="How fast is it?")
    parser.add_argument("--quick", action="store_true", help="a smoke run of a minute or two; writes nothing")
    given = parser.parse_args()
    asyncio.run(_run(given.quick))


if __name__ == "__main__":
    main()
