"""What the routes need, handed on by the root as lifespan state."""

from dataclasses import dataclass
from typing import cast

from starlette.requests import Request

from service.adapters.cache import RecallCache
from service.adapters.hindsight import HindsightAdapter
from service.adapters.turns import TurnsLog
from service.auth import KeyRing
from service.memory.recall import Recaller
from service.metrics import Metrics
from service.settings import Settings


@dataclass(frozen=True, slots=True)
class Services:
    """The open adapters and use cases of one API process."""

    settings: Settings
    keys: KeyRing
    turns: TurnsLog
    cache: RecallCache
    hindsight: HindsightAdapter
    recaller: Recaller
    metrics: Metrics


def services_of(request: Request) -> Services:
    """The process's services."""
    return cast("Services", request.state.services)
