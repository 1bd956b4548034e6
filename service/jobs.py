"""arq in and out: the functions a worker runs. They have no arguments, since arq logs and keeps those.

arq only gives work a place to run and limits it; what has to be done is decided by the turns log
alone. A `drain` takes whatever is due, so that nothing is lost when arq loses a job, and none of
its traps can hold a turn up: fixed job ids that swallow wake-ups, the in-progress key that
outlives a killed worker, jobs that expire or run out of tries.
"""

import asyncio
import logging
from collections.abc import Awaitable
from datetime import UTC, datetime, timedelta
from typing import NotRequired, TypedDict
from uuid import uuid4

from arq.connections import ArqRedis

from service import keyspace
from service.adapters.retention_plan import RetentionPlan
from service.adapters.turns import TurnsLog
from service.errors import ServiceError
from service.memory.retention import Retention
from service.memory.store import Storer

_log = logging.getLogger(__name__)

# Nobody misses a drain that was not started for this long: another one is queued every second.
_DRAIN_EXPIRES = timedelta(minutes=1)
_FULL_POLL_S = 1.0


class Context(TypedDict):
    """What arq hands to each job: its own connection, and what the worker's root put in."""

    redis: ArqRedis
    turns: TurnsLog
    storer: "asyncio.Task[Storer]"
    retention: Retention
    retention_plan: RetentionPlan
    worker_jobs: int
    slots: asyncio.Semaphore
    job_id: NotRequired[str]


async def dispatch(context: Context) -> None:
    """Start drains while banks are due; runs each second on one of the workers.

    All of them are quick to end when they are not needed, so that those already running need not
    be counted (nor those that a killed worker has left in arq's queue).
    """
    await _at_the_edge("dispatch", _dispatch(context))


async def _dispatch(context: Context) -> None:
    if (storer := _storer_of(context)) is None:
        return
    due = await context["turns"].count_due()
    most = 1 if storer.is_hindsight_away else context["worker_jobs"]
    for _ in range(min(due, most)):
        await _queue_drain(context)


async def drain(context: Context) -> None:
    """Store what is due, unless all of this worker's slots are taken: arq's other places are for the rest."""
    if context["slots"].locked():
        return
    async with context["slots"]:
        await _at_the_edge("drain", _drain(context))


async def _drain(context: Context) -> None:
    storer = _storer_of(context)
    if storer is not None and await storer.work():
        await _queue_drain(context)


async def drain_while_full(context: Context) -> None:
    """Store what is due for as long as Redis has no memory left, without arq: its own jobs need some.

    Returns at once when there is memory. Raises `TurnsLogUnavailable` when Redis does not answer.
    """
    is_said = False
    while await context["turns"].is_full():
        if not is_said:
            _log.warning("redis_full")
            is_said = True
        slots = range(context["worker_jobs"])
        await asyncio.gather(*(_at_the_edge("drain", _work(context)) for _ in slots))
        await asyncio.sleep(_FULL_POLL_S)


async def _work(context: Context) -> None:
    if storer := _storer_of(context):
        await storer.work()


def _storer_of(context: Context) -> Storer | None:
    """None while it is not known who makes memories; raises what went wrong in finding out."""
    return context["storer"].result() if context["storer"].done() else None


async def sweep(context: Context) -> None:
    """Put banks with work that nobody would look at back on the list; finds none unless something broke."""
    await _at_the_edge("sweep", _sweep(context))


async def _sweep(context: Context) -> None:
    rearmed = await context["turns"].sweep()
    if rearmed:
        _log.warning("banks_rearmed", extra={"banks": rearmed})


async def retention(context: Context) -> None:
    """Go on with today's round of deleting what is too old; once a minute on one of the workers."""
    await _at_the_edge("retention", _retention(context))


async def _retention(context: Context) -> None:
    await context["retention"].work(context["retention_plan"], datetime.now(UTC))


async def _queue_drain(context: Context) -> None:
    await context["redis"].enqueue_job(
        "drain", _job_id=f"drain:{uuid4().hex}", _queue_name=keyspace.ARQ_QUEUE, _expires=_DRAIN_EXPIRES
    )


async def _at_the_edge(job: str, work: Awaitable[None]) -> None:
    """Let nothing out: arq would log an exception with its text, which may quote what was said."""
    try:
        await work
    except ServiceError as exc:
        _log.warning("job_stopped", extra={"job": job, "code": exc.code})
    except Exception:  # noqa: BLE001 - the outermost edge: logged without text; the next run tries again
        _log.error("job_failed", extra={"job": job}, exc_info=True)
