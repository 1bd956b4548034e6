"""The two clients; all that differs between them is how they wait."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator
from types import TracebackType
from typing import Any, Final, Self, TypeVar, Unpack

import httpx

from service.client import calls
from service.client.errors import MemoryClientError
from service.client.options import AddOptions, ForgetOptions, ListOptions, RecallOptions, ReflectOptions
from service.client.results import Added, Exported, Forgotten, Job, Memory, Page, Recall, Reflection

_URL: Final = "DIFY_MEMORY_URL"
_KEY: Final = "DIFY_MEMORY_API_KEY"

T = TypeVar("T")


class _Target:
    """Where the service is and how patient the client."""

    def __init__(self, url: str | None, api_key: str | None, timeout_s: float, retries: int) -> None:
        base_url = url or os.environ.get(_URL, "")
        key = api_key or os.environ.get(_KEY, "")
        if not base_url.startswith(("http://", "https://")) or not key:
            raise ValueError(f"Give url (http://…) and api_key, or set {_URL} and {_KEY}.")
        if not (key.isascii() and key.isprintable()):
            raise ValueError("The API key has characters that no key has; was a line end copied with it?")
        try:
            httpx.URL(base_url)
        except httpx.InvalidURL as exc:
            raise ValueError("The URL cannot be read.") from exc
        self.timeout_s = timeout_s
        self.retries = retries
        self.options: dict[str, Any] = {
            "base_url": base_url.rstrip("/"),
            "headers": {"Authorization": f"Bearer {key}"},
        }


class MemoryClient:
    """Blocking; use it as a context manager or call `close`. Threads may share one.

    `timeout_s` bounds each wait for the service (seconds), `retries` how often a request is repeated.
    Raises `ValueError` without a URL and a key.
    """

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        timeout_s: float = 30,
        retries: int = 2,
    ) -> None:
        self._target = _Target(url, api_key, timeout_s, retries)
        self._http = httpx.Client(**self._target.options)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def recall(self, user_id: str, query: str, **options: Unpack[RecallOptions]) -> Recall:
        """What is remembered of a user that bears on `query`."""
        return self._ask(calls.recall(user_id, query, options))

    def add(self, user_id: str, **turn: Unpack[AddOptions]) -> Added:
        """Remember a turn; it is safe once this returns. Give a `turn_id` so that it can be repeated."""
        return self._ask(calls.add(user_id, turn))

    def job(self, job_id: str) -> Job:
        """How the storing of a turn stands."""
        return self._ask(calls.job(job_id, 0))

    def wait(self, job_id: str, timeout_s: float = 60) -> Job:
        """The job once it has ended, well or not: see `status`. Raises `StillWaiting` after `timeout_s`."""
        ends = time.monotonic() + timeout_s
        while True:
            job = self._ask(calls.job(job_id, calls.share_s(ends)))
            if calls.is_over(job, ends):
                return job
            time.sleep(calls.POLL_S)

    def forget(self, user_id: str, **what: Unpack[ForgetOptions]) -> Forgotten:
        """Remove one memory, one conversation or all of a user; gone everywhere once this returns."""
        return self._ask(calls.forget(user_id, what))

    def list_memories(self, user_id: str, **options: Unpack[ListOptions]) -> Page:
        """A page of what is remembered of a user, newest first."""
        return self._ask(calls.list_page(user_id, options))

    def correct(self, user_id: str, memory_id: str, text: str) -> Memory:
        """Give a memory another text."""
        return self._ask(calls.correct(user_id, memory_id, text))

    def reflect(self, user_id: str, query: str, **options: Unpack[ReflectOptions]) -> Reflection:
        """An answer that a language model draws from a user's memories; takes seconds."""
        return self._ask(calls.reflect(user_id, query, options))

    def export(self, user_id: str) -> Iterator[Exported]:
        """All that is remembered of a user, as it comes; raises `ExportCut` if it ends too soon."""
        lines = calls.Lines()
        try:
            with self._http.stream(**calls.export(user_id, self._target.timeout_s)) as reply:
                if not reply.is_success:
                    reply.read()
                calls.check(reply)
                for piece in reply.iter_bytes():
                    yield from lines.feed(piece)
        except httpx.RequestError as exc:
            raise calls.unreachable(exc) from exc
        lines.close()

    def _ask(self, call: calls.Call[T]) -> T:
        attempt = 0
        while True:
            try:
                return call.result(self._http.request(**call.request(self._target.timeout_s)))
            except (httpx.RequestError, MemoryClientError) as exc:
                pause_s = call.pause_s(exc, attempt, self._target.retries)
            attempt += 1
            time.sleep(pause_s)


class AsyncMemoryClient:
    """The same for asyncio; use it as an async context manager or call `aclose`. Tasks may share one."""

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        timeout_s: float = 30,
        retries: int = 2,
    ) -> None:
        self._target = _Target(url, api_key, timeout_s, retries)
        self._http = httpx.AsyncClient(**self._target.options)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def recall(self, user_id: str, query: str, **options: Unpack[RecallOptions]) -> Recall:
        """See `MemoryClient.recall`."""
        return await self._ask(calls.recall(user_id, query, options))

    async def add(self, user_id: str, **turn: Unpack[AddOptions]) -> Added:
        """See `MemoryClient.add`."""
        return await self._ask(calls.add(user_id, turn))

    async def job(self, job_id: str) -> Job:
        """See `MemoryClient.job`."""
        return await self._ask(calls.job(job_id, 0))

    async def wait(self, job_id: str, timeout_s: float = 60) -> Job:
        """See `MemoryClient.wait`."""
        ends = time.monotonic() + timeout_s
        while True:
            job = await self._ask(calls.job(job_id, calls.share_s(ends)))
            if calls.is_over(job, ends):
                return job
            await asyncio.sleep(calls.POLL_S)

    async def forget(self, user_id: str, **what: Unpack[ForgetOptions]) -> Forgotten:
        """See `MemoryClient.forget`."""
        return await self._ask(calls.forget(user_id, what))

    async def list_memories(self, user_id: str, **options: Unpack[ListOptions]) -> Page:
        """See `MemoryClient.list_memories`."""
        return await self._ask(calls.list_page(user_id, options))

    async def correct(self, user_id: str, memory_id: str, text: str) -> Memory:
        """See `MemoryClient.correct`."""
        return await self._ask(calls.correct(user_id, memory_id, text))

    async def reflect(self, user_id: str, query: str, **options: Unpack[ReflectOptions]) -> Reflection:
        """See `MemoryClient.reflect`."""
        return await self._ask(calls.reflect(user_id, query, options))

    async def export(self, user_id: str) -> AsyncIterator[Exported]:
        """See `MemoryClient.export`."""
        lines = calls.Lines()
        try:
            async with self._http.stream(**calls.export(user_id, self._target.timeout_s)) as reply:
                if not reply.is_success:
                    await reply.aread()
                calls.check(reply)
                async for piece in reply.aiter_bytes():
                    for memory in lines.feed(piece):
                        yield memory
        except httpx.RequestError as exc:
            raise calls.unreachable(exc) from exc
        lines.close()

    async def _ask(self, call: calls.Call[T]) -> T:
        attempt = 0
        while True:
            try:
                return call.result(await self._http.request(**call.request(self._target.timeout_s)))
            except (httpx.RequestError, MemoryClientError) as exc:
                pause_s = call.pause_s(exc, attempt, self._target.retries)
            attempt += 1
            await asyncio.sleep(pause_s)
