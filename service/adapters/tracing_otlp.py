"""Spans by the OpenTelemetry SDK, sent by OTLP over HTTP from a thread of its own (see `tracing`)."""

import asyncio
import logging
import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib.metadata import version
from types import TracebackType
from typing import Self

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_ON,
    Decision,
    ParentBased,
    Sampler,
    SamplingResult,
    TraceIdRatioBased,
)
from opentelemetry.trace import (
    INVALID_SPAN_CONTEXT,
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceState,
    get_current_span,
    set_span_in_context,
)
from opentelemetry.trace import Span as OtelSpan
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import Attributes

from service import logs
from service.adapters.tracing import Kind, Span, Value
from service.settings import Settings

_log = logging.getLogger(__name__)

_KINDS = {"server": SpanKind.SERVER, "client": SpanKind.CLIENT, "consumer": SpanKind.CONSUMER}
_EXPORT_TIMEOUT_S = 3.0
_EVERY_MS = 2000
_CLOSE_S = 3.0
_PROPAGATOR = TraceContextTextMapPropagator()


class OtlpTracing:
    """`Tracing` to the collector of the settings; spans it cannot take are dropped."""

    def __init__(self, settings: Settings, service: str) -> None:
        self._url = f"{settings.otlp_endpoint}/v1/traces"
        self._headers = settings.otlp_header_map
        # Of our own: the SDK's default tells of the machine.
        resource = Resource({SERVICE_NAME: service, SERVICE_VERSION: version("dify-memory")})
        sampler = _Chosen(settings.trace_ratio)
        self._provider = TracerProvider(sampler=sampler, resource=resource, shutdown_on_exit=False)
        self._tracer = self._provider.get_tracer("dify-memory")

    async def __aenter__(self) -> Self:
        """Start the thread that sends."""
        # Its own lines come with every failed batch, each with another text.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        self._exporter = _Exporter(self._url, headers=self._headers, timeout=_EXPORT_TIMEOUT_S)
        processor = BatchSpanProcessor(self._exporter, schedule_delay_millis=_EVERY_MS)
        self._provider.add_span_processor(processor)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Send what is left, for some seconds at most."""
        closing = asyncio.create_task(asyncio.to_thread(self._provider.shutdown))
        await asyncio.wait({closing}, timeout=_CLOSE_S)
        if not closing.done():
            # Each further batch would take its whole time limit again.
            _log.warning("traces_lost")
            self._exporter.shutdown()  # type: ignore[no-untyped-call]
        await closing

    def span(
        self, name: str, kind: Kind, parent: str = "", links: Iterable[str] = ()
    ) -> AbstractContextManager[Span]:
        """See `Tracing`."""
        return self._span(name, kind, parent, links)

    @contextmanager
    def _span(self, name: str, kind: Kind, parent: str, links: Iterable[str]) -> Iterator[Span]:
        linked = [Link(context) for context in map(_context_of, links) if context.is_valid]
        above = set_span_in_context(NonRecordingSpan(_context_of(parent)))
        made = self._tracer.start_span(name, context=above, kind=_KINDS[kind], links=linked)
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier, set_span_in_context(made))
        token = logs.traceparent.set(carrier.get("traceparent", ""))
        span = _Span(made)
        try:
            yield span
        except BaseException as exc:
            # Its class only: an exception's text may quote what was said.
            span.fail(type(exc).__name__)
            raise
        finally:
            logs.traceparent.reset(token)
            made.end()


class _Chosen(Sampler):
    """Which spans are sent: a share of the requests, and what comes of those.

    A caller that wants its request left out is heard. One that wants it in gets no more than the share:
    nobody has shown a key when a request's span begins, and spans cost whoever keeps them. Not by the trace's
    id, which is the caller's choice as well.
    """

    def __init__(self, ratio: float) -> None:
        self._ratio = ratio
        self._ours = ParentBased(TraceIdRatioBased(ratio))

    def should_sample(
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        trace_state: TraceState | None = None,
    ) -> SamplingResult:
        """See `Sampler`."""
        above = get_current_span(parent_context).get_span_context()
        if kind is SpanKind.SERVER and above.is_valid and above.trace_flags.sampled:
            if random.random() >= self._ratio:  # it chooses what is watched and guards nothing
                return SamplingResult(Decision.DROP)
            return ALWAYS_ON.should_sample(parent_context, trace_id, name)
        return self._ours.should_sample(parent_context, trace_id, name, kind, attributes, links, trace_state)

    def get_description(self) -> str:
        """See `Sampler`."""
        return f"requests by {self._ratio:g}, what comes of them with them"


class _Exporter(OTLPSpanExporter):
    """Says once when the collector begins to fail, and once when it takes spans again."""

    _is_failing = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send a batch; a failed one is lost."""
        result = super().export(spans)
        if (result is not SpanExportResult.SUCCESS) != self._is_failing:
            self._is_failing = not self._is_failing
            if self._is_failing:
                _log.warning("traces_not_taken")
            else:
                _log.info("traces_taken_again")
        return result


class _Span:
    """A span of the SDK's."""

    def __init__(self, span: OtelSpan) -> None:
        self._span = span

    def name(self, name: str) -> None:
        """See `Span`."""
        self._span.update_name(name)

    def note(self, **values: Value) -> None:
        """See `Span`."""
        for name, value in values.items():
            self._span.set_attribute(name.replace("__", "."), value)

    def fail(self, reason: str) -> None:
        """See `Span`."""
        self._span.set_status(Status(StatusCode.ERROR))
        self._span.set_attribute("error.type", reason)


def _context_of(traceparent: str) -> SpanContext:
    if not traceparent:
        return INVALID_SPAN_CONTEXT
    return get_current_span(_PROPAGATOR.extract({"traceparent": traceparent})).get_span_context()
