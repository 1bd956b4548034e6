"""`python -m tests.bench.recall [--hindsight-url URL] [--json FILE]`: the retrieval benchmark."""

import argparse
import asyncio
import json
import sys
from pathlib import Path

from tests.bench.recall.run import run


def main() -> None:
    """Run it; without a URL a local stack is started for the time of the run."""
    parser = argparse.ArgumentParser(description="How well are memories found?")
    parser.add_argument("--hindsight-url", help="a running Hindsight with provider none [start one]")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    parser.add_argument("--users", nargs="+", default=(), help="only these users [all]")
    arguments = parser.parse_args()

    def tell(line: str) -> None:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    found = asyncio.run(run(arguments.hindsight_url, tell, arguments.users))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


main()
