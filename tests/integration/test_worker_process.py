"""The worker as it ships, a process under arq, against arq's known traps.

The numbers are those of the list the design was made by: 1 plain exceptions are not retried, 2 fixed
job ids lose wake-ups, 3 and keep the first deadline, 4 a killed worker's jobs wait for their
in-progress key, 5 a Redis restart ends the worker, 6 jobs expire, 7 pickle, 8 long health checks,
9 costly enqueues. What they have in common here: arq's jobs hold nothing, so that losing one loses nothing.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.asyncio import Redis
from service import keyspace
from service.adapters.turns import Debounce, TurnsLog
from service.scope import BankId, JobId, bank_of

from tests.fakes.hindsight import HindsightStandIn
from tests.processes import WorkerProcess
from tests.support import RedisServer, wait_until
from tests.turns_log import add_turn, look, without_ttl

pytestmark = pytest.mark.anyio


@pytest.fixture
async def redis(redis_server: RedisServer) -> AsyncIterator[Redis]:
    await redis_server.command("FLUSHALL")
    async with Redis.from_url(redis_server.url, decode_responses=True) as client:
        yield client


@pytest.fixture
async def log(redis_server: RedisServer, redis: Redis) -> AsyncIterator[TurnsLog]:
    async with TurnsLog(redis_server.url, Debounce(0, 60, 20)) as opened:
        yield opened


@pytest.fixture
async def worker(
    redis_server: RedisServer, stand_in: HindsightStandIn, redis: Redis, folder: Path
) -> AsyncIterator[WorkerProcess]:
    """A running worker with two slots."""
    process = WorkerProcess(folder, redis_server.url, stand_in.url, worker_jobs=2, retain_timeout_s=20)
    await process.start()
    yield process
    await process.kill()


@pytest.fixture
def bank(user: str) -> BankId:
    return bank_of("default", user)


async def done(log: TurnsLog, job_id: JobId, timeout_s: float = 30) -> None:
    async def is_done() -> bool:
        job = await log.job(job_id)
        return job is not None and job.status == "done"

    await wait_until(is_done, "the job is done", timeout_s)


async def test_it_stores_and_leaves_nothing_behind(
    worker: WorkerProcess, log: TurnsLog, redis: Redis, stand_in: HindsightStandIn, bank: BankId
) -> None:
    """Traps 7 and 8: JSON, no arguments, keys that expire, a heartbeat that tells soon."""
    commands: list[str] = []
    note = commands.append
    watching = asyncio.Event()

    async def watch() -> None:
        async with redis.monitor() as monitor:
            watching.set()
            async for command in monitor.listen():
                note(command["command"])

    task = asyncio.create_task(watch())
    await watching.wait()
    _, job_id, _ = await add_turn(log, bank, texts=("marigold one", "marigold two"))
    await done(log, job_id)
    await wait_until(lambda: any("arq:job:drain" in command for command in commands), "a job was seen")
    task.cancel()
    await asyncio.wait([task])

    queued = [command for command in commands if command.upper().startswith("PSETEX ARQ:JOB:DRAIN")]
    assert queued
    for command in queued:
        job = json.loads(command[command.index("{") :])
        assert (job["f"], job["a"], job["k"]) == ("drain", [], {})
    assert not any("marigold" in command for command in commands if "arq" in command)
    async for key in redis.scan_iter():
        if await redis.type(key) == "hash":
            assert "marigold" not in str(await redis.hgetall(key))  # type: ignore[misc]
    assert await without_ttl(redis) <= {keyspace.ARQ_QUEUE}
    assert 0 < await redis.pttl(keyspace.ARQ_HEALTH) <= 10_000
    assert [text for _, text in stand_in.banks[bank].written] == ["marigold one", "marigold two"]


async def test_a_turn_that_comes_while_its_bank_is_worked_on_is_stored_too(
    worker: WorkerProcess, log: TurnsLog, stand_in: HindsightStandIn, bank: BankId
) -> None:
    """Trap 2: there is no wake-up to lose."""
    stand_in.fail("retain", "slow", seconds=1, times=1)
    await add_turn(log, bank, texts=("one",))
    await wait_until(lambda: stand_in.requests_for("retain"), "the worker is at it")
    _, job_id, _ = await add_turn(log, bank, texts=("two",))
    await done(log, job_id)
    assert [text for _, text in stand_in.banks[bank].written] == ["one", "two"]


async def test_it_survives_a_redis_restart(
    worker: WorkerProcess,
    log: TurnsLog,
    redis_server: RedisServer,
    stand_in: HindsightStandIn,
    bank: BankId,
) -> None:
    """Trap 5, idle and in the middle of its work; what was accepted survives with it."""
    await redis_server.kill()
    await redis_server.start()
    _, job_id, _ = await add_turn(log, bank, texts=("after",))
    await done(log, job_id, 60)

    stand_in.fail("retain", "slow", seconds=1, times=1)
    _, job_id, _ = await add_turn(log, bank, texts=("during",))
    await wait_until(lambda: len(stand_in.requests_for("retain")) == 2, "the worker is at it")
    await redis_server.kill()
    await redis_server.start()
    await done(log, job_id, 60)
    assert [text for _, text in stand_in.banks[bank].written] == ["after", "during"]
    assert worker.is_running


async def test_it_goes_on_after_its_own_connections_broke(
    worker: WorkerProcess, log: TurnsLog, redis: Redis, bank: BankId
) -> None:
    """Trap 5, in every window: arq lets out what breaks while it watches a job or queues a cron job."""

    async def restarted() -> bool:
        assert worker.is_running, worker.log()
        await redis.client_kill_filter(_type="normal", skipme=True)
        return "worker_restarts" in worker.log()

    await wait_until(restarted, "a connection broke where arq does not try again", 60)
    _, job_id, _ = await add_turn(log, bank)
    await done(log, job_id, 30)
    await worker.stop()
    assert await redis.exists(keyspace.ARQ_HEALTH) == 0


async def test_it_stops_while_there_is_no_redis(worker: WorkerProcess, redis_server: RedisServer) -> None:
    await redis_server.kill()
    await worker.stop()
    await redis_server.start()


async def test_a_killed_workers_bank_is_handed_out_again_when_its_claim_ends(
    worker: WorkerProcess, log: TurnsLog, redis: Redis, stand_in: HindsightStandIn, bank: BankId
) -> None:
    """Trap 4: the jobs of the dead block nothing, however many there are."""
    stand_in.fail("retain", "commit_then_hang", times=1)
    _, job_id, _ = await add_turn(log, bank, texts=("once",))
    await wait_until(lambda: stand_in.requests_for("retain"), "the worker is at it", 30)
    for number in range(100):
        # As many more as if workers had been killed all day.
        await redis.zadd(keyspace.ARQ_QUEUE, {f"drain:dead{number}": 1})
        await redis.set(f"arq:in-progress:drain:dead{number}", "1", ex=70)
    await worker.kill()
    await worker.start()
    await done(log, job_id, 30)
    assert [document.writes for document in stand_in.banks[bank].documents.values()] == [1]

    async def is_given_back() -> bool:
        return (await look(redis)).claims == {}

    await wait_until(is_given_back, "the claim is given back")


async def test_it_ends_its_work_when_it_is_told_to_stop(
    worker: WorkerProcess, log: TurnsLog, redis: Redis, stand_in: HindsightStandIn, bank: BankId
) -> None:
    stand_in.fail("retain", "slow", seconds=1, times=1)
    _, job_id, _ = await add_turn(log, bank, texts=("last",))
    await wait_until(lambda: stand_in.requests_for("retain"), "the worker is at it")
    await worker.stop()
    job = await log.job(job_id)
    assert job is not None
    assert job.status == "done"
    held = await look(redis)
    assert (held.claims, held.due) == ({}, {})
    assert await redis.exists(keyspace.ARQ_HEALTH) == 0


async def test_dispatch_runs_although_all_slots_are_taken(
    worker: WorkerProcess, log: TurnsLog, redis: Redis, stand_in: HindsightStandIn
) -> None:
    """And what it queues does not pile up."""
    stand_in.fail("retain", "hang", times=2)
    for number in range(12):
        await add_turn(log, bank_of("default", f"user {number}"))
    await wait_until(lambda: len(stand_in.requests_for("retain")) == 2, "both slots hang")

    async def dispatched() -> set[str]:
        return {key async for key in redis.scan_iter(match="arq:in-progress:dispatch:*")}

    before = await dispatched()

    async def ran_thrice() -> bool:
        assert await redis.zcard(keyspace.ARQ_QUEUE) < 12
        return len(await dispatched() - before) >= 3

    await wait_until(ran_thrice, "dispatch has run three times", 15)
    assert len(stand_in.requests_for("retain")) == 2, "two slots are two slots"
    stand_in.heal()

    async def is_empty() -> bool:
        return not (await look(redis)).documents

    await wait_until(is_empty, "all are stored once the slots are free", 40)


async def test_jobs_that_expire_or_are_lost_hold_nothing_up(
    worker: WorkerProcess, log: TurnsLog, redis: Redis, bank: BankId
) -> None:
    """Traps 1, 2 and 6: a queue full of remains, and jobs that nobody can read."""
    await redis.zadd(keyspace.ARQ_QUEUE, {f"drain:expired{number}": 1 for number in range(20)})
    await redis.set("arq:job:drain:unreadable", "not json", ex=60)
    await redis.zadd(keyspace.ARQ_QUEUE, {"drain:unreadable": 2})
    _, job_id, _ = await add_turn(log, bank)
    await done(log, job_id)

    async def is_clean() -> bool:
        return int(await redis.zcard(keyspace.ARQ_QUEUE)) <= 2

    await wait_until(is_clean, "the remains are gone")
    assert worker.is_running


async def test_a_bank_that_fell_off_the_list_is_found_by_the_sweep(
    redis_server: RedisServer,
    stand_in: HindsightStandIn,
    log: TurnsLog,
    redis: Redis,
    folder: Path,
    bank: BankId,
) -> None:
    _, job_id, _ = await add_turn(log, bank)
    await redis.delete(keyspace.DUE, keyspace.conversations(bank))
    worker = WorkerProcess(folder, redis_server.url, stand_in.url)
    await worker.start()
    try:
        await done(log, job_id)
    finally:
        await worker.stop()
    assert "banks_rearmed" in worker.log()
