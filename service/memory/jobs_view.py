"""What became of one request's turns, for the tenant whose they are."""

import asyncio
from datetime import UTC, datetime

from service.adapters.turns import TurnsLog
from service.errors import NotFound
from service.schemas import JobReply
from service.scope import JobId

_POLL_S = 0.1
_ENDED = frozenset({"done", "failed", "cancelled"})


async def look_up(job_id: str, *, tenant: str, wait_s: float, log: TurnsLog) -> JobReply:
    """The job as it is once it has ended, or after `wait_s` seconds.

    Raises `NotFound` for a job that does not exist (any more) and for another tenant's alike.
    """
    ends = asyncio.get_running_loop().time() + wait_s
    while True:
        job = await log.job(JobId(job_id)) if job_id.isalnum() and len(job_id) <= 64 else None
        if job is None or job.tenant != tenant:
            raise NotFound("There is no such job.")
        if job.status in _ENDED or asyncio.get_running_loop().time() >= ends:
            return JobReply(
                job_id=job.job_id,
                status=job.status,
                memories_kept=job.memories_kept,
                reason=job.reason,
                accepted_at=_iso(job.accepted_ms),
                finished_at=_iso(job.finished_ms) if job.finished_ms else None,
            )
        await asyncio.sleep(_POLL_S)


def _iso(moment_ms: int) -> str:
    return datetime.fromtimestamp(moment_ms / 1000, UTC).isoformat(timespec="milliseconds")
