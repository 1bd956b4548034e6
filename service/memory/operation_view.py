"""What an operator sees of the installation: all is asked at once, and what does not answer is left out."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import accumulate
from typing import TypeVar

from service.adapters.admin_visits import AdminVisit, AdminVisits
from service.adapters.dead_letters import DeadLetter, DeadLetters
from service.adapters.keys import KeyRecord, KeyStore, Scope
from service.adapters.turns import TurnsLog
from service.adapters.usage import UsageStore
from service.errors import KeysUnavailable, ServiceError
from service.memory.dead_letters import Note
from service.memory.diagnosis import Diagnosis, RedisDiagnosis, diagnose
from service.memory.health import Health, Look, Verdict
from service.memory.keys import moment
from service.memory.usage import OTHERS, last_days, last_hours
from service.metrics import LATENCY_BUCKETS_S
from service.policy.admin_view import (
    Key,
    Letter,
    Letters,
    Overview,
    Part,
    PolicyShown,
    Queue,
    Times,
    Told,
    Use,
    Used,
)
from service.policy.tenant_policy import TenantPolicy
from service.settings import Settings

T = TypeVar("T")

_HOURS = 24
_DAYS = 30
_LETTERS = 50
_PATIENCE_S = 4.0
_MICRO = 1_000_000
# How recalls end (see `memory/recall`), as far as memories were asked for at all.
_HITS = ("recall_hit",)
_MISSES = ("recall_miss",)
_FAILURES = ("recall_stale", "recall_degraded")
# Of the reasons that `memory/health` gives: which part each is about.
_ABOUT = {
    "redis_down": "turns_redis",
    "not_durable": "turns_redis",
    "cache_down": "cache_redis",
    "hindsight_down": "hindsight",
    "recalls_spared": "hindsight",
    "no_worker": "worker",
    "signs_unknown": "turns_redis",
}

_Counts = Mapping[tuple[str, str], int]


@dataclass(frozen=True, slots=True)
class Operator:
    """Who looks: the tenant, id and scopes of the key; `sees_all_tenants` with the installation's own key."""

    tenant: str
    key_id: str
    scopes: frozenset[Scope]
    sees_all_tenants: bool

    @property
    def tenant_seen(self) -> str | None:
        """The one tenant whose things are shown; None: all of them."""
        return None if self.sees_all_tenants else self.tenant


@dataclass(frozen=True, slots=True)
class Wanted:
    """What of the dead letters is shown, and what was done last."""

    cursor: str = ""
    shows_text: bool = False
    told: Told | None = None


@dataclass(frozen=True, slots=True)
class Operation:
    """What the page is made of."""

    settings: Settings
    turns: TurnsLog
    key_store: KeyStore
    visits: AdminVisits
    usage: UsageStore
    policy_of: Callable[[str], TenantPolicy]
    health: Health

    async def is_open(self, visit: AdminVisit) -> bool:
        """Whether the visit was not ended early.

        While Redis is away nobody is sent off: that is when the page is needed, and a visit is short.
        """
        try:
            return not await self.visits.is_ended(visit)
        except KeysUnavailable:
            return True

    async def overview(
        self, operator: Operator, visit: AdminVisit, wanted: Wanted, read: Note | None = None
    ) -> Overview:
        """All of the page, within a few seconds whatever is away; `read` is told whose words it shows.

        An operator of one tenant sees the numbers of that tenant alone. What is not counted by tenant is
        left out for them, but for how the service itself is doing: its health, and how fast it answers.
        """
        now = datetime.now(UTC)
        diagnosis, look, used, letters, records = await asyncio.gather(
            diagnose(self.settings),
            self.health.look(_PATIENCE_S),
            _in_time(_used(self.usage, now, operator.tenant_seen)),
            _in_time(self._letters(operator, wanted, read)),
            _in_time(self.key_store.load()),
        )
        verdict = _verdict_for(operator, self.health.judge(look), letters)
        keys = records[1] if records else None
        return Overview(
            now=now,
            zone=self.settings.zone,
            version=version("dify-memory"),
            tenant=operator.tenant,
            key_id=operator.key_id,
            scopes=frozenset(operator.scopes),
            sees_all_tenants=operator.sees_all_tenants,
            form_key=visit.form_key,
            expires_s=visit.expires_s,
            status=verdict.status,
            parts=_parts(diagnosis, look, verdict.reasons, is_same=self.settings.cache_redis_url is None),
            queue=_queue(look, operator, None if wanted.cursor else letters),
            used=used,
            letters=letters,
            keys=None if keys is None else _keys(keys, operator, now),
            policy=self._policy(operator.tenant),
            told=wanted.told,
            tenant_keys=_tenant_keys(keys or [], operator, now),
        )

    async def _letters(self, operator: Operator, wanted: Wanted, read: Note | None) -> Letters:
        shows_text = wanted.shows_text and "review" in operator.scopes
        mine: list[DeadLetter] = []
        cursor = wanted.cursor
        while True:
            found, cursor = await DeadLetters(self.turns).page(cursor=cursor, limit=_LETTERS)
            mine += [one for one in found if operator.tenant_seen in (None, one.tenant)]
            # A page with nothing of one's own on it would only tell that others have some.
            if not cursor or len(mine) >= _LETTERS or operator.sees_all_tenants:
                break
        mine.sort(key=lambda one: one.turn.number)
        # Whoever runs the installation sees that there are others', not what they say.
        shown = [_letter(one, shows_text=shows_text and one.tenant == operator.tenant) for one in mine]
        if read is not None:
            for letter, seen in zip(mine, shown, strict=True):
                if seen.text is not None:
                    read(letter)
        return Letters(shown, cursor, shows_text)

    def _policy(self, tenant: str) -> PolicyShown:
        settings = self.settings
        policy = self.policy_of(tenant)
        return PolicyShown(
            policy=policy,
            retention_days=policy.retention_days,
            extraction=settings.extraction_mode,
            has_file=settings.policy_file is not None,
        )


async def _in_time(asked: Awaitable[T]) -> T | None:
    """The answer; None for what is away or takes too long."""
    try:
        async with asyncio.timeout(_PATIENCE_S):
            return await asked
    except (ServiceError, TimeoutError):
        return None


def _verdict_for(operator: Operator, verdict: Verdict, letters: Letters | None) -> Verdict:
    """The verdict without the dead letters of others."""
    if operator.sees_all_tenants or letters is None or letters.letters:
        return verdict
    reasons = tuple(reason for reason in verdict.reasons if reason != "dead_letters")
    return Verdict(verdict.status if reasons else "ok", reasons)


def _queue(look: Look, operator: Operator, letters: Letters | None) -> Queue | None:
    if look.log is None:
        return None
    if not operator.sees_all_tenants:
        # Whose turns wait is not counted; dead letters are, as far as they are shown.
        dead = None if letters is None else len(letters.letters)
        return Queue(None, None, look.log.overdue_s, dead)
    return Queue(
        turns=max(0, look.signs.waiting_turns) if look.signs else None,
        banks=look.log.waiting_banks,
        overdue_s=look.log.overdue_s,
        dead_letters=look.log.dead_letters,
    )


def _parts(diagnosis: Diagnosis, look: Look, reasons: Collection[str], *, is_same: bool) -> list[Part]:
    turns, cache, hindsight = diagnosis.turns_redis, diagnosis.cache_redis, diagnosis.hindsight
    notes: dict[str, list[str]] = {}
    for reason in reasons:
        notes.setdefault(_ABOUT.get(reason, "queue"), []).append(reason)
    if turns.ok and turns.eviction not in (None, "noeviction") and turns.max_memory_bytes:
        notes.setdefault("turns_redis", []).append("may_evict")
    features = ", ".join(sorted(name for name, is_on in hindsight.features.items() if is_on))
    parts = [
        Part(
            "turns_redis",
            turns.ok and look.log is not None,
            _redis_facts(turns),
            notes.get("turns_redis", []),
        ),
        Part(
            "cache_redis",
            cache.ok and look.has_cache is not False,
            _redis_facts(cache),
            ["same_redis"] if is_same else notes.get("cache_redis", []),
        ),
        Part(
            "hindsight",
            hindsight.ok,
            [said for said in (hindsight.version, features) if said],
            notes.get("hindsight", []),
        ),
    ]
    if look.log is not None:
        parts += [
            Part("worker", look.has_worker, (), notes.get("worker", [])),
            Part("queue", "queue_stuck" not in reasons, (), notes.get("queue", [])),
        ]
    return parts


def _redis_facts(redis: RedisDiagnosis) -> list[str]:
    facts = [redis.version] if redis.version else []
    if redis.used_memory_bytes is not None:
        facts.append(f"{redis.used_memory_bytes / 1_048_576:.1f} MiB")
    return facts


def _letter(letter: DeadLetter, *, shows_text: bool) -> Letter:
    turn = letter.turn
    return Letter(
        id=turn.document_id,
        tenant=letter.tenant,
        reason=letter.reason,
        accepted_at=datetime.fromtimestamp(turn.accepted_ms / 1000, UTC).isoformat(),
        chars=len(turn.text),
        text=turn.text if shows_text else None,
    )


def _keys(records: Iterable[KeyRecord], operator: Operator, now: datetime) -> list[Key]:
    mine = [record for record in records if record.grant.tenant == operator.tenant]
    # The good ones first, the newest of them at the top.
    mine.sort(key=lambda record: (not record.is_good(now.timestamp()), -record.created_s, record.key_id))
    return [
        Key(
            id=record.key_id,
            name=record.name,
            scopes=record.grant.scopes,
            identity=record.grant.identity,
            created_at=moment(record.created_s),
            expires_at=moment(record.expires_s),
            revoked_at=moment(record.revoked_s),
            is_good=record.is_good(now.timestamp()),
            can_rotate=operator.scopes.issuperset(record.grant.scopes),
        )
        for record in mine
    ]


def _tenant_keys(records: Iterable[KeyRecord], operator: Operator, now: datetime) -> list[tuple[str, int]]:
    counts = {operator.tenant: 0}
    for record in records:
        tenant = record.grant.tenant
        if operator.tenant_seen in (None, tenant):
            counts[tenant] = counts.get(tenant, 0) + record.is_good(now.timestamp())
    return sorted(counts.items())


async def _used(store: UsageStore, now: datetime, tenant: str | None) -> Used:
    hour_starts, day_starts = last_hours(now, _HOURS), last_days(now, _DAYS)
    hours, days = await asyncio.gather(store.hours(hour_starts), store.days(day_starts))
    tenants = {name for counts in days for _, name in counts if name != OTHERS and tenant in (None, name)}
    last_day, last_month = _sum(hours), _sum(days)
    return Used(
        hours=[
            (start, _use(counts, tenant), _times(counts))
            for start, counts in zip(hour_starts, hours, strict=True)
        ],
        days=[(start, _use(counts, tenant)) for start, counts in zip(day_starts, days, strict=True)],
        tenants=[(name, _use(last_month, name)) for name in sorted(tenants)],
        total=_use(last_day, tenant),
        times=_times(last_day),
        add_times=_times(last_day, "add"),
    )


def _sum(all_counts: Iterable[_Counts]) -> dict[tuple[str, str], int]:
    total: dict[tuple[str, str], int] = {}
    for counts in all_counts:
        for name, count in counts.items():
            total[name] = total.get(name, 0) + count
    return total


def _use(counts: _Counts, tenant: str | None) -> Use:
    def of(*whats: str) -> int:
        return sum(
            count for (what, name), count in counts.items() if what in whats and tenant in (None, name)
        )

    return Use(
        hits=of(*_HITS),
        misses=of(*_MISSES),
        failures=of(*_FAILURES),
        adds=of("turn_queued"),
        stored=of("turn_stored"),
        dead=of("turn_dead"),
        tokens=of("llm_tokens"),
        usd=of("llm_micro_usd") / _MICRO,
        chat_tokens=of("chat_tokens"),
    )


def _times(counts: _Counts, what: str = "recall") -> Times:
    buckets = [counts.get((f"{what}_le_{place}", OTHERS), 0) for place in range(len(LATENCY_BUCKETS_S) + 1)]
    return Times(quantile_ms(buckets, 0.5), quantile_ms(buckets, 0.95))


def quantile_ms(buckets: Sequence[int], part: float) -> float | None:
    """Within how many ms that part of all requests was answered, from counts by latency; None without any.

    Within a bucket they are taken to lie evenly; above the last bound it is that bound.
    """
    total = sum(buckets)
    if not total:
        return None
    wanted = part * total
    bounds = (0.0, *LATENCY_BUCKETS_S)
    for place, reached in enumerate(accumulate(buckets)):
        if reached >= wanted and place < len(LATENCY_BUCKETS_S):
            within = (wanted - (reached - buckets[place])) / buckets[place]
            return 1000 * (bounds[place] + within * (bounds[place + 1] - bounds[place]))
    return 1000 * LATENCY_BUCKETS_S[-1]
