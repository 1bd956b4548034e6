"""Traces as OpenTelemetry has them, off unless `MEMORY_OTLP_ENDPOINT` is set.

This module loads nothing of it and costs next to nothing: what a request or job runs in says by a
context variable whether it is traced (`activate`), and `span` does nothing where it is not. Spans hold
ids that are digests, counts and statuses, never content, queries or user ids.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from contextvars import ContextVar
from importlib import import_module
from typing import Any, Literal, Protocol, cast

from service import logs
from service.settings import Settings

Kind = Literal["server", "client", "consumer"]
Value = str | int | float | bool


class Span(Protocol):
    """A span under way."""

    def name(self, name: str) -> None:
        """Give it another name: of bounded number, never with ids."""

    def note(self, **values: Value) -> None:
        """Set attributes; a `__` in a name stands for a dot."""

    def fail(self, reason: str) -> None:
        """Mark it as failed; `reason` is a code or a class name."""


class Tracing(AbstractAsyncContextManager["Tracing"], Protocol):
    """Makes spans and sends them away in the background; open it as an async context manager.

    A collector that is slow or away costs spans, never a request.
    """

    def span(
        self, name: str, kind: Kind, parent: str = "", links: Iterable[str] = ()
    ) -> AbstractContextManager[Span]:
        """A span around the block, a child of `parent` (a traceparent, empty or nonsense: of none).

        `links` are traceparents of what it also has to do with. Inside, `logs.traceparent` is its own.
        An exception marks it as failed by its class.
        """


_active: ContextVar[Tracing | None] = ContextVar("tracing", default=None)


def tracing_of(settings: Settings, service: str) -> Tracing | None:
    """What makes the spans of this process, called `service` there; None if traces are off."""
    if settings.otlp_endpoint is None:
        return None
    # The library costs 25 MB and a tenth of a second; nobody pays for it who does not use it.
    module = import_module("service.adapters.tracing_otlp")
    return cast("Tracing", cast("Any", module).OtlpTracing(settings, service))


def activate(tracing: Tracing | None) -> None:
    """Let `span` make spans in this context and in tasks that are started from it."""
    _active.set(tracing)


def span(
    name: str, kind: Kind, *, parent: str | None = None, links: Iterable[str] = ()
) -> AbstractContextManager[Span]:
    """A span if traces are on; a child of the one that is under way unless `parent` names another."""
    tracing = _active.get()
    if tracing is None:
        return nullcontext(_NO_SPAN)
    return tracing.span(name, kind, logs.traceparent.get() if parent is None else parent, links)


class _NoSpan:
    """A span that nobody asked for."""

    def name(self, name: str) -> None:
        """Nothing."""

    def note(self, **values: Value) -> None:
        """Nothing."""

    def fail(self, reason: str) -> None:
        """Nothing."""


_NO_SPAN = _NoSpan()

_WORDS = "banks|chunks|config|default|documents|entities|health|list|memories|operations|ready|recall|reflect"
_PATH_WORD = re.compile(f"{_WORDS}|retain|stats|tags|v1|version|webhooks")


def path_template(path: str) -> str:
    """A path with `{}` for whatever is not one of Hindsight's own words: ids are too many for a name."""
    words = path.partition("?")[0].strip("/").split("/")
    return "/" + "/".join(word if _PATH_WORD.fullmatch(word) else "{}" for word in words)


class TracedCalls:
    """Stands before the HTTP client of a generated API client: each request is a span and carries it on."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def request(
        self, method: str, url: str, headers: Mapping[str, str] | None = None, **others: Any
    ) -> Any:
        """As the one of the client behind."""
        send: Callable[..., Any] = self._inner.request
        if _active.get() is None:
            return await send(method, url, headers=headers, **others)
        path = path_template("/" + url.split("://", 1)[-1].partition("/")[2])
        with span(f"{method} {path}", "client") as made:
            made.note(http__request__method=method, url__template=path, peer__service="hindsight")
            sent = {**(headers or {}), "traceparent": logs.traceparent.get()}
            response = await send(method, url, headers=sent, **others)
            made.note(http__response__status_code=int(response.status))
            if response.status >= 400:
                made.fail(str(response.status))
            return response
