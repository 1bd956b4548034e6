"""`/health/*` and `/metrics`: what operators and their machines look at."""

import asyncio
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import Request
from starlette.responses import Response

from service.errors import ServiceError
from service.problems import NO_STORE, JsonReply
from service.routes.services import services_of

router = APIRouter(tags=["operation"])

_CHECK_TIMEOUT_S = 2.0
# A bank that was due this long ago: no worker takes work, whatever their heartbeats say.
_OVERDUE_S = 120.0
# A batch on its way for this long: Hindsight never ends its operation, or refuses our key.
_STUCK_S = 1800.0


@router.get("/health/live", operation_id="health_live", summary="The process answers")
async def live() -> Response:
    """200 as long as the event loop turns."""
    return JsonReply({"status": "alive"}, headers=NO_STORE)


@router.get("/health/ready", operation_id="health_ready", summary="Turns can be accepted and recalled")
async def ready(request: Request) -> Response:
    """200 `ok`; 200 `degraded` while turns are safe but something is slow to reach; 503 `down` otherwise."""
    log, hindsight = await asyncio.gather(_log_state(request), _hindsight_state(request))
    parts: dict[str, dict[str, Any]] = {"turns_log": log, "hindsight": hindsight}
    if not log["ok"]:
        status = "down"
    elif hindsight["ok"] and _moves(log):
        status = "ok"
    else:
        status = "degraded"
    return JsonReply(
        {"status": status, "parts": parts}, status_code=503 if status == "down" else 200, headers=NO_STORE
    )


@router.get("/metrics", operation_id="metrics", summary="Prometheus metrics")
async def metrics(request: Request) -> Response:
    """The metrics of this process."""
    return Response(generate_latest(services_of(request).metrics.registry), media_type=CONTENT_TYPE_LATEST)


def _moves(log: Mapping[str, Any]) -> bool:
    """Whether turns get from the log to Hindsight."""
    is_stuck = log["overdue_s"] >= _OVERDUE_S or log["oldest_batch_s"] >= _STUCK_S
    return bool(log["worker"] and not is_stuck and not log["dead_letters"])


async def _log_state(request: Request) -> dict[str, Any]:
    try:
        async with asyncio.timeout(_CHECK_TIMEOUT_S):
            state = await services_of(request).turns.check()
    except (ServiceError, TimeoutError):
        return {"ok": False}
    return {
        "ok": True,
        "worker": state.is_worker_alive,
        "waiting_banks": state.waiting_banks,
        "overdue_s": round(state.overdue_s, 1),
        "oldest_batch_s": round(state.oldest_batch_s, 1),
        "dead_letters": state.dead_letters,
    }


async def _hindsight_state(request: Request) -> dict[str, Any]:
    try:
        await services_of(request).hindsight.check(_CHECK_TIMEOUT_S)
    except ServiceError:
        return {"ok": False}
    return {"ok": True}
