"""Requests and how their answers are read: what the blocking and the asyncio client share."""

import json
import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Final, Generic, TypeVar, cast
from urllib.parse import quote

import httpx

from service.client.errors import (
    ERRORS,
    ApiError,
    ExportCut,
    MemoryClientError,
    StillWaiting,
    Unavailable,
    UnexpectedReply,
    Unreachable,
)
from service.client.options import AddOptions, ForgetOptions, ListOptions, RecallOptions, ReflectOptions
from service.client.results import Added, Exported, Forgotten, Job, Memory, Page, Recall, Reflection

POLL_S: Final = 0.2
_FIRST_PAUSE_S: Final = 0.2
_LONGEST_PAUSE_S: Final = 30.0
# The longest that the service lets one request wait for a job.
_LONGEST_WAIT_S: Final = 30.0
_ENDED: Final = frozenset({"done", "failed", "cancelled"})
_NEVER_SENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One request and how its answer is read; `is_safe`: a repetition does no harm and costs nothing."""

    method: str
    path: str
    read: Callable[[Any], T]
    is_safe: bool
    body: Mapping[str, object] | None = None
    params: Mapping[str, str] | None = None
    more_s: float = 0

    def request(self, timeout_s: float) -> dict[str, Any]:
        """Arguments for httpx."""
        timeout = httpx.Timeout(timeout_s, read=timeout_s + self.more_s)
        asked = {"method": self.method, "url": self.path, "params": self.params, "timeout": timeout}
        return asked if self.body is None else {**asked, "json": self.body}

    def result(self, reply: httpx.Response) -> T:
        """What was asked for; raises an `ApiError` or `UnexpectedReply`."""
        check(reply)
        try:
            return self.read(reply.json())
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as exc:
            raise UnexpectedReply("This is no answer of the memory service; is the URL right?") from exc

    def pause_s(self, failure: Exception, attempt: int, retries: int) -> float:
        """How long to wait before the next try; raises what the caller is to see if there is none."""
        error = failure if isinstance(failure, MemoryClientError) else unreachable(failure)
        is_passing = self.is_safe and isinstance(error, Unreachable | Unavailable)
        if attempt >= retries or not (is_passing or isinstance(failure, _NEVER_SENT)):
            raise error from (None if error is failure else failure)
        asked_s = error.retry_after_s if isinstance(error, ApiError) else None
        wait_s = _FIRST_PAUSE_S * 2**attempt if asked_s is None else asked_s
        # Not all at once, where many wait for the same thing.
        return min(_LONGEST_PAUSE_S, wait_s * random.uniform(1, 1.25))


def unreachable(failure: Exception) -> Unreachable:
    """The error for one of httpx's."""
    return Unreachable(f"The memory service does not answer ({type(failure).__name__}).")


def check(reply: httpx.Response) -> None:
    """Raises the `ApiError` that the reply is, if it is one; its body must have been read."""
    if reply.is_success:
        return
    try:
        said = reply.json()["error"]
        code, message, request_id = str(said["code"]), str(said["message"]), str(said["request_id"])
    except (ValueError, LookupError, TypeError, RecursionError):
        code, message, request_id = "unknown", "The answer is not the memory service's own.", ""
    after = reply.headers.get("retry-after", "")
    kind = ERRORS.get(reply.status_code, ApiError)
    after_s = float(after) if after.isascii() and after.isdigit() else None
    raise kind(reply.status_code, code, message, request_id, after_s)


def _made(kind: type[T], data: Mapping[str, Any], **given: object) -> T:
    """A result of what is known of it: a newer service may say more."""
    names = [field.name for field in fields(cast("Any", kind))]
    return kind(**{name: given[name] if name in given else data[name] for name in names})


def _memories(data: Mapping[str, Any]) -> tuple[Memory, ...]:
    return tuple(_made(Memory, one) for one in data["memories"])


def _wire(user_id: str, options: Mapping[str, Any], **more: object) -> dict[str, object]:
    """A body: lists of words as comma lists, times with their zone."""
    body: dict[str, object] = {"user_id": user_id, **more}
    for name, value in options.items():
        if isinstance(value, datetime):
            # As Python reads it: without a zone it is local time.
            body[name] = (value if value.tzinfo else value.astimezone()).isoformat()
        elif name in ("kinds", "fact_types", "tags"):
            words = [value] if isinstance(value, str) else list(value)
            if any("," in word for word in words):
                raise ValueError(f"A word in {name} must not hold a comma.")
            body[name] = ",".join(words)
        else:
            body[name] = value
    return body


def recall(user_id: str, query: str, options: RecallOptions) -> Call[Recall]:
    """What bears on a query."""

    def read(data: Any) -> Recall:
        return _made(Recall, data, memories=_memories(data))

    return Call("POST", "/memory/recall", read, True, _wire(user_id, options, query=query))


def add(user_id: str, options: AddOptions) -> Call[Added]:
    """A turn; one with an id can be sent again."""
    is_safe = bool(options.get("turn_id"))
    return Call("POST", "/memory/add", lambda data: _made(Added, data), is_safe, _wire(user_id, options))


def job(job_id: str, wait_s: float) -> Call[Job]:
    """How a job stands, once it has ended or `wait_s` are over."""
    return Call(
        "GET",
        f"/memory/jobs/{quote(job_id, safe='')}",
        lambda data: _made(Job, data),
        True,
        params={"wait_s": f"{wait_s:.3f}"},
        more_s=wait_s,
    )


def forget(user_id: str, options: ForgetOptions) -> Call[Forgotten]:
    """Never sent twice: a second receipt would say that there was nothing."""

    def read(data: Any) -> Forgotten:
        return _made(Forgotten, data["forgotten"], verified=data["verified"], request_id=data["request_id"])

    return Call("POST", "/memory/forget", read, False, _wire(user_id, options))


def list_page(user_id: str, options: ListOptions) -> Call[Page]:
    """A page of memories."""

    def read(data: Any) -> Page:
        return _made(Page, data, memories=_memories(data))

    return Call("POST", "/memory/list", read, True, _wire(user_id, options))


def correct(user_id: str, memory_id: str, text: str) -> Call[Memory]:
    """Another text for a memory."""
    body = {"user_id": user_id, "memory_id": memory_id, "text": text}
    return Call("POST", "/memory/correct", lambda data: _made(Memory, data["memory"]), False, body)


def reflect(user_id: str, query: str, options: ReflectOptions) -> Call[Reflection]:
    """Not sent again: a language model is paid for it."""
    body = _wire(user_id, options, query=query)
    return Call("POST", "/memory/reflect", lambda data: _made(Reflection, data), False, body)


def export(user_id: str, timeout_s: float) -> dict[str, Any]:
    """Arguments for httpx's `stream`: the user in a header, since URLs end up in logs."""
    headers = {"X-Memory-User-Id": quote(user_id, safe="")}
    return {"method": "GET", "url": "/memory/export", "headers": headers, "timeout": timeout_s}


class Lines:
    """The lines of an export, out of pieces; JSON may hold what `str.splitlines` takes for a line's end."""

    def __init__(self) -> None:
        self._rest = b""
        self._count = 0
        self._has_ended = False

    def feed(self, piece: bytes) -> Iterator[Exported]:
        """The memories of the lines that are whole now."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            try:
                data = json.loads(line)
                if data["type"] == "end":
                    self._has_ended = data["memories"] + data["pending"] == self._count
                    continue
                memory = _made(Exported, data, tags=tuple(data["tags"]))
            except (ValueError, LookupError, TypeError, RecursionError) as exc:
                raise UnexpectedReply("A line of the export cannot be read.") from exc
            self._count += 1
            yield memory

    def close(self) -> None:
        """Raises `ExportCut` unless all of it has come."""
        if not self._has_ended:
            raise ExportCut(f"The export was cut off after {self._count} memories.")


def share_s(ends: float) -> float:
    """How long the next request for a job may wait for its end."""
    return max(0.0, min(_LONGEST_WAIT_S, ends - time.monotonic()))


def is_over(job: Job, ends: float) -> bool:
    """Whether the job has ended; raises `StillWaiting` when the time has."""
    if job.status in _ENDED:
        return True
    if time.monotonic() >= ends:
        raise StillWaiting(job)
    return False
