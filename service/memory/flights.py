"""One computation per key among the tasks of a process; it lives as long as somebody waits for it."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Result = TypeVar("Result")


class _Flight(Generic[Result]):
    def __init__(self, task: asyncio.Task[Result]) -> None:
        self.task = task
        self.waiters = 0


class Flights(Generic[Key, Result]):
    """Joins callers of the same key to one running computation."""

    def __init__(self) -> None:
        self._running: dict[Key, _Flight[Result]] = {}

    def __len__(self) -> int:
        return len(self._running)

    async def join(
        self,
        key: Key,
        compute: Callable[[], Awaitable[Result]],
        patience_s: float,
        gone: "asyncio.Future[object] | None" = None,
    ) -> tuple[Result | None, bool]:
        """The result, and whether this call started it; None if `patience_s` ran out or `gone` came first.

        A caller that is cancelled, gone or out of patience leaves; the last one to leave cancels the
        computation, so that nobody's work goes on for nobody. Errors of the computation reach all.
        """
        flight = self._running.get(key)
        is_own = flight is None
        if flight is None:
            flight = _Flight(asyncio.ensure_future(_run(compute)))
            self._running[key] = flight
            flight.task.add_done_callback(lambda task: self._end(key, task))
        flight.waiters += 1
        try:
            awaited: set[asyncio.Future[Any]] = {flight.task} if gone is None else {flight.task, gone}
            await asyncio.wait(awaited, timeout=max(0.0, patience_s), return_when=asyncio.FIRST_COMPLETED)
        finally:
            flight.waiters -= 1
            if flight.waiters == 0 and not flight.task.done():
                flight.task.cancel()
                # Whoever comes now must not join what is being cancelled.
                self._forget(key, flight.task)
        if not flight.task.done():
            return None, is_own
        return flight.task.result(), is_own

    def depart(self, key: Key) -> None:
        """Called by a computation: whoever asks from now on is not served by it."""
        self._forget(key, asyncio.current_task())

    def _end(self, key: Key, task: asyncio.Task[Result]) -> None:
        self._forget(key, task)
        if not task.cancelled():
            task.exception()  # noted, so that asyncio does not complain when nobody is left to raise it to

    def _forget(self, key: Key, task: object) -> None:
        flight = self._running.get(key)
        if flight is not None and flight.task is task:
            del self._running[key]


async def _run(compute: Callable[[], Awaitable[Result]]) -> Result:
    return await compute()
