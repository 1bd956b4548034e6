"""What an operator can set, in one frozen object read from `MEMORY_*` variables.

Every process builds it once at its root and passes it on; nothing imports an instance.
"""

from pathlib import Path
from typing import Annotated, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict


def _known_timezone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (ValueError, OSError, ZoneInfoNotFoundError):  # OSError: the name of a folder
        raise ValueError("use an IANA time zone name such as Asia/Shanghai or UTC") from None
    return name


def _without_trailing_slash(url: str) -> str:
    return url.rstrip("/")


Url = Annotated[str, Field(pattern=r"^https?://\S+$"), AfterValidator(_without_trailing_slash)]
RedisUrl = Annotated[str, Field(pattern=r"^(rediss?|unix)://\S+$")]


class Settings(BaseSettings):
    """All settings, their defaults and ranges; units are part of the names."""

    model_config = SettingsConfigDict(
        env_prefix="MEMORY_",
        env_ignore_empty=True,
        frozen=True,
        extra="ignore",
        hide_input_in_errors=True,
    )

    # Where things are
    host: str = Field(
        "127.0.0.1", description="Address the API listens on; 0.0.0.0 lets Dify's containers in."
    )
    port: int = Field(8000, ge=1, le=65535, description="Port of the API.")
    public_url: Url | None = Field(
        None, description="URL under which Dify reaches this service; written into the OpenAPI document."
    )
    data_dir: Path = Field(
        Path(".dify-memory"), description="Folder of the local stack: data, logs, `connection.json`."
    )
    redis_url: RedisUrl = Field(
        "redis://127.0.0.1:6379/0", description="Redis for accepted turns: needs AOF and `noeviction`."
    )
    cache_redis_url: RedisUrl | None = Field(
        None, description="Redis for cached answers, may evict; the one for accepted turns if unset."
    )
    hindsight_url: Url = Field("http://127.0.0.1:8888", description="URL of the Hindsight API.")
    hindsight_api_key: SecretStr | None = Field(
        None, description="Key of the Hindsight API, if it wants one."
    )

    # Who may call
    api_key: SecretStr | None = Field(
        None, min_length=16, description="The API key that Dify sends; `make up` makes one if unset."
    )
    tenant: str = Field(
        "default", min_length=1, max_length=64, description="Tenant that `MEMORY_API_KEY` serves."
    )
    allow_anonymous_users: bool = Field(
        False,
        description="Accept `DEFAULT-USER`, `null`, `undefined` … as user ids: everyone shares one memory.",
    )

    # Recall
    recall_deadline_ms: int = Field(2000, ge=50, le=30_000, description="When recall answers at the latest.")
    recall_deadline_max_ms: int = Field(
        10_000, ge=50, le=30_000, description="Largest `timeout_ms` that a request may ask for."
    )
    cache_ttl_s: int = Field(300, ge=0, le=86_400, description="How long a recall's answer is current.")
    empty_ttl_s: int = Field(30, ge=0, le=86_400, description="The same for an answer without memories.")
    stale_ttl_s: int = Field(
        3600, ge=1, le=604_800, description="How long an old answer may stand in while Hindsight fails."
    )
    cache_patience_ms: int = Field(
        100, ge=5, le=5000, description="How long recall waits for the cache before it goes on without."
    )
    min_score: float = Field(
        0.25, ge=0, le=1, description="Least relevance of a memory, unless the request asks for another."
    )
    embedding_model: str = Field(
        "", description="Hindsight's embedding model, to measure relevance by; `make up` sets it itself."
    )
    recall_concurrency: int = Field(
        8, ge=1, le=1000, description="How many recalls one process asks of Hindsight at once."
    )
    timezone: Annotated[str, AfterValidator(_known_timezone)] = Field(
        "UTC", description="Time zone of the dates in the memory block."
    )

    # Add
    max_body_bytes: int = Field(1_048_576, ge=1024, le=16_777_216, description="Largest request body.")
    max_turn_chars: int = Field(
        200_000, ge=100, le=1_000_000, description="Most characters of one turn; more is refused with 413."
    )
    quiet_s: float = Field(
        10, ge=0, le=3600, description="A conversation is stored once it was quiet this long …"
    )
    max_wait_s: float = Field(60, ge=0, le=86_400, description="… or has waited this long …")
    batch_turns: int = Field(20, ge=1, le=200, description="… or holds this many turns.")
    turn_id_ttl_s: int = Field(
        604_800, ge=60, le=31_536_000, description="How long a repeated `turn_id` is known as a repetition."
    )
    repeat_window_s: int = Field(
        600,
        ge=1,
        le=86_400,
        description="Without `turn_id`, the same words within this time are a repetition.",
    )
    job_ttl_s: int = Field(
        604_800, ge=60, le=31_536_000, description="How long a finished job can be looked up."
    )

    # Worker
    worker_jobs: int = Field(
        8, ge=1, le=256, description="How many users' memories one worker stores at once."
    )
    retain_timeout_s: float = Field(15, ge=1, le=20, description="Time limit of one call that stores turns.")
    max_attempts: int = Field(
        8, ge=1, le=100, description="Tries before turns that cannot be stored go to the dead letters."
    )

    # Language model (optional)
    llm_model: str | None = Field(
        None, description="LLM for extraction, as litellm names it (`openai/gpt-4o-mini`)."
    )
    llm_api_key: SecretStr | None = Field(None, description="Key of that LLM.")
    llm_base_url: Url | None = Field(None, description="Base URL of that LLM.")

    # Logs
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Least level logged.")

    @property
    def zone(self) -> ZoneInfo:
        """`timezone` as an object."""
        return ZoneInfo(self.timezone)

    @property
    def effective_cache_redis_url(self) -> str:
        """URL of the Redis that holds cached answers."""
        return self.cache_redis_url or self.redis_url


def explain(error: ValidationError) -> str:
    """Which settings are wrong and why, without their values."""
    lines = [
        f"MEMORY_{'.'.join(str(part) for part in item['loc']).upper()}: {item['msg']}"
        for item in error.errors(include_input=False, include_url=False)
    ]
    return "These settings are not valid:\n  " + "\n  ".join(lines)
