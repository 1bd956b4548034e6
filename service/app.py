"""The API's root: settings → adapters → use cases → routes."""

import logging
import random
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.metadata import version
from time import perf_counter
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service import logs
from service.adapters.cache import RecallCache
from service.adapters.hindsight import HindsightAdapter
from service.adapters.turns import TurnsLog
from service.auth import KeyRing
from service.errors import ServiceError
from service.memory.answer import Answerer
from service.memory.recall import Recaller
from service.metrics import Metrics
from service.policy.ranking import calibration_for
from service.problems import (
    on_http_exception,
    on_invalid_parameters,
    on_service_error,
    on_unforeseen,
    problem,
)
from service.routes import dify, memory, operation
from service.routes.lane import PATH as LANE_PATH
from service.routes.lane import RecallLane
from service.routes.services import Services
from service.settings import Settings

_log = logging.getLogger(__name__)
_REQUEST_ID = re.compile(rb"[A-Za-z0-9_-]{1,64}")


def create_app(settings: Settings) -> FastAPI:
    """The application; its adapters are opened and closed by its lifespan."""

    metrics = Metrics()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[dict[str, Any]]:
        async with AsyncExitStack() as stack:
            turns = await stack.enter_async_context(TurnsLog.from_settings(settings))
            cache = await stack.enter_async_context(RecallCache.from_settings(settings))
            hindsight = await stack.enter_async_context(HindsightAdapter.from_settings(settings))
            answerer = Answerer(hindsight, turns, settings.zone, calibration_for(settings.embedding_model))
            yield {
                "services": Services(
                    settings=settings,
                    keys=KeyRing.from_settings(settings),
                    turns=turns,
                    cache=cache,
                    hindsight=hindsight,
                    recaller=Recaller(answerer, cache, metrics, settings),
                    metrics=metrics,
                )
            }

    app = _Api(
        title="Memory for Dify",
        summary="Long-term memory for Dify applications: recall before the LLM, add after it.",
        version=version("dify-memory"),
        lifespan=lifespan,
        # Its page loads scripts from a public CDN; /openapi.json says the same.
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        exception_handlers={
            ServiceError: on_service_error,
            HTTPException: on_http_exception,
            RequestValidationError: on_invalid_parameters,
            Exception: on_unforeseen,
        },
    )
    app.include_router(memory.router)
    app.include_router(dify.router)
    app.include_router(operation.router)
    app.surround(metrics)
    return app


class _Api(FastAPI):
    """FastAPI with our two ASGI layers around all of its own, its telemetry included."""

    def surround(self, metrics: Metrics) -> None:
        """Put the layers in place."""
        self._edge = RequestContext(super().__call__, metrics, RecallLane())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        await self._edge(scope, receive, send)


class RequestContext:
    """Pure ASGI: gives each request an id, a log line and its metrics, and lets no exception out.

    Whatever a route did not foresee becomes a 500 in our form; the log says its class and place,
    never its text, which may quote input. Recalls are logged at DEBUG: they come by the thousand a
    second, and the metrics count them.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, lane: RecallLane) -> None:
        self._app = app
        self._metrics = metrics
        self._lane = lane

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = perf_counter()
        request_id = _request_id(scope)
        logs.request_id.set(request_id)
        id_header = (b"x-request-id", request_id.encode())
        status = 0
        is_recall = self._lane.takes(scope)

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), id_header]
            await send(message)

        try:
            if is_recall:
                status = await self._lane.answer(scope, receive, send, id_header)
            else:
                await self._app(scope, receive, send_with_id)
        except Exception:  # noqa: BLE001 - the outermost edge: counted, logged, answered
            _log.error("request_failed", exc_info=True)
            if not status:
                await problem(ServiceError("Something went wrong on our side."))(scope, receive, send_with_id)
            status = status or 500
        finally:
            seconds = perf_counter() - started
            route = LANE_PATH if is_recall else str(getattr(scope.get("route"), "path", "unknown"))
            self._metrics.note_request(route, status, seconds)
            level = logging.DEBUG if is_recall and status == 200 else logging.INFO
            if _log.isEnabledFor(level):
                _log.log(
                    level,
                    "request_done",
                    extra={"route": route, "status": status, "ms": round(seconds * 1000, 2)},
                )


def _request_id(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _REQUEST_ID.fullmatch(value):
            given: bytes = value
            return given.decode()
    return f"{random.getrandbits(64):016x}"  # it names a request and guards nothing
