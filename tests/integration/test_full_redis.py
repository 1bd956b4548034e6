"""A Redis whose memory is full: turns are refused or go past it, recalls are answered, the queue drains."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.asyncio import Redis
from service import keyspace
from service.adapters.vitals import Vitals
from service.scope import BankId, bank_of

from tests.fakes.hindsight import HindsightStandIn
from tests.integration.conftest import open_workshop, run_api, settings_for
from tests.integration.edge import checked, texts_of
from tests.integration.forget_world import World
from tests.integration.test_observability import ready, samples
from tests.processes import WorkerProcess
from tests.support import RedisServer, wait_until
from tests.turns_log import add_turn, look, pass_time, without_ttl

pytestmark = pytest.mark.anyio


class Memory:
    """How much of it a server may use."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def fill(self) -> None:
        """Nothing more goes in."""
        await self._redis.config_set("maxmemory", "1")

    async def grow(self) -> None:
        """There is room again."""
        await self._redis.config_set("maxmemory", "0")


@pytest.fixture
async def redis(redis_server: RedisServer) -> AsyncIterator[Redis]:
    await redis_server.command("FLUSHALL")
    async with Redis.from_url(redis_server.url, decode_responses=True) as client:
        yield client


@pytest.fixture
async def memory(redis: Redis) -> AsyncIterator[Memory]:
    server = Memory(redis)
    try:
        yield server
    finally:
        await server.grow()


@pytest.fixture
def bank(user: str) -> BankId:
    return bank_of("default", user)


@pytest.mark.parametrize("has_fallback", [True, False])
async def test_turns_are_refused_or_go_past_it_and_the_queue_drains(
    redis_server: RedisServer,
    stand_in: HindsightStandIn,
    redis: Redis,
    memory: Memory,
    user: str,
    has_fallback: bool,
) -> None:
    settings = settings_for(redis_server.url, stand_in.url, direct_fallback=has_fallback)
    async with run_api(settings) as api, open_workshop(settings) as workshop:
        world = World(api, workshop, stand_in, redis)
        jobs = [
            await world.add(user, "I keep bees", conversation_id="c1"),
            await world.add("another", "I play the flute", conversation_id="c1"),
        ]
        await memory.fill()

        refused = await api.add(user, "I like tea", conversation_id="c2")
        assert refused.status_code == (202 if has_fallback else 503)
        if has_fallback:
            await wait_until(lambda: "I like tea" in world.texts(user), "Hindsight has the turn")
        recalled = await api.recall(user, "What do I keep?", conversation_id="c3")
        assert "I keep bees" in texts_of(checked(recalled, 200))
        assert await ready(api) == (503, "down", ["redis_down"])
        found = await samples(api.stranger)
        assert found["memory_redis_up"] == 0
        assert found["memory_redis_used_ratio"] > 1

        # The first one goes wrong at first.
        stand_in.fail("retain", "status", status=503, times=1)
        assert await workshop.work() == 2
        await memory.grow()
        await pass_time(redis)
        await memory.fill()
        assert await workshop.work() == 1
        assert "I keep bees" in world.texts(user)
        assert world.texts("another") == ["I play the flute"]
        assert [(await api.job(job))["status"] for job in jobs] == ["done", "done"]
        assert (await look(redis)).faults() == []
        assert (await look(redis)).documents == set()

        await memory.grow()
        checked(await api.add(user, "I live in Hangzhou", conversation_id="c2"), 202)
        await world.store()
        assert "I live in Hangzhou" in world.texts(user)
        assert await without_ttl(redis) == set()


async def test_a_turn_that_is_refused_becomes_a_dead_letter(
    redis_server: RedisServer, stand_in: HindsightStandIn, redis: Redis, memory: Memory, bank: BankId
) -> None:
    settings = settings_for(redis_server.url, stand_in.url)
    async with open_workshop(settings) as workshop:
        _, job_id, documents = await add_turn(workshop.log, bank)
        stand_in.fail("retain", "status", status=422)
        await memory.fill()
        await workshop.work()
        job = await workshop.log.job(job_id)
        assert job is not None
        assert job.status == "failed"
        held = await look(redis)
        assert (held.dead, held.faults()) == (set(documents), [])


async def test_the_sweep_finds_what_fell_off_the_list(
    redis_server: RedisServer, stand_in: HindsightStandIn, redis: Redis, memory: Memory, bank: BankId
) -> None:
    async with open_workshop(settings_for(redis_server.url, stand_in.url)) as workshop:
        await add_turn(workshop.log, bank, texts=("marigold",))
        await redis.delete(keyspace.DUE, keyspace.conversations(bank))
        await memory.fill()
        keys = [
            keyspace.DUE,
            keyspace.CLAIMS,
            keyspace.turns(bank),
            keyspace.conversations(bank),
            keyspace.batch(bank),
        ]
        assert await workshop.log.run("rearm", keys, [bank]) == 1
        assert await workshop.work() == 1
        assert [text for _, text in stand_in.banks[bank].written] == ["marigold"]


async def test_workers_are_still_seen(
    redis_server: RedisServer, redis: Redis, memory: Memory, stand_in: HindsightStandIn
) -> None:
    await memory.fill()
    async with Vitals.from_settings(settings_for(redis_server.url, stand_in.url)) as vitals:
        await vitals.beat("w", has_stored=True)
        signs = await vitals.read(2)
    assert signs.workers == 1
    assert signs.last_stored_age_s is not None


async def test_how_full_it_is_can_be_seen_before_it_is(
    redis_server: RedisServer, redis: Redis, memory: Memory, stand_in: HindsightStandIn
) -> None:
    settings = settings_for(redis_server.url, stand_in.url)
    async with run_api(settings) as api:
        assert (await samples(api.stranger))["memory_redis_used_ratio"] == 0  # it has no limit
        used = int((await redis.info("memory"))["used_memory"])
        await redis.config_set("maxmemory", str(used * 4))
        assert 0.2 < (await samples(api.stranger))["memory_redis_used_ratio"] < 0.5


async def test_a_worker_process_drains_the_queue(
    redis_server: RedisServer,
    stand_in: HindsightStandIn,
    redis: Redis,
    memory: Memory,
    bank: BankId,
    tmp_path: Path,
) -> None:
    """arq cannot queue its own jobs meanwhile."""
    async with open_workshop(settings_for(redis_server.url, stand_in.url)) as workshop:
        stand_in.fail("retain", "status", status=503)
        stand_in.fail("health", "status", status=503)
        worker = WorkerProcess(tmp_path, redis_server.url, stand_in.url)
        await worker.start()
        try:
            await add_turn(workshop.log, bank, texts=("marigold",))
            await wait_until(lambda: stand_in.requests_for("retain"), "the worker is at it", timeout_s=20)
            await memory.fill()
            await wait_until(lambda: "worker_restarts" in worker.log(), "arq has noticed", timeout_s=20)
            stand_in.heal()
            await wait_until(lambda: stand_in.banks[bank].texts, "it is stored", timeout_s=20)
            await memory.grow()
            _, job_id, _ = await add_turn(workshop.log, bank, texts=("sunflower",))

            async def is_done() -> bool:
                job = await workshop.log.job(job_id)
                return job is not None and job.status == "done"

            await wait_until(is_done, "all is as before", timeout_s=30)
            assert [text for _, text in stand_in.banks[bank].written] == ["marigold", "sunflower"]
        finally:
            await worker.kill()


async def test_a_worker_process_stops_when_it_is_told_to(
    redis_server: RedisServer,
    stand_in: HindsightStandIn,
    redis: Redis,
    memory: Memory,
    bank: BankId,
    tmp_path: Path,
) -> None:
    worker = WorkerProcess(tmp_path, redis_server.url, stand_in.url, retain_timeout_s=20)
    await worker.start()
    try:
        stand_in.fail("health", "status", status=503)
        stand_in.fail("retain", "status", status=503)
        async with open_workshop(settings_for(redis_server.url, stand_in.url)) as workshop:
            await add_turn(workshop.log, bank, texts=("marigold",))
        await wait_until(lambda: stand_in.requests_for("retain"), "the worker is at it", timeout_s=20)
        await memory.fill()
        await wait_until(lambda: "redis_full" in worker.log(), "arq has given up", timeout_s=20)
        tries = len(stand_in.requests_for("retain"))
        stand_in.heal()
        stand_in.fail("retain", "slow", seconds=10, times=1)
        await wait_until(lambda: len(stand_in.requests_for("retain")) > tries, "it is at it again", 20)
        await worker.stop(timeout_s=20)
        assert worker.returncode == 0, worker.log()
    finally:
        await worker.kill()
    # Its bank is given back, so that another one need not wait for the claim's end.
    assert await redis.hgetall(keyspace.CLAIMS) == {}  # type: ignore[misc]
