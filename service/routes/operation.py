"""`/health/*` and `/metrics`: what operators and their machines look at."""

from typing import Annotated, Literal

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from service.memory.health import gauges_of, parts_of
from service.metrics import CONTENT_TYPE
from service.problems import NO_STORE, JsonReply
from service.routes.services import services_of

router = APIRouter(tags=["operation"])

_CHECK_TIMEOUT_S = 2.0
# Prometheus gives up after 10 s by default; what is looked at answers in milliseconds or not at all.
_SCRAPE_TIMEOUT_S = 1.0


@router.get("/health/live", operation_id="health_live", summary="The process answers")
async def live() -> Response:
    """200 as long as the event loop turns."""
    return JsonReply({"status": "alive"}, headers=NO_STORE)


@router.get(
    "/health/ready",
    operation_id="health_ready",
    summary="Turns are accepted, stored and recalled",
    responses={503: {"description": "Turns are not accepted, or none is stored although Hindsight answers."}},
)
async def ready(
    request: Request,
    only: Annotated[
        Literal["", "accepting", "serving"],
        Query(
            description="`accepting`: ask only whether turns can be accepted. `serving`: only whether this "
            "process takes requests, for balancers."
        ),
    ] = "",
) -> Response:
    """200 `ok`; 200 `degraded` while turns are safe but something needs an eye; 503 `down` otherwise.

    `reasons` says by codes what keeps it from being `ok`. For what starts processes ask `?only=accepting`:
    a queue that stands still is no reason to refuse a new process its start. For what spreads requests ask
    `?only=serving`, which is 503 only while this process leaves: Redis and the queue are common to all of
    them, and with all taken out nobody would recall, although that still works.
    """
    if request.app.state.is_draining:
        draining = {"status": "draining", "reasons": ["draining"], "parts": {}}
        return JsonReply(draining, status_code=503, headers=NO_STORE)
    if only == "serving":
        return JsonReply({"status": "ok", "reasons": [], "parts": {}}, headers=NO_STORE)
    health = services_of(request).health
    look = await health.look(_CHECK_TIMEOUT_S, only_turns=bool(only))
    status, reasons = health.judge(look)
    if only:
        reasons = tuple(reason for reason in reasons if reason in ("redis_down", "queue_full"))
        status = "down" if reasons else "ok"
    return JsonReply(
        {"status": status, "reasons": list(reasons), "parts": parts_of(look)},
        status_code=503 if status == "down" else 200,
        headers=NO_STORE,
    )


@router.get(
    "/metrics", operation_id="metrics", summary="Prometheus metrics", response_class=PlainTextResponse
)
async def metrics(request: Request) -> Response:
    """The metrics of this process, and how the queue, Redis and Hindsight are at this moment."""
    services = services_of(request)
    look = await services.health.look(_SCRAPE_TIMEOUT_S)
    gauges = gauges_of(look, services.metrics)
    return Response(services.metrics.exposition(gauges), media_type=CONTENT_TYPE)
