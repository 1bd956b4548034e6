"""The worker's root: settings → adapters → arq.

Run it as `dify-memory worker`, which outlives a restart of Redis; `arq service.worker.WorkerSettings`
works as well, under a supervisor. arq reads a class, so that this module is the one place that reads
the environment when it is imported.
"""

import asyncio
import json
import logging
import signal
from contextlib import AsyncExitStack, suppress
from typing import Any, ClassVar, cast

from arq import cron, func
from arq.connections import ArqRedis
from arq.worker import Worker, create_worker
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from service import jobs, keyspace, logs
from service.adapters.audit import AuditTrail
from service.adapters.cache import RecallCache
from service.adapters.data_version import bring_up_to_date
from service.adapters.hindsight import HindsightAdapter
from service.adapters.hindsight_erase import HindsightEraser
from service.adapters.hindsight_review import HindsightReview
from service.adapters.keys import KeyStore
from service.adapters.metrics_server import MetricsServer
from service.adapters.redis_urls import open_client
from service.adapters.retention_plan import RetentionPlan
from service.adapters.tracing import activate, tracing_of
from service.adapters.turns import TurnsLog
from service.adapters.usage import UsageStore
from service.adapters.vitals import Vitals
from service.errors import TurnsLogUnavailable
from service.memory.audit import Audit, deletions
from service.memory.extraction_mode import settled
from service.memory.extractors import open_extractors
from service.memory.heart import Heart
from service.memory.policies import Policies
from service.memory.retention import Deleted, Retention
from service.memory.store import StoreOptions, Storer
from service.memory.usage import Usage
from service.metrics import CONTENT_TYPE, Metrics
from service.policy.bank_config import bank_config
from service.settings import Settings

_log = logging.getLogger(__name__)

# Longer than a shift with the slowest extraction and the slowest try at its end (see memory/store.py).
_DRAIN_TIMEOUT_S = 90
_SWEEP_TIMEOUT_S = 60
# More than one run of it takes (see memory/retention.py), less than its lease.
_RETENTION_TIMEOUT_S = 57
# arq's places that drains cannot take: one each for dispatch, sweep and retention.
_OTHER_JOBS = 3
# How long running jobs may take to end before they are cancelled; a claim outlives that.
_COMPLETION_WAIT_S = 10
_RESTART_PAUSE_S = 1.0
# Saying goodbye to a Redis that hangs is not worth being killed for.
_CLOSE_S = 3.0


def _pool(settings: Settings) -> ArqRedis:
    """arq's client with time limits, which its own has none of: a server may fall silent, or restart, which
    shows as `OSError` and must not end the worker (arq trap 5).

    It gives up soon, also so that a worker which is told to stop need not wait for a Redis that is away;
    `run_until_stopped` starts anew then.
    """
    pool = cast(
        "ArqRedis",
        open_client(
            settings.redis_url,
            ArqRedis,
            socket_timeout=5,
            socket_connect_timeout=5,
            retry=Retry(ExponentialBackoff(cap=1.0, base=0.05), 3),
            retry_on_error=[RedisConnectionError, RedisTimeoutError, OSError],
        ),
    )
    pool.job_serializer = _serialize
    pool.job_deserializer = _deserialize
    pool.default_queue_name = keyspace.ARQ_QUEUE
    pool.expires_extra_ms = WorkerSettings.expires_extra_ms
    return pool


async def _start(context: dict[str, Any]) -> None:
    settings = _SETTINGS
    logs.configure(settings.log_level)
    await bring_up_to_date(settings.redis_url)
    stack = AsyncExitStack()
    context["stack"] = stack
    turns = await stack.enter_async_context(TurnsLog.from_settings(settings))
    cache = await stack.enter_async_context(RecallCache.from_settings(settings))
    policies = Policies.from_settings(settings)
    # For deleting alone, which asks for no banks and no extraction.
    hindsight = await stack.enter_async_context(HindsightAdapter.from_settings(settings))
    metrics = Metrics()
    await _watched(stack, settings, metrics)
    context["turns"] = turns
    context["retention_plan"] = await stack.enter_async_context(RetentionPlan.from_settings(settings))
    context["retention"] = Retention(
        HindsightReview(hindsight),
        HindsightEraser(hindsight),
        turns,
        cache,
        policies=policies,
        keys=await stack.enter_async_context(KeyStore.from_settings(settings)),
        zone=settings.zone,
        deleted=await _deletions(stack, settings, metrics),
    )
    context["worker_jobs"] = settings.worker_jobs
    context["slots"] = asyncio.Semaphore(settings.worker_jobs)
    context["storer"] = asyncio.create_task(_open_storer(stack, policies, turns, cache, metrics))
    stack.callback(context["storer"].cancel)
    # arq ends when it cannot queue its jobs, and comes by here again.
    await jobs.drain_while_full(cast("jobs.Context", context))


async def _deletions(stack: AsyncExitStack, settings: Settings, metrics: Metrics) -> Deleted | None:
    """Writes down of whose memories something got too old, if there is an audit trail."""
    if not settings.audit_days:
        return None
    trail = await stack.enter_async_context(AuditTrail.from_settings(settings))
    return deletions(await stack.enter_async_context(Audit(trail, metrics)))


async def _open_storer(
    stack: AsyncExitStack, policies: Policies, turns: TurnsLog, cache: RecallCache, metrics: Metrics
) -> Storer:
    """Whoever stores turns, as soon as it is known who makes memories of them: Hindsight may have to tell."""
    settings = await settled(_SETTINGS)
    config = bank_config(settings.extraction_mode, policies.file.default.keep)
    tenant_configs = policies.bank_configs(settings.extraction_mode)
    hindsight = await stack.enter_async_context(
        HindsightAdapter.from_settings(settings, config, tenant_configs)
    )
    extractors = await open_extractors(stack, settings, policies, turns, hindsight, metrics)
    options = StoreOptions(settings.max_attempts, settings.job_ttl_s)
    return Storer(turns, cache, hindsight, metrics, options, extractors)


async def _watched(stack: AsyncExitStack, settings: Settings, metrics: Metrics) -> None:
    """Let those outside see what this worker does, by traces, metrics and its heartbeat."""
    tracing = tracing_of(settings, "dify-memory-worker")
    if tracing is not None:
        await stack.enter_async_context(tracing)
    # Jobs are tasks that are started from the one that runs this: they inherit it.
    activate(tracing)
    if settings.worker_metrics_port:
        where = settings.worker_metrics_host, settings.worker_metrics_port
        try:
            await stack.enter_async_context(MetricsServer(*where, metrics.exposition, CONTENT_TYPE))
        except OSError as exc:
            # Turns are stored all the same, and a second worker on this machine may have the port.
            _log.error("metrics_port_taken", extra={"port": where[1], "error": type(exc).__name__})
    usage = await stack.enter_async_context(UsageStore.from_settings(settings))
    await stack.enter_async_context(Usage(usage, metrics))
    vitals = await stack.enter_async_context(Vitals.from_settings(settings))
    await stack.enter_async_context(Heart(vitals, metrics))


async def _stop(context: dict[str, Any]) -> None:
    if "stack" in context:  # else it has not got that far
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
        cron(
            cast("Any", jobs.retention),
            name="retention",
            second=41,
            timeout=_RETENTION_TIMEOUT_S,
            keep_result=0,
            max_tries=1,
        ),
    ]
    queue_name = keyspace.ARQ_QUEUE
    health_check_key = keyspace.ARQ_HEALTH
    health_check_interval = 5
    on_startup = _start
    on_shutdown = _stop
    max_jobs = _SETTINGS.worker_jobs + _OTHER_JOBS
    poll_delay = 0.1
    # What killed workers have left comes first in arq's queue until its marks expire a minute later (trap 4);
    # arq must see what lies behind it.
    queue_read_limit = 1000
    keep_result = 0
    job_completion_wait = _COMPLETION_WAIT_S
    # arq drops a job that long after it was due (trap 6). Ours hold nothing, so that none need live longer.
    expires_extra_ms = 600_000
    job_serializer = _serialize
    job_deserializer = _deserialize


async def run_until_stopped() -> None:
    """Run arq's worker until SIGINT or SIGTERM, and start it anew whenever Redis broke under it.

    arq gives up its loop when a connection breaks in the lines that watch a job or queue a cron job, where
    no retry of the client's reaches (arq trap 5). Nothing is lost by that: what was accepted is in the
    turns log, and a claim that was held runs out. Raises `DataUnusable` when the data is not for us.
    """
    stopping = asyncio.Event()
    running: list[Worker] = []

    def stop(number: signal.Signals) -> None:
        stopping.set()
        for worker in running:
            worker.handle_sig_wait_for_completion(number)

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)
    while not stopping.is_set():
        # The loop's signal handlers are ours: one that arq set would tell a worker which is gone.
        worker = create_worker(
            WorkerSettings,  # type: ignore[arg-type]
            handle_signals=False,
            redis_pool=_pool(_SETTINGS),
        )
        running[:] = [worker]
        try:
            await worker.async_run()
        except asyncio.CancelledError:
            if not stopping.is_set():
                raise
        except (RedisError, OSError, TurnsLogUnavailable) as exc:
            _log.warning("worker_restarts", extra={"error": type(exc).__name__})
        finally:
            await _close(worker)
        if not stopping.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), _RESTART_PAUSE_S)


async def _close(worker: Worker) -> None:
    jobs_left = list(worker.tasks.values())
    if jobs_left:
        await asyncio.wait(jobs_left, timeout=_COMPLETION_WAIT_S)
    try:
        async with asyncio.timeout(_CLOSE_S):
            await worker.close()
    except (RedisError, OSError, asyncio.CancelledError) as exc:
        # Jobs that ended with Redis, or that were cancelled before they began; arq closes nothing then.
        _log.warning("worker_closed_badly", extra={"error": type(exc).__name__})
        await _stop(worker.ctx)
