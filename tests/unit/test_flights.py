"""Flights: one computation per key, which lives as long as somebody waits for it."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from service.memory.flights import Flights

from tests.support import wait_until

pytestmark = pytest.mark.anyio


class Work:
    """A computation that ends when it is told to, and knows how often it was started and cancelled."""

    def __init__(self) -> None:
        self.started = 0
        self.cancelled = 0
        self.end = asyncio.Event()
        self.error: Exception | None = None

    async def __call__(self) -> str:
        self.started += 1
        number = self.started
        try:
            await self.end.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.error is not None:
            raise self.error
        return f"result {number}"


class Tasks:
    """The tasks that came into being after this object."""

    def __init__(self) -> None:
        self._before = asyncio.all_tasks()

    def __len__(self) -> int:
        return len(asyncio.all_tasks() - self._before)


async def test_callers_of_one_key_share_one_computation_and_others_do_not() -> None:
    flights: Flights[str, str] = Flights()
    work, other = Work(), Work()
    callers = [asyncio.create_task(flights.join("a", work, 5)) for _ in range(64)]
    apart = asyncio.create_task(flights.join("b", other, 5))
    await wait_until(lambda: work.started and other.started, "both have started")
    assert len(flights) == 2
    work.end.set()
    other.end.set()
    results = await asyncio.gather(*callers)
    assert {result for result, _ in results} == {"result 1"}
    assert [is_own for _, is_own in results].count(True) == 1
    assert await apart == ("result 1", True)
    assert work.started == 1
    assert len(flights) == 0


async def test_each_waits_only_as_long_as_it_wants() -> None:
    flights: Flights[str, str] = Flights()
    work = Work()
    patient = asyncio.create_task(flights.join("a", work, 30))
    await wait_until(lambda: work.started, "the work has started")
    assert await flights.join("a", work, 0.01) == (None, False)
    assert await flights.join("a", work, 0) == (None, False)
    assert await flights.join("a", work, -1) == (None, False)
    assert not patient.done()
    assert work.cancelled == 0
    work.end.set()
    assert await patient == ("result 1", True)


@pytest.mark.parametrize("how", ["cancelled", "impatient", "gone"])
async def test_the_last_to_leave_ends_the_work_and_nothing_stays(how: str) -> None:
    tasks = Tasks()
    flights: Flights[str, str] = Flights()
    work = Work()
    gone: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    first = asyncio.create_task(flights.join("a", work, 30))
    await wait_until(lambda: work.started, "the work has started")
    last = asyncio.create_task(flights.join("a", work, 0.05 if how == "impatient" else 30, gone))
    await wait_until(lambda: len(tasks) == 3, "the second has joined")
    first.cancel()
    await asyncio.wait([first])
    assert work.cancelled == 0
    if how == "cancelled":
        last.cancel()
    elif how == "gone":
        gone.set_result({"type": "http.disconnect"})
    await asyncio.wait([last])
    assert last.cancelled() if how == "cancelled" else last.result() == (None, False)
    await wait_until(lambda: not tasks, "no task is left")
    assert work.cancelled == 1
    assert len(flights) == 0


async def test_a_flight_that_is_being_cancelled_is_not_joined() -> None:
    tasks = Tasks()
    flights: Flights[str, str] = Flights()
    is_winding_down, may_end = asyncio.Event(), asyncio.Event()

    async def stubborn() -> str:
        try:
            await asyncio.Event().wait()
        finally:
            is_winding_down.set()
            await may_end.wait()
        return ""

    assert await flights.join("a", stubborn, 0) == (None, True)
    work = Work()
    work.end.set()
    again = asyncio.create_task(flights.join("a", work, 5))
    assert await again == ("result 1", True)
    may_end.set()
    await wait_until(lambda: not tasks, "no task is left")
    assert len(flights) == 0


async def test_who_comes_after_the_departure_gets_a_flight_of_its_own() -> None:
    flights: Flights[str, str] = Flights()
    works: list[Work] = [Work(), Work()]

    def departing(work: Work) -> Callable[[], Awaitable[str]]:
        async def compute() -> str:
            flights.depart("a")
            return f"{works.index(work)}: {await work()}"

        return compute

    # Both are there before the flight has begun, so that one serves both.
    early = [asyncio.create_task(flights.join("a", departing(works[0]), 5)) for _ in range(2)]
    await wait_until(lambda: works[0].started, "the first has departed")
    late = asyncio.create_task(flights.join("a", departing(works[1]), 5))
    await wait_until(lambda: works[1].started, "the second has departed")
    works[1].end.set()
    assert await late == ("1: result 1", True)
    works[0].end.set()
    assert {result for result, _ in await asyncio.gather(*early)} == {"0: result 1"}
    assert len(flights) == 0


async def test_an_error_reaches_those_who_wait_and_nobody_later() -> None:
    flights: Flights[str, str] = Flights()
    work = Work()
    work.error = ValueError("no")
    callers = [asyncio.create_task(flights.join("a", work, 5)) for _ in range(3)]
    await wait_until(lambda: work.started, "the work has started")
    work.end.set()
    results = await asyncio.gather(*callers, return_exceptions=True)
    assert all(isinstance(result, ValueError) for result in results)
    work.error = None
    assert await flights.join("a", work, 5) == ("result 2", True)


async def test_an_error_that_nobody_waits_for_is_not_complained_about(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tasks = Tasks()
    flights: Flights[str, str] = Flights()

    async def broken() -> str:
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("while it was cancelled")

    assert await flights.join("a", broken, 0.01) == (None, True)
    await wait_until(lambda: not tasks, "no task is left")
    assert not caplog.records


class Machine:
    """Callers of two keys, whose computations end when a step says so."""

    def __init__(self) -> None:
        self.flights: Flights[int, int] = Flights()
        self.running = {0: 0, 1: 0}
        self.ends: dict[int, asyncio.Future[int]] = {}
        self.callers: list[tuple[int, asyncio.Task[tuple[int | None, bool]]]] = []

    async def _compute(self, key: int) -> int:
        self.running[key] += 1
        assert self.running[key] == 1, "two computations of one key"
        end: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.ends[key] = end
        try:
            return await end
        finally:
            self.running[key] -= 1

    async def join(self, number: int) -> None:
        key = number % 2
        joining = self.flights.join(key, lambda: self._compute(key), 5)
        self.callers.append((key, asyncio.create_task(joining)))

    async def cancel(self, number: int) -> None:
        if self.callers:
            self.callers[number % len(self.callers)][1].cancel()

    async def end(self, number: int) -> None:
        self._finish(number % 2, None)

    async def fail(self, number: int) -> None:
        self._finish(number % 2, ValueError())

    def _finish(self, key: int, error: Exception | None) -> None:
        end = self.ends.get(key)
        if end is None or end.done():
            return
        if error is None:
            end.set_result(key)
        else:
            end.set_exception(error)

    async def turn(self, number: int) -> None:
        for _ in range(number):
            await asyncio.sleep(0)

    async def finish(self) -> None:
        """Let all computations end, and look at what callers got."""
        await self.turn(5)
        for key in self.ends:
            self._finish(key, None)
        for key, caller in self.callers:
            await asyncio.wait([caller], timeout=1)
            assert caller.done()
            if not caller.cancelled() and caller.exception() is None:
                assert caller.result()[0] == key
        await self.turn(5)
        assert len(self.flights) == 0


STEPS = st.lists(
    st.tuples(st.sampled_from(["join", "cancel", "end", "fail", "turn"]), st.integers(0, 5)), max_size=40
)


@settings(max_examples=150, deadline=None)
@given(steps=STEPS)
def test_whatever_callers_do_one_runs_at_a_time_and_nothing_stays(steps: list[tuple[str, int]]) -> None:
    async def run() -> None:
        tasks = Tasks()
        machine = Machine()
        for step, number in steps:
            await getattr(machine, step)(number)
        await machine.finish()
        assert not tasks

    asyncio.run(run())
