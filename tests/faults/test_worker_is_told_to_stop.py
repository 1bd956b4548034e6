"""Workers that are told to stop in the middle of their work again and again, as by a platform in trouble.

arq counts each run that was cut short as a try, and drops a job without a word after five (its trap 1).
What was accepted is stored all the same, once, as soon as a worker is given the time.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from signal import SIGTERM
from time import monotonic

import pytest
from redis.asyncio import Redis
from service.adapters.turns import Debounce, TurnsLog
from service.scope import JobId, bank_of

from tests.fakes.hindsight import HindsightStandIn
from tests.faults.conftest import Sizes
from tests.processes import WorkerProcess
from tests.support import RedisServer, wait_until
from tests.turns_log import add_turn, look

pytestmark = pytest.mark.anyio

# One more than arq's five tries.
TIMES = 6
USERS = 3
# Running jobs are given ten seconds to end.
LEAST_S, MOST_S = 9.0, 25.0


@pytest.fixture
async def workers(
    redis_server: RedisServer, stand_in: HindsightStandIn, folder: Path, sizes: Sizes
) -> AsyncIterator[list[WorkerProcess]]:
    await redis_server.command("FLUSHALL")
    async with AsyncExitStack() as stack:
        started = [
            WorkerProcess(folder / str(n), redis_server.url, stand_in.url, retain_timeout_s=20)
            for n in range(sizes.workers)
        ]
        for worker in started:
            stack.push_async_callback(worker.kill)
        yield started


@pytest.fixture
async def stand_in() -> AsyncIterator[HindsightStandIn]:
    async with HindsightStandIn() as server:
        yield server


async def test_what_was_cut_short_many_times_is_stored(
    redis_server: RedisServer, stand_in: HindsightStandIn, workers: list[WorkerProcess]
) -> None:
    banks = [bank_of("default", f"user {number}") for number in range(USERS)]
    stand_in.fail("retain", "hang")
    async with (
        TurnsLog(redis_server.url, Debounce(0, 60, 20)) as log,
        Redis.from_url(redis_server.url, decode_responses=True) as redis,
    ):
        accepted = [await add_turn(log, bank, texts=("one", "two")) for bank in banks]
        for time in range(TIMES):
            await asyncio.gather(*(worker.start() for worker in workers))

            def are_all_sent(time: int = time) -> bool:
                return len(stand_in.requests_for("retain")) >= USERS * (time + 1)

            await wait_until(are_all_sent, "the workers are at it", 30)
            began = monotonic()
            await asyncio.gather(*(worker.stop(timeout_s=MOST_S) for worker in workers))
            assert LEAST_S < monotonic() - began < MOST_S
            # One that had only just begun ends at once; none had to be killed.
            assert {worker.returncode for worker in workers} <= {0, -SIGTERM}, workers[0].log()
            held = await look(redis)
            assert held.documents == {document for _, _, ids in accepted for document in ids}
            assert held.claims == {}, "the next one need not wait for the claim's end"
            assert held.faults() == []
        stand_in.heal()
        await asyncio.gather(*(worker.start() for worker in workers))
        for _, job_id, _ in accepted:

            async def is_done(job_id: JobId = job_id) -> bool:
                job = await log.job(job_id)
                return job is not None and job.status == "done"

            await wait_until(is_done, "it is stored", 30)
        for bank in banks:
            assert [text for _, text in stand_in.banks[bank].written] == ["one", "two"]
