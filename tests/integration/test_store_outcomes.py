"""What becomes of a turn, by how Hindsight behaves: stored exactly once, or dead for a reason of its own."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest
from redis.asyncio import Redis
from service import keyspace
from service.adapters.turns import Job
from service.scope import BankId, JobId, bank_of

from tests.fakes.hindsight import HindsightStandIn
from tests.fakes.hindsight_store import Json, Operation, Refused, Store
from tests.integration.conftest import Workshop, open_workshop, settings_for
from tests.support import RedisServer, wait_until
from tests.turns_log import add_turn, grow_old, look, pass_time, without_ttl

pytestmark = pytest.mark.anyio
MAX_ATTEMPTS = 3


class PickyStore(Store):
    """Refuses what contains "refused" with 422, and lets operations with "unlucky" in them fail."""

    def submit(self, bank_id: str, items: list[Json], operation_id: str | None) -> Operation:
        said = "\n".join(item["content"] for item in items)
        if "refused" in said:
            raise Refused(422, "planned")
        operation = super().submit(bank_id, items, operation_id)
        if "unlucky" in said and operation.status == "pending":
            self.settle(self.operations[operation.child_id or ""], "failed", "planned")
        return operation


@dataclass
class Scene:
    """A worker's parts, its Hindsight, and a look into Redis."""

    workshop: Workshop
    stand_in: HindsightStandIn
    redis: Redis
    bank: BankId

    async def add(self, *texts: str, bank: BankId | None = None, conversation: str = "main") -> JobId:
        """Accept one request for each text; the job of the last."""
        job = JobId("")
        for text in texts:
            _, job, _ = await add_turn(
                self.workshop.log, bank or self.bank, texts=(text,), conversation=conversation
            )
        return job

    async def job(self, job_id: JobId) -> Job:
        job = await self.workshop.log.job(job_id)
        assert job is not None
        return job

    async def work(self, times: int = 1) -> None:
        """Let the worker do what is due; time passes in between."""
        for _ in range(times):
            await pass_time(self.redis)
            await self.workshop.work()

    def written(self, bank: BankId | None = None) -> list[str]:
        """What was stored in the bank, in the order of commit."""
        found = self.stand_in.banks.get(bank or self.bank)
        return [text for _, text in found.written] if found else []

    async def dead(self) -> list[tuple[str, str]]:
        """Text and reason of each dead letter."""
        values: list[str] = await self.redis.hvals(keyspace.DEAD)  # type: ignore[misc]
        letters = [value.split("\n") for value in values]
        return [(json.loads(letter[-1])["text"], letter[1]) for letter in letters]


@pytest.fixture
async def scene(redis_server: RedisServer, user: str) -> AsyncIterator[Scene]:
    await redis_server.command("FLUSHALL")
    server = HindsightStandIn()
    server.store = PickyStore()
    async with server as stand_in, Redis.from_url(redis_server.url, decode_responses=True) as redis:
        settings = settings_for(redis_server.url, stand_in.url, max_attempts=MAX_ATTEMPTS)
        async with open_workshop(settings) as workshop:
            yield Scene(workshop, stand_in, redis, bank_of("default", user))


async def test_turns_are_stored_once_in_order_and_nothing_of_them_is_left(scene: Scene) -> None:
    texts = [f"marigold {number}" for number in range(45)]
    job_id = await scene.add(*texts)
    await scene.work()
    assert scene.written() == texts
    assert [len(request.body["items"]) for request in scene.stand_in.requests_for("retain")] == [20, 20, 5]
    job = await scene.job(job_id)
    assert (job.status, job.memories_kept, job.reason) == ("done", 1, "")
    assert job.finished_ms is not None
    assert job.finished_ms >= job.accepted_ms
    assert await without_ttl(scene.redis) == set()
    async for key in scene.redis.scan_iter():
        assert key.startswith(("mem:job:", "mem:seen:", "mem:bank-made:", "mem:write:")) or (
            key == "mem:claim-number"
        )
    async for key in scene.redis.scan_iter(match="mem:job:*"):
        assert "marigold" not in str(await scene.redis.hgetall(key))  # type: ignore[misc]


@pytest.mark.parametrize("fault", ["commit_then_close", "commit_then_hang", "cut", "close"])
async def test_a_lost_answer_to_a_retain_stores_nothing_twice(scene: Scene, fault: str) -> None:
    job_id = await scene.add("one", "two")
    scene.stand_in.fail("retain", fault, times=1)  # type: ignore[arg-type]
    await scene.work(2)
    assert scene.written() == ["one", "two"]
    assert len({request.body["operation_id"] for request in scene.stand_in.requests_for("retain")}) == 1
    assert (await scene.job(job_id)).status == "done"


@pytest.mark.parametrize("status", ["failed", "cancelled"])
async def test_an_operation_that_ended_badly_is_started_under_another_id(scene: Scene, status: str) -> None:
    job_id = await scene.add("one", "two")
    scene.stand_in.end_operations(status)  # type: ignore[arg-type]
    await scene.work()
    job = await scene.job(job_id)
    assert (job.status, job.reason) == ("waiting", f"Hindsight's operation ended as {status}.")
    await scene.work()
    assert scene.written() == ["one", "two"]
    assert len({request.body["operation_id"] for request in scene.stand_in.requests_for("retain")}) == 2
    assert (await scene.job(job_id)).status == "done"


async def test_zero_memories_is_said_and_is_no_failure(scene: Scene) -> None:
    job_id = await scene.add("hm")
    scene.stand_in.end_operations("empty")
    await scene.work()
    job = await scene.job(job_id)
    assert (job.status, job.memories_kept, job.reason) == ("done", 0, "")


@pytest.mark.parametrize("poison", ["refused", "unlucky"])
async def test_one_poisoned_turn_among_a_hundred(scene: Scene, poison: str) -> None:
    texts = [f"turn {number}" for number in range(100)]
    texts[42] = f"turn 42 {poison}"
    jobs = [await scene.add(text) for text in texts]
    other = bank_of("default", "somebody else")
    await scene.add("hello", bank=other)
    await scene.work(1 + 2 * MAX_ATTEMPTS)
    assert scene.written() == [text for text in texts if poison not in text]
    assert scene.written(other) == ["hello"]
    statuses = [(await scene.job(job)).status for job in jobs]
    assert (statuses.count("done"), statuses.index("failed")) == (99, 42)
    [(text, reason)] = await scene.dead()
    assert text == texts[42]
    assert reason
    assert (await scene.job(jobs[42])).reason == reason
    assert (await look(scene.redis)).faults() == []


async def test_what_is_refused_for_good_dies_at_once(scene: Scene) -> None:
    job_id = await scene.add("refused")
    await scene.work()
    assert (await scene.job(job_id)).status == "failed"
    assert len(scene.stand_in.requests_for("retain")) == 1


async def test_what_fails_again_and_again_dies_after_its_tries(scene: Scene) -> None:
    job_id = await scene.add("unlucky")
    await scene.work(MAX_ATTEMPTS - 1)
    assert (await scene.job(job_id)).status == "waiting"
    await scene.work()
    assert (await scene.job(job_id)).status == "failed"
    assert len(scene.stand_in.requests_for("retain")) == MAX_ATTEMPTS


async def test_what_one_turn_has_cost_is_not_held_against_the_next(scene: Scene) -> None:
    first = await scene.add("unlucky")
    second = await scene.add("fine")
    await scene.work(2 * MAX_ATTEMPTS - 2)
    assert (await scene.job(first)).status == "waiting"
    scene.stand_in.fail("retain", "status", status=500, times=2)
    await scene.work()  # the last try of the first, alone, and the first try of the second
    assert (await scene.job(first)).status == "failed"
    assert (await scene.job(second)).status == "waiting"
    await scene.work()
    assert (await scene.job(second)).status == "done"


@pytest.mark.parametrize("fault", ["close", "hang", "garbage"])
async def test_a_hindsight_that_is_away_never_counts(scene: Scene, fault: str) -> None:
    job_id = await scene.add("one", "two")
    scene.stand_in.fail("*", fault)  # type: ignore[arg-type]
    for _ in range(3 * MAX_ATTEMPTS if fault != "hang" else MAX_ATTEMPTS + 1):
        await scene.work()
    assert (await scene.job(job_id)).status == "waiting"
    scene.stand_in.heal()
    await scene.work()
    assert scene.written() == ["one", "two"]
    assert await scene.dead() == []


@pytest.mark.parametrize("status", [401, 403, 404, 500, 502, 503, 429])
async def test_nor_does_one_that_refuses_everything(scene: Scene, status: int) -> None:
    job_id = await scene.add("one", "two")
    scene.stand_in.fail("*", "status", status=status)
    await scene.work(2 * MAX_ATTEMPTS)
    assert (await scene.job(job_id)).status == "waiting"
    scene.stand_in.heal()
    await scene.work()
    assert scene.written() == ["one", "two"]


async def test_a_refused_key_is_no_fault_of_the_turns(scene: Scene) -> None:
    # The health check needs no key, so that only the calls for a bank tell.
    job_id = await scene.add("one")
    for operation in ("bank", "retain", "operation"):
        scene.stand_in.fail(operation, "status", status=401)
    await scene.work(2 * MAX_ATTEMPTS)
    job = await scene.job(job_id)
    assert (job.status, job.reason) == ("waiting", "Hindsight refuses this with 401.")
    scene.stand_in.heal()
    await scene.work()
    assert scene.written() == ["one"]


async def test_a_server_error_with_a_healthy_hindsight_counts(scene: Scene) -> None:
    job_id = await scene.add("one")
    scene.stand_in.fail("retain", "status", status=500)
    await scene.work(MAX_ATTEMPTS)
    assert (await scene.job(job_id)).status == "failed"


async def test_a_queue_that_is_a_day_old_is_stored_with_the_time_of_each_turn(scene: Scene) -> None:
    await scene.add("yesterday")
    await grow_old(scene.redis, scene.bank, 86_400_000)
    async for key in scene.redis.scan_iter(match="arq:*"):
        await scene.redis.delete(key)  # arq has forgotten its jobs long ago
    accepted_ms = (await scene.workshop.log.pending(scene.bank))[0].accepted_ms
    await scene.work()
    [item] = scene.stand_in.requests_for("retain")[0].body["items"]
    assert scene.written() == ["yesterday"]
    assert datetime.fromisoformat(item["timestamp"]) == datetime.fromtimestamp(accepted_ms / 1000, UTC)


async def test_eight_adds_of_one_user_at_once(scene: Scene) -> None:
    async def add(number: int) -> None:
        await scene.add(f"text {number}", conversation=str(number % 3))

    async def work() -> None:
        await scene.workshop.work()

    await asyncio.gather(*(add(number) for number in range(8)), work(), work())

    async def all_stored() -> bool:
        await scene.workshop.work()
        return len(scene.written()) == 8

    await wait_until(all_stored, "all eight are stored")
    assert sorted(scene.written()) == [f"text {number}" for number in range(8)]
