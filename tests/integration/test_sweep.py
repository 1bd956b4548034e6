"""What only a fault leaves behind: sweep and worker put it right, and whoever looks at the queue sees it."""

from collections.abc import AsyncIterator
from time import time

import pytest
from redis.asyncio import Redis
from service import keyspace
from service.adapters.turns import Debounce, TurnsLog
from service.adapters.vitals import Vitals
from service.scope import BankId, bank_of

from tests.integration.forget_world import World, open_world
from tests.integration.test_observability import ready, samples
from tests.support import RedisServer
from tests.turns_log import add_turn, grow_old, look, pass_time

pytestmark = pytest.mark.anyio

_HOUR_MS = 3_600_000


@pytest.fixture
async def world(redis_server: RedisServer) -> AsyncIterator[World]:
    async with open_world(redis_server) as opened:
        yield opened


@pytest.fixture
def bank(user: str) -> BankId:
    return bank_of("default", user)


async def beat(world: World, *, has_stored: bool) -> None:
    async with Vitals.from_settings(world.api.settings) as vitals:
        await vitals.beat("w", has_stored=has_stored)


class TestAClockThatWasAhead:
    """Set back, or a fail-over to a server whose clock is right."""

    async def test_turns_of_then_are_stored_now(self, world: World, user: str, bank: BankId) -> None:
        await world.add(user, "I keep bees", conversation_id="c1")
        await world.add("another", "I play the flute", conversation_id="c1")
        await grow_old(world.redis, bank, -6 * _HOUR_MS)
        await world.redis.zincrby(keyspace.DUE, 60_000, bank_of("default", "another"))
        assert await world.workshop.work() == 0
        assert await world.workshop.log.sweep() == 1  # the other one may be put off for a minute
        assert await world.workshop.work() == 1
        assert world.texts(user) == ["I keep bees"]
        await world.store()

    async def test_a_batch_that_was_put_off_then_is_tried_now(
        self, world: World, user: str, bank: BankId
    ) -> None:
        await world.add(user, "I keep bees", conversation_id="c1")
        world.stand_in.fail("retain", "status", status=503, times=1)
        await world.workshop.work()
        await world.redis.zincrby(keyspace.DUE, 6 * _HOUR_MS, bank)
        assert await world.workshop.log.sweep() == 1
        assert await world.workshop.work() == 1
        assert world.texts(user) == ["I keep bees"]

    async def test_a_worker_that_lives_keeps_its_bank_and_one_that_died_does_not(
        self, world: World, user: str, bank: BankId
    ) -> None:
        await world.add(user, "I keep bees", conversation_id="c1")
        log = world.workshop.log
        [claim] = await world.workshop.claims()
        await world.redis.zincrby(keyspace.DUE, 6 * _HOUR_MS, bank)
        assert await log.sweep() == 1
        assert await world.workshop.claims() == []  # not before a claim's length is over
        await log.renew(claim)
        score = await world.redis.zscore(keyspace.DUE, bank)
        assert score is not None
        assert 0 < score - time() * 1000 <= log.claim_s * 1000 + 1000
        assert await log.sweep() == 0
        await pass_time(world.redis)
        assert await world.workshop.work() == 1
        assert world.texts(user) == ["I keep bees"]

    async def test_many_of_them_are_all_found(self, world: World) -> None:
        ahead = time() * 1000 + _HOUR_MS
        for number in range(250):
            await add_turn(world.workshop.log, bank_of("default", str(number)))
        banks = await world.redis.zrange(keyspace.DUE, 0, -1)
        await world.redis.zadd(keyspace.DUE, dict.fromkeys(banks, ahead))
        assert await world.workshop.log.sweep() == 250
        assert len(await world.workshop.claims()) == 250
        await pass_time(world.redis)
        assert await world.workshop.work() == 250

    async def test_what_waits_as_it_was_told_to_is_left_alone(
        self, redis_server: RedisServer, bank: BankId
    ) -> None:
        await redis_server.command("FLUSHALL")
        # The longest debounce that the settings allow; and a pause longer than any is cut.
        async with (
            TurnsLog(redis_server.url, Debounce(3600, 86_400, 20)) as log,
            TurnsLog(redis_server.url, Debounce(0, 0, 20)) as quick,
            Redis.from_url(redis_server.url, decode_responses=True) as redis,
        ):
            await add_turn(log, bank)
            assert await log.sweep() == 0
            await pass_time(redis)
            [claim] = await quick.claim(1)
            assert await quick.take(claim, "b1")
            await quick.release(claim, retry_in_s=86_400)
            assert await quick.sweep() == 0
            score = await redis.zscore(keyspace.DUE, bank)
            assert score is not None
            assert 290 < score / 1000 - time() < 310


class TestListsThatCannotBeRead:
    """Somebody's hand, or a backup that was cut."""

    @pytest.mark.parametrize("is_by_sweep", [False, True])
    async def test_turns_are_stored_all_the_same_and_in_order(
        self, world: World, user: str, bank: BankId, is_by_sweep: bool
    ) -> None:
        await world.add(user, "I keep bees", conversation_id="c1")
        await world.add(user, "I play the flute", conversation_id="c1")
        await world.add(user, "I live in Hangzhou", conversation_id="c2")
        conversations = keyspace.conversations(bank)
        fields: dict[str, str] = await world.redis.hgetall(conversations)  # type: ignore[misc]
        [broken] = [name for name, text in fields.items() if " 2 " in text]
        await world.redis.hset(conversations, broken, "broken")  # type: ignore[misc]
        await world.redis.hset(conversations, "nothing's", "broken")  # type: ignore[misc]
        # Lists itself alone.
        await world.add(user, "I like tea", conversation_id="c1")
        if is_by_sweep:
            await world.redis.zrem(keyspace.DUE, bank)
            assert await world.workshop.log.sweep() == 1
            assert (await look(world.redis)).faults() == []
        await world.store()
        told = world.texts(user)
        assert sorted(told) == ["I keep bees", "I like tea", "I live in Hangzhou", "I play the flute"]
        assert [text for text in told if "Hangzhou" not in text] == [
            "I keep bees",
            "I play the flute",
            "I like tea",
        ]
        assert (await look(world.redis)).due == {}

    async def test_a_list_that_breaks_while_its_bank_is_held_does_not_keep_it(
        self, world: World, user: str, bank: BankId
    ) -> None:
        await world.add(user, "I keep bees", conversation_id="c1")
        [claim] = await world.workshop.claims()
        [name] = await world.redis.hkeys(keyspace.conversations(bank))  # type: ignore[misc]
        await world.redis.hset(keyspace.conversations(bank), name, "broken")  # type: ignore[misc]
        await world.workshop.log.release(claim)
        assert await world.workshop.work() == 1
        assert world.texts(user) == ["I keep bees"]


class TestABankFromWhichNobodyCanTake:
    """Claimed each time anew, so that it is never overdue."""

    @pytest.fixture
    async def stuck(self, world: World, user: str, bank: BankId) -> World:
        await world.add(user, "I keep bees", conversation_id="c1")
        await world.redis.zincrby(keyspace.DUE, 60_000, bank)
        await beat(world, has_stored=False)
        return world

    async def sweep_after(self, stuck: World, bank: BankId, seconds: int) -> tuple[int, str, list[str]]:
        """As if its turn had come that long ago."""
        for key, separator, places in (
            (keyspace.turns(bank), "\n", (1,)),
            (keyspace.conversations(bank), " ", (0, 1)),
        ):
            fields: dict[str, str] = await stuck.redis.hgetall(key)  # type: ignore[misc]
            for name, value in fields.items():
                parts = value.split(separator)
                for place in places if len(parts) > 1 else ():
                    parts[place] = str(int((time() - seconds) * 1000))
                await stuck.redis.hset(key, name, separator.join(parts))  # type: ignore[misc]
        await stuck.workshop.log.sweep()
        return await ready(stuck.api)

    @pytest.mark.parametrize("is_broken", [False, True])
    async def test_it_is_red_when_nothing_is_stored_and_seen_when_others_are(
        self, stuck: World, bank: BankId, is_broken: bool
    ) -> None:
        if is_broken:
            [name] = await stuck.redis.hkeys(keyspace.conversations(bank))  # type: ignore[misc]
            await stuck.redis.hset(keyspace.conversations(bank), name, "broken")  # type: ignore[misc]
        longest_s = int(stuck.api.settings.max_wait_s)
        assert await self.sweep_after(stuck, bank, longest_s + 880) == (200, "ok", [])
        assert await self.sweep_after(stuck, bank, longest_s + 920) == (503, "down", ["queue_stuck"])
        # With Hindsight away waiting is what the queue is for.
        stuck.stand_in.fail("health", "status", status=503)
        assert (await ready(stuck.api))[:2] == (200, "degraded")
        stuck.stand_in.heal()
        assert await ready(stuck.api, only="accepting") == (200, "ok", [])

        await beat(stuck, has_stored=True)
        assert await self.sweep_after(stuck, bank, longest_s + 1780) == (200, "ok", [])
        assert await self.sweep_after(stuck, bank, longest_s + 1820) == (200, "degraded", ["queue_slow"])
        found = await samples(stuck.api.stranger)
        assert found["memory_oldest_turn_seconds"] >= longest_s + 1820
        assert 0 < await stuck.redis.ttl(keyspace.OLDEST_TURN) <= 900

        await stuck.store()
        await stuck.workshop.log.sweep()
        assert await ready(stuck.api) == (200, "ok", [])

    async def test_turns_behind_a_batch_are_not_counted_twice(
        self, stuck: World, user: str, bank: BankId
    ) -> None:
        stuck.stand_in.fail("retain", "status", status=503)
        await pass_time(stuck.redis)
        await stuck.workshop.work()
        await stuck.add(user, "I play the flute", conversation_id="c2")
        assert await self.sweep_after(stuck, bank, 5000) == (200, "ok", [])
        stuck.stand_in.heal()
        await stuck.store()
        await stuck.store()


async def test_a_rest_that_was_noted_while_the_clock_was_ahead_hides_nothing(
    world: World, user: str, bank: BankId
) -> None:
    await world.add(user, "I keep bees", conversation_id="c1")
    world.stand_in.fail("retain", "status", status=503, times=1)
    await world.workshop.work()
    await world.redis.hset(keyspace.batch(bank), "frozen_ms", "1")  # type: ignore[misc]
    for ahead_ms, is_hidden in ((600_000, True), (6 * _HOUR_MS, False)):
        await world.redis.zadd(keyspace.RESTING, {bank: time() * 1000 + ahead_ms})
        await world.redis.expire(keyspace.RESTING, 60)
        await world.workshop.log.sweep()
        assert bool(await world.redis.exists(keyspace.OLDEST_BATCH)) is not is_hidden
    await world.store()
