"""What became of one request's turns, for the tenant, or the one user, whose they are."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Literal

from service.adapters.hindsight import OperationState, OperationStatus
from service.adapters.turns import Job, TurnsLog
from service.errors import NotFound
from service.memory.fallback import Fallback
from service.schemas import JobReply
from service.scope import BankId, JobId

_POLL_S = 0.1
# Hindsight is asked less often than our own log.
_DIRECT_POLL_S = 0.5
_ENDED = frozenset({"done", "failed", "cancelled"})
_MOST_JOB_ID_CHARS = 64
_STATUSES: dict[OperationStatus, Literal["queued", "retaining", "done", "failed", "cancelled"]] = {
    "pending": "queued",
    "processing": "retaining",
    "completed": "done",
    "failed": "failed",
    "cancelled": "cancelled",
}


async def look_up(
    job_id: str,
    *,
    tenant: str,
    bank: BankId | None,
    wait_s: float,
    is_leaving: Callable[[], bool],
    log: TurnsLog,
    fallback: Fallback,
) -> JobReply:
    """The job as it is once it has ended, or after `wait_s` seconds; with `bank`, of that user alone.

    A process that is told to stop answers at once with what it knows: it will not be there in `wait_s`.

    A key that knows its users by signed tokens is shown any job of its tenant: this request carries no token.
    Job ids are random, or sealed, and are told to nobody but who has added the turn; they hold no content.

    Raises `NotFound` for a job that does not exist (any more) and for another tenant's or user's alike,
    `Unavailable` when what knows the job is away.
    """
    ends = asyncio.get_running_loop().time() + wait_s
    is_direct = len(job_id) > _MOST_JOB_ID_CHARS
    while True:
        reply = await (
            _direct(job_id, tenant, bank, fallback) if is_direct else _logged(job_id, tenant, bank, log)
        )
        if reply is None:
            raise NotFound("There is no such job.")
        if reply.status in _ENDED or asyncio.get_running_loop().time() >= ends or is_leaving():
            return reply
        await asyncio.sleep(_DIRECT_POLL_S if is_direct else _POLL_S)


async def _logged(job_id: str, tenant: str, bank: BankId | None, log: TurnsLog) -> JobReply | None:
    job = await log.job(JobId(job_id)) if job_id.isalnum() else None
    if job is None or job.tenant != tenant or bank not in (None, job.bank):
        return None
    return _reply_of(job)


def _reply_of(job: Job) -> JobReply:
    return JobReply(
        job_id=job.job_id,
        status=job.status,
        memories_kept=job.memories_kept,
        reason=job.reason,
        accepted_at=_iso(job.accepted_ms / 1000),
        finished_at=_iso(job.finished_ms / 1000) if job.finished_ms else None,
    )


async def _direct(job_id: str, tenant: str, bank: BankId | None, fallback: Fallback) -> JobReply | None:
    # A ticket begins with its bank, and its seal covers that.
    if bank is not None and not job_id.startswith(f"direct{bank.removeprefix('u-')}"):
        return None
    state = await fallback.look_up(job_id, tenant)
    return _direct_reply(job_id, state) if state is not None else None


def _direct_reply(job_id: str, state: OperationState) -> JobReply:
    status = _STATUSES[state.status]
    return JobReply(
        job_id=job_id,
        status=status,
        memories_kept=state.memories,
        reason=f"Hindsight's operation ended as {state.status}." if status in ("failed", "cancelled") else "",
        accepted_at=_iso(state.created_at.timestamp()) if state.created_at else "",
        finished_at=_iso(state.completed_at.timestamp()) if state.completed_at else None,
    )


def _iso(moment_s: float) -> str:
    return datetime.fromtimestamp(moment_s, UTC).isoformat(timespec="milliseconds")
