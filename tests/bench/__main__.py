"""`python -m tests.bench [--quick]`: all speed benchmarks; leaves `results.json` and `RESULTS.md`."""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from tests.bench import add, hit_ladder, hit_steps, process_costs, recall_hit, redaction, report, stack_costs


def _tell(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def _parts(is_quick: bool) -> AsyncIterator[dict[str, float]]:
    """The numbers of each part as soon as it has ended."""
    rounds, seconds = (1, 0.5) if is_quick else (5, 2.0)
    yield process_costs.imports() | hit_steps.run()
    yield await hit_ladder.run(1 if is_quick else 5, seconds)
    with tempfile.TemporaryDirectory() as folder:
        yield await process_costs.identical_misses(Path(folder))
        yield await process_costs.redis_alone(Path(folder), seconds)
    yield redaction.run()
    yield await add.run(rounds, seconds)
    yield await add.queue()
    hits = await recall_hit.run(rounds, seconds, (32,))
    names = ("recall_hit_vs_raw_asgi", "recall_hit_vs_fastapi_redis", "recall_hit_unseen_bytes_vs_raw_asgi")
    yield hits | {name: hits[f"{name}_c32"] for name in names}
    yield await recall_hit.run(1 if is_quick else 3, seconds, (1, 8, 64))
    for users in (1, 100) if is_quick else (1, 1_000, 100_000):
        many = await recall_hit.run(1 if is_quick else 3, seconds, (32,), users)
        yield {f"{name.removesuffix('_c32')}_users_{users}": value for name, value in many.items()}
    yield await stack_costs.run(
        _tell, questions=5 if is_quick else 60, bank_counts=(10,) if is_quick else (10, 100, 1_000, 10_000)
    )


async def _run(is_quick: bool) -> None:
    found: dict[str, float] = {}
    async for part in _parts(is_quick):
        found |= part
        _tell(f"{part}")
        # Each time: a run that breaks off leaves what it had, and its page says what is not measured.
        report.write(found, is_quick=is_quick)


def main() -> None:
    """Run everything and write the files."""
    parser = argparse.ArgumentParser(description="How fast is it?")
    parser.add_argument("--quick", action="store_true", help="a smoke run of a minute or two")
    given = parser.parse_args()
    asyncio.run(_run(given.quick))


if __name__ == "__main__":
    main()
