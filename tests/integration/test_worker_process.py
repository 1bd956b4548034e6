"""The worker as it ships, a process under arq, against arq's known traps.

What they have in common here: arq's jobs hold nothing, so that losing one loses nothing.

| trap of arq 0.28 | test |
|---|---|
| 1 a plain exception is not retried | `test_a_plain_exception_costs_no_turn` |
| 1 runs that SIGTERM has cut short are tries, and `max_tries` removes the job silently | \
`test_jobs_without_tries_left_hold_nothing_up`; faults/test_worker_is_told_to_stop.py |
| 2 a fixed job id loses wake-ups | `test_a_turn_that_comes_while_its_bank_is_worked_on_is_stored_too` |
| 3 `_defer_by` keeps the first deadline | `test_a_new_turn_puts_off_its_conversation_but_not_for_ever`; \
test_turns_debounce.py |
| 4 after kill -9 a job waits for its in-progress key | \
`test_a_killed_workers_bank_is_handed_out_again_when_its_claim_ends` |
| 5 a restart of Redis ends the worker | `test_it_survives_a_redis_restart`, \
`test_it_goes_on_after_its_own_connections_broke`, \
`test_it_goes_on_after_its_connections_fell_silent` |
| 6 jobs vanish 24 h after they were due | `test_a_queue_that_is_days_old_is_stored`, \
`test_jobs_that_expire_or_are_lost_hold_nothing_up` |
| 7 pickle, and arguments in logs | `test_it_stores_and_leaves_nothing_behind` |
| 8 health checks once an hour | `test_it_stores_and_leaves_nothing_behind` |
| 9 an enqueue costs 3 to 4 round trips | `test_an_add_is_one_command_and_a_window_is_one_job` |
"""

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic, time

import pytest
from redis.asyncio import Redis
from service import keyspace
from service.adapters.turns import Debounce, TurnsLog
from service.scope import BankId, JobId, bank_of

from tests.fakes.hindsight import HindsightStandIn
from tests.integration.conftest import run_api, settings_for
from tests.integration.edge import checked
from tests.integration.redis_lines import Heard, SilentLine
from tests.processes import WorkerProcess
from tests.support import RedisServer, wait_until
from tests.turns_log import add_turn, grow_old, look, pass_time, without_ttl

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
    async with Heard(redis) as heard:
        _, job_id, _ = await add_turn(log, bank, texts=("marigold one", "marigold two"))
        await done(log, job_id)
        commands = heard.commands
        await wait_until(lambda: any("arq:job:drain" in command for command in commands), "a job was seen")

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


async def test_it_goes_on_after_its_connections_fell_silent(
    redis_server: RedisServer, stand_in: HindsightStandIn, log: TurnsLog, folder: Path, bank: BankId
) -> None:
    """Trap 5, without a word: arq's own client would wait until the kernel gives up, a quarter of an hour."""
    line = SilentLine(redis_server.port)
    async with line.open() as url:
        worker = WorkerProcess(folder, url, stand_in.url)
        await worker.start()
        try:
            line.fall_silent()
            _, job_id, _ = await add_turn(log, bank)
            await done(log, job_id, 60)
        finally:
            await worker.stop()


async def test_it_stops_while_there_is_no_redis(
    worker: WorkerProcess, log: TurnsLog, redis_server: RedisServer, stand_in: HindsightStandIn, bank: BankId
) -> None:
    """In the middle of its work, too; by itself, not because it is killed for being late."""
    stand_in.fail("retain", "slow", seconds=1, times=1)
    await add_turn(log, bank)
    await wait_until(lambda: stand_in.requests_for("retain"), "the worker is at it")
    await redis_server.kill()
    try:
        # arq's own client would go on trying for a minute, and hold up whoever wants it to stop.
        await wait_until(lambda: "worker_restarts" in worker.log(), "the worker has given Redis up", 30)
        await worker.stop(timeout_s=20)
        assert worker.returncode == 0, worker.log()
    finally:
        await redis_server.start()


async def test_it_stops_while_redis_hangs(worker: WorkerProcess, redis_server: RedisServer) -> None:
    redis_server.pause()
    try:
        await worker.stop(timeout_s=29)  # a second less than Kubernetes gives it
        assert worker.returncode == 0, worker.log()
    finally:
        redis_server.resume()


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
    """Traps 2 and 6: a queue full of remains, and jobs that nobody can read."""
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


async def test_a_plain_exception_costs_no_turn(
    worker: WorkerProcess, log: TurnsLog, redis: Redis, stand_in: HindsightStandIn, bank: BankId
) -> None:
    """Trap 1: a job that breaks is not tried again by arq, but what it was to do is due again."""
    other = bank_of("default", "somebody else")
    _, job_id, [document] = await add_turn(log, bank, texts=("whole",))
    # What no code of ours writes, and none can read.
    fields = keyspace.turns(bank)
    whole = await wait_until(lambda: redis.hget(fields, document), "it is there")
    assert isinstance(whole, str)
    await redis.hset(fields, document, whole.replace("{", "<"))  # type: ignore[misc]
    await wait_until(lambda: "job_failed" in worker.log(), "a job has broken", 30)
    assert "whole" not in worker.log()
    _, others_job, _ = await add_turn(log, other)
    await done(log, others_job)

    await redis.hset(fields, document, whole)  # type: ignore[misc]
    await pass_time(redis, bank)
    await done(log, job_id)
    assert [text for _, text in stand_in.banks[bank].written] == ["whole"]


async def test_jobs_without_tries_left_hold_nothing_up(
    worker: WorkerProcess, log: TurnsLog, redis: Redis, bank: BankId
) -> None:
    """Trap 1: what arq keeps of jobs that SIGTERM has cut short five times, which it drops unseen."""
    job = json.dumps({"t": None, "f": "drain", "a": [], "k": {}, "et": 1})
    for number in range(20):
        await redis.set(f"arq:job:drain:tired{number}", job, ex=60)
        await redis.set(f"arq:retry:drain:tired{number}", 5, ex=60)
    await redis.zadd(keyspace.ARQ_QUEUE, {f"drain:tired{number}": 1 for number in range(20)})
    _, job_id, _ = await add_turn(log, bank)
    await done(log, job_id)

    async def are_dropped() -> bool:
        return not [name async for name in redis.scan_iter(match="arq:job:drain:tired*")]

    await wait_until(are_dropped, "arq has dropped them")


async def test_a_new_turn_puts_off_its_conversation_but_not_for_ever(
    redis_server: RedisServer, stand_in: HindsightStandIn, redis: Redis, folder: Path, bank: BankId
) -> None:
    """Trap 3: the first deadline is not kept, and the longest wait is."""
    quiet_s, most_s = 1.0, 3.0
    worker = WorkerProcess(folder, redis_server.url, stand_in.url, quiet_s=quiet_s, max_wait_s=most_s)
    await worker.start()
    try:
        async with TurnsLog(redis_server.url, Debounce(quiet_s, most_s, 20)) as log:
            began = monotonic()
            said = 0

            async def is_asked() -> bool:
                nonlocal said
                await add_turn(log, bank, texts=(f"turn {said}",))
                said += 1
                return bool(stand_in.requests_for("retain"))

            await wait_until(is_asked, "they are stored although somebody talks on", 20, poll_s=0.2)
            assert monotonic() - began >= most_s - 0.1, "a turn that came had put the others off"
            assert len(stand_in.requests_for("retain")[0].body["items"]) > 3
    finally:
        await worker.kill()


async def test_a_queue_that_is_days_old_is_stored(
    redis_server: RedisServer, stand_in: HindsightStandIn, log: TurnsLog, redis: Redis, folder: Path
) -> None:
    """Trap 6: after a day, and after more than a week, which ends the marks of repetitions as well."""
    jobs: dict[BankId, tuple[int, JobId]] = {}
    for days in (1, 8):
        old = bank_of("default", f"user of {days} days ago")
        _, job_id, _ = await add_turn(log, old, texts=(f"said {days} days ago",))
        jobs[old] = days, job_id
        await grow_old(redis, old, days * 86_400_000)
        # What arq still has of the jobs of then: their ids, long after what they were has expired.
        await redis.zadd(keyspace.ARQ_QUEUE, {f"drain:{days}": (time() - days * 86_400) * 1000})
    async for mark in redis.scan_iter(match="mem:seen:*"):
        await redis.delete(mark)
    worker = WorkerProcess(folder, redis_server.url, stand_in.url)
    await worker.start()
    try:
        for job_id in [job_id for _, job_id in jobs.values()]:
            await done(log, job_id)
    finally:
        await worker.stop()
    for old, (days, _) in jobs.items():
        assert [text for _, text in stand_in.banks[old].written] == [f"said {days} days ago"]
        [document] = stand_in.banks[old].documents.values()
        said_at = datetime.fromisoformat(document.item["timestamp"])
        assert abs((datetime.now(UTC) - said_at).total_seconds() - days * 86_400) < 60
    assert (await look(redis)).faults() == []
    assert await without_ttl(redis) <= {keyspace.ARQ_QUEUE}


async def test_an_add_is_one_command_and_a_window_is_one_job(
    redis_server: RedisServer, stand_in: HindsightStandIn, redis: Redis, folder: Path, user: str
) -> None:
    """Trap 9: what is accepted costs one round trip each, and no enqueue however much is said."""
    adds = 100
    settings = {"quiet_s": 1, "batch_turns": 200}
    worker = WorkerProcess(folder, redis_server.url, stand_in.url, **settings)
    async with (
        run_api(settings_for(redis_server.url, stand_in.url, **settings)) as api,
        Heard(redis) as heard,
    ):
        checked(await api.add(user, "the script is loaded now"), 202)
        before = len(await heard.until("begin"))
        for number in range(adds):
            job_id = checked(await api.add(user, f"turn {number}"), 202)["job_id"]
        commands = (await heard.until("end"))[before:]
        writes = [command for command in commands if command.upper().startswith("EVALSHA")]
        # A loop of the API's may look at Redis now and then; adds may not.
        assert len(writes) == adds
        assert len(commands) - len(writes) < adds / 10, commands
        assert not [command for command in commands if "arq" in command]

        await worker.start()
        try:
            done_job: dict[str, object] = await api.job(job_id, wait_s=30)
        finally:
            await worker.stop()
        assert done_job["status"] == "done"
        queued = [command for command in heard.commands if "PSETEX arq:job:drain" in command]
        # One a second while it is due: a busy machine may see it due twice before it is taken.
        assert 1 <= len(queued) <= 3
        retains = stand_in.requests_for("retain")
        assert sum(len(request.body["items"]) for request in retains) == adds + 1
        assert len(retains) == 1
