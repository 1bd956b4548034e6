"""What an operator should know of an installation: how durable, how up to date, what is left open.

Facts only, no user's data and no secrets; `dify-memory doctor` says what they mean.
"""

import asyncio
from datetime import UTC, datetime
from importlib.metadata import version

from pydantic import BaseModel, Field

from service.adapters.hindsight_facts import read_hindsight_facts
from service.adapters.redis_facts import read_redis_facts
from service.errors import ServiceError
from service.settings import Settings

_TIMEOUT_S = 3.0


class RedisDiagnosis(BaseModel):
    """The Redis of accepted turns or of cached answers; null where it does not tell."""

    ok: bool = Field(description="Whether it answered.")
    version: str = ""
    append_only: bool | None = None
    fsync: str | None = None
    eviction: str | None = None
    max_memory_bytes: int | None = None
    used_memory_bytes: int | None = None


class HindsightDiagnosis(BaseModel):
    """Hindsight; `features` are the switches it reports."""

    ok: bool = Field(description="Whether it answered.")
    version: str = ""
    features: dict[str, bool] = {}


class SettingsDiagnosis(BaseModel):
    """The settings that decide what a user of Dify sees."""

    public_url: str
    allow_anonymous_users: bool
    recall_deadline_ms: int
    quiet_s: float
    has_llm: bool


class Diagnosis(BaseModel):
    """Reply of `GET /admin/diagnosis`; `time` is ISO 8601 in UTC."""

    version: str
    time: str
    turns_redis: RedisDiagnosis
    cache_redis: RedisDiagnosis
    hindsight: HindsightDiagnosis
    settings: SettingsDiagnosis


async def diagnose(settings: Settings) -> Diagnosis:
    """Ask all parts at once; within about three seconds, whatever they do."""
    turns, cache, hindsight = await asyncio.gather(
        _redis(settings.redis_url), _redis(settings.effective_cache_redis_url), _hindsight(settings)
    )
    return Diagnosis(
        version=version("dify-memory"),
        time=datetime.now(UTC).isoformat(timespec="milliseconds"),
        turns_redis=turns,
        cache_redis=cache,
        hindsight=hindsight,
        settings=SettingsDiagnosis(
            public_url=settings.public_url or "",
            allow_anonymous_users=settings.allow_anonymous_users,
            recall_deadline_ms=settings.recall_deadline_ms,
            quiet_s=settings.quiet_s,
            has_llm=settings.llm_model is not None,
        ),
    )


async def _redis(url: str) -> RedisDiagnosis:
    try:
        facts = await read_redis_facts(url, _TIMEOUT_S)
    except ServiceError:
        return RedisDiagnosis(ok=False)
    return RedisDiagnosis(
        ok=True,
        version=facts.version,
        append_only=facts.append_only,
        fsync=facts.fsync,
        eviction=facts.eviction,
        max_memory_bytes=facts.max_memory_bytes,
        used_memory_bytes=facts.used_memory_bytes,
    )


async def _hindsight(settings: Settings) -> HindsightDiagnosis:
    key = settings.hindsight_api_key.get_secret_value() if settings.hindsight_api_key else None
    try:
        facts = await read_hindsight_facts(settings.hindsight_url, key, _TIMEOUT_S)
    except ServiceError:
        return HindsightDiagnosis(ok=False)
    return HindsightDiagnosis(ok=True, version=facts.version, features=dict(facts.features))
