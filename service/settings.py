"""What an operator can set, in one frozen object read from `MEMORY_*` variables.

Every process builds it once at its root and passes it on; nothing imports an instance.
"""

import re
from pathlib import Path
from typing import Annotated, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, Field, SecretStr, ValidationError, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict


def _known_timezone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (ValueError, OSError, ZoneInfoNotFoundError):  # OSError: the name of a folder
        raise ValueError("use an IANA time zone name such as Asia/Shanghai or UTC") from None
    return name


def _without_trailing_slash(url: str) -> str:
    return url.rstrip("/")


def _id_secret_pairs(given: SecretStr) -> list[tuple[str, str]]:
    """`a:secret, b:secret` as pairs; a secret may hold colons, but no comma."""
    pairs = (pair.strip().partition(":") for pair in given.get_secret_value().split(","))
    return [(name, secret) for name, _, secret in pairs]


def _token_keys(given: SecretStr | None) -> SecretStr | None:
    if given is None:
        return None
    pairs = _id_secret_pairs(given)
    names = [name for name, _ in pairs]
    if not all(_TOKEN_KEY_ID.fullmatch(name) and len(secret) >= 32 for name, secret in pairs):
        raise ValueError(
            "use id:secret with an id of letters and digits and a secret of 32 characters or more"
        )
    if len(set(names)) != len(names):
        raise ValueError("two secrets have the same id")
    return given


def _header_pairs(given: SecretStr | None) -> SecretStr | None:
    if given is not None:
        for pair in given.get_secret_value().split(","):
            if not _HEADER.fullmatch(pair.strip()):
                raise ValueError("use name=value, separated by commas")
    return given


_HEADER = re.compile(r"[A-Za-z0-9-]+\s*=\s*[\x21-\x7e][\x20-\x7e]*")
_TOKEN_KEY_ID = re.compile(r"[A-Za-z0-9]{1,16}")

Url = Annotated[str, Field(pattern=r"^https?://\S+$"), AfterValidator(_without_trailing_slash)]
_REDIS = r"(rediss?|unix)://\S+"
# With Sentinels the path names the master, and then the database.
# What nobody would heed is refused: certificates without TLS, fields that do not exist.
_TLS_FIELD = r"ssl_(keyfile|certfile|cert_reqs|ca_certs|ca_data|check_hostname|ciphers)=[^&\s]+"
_LOGIN_FIELD = r"sentinel_(username|password)=[^&\s]+"
_ANY_FIELD = rf"({_LOGIN_FIELD}|{_TLS_FIELD})"
_MASTER = r"://[^/\s]+/[^/?\s]+(/\d+)?"
_SENTINEL = (
    rf"(redis\+sentinel{_MASTER}(\?{_LOGIN_FIELD}(&{_LOGIN_FIELD})*)?"
    rf"|rediss\+sentinel{_MASTER}(\?{_ANY_FIELD}(&{_ANY_FIELD})*)?)"
)
_CLUSTER = rf"(redis\+cluster://[^?\s]+|rediss\+cluster://[^?\s]+(\?{_TLS_FIELD}(&{_TLS_FIELD})*)?)"
RedisUrl = Annotated[str, Field(pattern=rf"^({_REDIS}|{_SENTINEL})$")]
CacheRedisUrl = Annotated[str, Field(pattern=rf"^({_REDIS}|{_SENTINEL}|{_CLUSTER})$")]


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
    me_url: Url | None = Field(
        None,
        description="URL under which people reach this service, for links to their page `/me`; "
        "`MEMORY_PUBLIC_URL` if unset, else host and port.",
    )
    data_dir: Path = Field(
        Path(".dify-memory"), description="Folder of the local stack: data, logs, `connection.json`."
    )
    redis_url: RedisUrl = Field(
        "redis://127.0.0.1:6379/0",
        description="Redis for accepted turns: needs AOF and `noeviction`. With Sentinels: "
        "`redis+sentinel://:PASSWORD@host:26379,host:26379/MASTER/0`.",
    )
    cache_redis_url: CacheRedisUrl | None = Field(
        None,
        description="Redis for cached answers, may evict; the one for accepted turns if unset. A cluster: "
        "`redis+cluster://:PASSWORD@host:6379,host:6379`.",
    )
    drain_s: float = Field(
        3,
        ge=0,
        le=60,
        description="After SIGTERM the API says for so long at `/health/ready` that it is leaving, and still "
        "serves: longer than whoever spreads the requests takes to notice.",
    )
    in_flight_s: int = Field(
        15,
        ge=1,
        le=600,
        description="After that, requests in hand get so long to end; then they are cut off. Together with "
        "`MEMORY_DRAIN_S` and 10 s less than whoever stops the process waits before it kills it.",
    )
    hindsight_url: Url = Field("http://127.0.0.1:8888", description="URL of the Hindsight API.")
    hindsight_api_key: SecretStr | None = Field(
        None, description="Key of the Hindsight API, if it wants one."
    )

    webhook_secret: SecretStr | None = Field(
        None,
        min_length=16,
        description="Secret that Hindsight signs its events with; unset: `/hooks/hindsight` does not exist.",
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
    key_pepper: SecretStr | None = Field(
        None,
        min_length=32,
        description="Secret that goes into the digests of keys made by `dify-memory keys`: who can write to "
        "Redis still cannot make or widen one. Set it before the first; a new one ends them all.",
    )
    token_keys: Annotated[SecretStr | None, AfterValidator(_token_keys)] = Field(
        None,
        description="Secrets that sign user tokens and personal links, as `id:secret` separated by commas, "
        "32 characters or more each: the first signs, all are good. `make up` makes one if unset.",
    )
    key_rate_limit: int = Field(
        0,
        ge=0,
        le=10_000_000,
        description="Most requests a minute of a key without a rate of its own; 0: any.",
    )
    user_rate_limit: int = Field(
        0, ge=0, le=10_000_000, description="Most requests a minute about one user's memories; 0: any."
    )
    admin_visit_s: int = Field(
        3600, ge=60, le=43_200, description="How long an operator stays signed in on the page `/admin`."
    )
    audit_days: int = Field(
        0,
        ge=0,
        le=3650,
        description="Days for which who did what to whose memories is kept, reads included; 0: it is not.",
    )
    audit_max_events: int = Field(
        200_000, ge=1000, le=100_000_000, description="About as many of these events are kept (100 B each)."
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
    max_request_turns: int = Field(
        100, ge=1, le=1000, description="Most turns of one request; more are refused with 413."
    )
    max_waiting_per_user: int = Field(
        1000,
        ge=1,
        le=1_000_000,
        description="Most turns of one user that may wait to be stored; more are refused with 429.",
    )
    max_waiting: int = Field(
        200_000,
        ge=1,
        le=100_000_000,
        description="The same for all users of all tenants, with those that wait for a day's LLM budget.",
    )
    direct_fallback: bool = Field(
        True,
        description="While Redis is away, hand turns to Hindsight's own queue; if false, refuse with 503.",
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

    # Review
    reflect_deadline_ms: int = Field(
        30_000, ge=1000, le=120_000, description="When `/memory/reflect` answers at the latest."
    )
    retention_days: int = Field(
        90, ge=0, le=36_500, description="Days after which what was said is deleted; 0: never."
    )

    # Worker
    worker_jobs: int = Field(
        8, ge=1, le=256, description="How many users' memories one worker stores at once."
    )
    retain_timeout_s: float = Field(15, ge=1, le=20, description="Time limit of one call that stores turns.")
    max_attempts: int = Field(
        8, ge=1, le=100, description="Tries before turns that cannot be stored go to the dead letters."
    )
    worker_metrics_host: str = Field(
        "127.0.0.1", min_length=1, description="Address on which a worker shows its Prometheus metrics."
    )
    worker_metrics_port: int = Field(
        0, ge=0, le=65535, description="Port of these, at `/metrics`; 0: a worker shows none."
    )

    # Language model (optional)
    llm_model: str | None = Field(
        None, description="LLM for extraction, as litellm names it (`openai/gpt-4o-mini`)."
    )
    llm_api_key: SecretStr | None = Field(
        None, description="Key of that LLM, and of fallbacks of the same provider only."
    )
    llm_base_url: Url | None = Field(
        None, description="Base URL of that LLM, and of fallbacks of the same provider only."
    )
    llm_fallbacks: str = Field(
        "",
        max_length=1000,
        description="LLMs that are asked when that one fails, separated by commas, in this order. One of "
        "another provider takes its key from that provider's own environment variable.",
    )
    llm_timeout_s: float = Field(
        20, ge=1, le=25, description="Time limit of one extraction, shared by the LLM and its fallbacks."
    )
    llm_daily_usd: float = Field(
        0,
        ge=0,
        le=1_000_000,
        description="Most US dollars a day for a tenant's extraction; 0: no limit.",
    )
    llm_daily_tokens: int = Field(
        0,
        ge=0,
        le=1_000_000_000_000,
        description="The same in tokens, for LLMs whose price is not known; 0: no limit.",
    )

    # The models behind /v1 (optional)
    gateway_model: str | None = Field(
        None,
        max_length=200,
        description="Model behind `/v1`, as litellm names it; unset: none, and litellm is not loaded.",
    )
    gateway_api_key: SecretStr | None = Field(None, description="Key of that model.")
    gateway_base_url: Url | None = Field(None, description="Base URL of that model.")
    gateway_direct: bool = Field(
        True,
        description="Talk to `openai/…` at `MEMORY_GATEWAY_BASE_URL` without litellm, and do not load it.",
    )
    gateway_models_file: Path | None = Field(
        None,
        description="YAML file with several models, their routing and defaults of their memory; goes before "
        "those.",
    )
    gateway_timeout_s: float = Field(
        120, ge=1, le=3600, description="How long a model may take to answer, or a stream to begin."
    )
    gateway_store_partial: bool = Field(
        True, description="Remember an answer that ended early, as far as it came; false: not at all."
    )
    gateway_max_body_bytes: int = Field(
        16_777_216, ge=1024, le=268_435_456, description="Largest body of a chat, pictures included."
    )

    # What is kept
    extraction: Literal["auto", "litellm", "hindsight", "none"] = Field(
        "auto",
        description="Who makes memories: litellm (with `MEMORY_LLM_MODEL`), hindsight (its own LLM), none "
        "(turns word for word); auto: the first of these that is configured.",
    )
    extraction_max_tries: int = Field(
        10, ge=1, le=100, description="Failed extractions in a row before `MEMORY_EXTRACTION_FALLBACK`."
    )
    extraction_fallback: Literal["none", "dead_letter"] = Field(
        "none",
        description="What then becomes of turns: none keeps them word for word, dead_letter puts them aside, "
        "and lets none go past a Redis that is away.",
    )
    extraction_over_budget: Literal["wait", "none"] = Field(
        "wait",
        description="What becomes of turns when the LLM's budget of the day is spent: wait for the next day "
        "(UTC), or none: they are kept word for word.",
    )
    kinds: str = Field(
        "user_profile,preference,task_state",
        min_length=1,
        max_length=1000,
        pattern=r"^\s*[\w-]+\s*(,\s*[\w-]+\s*)*$",
        description="Kinds of memories that are extracted, kept and recalled, separated by commas.",
    )
    importance_threshold: float = Field(
        0.5, ge=0, le=1, description="Extracted memories that matter less than this are not kept."
    )
    policy_file: Path | None = Field(
        None,
        description="YAML file with kinds, threshold, redaction, retention and LLM budget by tenant, read at "
        "start; goes before the settings of these names.",
    )

    # Traces (optional)
    otlp_endpoint: Url | None = Field(
        None,
        description="Base URL of an OpenTelemetry collector (OTLP over HTTP, port 4318 as a rule); unset: no "
        "traces, and nothing of it is loaded.",
    )
    otlp_headers: Annotated[SecretStr | None, AfterValidator(_header_pairs)] = Field(
        None, description="Headers for it, as `name=value` separated by commas."
    )
    trace_ratio: float = Field(
        1,
        ge=0,
        le=1,
        description="Share of requests that are traced; callers can leave theirs out, not force them in.",
    )

    # Logs
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Least level logged.")

    @property
    def zone(self) -> ZoneInfo:
        """`timezone` as an object."""
        return ZoneInfo(self.timezone)

    @field_validator("extraction")
    @classmethod
    def _has_a_model(cls, mode: str, info: ValidationInfo) -> str:
        if mode == "litellm" and not info.data.get("llm_model"):
            raise ValueError("litellm needs an LLM: set MEMORY_LLM_MODEL")
        return mode

    @field_validator("extraction_over_budget")
    @classmethod
    def _keeps_no_words(cls, choice: str, info: ValidationInfo) -> str:
        if choice == "none" and info.data.get("extraction_fallback") == "dead_letter":
            raise ValueError(
                "none keeps turns word for word, which MEMORY_EXTRACTION_FALLBACK=dead_letter forbids"
            )
        return choice

    @property
    def has_fallback(self) -> bool:
        """Whether turns may go past the queue: not where words must not be kept as they are.

        Word for word is how they are kept there. Also `auto` may come to an extraction.
        """
        return self.direct_fallback and (
            self.extraction_mode == "none" or self.extraction_fallback != "dead_letter"
        )

    @property
    def token_secrets(self) -> dict[str, str]:
        """`token_keys` by id, in their order: the first signs; empty without."""
        return dict(_id_secret_pairs(self.token_keys)) if self.token_keys else {}

    @property
    def otlp_header_map(self) -> dict[str, str]:
        """`otlp_headers` by name; empty without."""
        pairs = self.otlp_headers.get_secret_value().split(",") if self.otlp_headers else []
        split = (pair.partition("=") for pair in pairs)
        return {name.strip(): value.strip() for name, _, value in split}

    @property
    def kind_names(self) -> tuple[str, ...]:
        """`kinds`, split."""
        return tuple(name.strip() for name in self.kinds.split(","))

    @property
    def llm_models(self) -> tuple[str, ...]:
        """`llm_model` and its fallbacks, in the order in which they are asked."""
        names = (self.llm_model or "", *self.llm_fallbacks.split(","))
        return tuple(dict.fromkeys(name.strip() for name in names if name.strip())) if self.llm_model else ()

    @property
    def extraction_mode(self) -> Literal["auto", "litellm", "hindsight", "none"]:
        """Who extracts; `auto`: nobody was chosen, and only Hindsight knows (`memory.extraction_mode`)."""
        return "litellm" if self.extraction == "auto" and self.llm_model else self.extraction

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
