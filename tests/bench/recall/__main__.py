"""`python -m tests.bench.recall [--data-dir DIR] [--write]`: the retrieval benchmark."""

import argparse
import asyncio
import sys
from pathlib import Path

from tests.bench import report
from tests.bench.recall.run import run


def main() -> None:
    """Run it; without a data directory a local stack is started for the time of the run."""
    parser = argparse.ArgumentParser(description="How well are memories found?")
    parser.add_argument(
        "--data-dir", type=Path, help="of a running stack without a language model, quiet_s 0 [start one]"
    )
    parser.add_argument("--write", action="store_true", help="also write the numbers down")
    parser.add_argument("--users", nargs="+", default=(), help="only these users [all]")
    arguments = parser.parse_args()
    if arguments.write and arguments.users:
        parser.error("--write is for all users: numbers of a few have the same names.")
    this_run = report.Run()

    def tell(line: str) -> None:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    found = asyncio.run(run(arguments.data_dir, tell, arguments.users))
    if arguments.write:
        sys.stdout.write(report.write(found, this_run))


main()
