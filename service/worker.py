"""The worker's root: settings → adapters → arq.

Run it as `arq service.worker.WorkerSettings` or `dify-memory worker`. arq reads a class, so that
this module is the one place that reads the environment when it is imported.
"""

import asyncio
import json
from contextlib import AsyncExitStack
from typing import Any, ClassVar, cast

from arq import cron, func
from arq.connections import RedisSettings
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from service import jobs, keyspace, logs
from service.adapters.cache import RecallCache
from service.adapters.hindsight import HindsightAdapter
from service.adapters.turns import TurnsLog
from service.memory.store import StoreOptions, Storer
from service.metrics import Metrics
from service.settings import Settings

# Longer than a shift with the slowest try at its end (see memory/store.py).
_DRAIN_TIMEOUT_S = 60
_SWEEP_TIMEOUT_S = 60
# arq's places that drains cannot take: one each for dispatch and sweep.
_OTHER_JOBS = 2


def redis_settings_of(settings: Settings) -> RedisSettings:
    """arq's connection: a restarting Redis, which shows as OSError, must not end the worker (arq trap 5)."""
    parsed = RedisSettings.from_dsn(settings.redis_url)
    parsed.conn_timeout = 5
    parsed.conn_retries = 60
    parsed.conn_retry_delay = 1
    parsed.retry_on_timeout = True
    parsed.retry_on_error = [RedisConnectionError, RedisTimeoutError, OSError]
    parsed.retry = Retry(ExponentialBackoff(cap=1.0, base=0.05), 60)
    return parsed


async def _start(context: dict[str, Any]) -> None:
    settings = _SETTINGS
    logs.configure(settings.log_level)
    stack = AsyncExitStack()
    context["stack"] = stack
    turns = await stack.enter_async_context(TurnsLog.from_settings(settings))
    cache = await stack.enter_async_context(RecallCache.from_settings(settings))
    hindsight = await stack.enter_async_context(HindsightAdapter.from_settings(settings))
    context["turns"] = turns
    context["worker_jobs"] = settings.worker_jobs
    context["slots"] = asyncio.Semaphore(settings.worker_jobs)
    context["storer"] = Storer(
        turns, cache, hindsight, Metrics(), StoreOptions(settings.max_attempts, settings.job_ttl_s)
    )


async def _stop(context: dict[str, Any]) -> None:
    await context["stack"].aclose()


def _serialize(job: dict[str, Any]) -> bytes:
    # Pickle, arq's default, would run code for whoever can write to Redis (arq trap 7). What JSON does
    # not know is an exception in a result, which is not kept anyway.
    return json.dumps(job, default=lambda value: type(value).__name__).encode()


def _deserialize(data: bytes) -> dict[str, Any]:
    job: dict[str, Any] = json.loads(data)
    return job


_SETTINGS = Settings()


class WorkerSettings:
    """What arq runs."""

    functions: ClassVar[list[Any]] = [
        func(cast("Any", jobs.drain), name="drain", timeout=_DRAIN_TIMEOUT_S, keep_result=0)
    ]
    cron_jobs: ClassVar[list[Any]] = [
        cron(
            cast("Any", jobs.dispatch),
            name="dispatch",
            second=set(range(60)),
            run_at_startup=True,
            timeout=10,
            keep_result=0,
            max_tries=1,
        ),
        cron(
            cast("Any", jobs.sweep),
            name="sweep",
            minute=set(range(0, 60, 5)),
            second=17,
            run_at_startup=True,
            timeout=_SWEEP_TIMEOUT_S,
            keep_result=0,
            max_tries=1,
        ),
    ]
    queue_name = keyspace.ARQ_QUEUE
    health_check_key = keyspace.ARQ_HEALTH
    health_check_interval = 5
    redis_settings = redis_settings_of(_SETTINGS)
    on_startup = _start
    on_shutdown = _stop
    max_jobs = _SETTINGS.worker_jobs + _OTHER_JOBS
    poll_delay = 0.1
    # What killed workers have left comes first in arq's queue until its marks expire a minute later (trap 4);
    # arq must see what lies behind it.
    queue_read_limit = 1000
    keep_result = 0
    job_completion_wait = 10
    # arq drops a job that long after it was due (trap 6). Ours hold nothing, so that none need live longer.
    expires_extra_ms = 600_000
    job_serializer = _serialize
    job_deserializer = _deserialize
