"""What the routes need, handed on by the root as lifespan state."""

from dataclasses import dataclass
from typing import cast

from starlette.requests import Request

from service.adapters.cache import RecallCache
from service.adapters.hindsight import HindsightAdapter
from service.adapters.hindsight_review import HindsightReview
from service.adapters.keys import KeyStore
from service.adapters.turns import TurnsLog
from service.auth import KeyRing
from service.memory.chat import Chats
from service.memory.events import Events
from service.memory.fallback import Fallback
from service.memory.forget import Forgetter
from service.memory.health import Health
from service.memory.keys import KeyWatch
from service.memory.limits import RateLimits
from service.memory.me import Me
from service.memory.operation_view import Operation
from service.memory.policies import Policies
from service.memory.recall import Recaller
from service.memory.reflect import Reflector
from service.metrics import Metrics
from service.settings import Settings


@dataclass(frozen=True, slots=True)
class Services:
    """The open adapters and use cases of one API process."""

    settings: Settings
    policies: Policies
    keys: KeyRing
    key_store: KeyStore
    key_watch: KeyWatch
    turns: TurnsLog
    cache: RecallCache
    hindsight: HindsightAdapter
    recaller: Recaller
    review: HindsightReview
    reflector: Reflector
    forgetter: Forgetter
    fallback: Fallback
    events: Events | None
    chats: Chats | None
    me: Me
    operation: Operation
    limits: RateLimits | None
    metrics: Metrics
    health: Health


def services_of(request: Request) -> Services:
    """The process's services."""
    return cast("Services", request.state.services)
