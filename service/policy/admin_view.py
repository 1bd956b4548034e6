"""What the page `/admin` shows."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, tzinfo
from typing import Literal

from service.policy.tenant_policy import TenantPolicy

# Names of the parts; the page's texts say what each is called.
PartName = Literal["turns_redis", "cache_redis", "hindsight", "worker", "queue"]


@dataclass(frozen=True, slots=True)
class Part:
    """Health of one part; `notes` are codes of what there is to say (see the texts), `facts` plain words."""

    name: PartName
    is_ok: bool
    facts: Sequence[str] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Queue:
    """The turns that wait (None: not known how many, or not for this operator); times in seconds."""

    turns: int | None
    banks: int | None
    overdue_s: float
    dead_letters: int | None


@dataclass(frozen=True, slots=True)
class Use:
    """What was counted in an hour, on a day, or of a tenant.

    `tokens` and `usd` are of the extraction, `chat_tokens` of the models behind `/v1` as far as they tell.
    """

    hits: int = 0
    misses: int = 0
    failures: int = 0
    adds: int = 0
    stored: int = 0
    dead: int = 0
    tokens: int = 0
    usd: float = 0.0
    chat_tokens: int = 0

    @property
    def recalls(self) -> int:
        """All recalls that were answered."""
        return self.hits + self.misses + self.failures

    @property
    def hit_ratio(self) -> float | None:
        """The part of them that came from the cache; None without any."""
        return self.hits / self.recalls if self.recalls else None


@dataclass(frozen=True, slots=True)
class Times:
    """How long half, and 95 of 100, requests took at most, in ms; None without any."""

    p50_ms: float | None = None
    p95_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Used:
    """Use by hour (the last 24) and by day (the last 30, UTC), oldest first, and by tenant over those days.

    `total` and `times` are of the last 24 hours; times are of all tenants together.
    """

    hours: Sequence[tuple[datetime, Use, Times]]
    days: Sequence[tuple[datetime, Use]]
    tenants: Sequence[tuple[str, Use]]
    total: Use
    times: Times
    add_times: Times = Times()


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter; `text` only for who may see it and has asked."""

    id: str
    tenant: str
    reason: str
    accepted_at: str
    chars: int
    text: str | None = None


@dataclass(frozen=True, slots=True)
class Letters:
    """A page of dead letters."""

    letters: Sequence[Letter]
    next_cursor: str
    has_text: bool


@dataclass(frozen=True, slots=True)
class Key:
    """An API key that was made; times are ISO 8601, "" for never."""

    id: str
    name: str
    scopes: Sequence[str]
    identity: str
    created_at: str
    expires_at: str
    revoked_at: str
    is_good: bool
    can_rotate: bool


@dataclass(frozen=True, slots=True)
class PolicyShown:
    """The policy of the visitor's tenant; `file` tells whether it comes from a policy file."""

    policy: TenantPolicy
    retention_days: int
    extraction: str
    has_file: bool


@dataclass(frozen=True, slots=True)
class Told:
    """What was done last: a code of the texts, and how many."""

    what: str
    count: int = 0


@dataclass(frozen=True, slots=True)
class Overview:
    """All that the page is made of; None where it could not be asked."""

    now: datetime
    zone: tzinfo
    version: str
    tenant: str
    key_id: str
    scopes: frozenset[str]
    sees_all_tenants: bool
    form_key: str
    expires_s: int
    status: Literal["ok", "degraded", "down"]
    parts: Sequence[Part]
    queue: Queue | None
    used: Used | None
    letters: Letters | None
    keys: Sequence[Key] | None
    policy: PolicyShown
    told: Told | None = None
    tenant_keys: Sequence[tuple[str, int]] = field(default_factory=tuple)
