"""Failures reported on products of this kind, replayed on add through the API: rows 8, 9, 10 and 14.

The others that concern add are where their subject is, with the report's number above each: rows 1, 2
and 3 in test_api_identity, 4 to 7, the parts of 8 and 16 in test_api_turns.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from time import time
from typing import Any

import pytest
from redis.asyncio import Redis
from service import keyspace
from service.adapters.turns import TurnsLog
from service.scope import bank_of

from tests.fakes.hindsight import HindsightStandIn
from tests.fakes.hindsight_store import Json, Operation, Refused, Store
from tests.integration.conftest import Api, Workshop, open_workshop
from tests.integration.edge import checked, texts_of
from tests.processes import WorkerProcess
from tests.support import RedisServer, wait_until
from tests.turns_log import pass_time

pytestmark = pytest.mark.anyio
TEXT = "My locker code is quokka"


def written(stand_in: HindsightStandIn, user: str) -> list[str]:
    """The user's texts in the order of commit."""
    bank = stand_in.banks.get(bank_of("default", user))
    return [text for _, text in bank.written] if bank else []


@pytest.fixture
async def worker(redis_server: RedisServer, api: Api, folder: Path) -> AsyncIterator[WorkerProcess]:
    """A worker process for the API of this test."""
    process = WorkerProcess(folder, redis_server.url, api.settings.hindsight_url, max_attempts=1)
    await process.start()
    yield process
    await process.kill()


# Row 8 (supermemory#1203, hindsight#1817): over 64 KiB wedges the queue and cannot be deleted.
async def test_row_8_a_turn_over_64_kib_holds_no_later_one_up_and_can_be_deleted(
    api: Api, workshop: Workshop, stand_in: HindsightStandIn, user: str
) -> None:
    long = " ".join(f"Sentence {number} is about the harbour." for number in range(2500))
    assert len(long.encode()) > 65_536
    big = checked(await api.add(user, long, conversation_id="1"), 202)
    later = checked(await api.add(user, TEXT, conversation_id="2"), 202)
    stand_in.fail("retain", "status", status=413, times=4)
    while await workshop.work():
        pass
    for job_id in (big["job_id"], later["job_id"]):
        assert (await api.job(job_id, wait_s=1))["status"] in ("done", "failed")
    assert f"User: {TEXT}" in written(stand_in, user)
    forgotten = await api.client.post("/memory/forget", data={"user_id": user, "all": "true"})
    checked(forgotten, 200)
    bank = stand_in.banks.get(bank_of("default", user))
    assert bank is None or not bank.documents


# Row 9 (hindsight#4065, mem0#6515): 8 concurrent adds of one user, all acknowledged, 3 survive; duplicates.
async def test_row_9_eight_adds_at_once_are_eight_memories_once_each(
    api: Api, workshop: Workshop, stand_in: HindsightStandIn, user: str
) -> None:
    async with open_workshop(api.settings) as another:
        texts = [f"Fact number {number} about me" for number in range(8)]
        adds = [api.add(user, text, conversation_id=str(n % 3)) for n, text in enumerate(texts)]
        repeated = [api.add(user, text, conversation_id=str(n % 3)) for n, text in enumerate(texts)]
        replies, *_ = await asyncio.gather(asyncio.gather(*adds, *repeated), workshop.work(), another.work())
        statuses = [checked(reply, 202)["status"] for reply in replies]
        assert sorted(statuses) == ["duplicate"] * 8 + ["queued"] * 8
        for reply in replies:

            async def is_done(job_id: str = reply.json()["job_id"]) -> bool:
                await asyncio.gather(workshop.work(), another.work())
                return (await api.job(job_id))["status"] == "done"

            await wait_until(is_done, "the job is done")
    assert sorted(written(stand_in, user)) == sorted(f"User: {text}" for text in texts)
    bank = stand_in.banks[bank_of("default", user)]
    assert sorted(bank.texts) == sorted(f"User: {text}" for text in texts)


# Row 10 (hermes-agent#71422): the backend commits, the reply times out, the caller retries.
@pytest.mark.parametrize("fault", ["commit_then_close", "commit_then_hang", "cut"])
async def test_row_10_a_lost_reply_is_one_memory_a_done_job_and_a_reason_in_words(
    api: Api, workshop: Workshop, stand_in: HindsightStandIn, user: str, fault: Any
) -> None:
    stand_in.fail("retain", fault, times=2)
    added = checked(await api.add(user, TEXT, turn_id="run-1"), 202)
    seen: list[Any] = []

    async def is_done() -> bool:
        # The caller is impatient, too.
        again = checked(await api.add(user, TEXT, turn_id="run-1"), 202)
        assert (again["status"], again["job_id"]) == ("duplicate", added["job_id"])
        async with Redis.from_url(api.settings.redis_url, decode_responses=True) as redis:
            await pass_time(redis)
        await workshop.work()
        seen.append(await api.job(added["job_id"]))
        return bool(seen[-1]["status"] == "done")

    await wait_until(is_done, "the job is done", timeout_s=20)
    assert all(job["reason"] for job in seen if job["status"] == "waiting")
    assert seen[-1]["reason"] == ""
    assert len(stand_in.banks[bank_of("default", user)].texts) == 1
    assert texts_of(checked(await api.recall(user, TEXT), 200)) == [TEXT]


class Poisoned(Store):
    """A store that breaks on one text, as a server with a bug does."""

    def submit(self, bank_id: str, items: list[Json], operation_id: str | None) -> Operation:
        if any("poison" in item["content"] for item in items):
            raise Refused(500, "planned")
        return super().submit(bank_id, items, operation_id)


# Row 14 (graphiti#1707, hindsight#1671): one job raises, the worker is dead, health is green for weeks.
async def test_row_14_one_bad_job_fails_alone_and_health_says_so(
    api: Api, worker: WorkerProcess, stand_in: HindsightStandIn, user: str
) -> None:
    async def health() -> Any:
        return (await api.stranger.get("/health/ready")).json()

    async def is_ok() -> bool:
        return bool((await health())["status"] == "ok")

    await wait_until(is_ok, "all is well")
    stand_in.store.__class__ = Poisoned
    bad = checked(await api.add(user, "poison"), 202)["job_id"]
    good = [checked(await api.add(f"{user}-{n}", TEXT), 202)["job_id"] for n in range(5)]
    for job_id in good:
        assert (await api.job(job_id, wait_s=10))["status"] == "done"

    async def has_failed() -> bool:
        return (await api.job(bad))["status"] == "failed"

    await wait_until(has_failed, "the bad job has failed", timeout_s=40)
    assert (await api.job(bad))["reason"]
    state = await health()
    assert (state["status"], state["parts"]["turns_log"]["dead_letters"]) == ("degraded", 1)
    assert state["parts"]["turns_log"]["worker"] is True
    # The worker lives and works on.
    after = checked(await api.add(user, TEXT), 202)["job_id"]
    assert (await api.job(after, wait_s=10))["status"] == "done"

    await worker.kill()

    async def says_worker_is_dead() -> bool:
        return (await health())["parts"]["turns_log"]["worker"] is False

    await wait_until(says_worker_is_dead, "health says that no worker is there", timeout_s=15)


async def test_row_14_a_batch_that_hindsight_never_ends_is_seen(
    api: Api, worker: WorkerProcess, stand_in: HindsightStandIn, user: str
) -> None:
    """It is neither due nor dead: only its age tells."""
    stand_in.hold_operations()
    job_id = checked(await api.add(user, TEXT), 202)["job_id"]

    async def is_on_its_way() -> bool:
        return bool((await api.job(job_id))["status"] == "retaining")

    await wait_until(is_on_its_way, "Hindsight has it", timeout_s=20)
    batch = keyspace.batch(bank_of("default", user))
    async with TurnsLog.from_settings(api.settings) as log, Redis.from_url(api.settings.redis_url) as redis:

        async def status_after(seconds: int) -> str:
            """As if the batch had been frozen then."""
            moment, _ = await redis.time()
            await redis.hset(batch, "frozen_ms", str((moment - seconds) * 1000))
            await log.sweep()
            ready = (await api.stranger.get("/health/ready")).json()
            assert ready["parts"]["turns_log"]["oldest_batch_s"] >= seconds
            return str(ready["status"])

        assert await status_after(800) == "ok"
        assert await status_after(1000) == "down"  # nothing was stored since
        await redis.set(keyspace.LAST_STORED, str(int(time() * 1000)), ex=60)
        assert await status_after(1700) == "ok"
        assert await status_after(1900) == "degraded"
        stand_in.release_operations()
        assert (await api.job(job_id, wait_s=30))["status"] == "done"
        await log.sweep()
        assert (await api.stranger.get("/health/ready")).json()["status"] == "ok"
