"""The API's root: settings → adapters → use cases → routes."""

import logging
import random
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from importlib.metadata import version
from time import perf_counter
from typing import Any, cast

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service import logs
from service.adapters.admin_visits import AdminVisits
from service.adapters.audit import AuditTrail
from service.adapters.cache import RecallCache
from service.adapters.hindsight import HindsightAdapter
from service.adapters.hindsight_review import HindsightReview
from service.adapters.keys import KeyStore
from service.adapters.me_links import EndedLinks
from service.adapters.rates import RateCounters
from service.adapters.tracing import Tracing, activate, tracing_of
from service.adapters.turns import TurnsLog
from service.adapters.usage import UsageStore
from service.adapters.user_tokens import UserTokens
from service.adapters.vitals import Vitals
from service.auth import Guards, KeyRing, note_done
from service.errors import ServiceError
from service.memory import retain
from service.memory.answer import Answerer
from service.memory.audit import Audit
from service.memory.chat import Chats
from service.memory.chat_setup import gateway_of
from service.memory.events import Events
from service.memory.fallback import Fallback
from service.memory.forget import Forgetter
from service.memory.health import Health
from service.memory.keys import KeyWatch
from service.memory.limits import RateLimits
from service.memory.me import Me
from service.memory.operation_view import Operation
from service.memory.policies import Policies
from service.memory.recall import Recaller
from service.memory.reflect import Reflector
from service.memory.usage import Usage
from service.metrics import Metrics
from service.policy.bank_config import bank_config
from service.policy.ranking import calibration_for
from service.problems import (
    on_invalid_parameters,
    on_service_error,
    on_unforeseen,
    problem,
    safe,
)
from service.routes import (
    admin,
    admin_page,
    audit,
    diagnosis,
    dify,
    hooks,
    keys,
    knowledge,
    me,
    me_links,
    memories,
    memory,
    openai,
    operation,
    review,
)
from service.routes.add_lane import AddLane
from service.routes.lane import PATH as LANE_PATH
from service.routes.lane import RecallLane
from service.routes.openapi_security import with_security
from service.routes.services import Services
from service.settings import Settings

_log = logging.getLogger(__name__)
_NO_TELEMETRY = dict.fromkeys(["tracing", "metrics", "logs", "operation_spans", "auto_configure"], False)
_METHODS = frozenset(["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
# What machines ask every few seconds says nothing.
_UNTRACED = ("/health/", "/metrics")
_REQUEST_ID = re.compile(rb"[A-Za-z0-9_-]{1,64}")


def create_app(settings: Settings) -> FastAPI:
    """The application; its adapters are opened and closed by its lifespan."""

    metrics = Metrics()
    tracing = tracing_of(settings, "dify-memory-api")
    policies = Policies.from_settings(settings)
    config = bank_config(settings.extraction_mode, policies.file.default.keep)
    tenant_configs = policies.bank_configs(settings.extraction_mode)
    gateway = gateway_of(settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[dict[str, Any]]:
        async with AsyncExitStack() as stack:
            if tracing is not None:
                await stack.enter_async_context(tracing)
            vitals = await stack.enter_async_context(Vitals.from_settings(settings))
            turns = await stack.enter_async_context(TurnsLog.from_settings(settings))
            cache = await stack.enter_async_context(RecallCache.from_settings(settings))
            hindsight = await stack.enter_async_context(
                HindsightAdapter.from_settings(settings, config, tenant_configs)
            )
            review = HindsightReview(hindsight)
            guards = await _guards(stack, settings, metrics)
            ring = KeyRing.from_settings(settings, guards)
            ended = await stack.enter_async_context(EndedLinks.from_settings(settings))
            key_store = await stack.enter_async_context(KeyStore.from_settings(settings))
            key_watch = await stack.enter_async_context(KeyWatch(key_store, ring))
            usage = await stack.enter_async_context(UsageStore.from_settings(settings))
            await stack.enter_async_context(Usage(usage, metrics))
            visits = await stack.enter_async_context(AdminVisits.from_settings(settings))
            is_cache_apart = settings.effective_cache_redis_url != settings.redis_url
            health = Health(
                turns,
                vitals,
                hindsight,
                cache if is_cache_apart else None,
                max_waiting=settings.max_waiting,
            )
            answerer = Answerer(hindsight, turns, settings.zone, calibration_for(settings.embedding_model))
            recaller = Recaller(answerer, cache, metrics, settings, policies)
            reflector = Reflector(review, cache, policies, settings.reflect_deadline_ms / 1000)
            fallback = Fallback.from_settings(settings, hindsight)
            chats: Chats | None = None
            if gateway is not None:
                upstream = await stack.enter_async_context(gateway[0])
                accept = partial(
                    retain.accept,
                    log=turns,
                    cache=cache,
                    fallback=fallback if settings.has_fallback else None,
                    settings=settings,
                    policies=policies,
                )
                chats = Chats(upstream, gateway[1], recaller, reflector, accept, settings, metrics)
                await stack.enter_async_context(chats)
            yield {
                "services": Services(
                    settings=settings,
                    policies=policies,
                    keys=ring,
                    key_store=key_store,
                    key_watch=key_watch,
                    turns=turns,
                    cache=cache,
                    hindsight=hindsight,
                    recaller=recaller,
                    review=review,
                    reflector=reflector,
                    forgetter=Forgetter.from_settings(settings, turns, cache, hindsight),
                    fallback=fallback,
                    events=Events.from_settings(settings, turns, cache),
                    chats=chats,
                    me=Me.from_settings(settings, ended, policies, guards.limits, guards.audit),
                    operation=Operation(settings, turns, key_store, visits, usage, policies.of, health),
                    limits=guards.limits,
                    metrics=metrics,
                    health=health,
                )
            }

    app = _Api(
        title="Memory for Dify",
        summary="Long-term memory for Dify applications: recall before the LLM, add after it.",
        version=version("dify-memory"),
        lifespan=lifespan,
        # FastAPI's own would send the texts of exceptions and of refused input to whatever collector the
        # environment names; ours is `TracedRequests`.
        telemetry=cast("Any", _NO_TELEMETRY),
        # Its page loads scripts from a public CDN; /openapi.json says the same.
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        exception_handlers={
            ServiceError: on_service_error,
            HTTPException: openai.on_http_exception,
            RequestValidationError: on_invalid_parameters,
            Exception: on_unforeseen,
        },
    )
    # The server says so when it was told to leave (see cli/serve.py).
    app.state.is_draining = False
    app.include_router(memory.router)
    app.include_router(memories.router)
    app.include_router(review.router)
    app.include_router(dify.router)
    app.include_router(knowledge.router)
    app.include_router(diagnosis.router)
    app.include_router(openai.router)
    app.include_router(admin.router)
    app.include_router(admin_page.router)
    app.include_router(keys.router)
    app.include_router(audit.router)
    app.include_router(me.router)
    app.include_router(me_links.router)
    app.include_router(hooks.router)
    app.include_router(operation.router)
    app.surround(metrics, tracing)
    return app


async def _guards(stack: AsyncExitStack, settings: Settings, metrics: Metrics) -> Guards:
    """User tokens, rate limits and the audit trail, as far as they are set up."""
    counters = await stack.enter_async_context(RateCounters.from_settings(settings))
    limits = RateLimits(counters, metrics, per_user=settings.user_rate_limit)
    audit: Audit | None = None
    if settings.audit_days:
        trail = await stack.enter_async_context(AuditTrail.from_settings(settings))
        audit = await stack.enter_async_context(Audit(trail, metrics))
    return Guards(UserTokens.from_settings(settings), await stack.enter_async_context(limits), audit)


class _Api(FastAPI):
    """FastAPI with our two ASGI layers around all of its own, its telemetry included."""

    def surround(self, metrics: Metrics, tracing: Tracing | None) -> None:
        """Put the layers in place."""
        edge = RequestContext(AddLane(super().__call__), metrics, RecallLane())
        self._edge: ASGIApp = edge if tracing is None else TracedRequests(edge, tracing)

    def openapi(self) -> dict[str, Any]:
        """The document of the whole API; made once."""
        return self.openapi_schema or with_security(super().openapi())

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
                message["headers"] = safe(message.get("headers", ()), id_header)
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
            route = LANE_PATH if is_recall else _route_of(scope)
            self._metrics.note_request(route, status, seconds)
            note_done(scope, route, status)
            level = logging.DEBUG if is_recall and status == 200 else logging.INFO
            if _log.isEnabledFor(level):
                _log.log(
                    level,
                    "request_done",
                    extra={"route": route, "status": status, "ms": round(seconds * 1000, 2)},
                )


class TracedRequests:
    """Pure ASGI around `RequestContext`, only there if traces are on: a span for each request."""

    def __init__(self, app: ASGIApp, tracing: Tracing) -> None:
        self._app = app
        self._tracing = tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection; the caller's `traceparent` is the parent of what comes of it."""
        if scope["type"] != "http" or scope["path"].startswith(_UNTRACED):
            await self._app(scope, receive, send)
            return
        activate(self._tracing)
        given = next((value for name, value in scope["headers"] if name == b"traceparent"), b"")
        method = scope["method"] if scope["method"] in _METHODS else "_OTHER"
        with self._tracing.span(method, "server", given.decode("latin-1")) as span:
            span.note(http__request__method=method)

            async def send_noted(message: Message) -> None:
                if message["type"] == "http.response.start":
                    span.note(http__response__status_code=message["status"])
                    if message["status"] >= 500:
                        span.fail(str(message["status"]))
                await send(message)

            try:
                await self._app(scope, receive, send_noted)
            finally:
                # Only now is it known; the path itself may hold ids.
                route = scope["path"] if scope["path"] == LANE_PATH else _route_of(scope)
                span.name(f"{method} {route}")
                span.note(http__route=route)
                # The caller's own may be anything, a user's id too; the log has it beside the trace's id.
                if not any(name == b"x-request-id" for name, _ in scope["headers"]):
                    span.note(memory__request_id=logs.request_id.get())


def _route_of(scope: Scope) -> str:
    """The path's template, whether a fast lane or the router has found it."""
    return str(scope.get("route_path") or getattr(scope.get("route"), "path", "unknown"))


def _request_id(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _REQUEST_ID.fullmatch(value):
            given: bytes = value
            return given.decode()
    return f"{random.getrandbits(64):016x}"  # it names a request and guards nothing
