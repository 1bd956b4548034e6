"""How many processes the fault tests run the service in: `pytest tests/faults --apis 1 --workers 3`."""

from dataclasses import dataclass

import pytest


@dataclass(frozen=True, slots=True)
class Sizes:
    """Processes of the API and workers, all on one Redis and one Hindsight."""

    apis: int
    workers: int


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--apis` and `--workers`."""
    for name, what in (("--apis", "API processes"), ("--workers", "worker processes")):
        parser.addoption(
            name, type=int, default=2, help=f"How many {what} the fault tests start (default 2)."
        )


@pytest.fixture(scope="session")
def sizes(request: pytest.FixtureRequest) -> Sizes:
    """As many as the command line asks for; two each if it does not."""
    return Sizes(request.config.getoption("--apis", 2), request.config.getoption("--workers", 2))
