"""Back-pressure and limits of add: how much may wait, and that the count of it stays right."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis.asyncio import Redis
from service import keyspace
from service.adapters.turns import TurnsLog
from service.adapters.turns_types import Debounce, MostWaiting
from service.errors import TooManyWaiting
from service.scope import BankId, bank_of

from tests.fakes.hindsight import HindsightStandIn
from tests.integration.conftest import Api, Workshop, run_api, settings_for
from tests.integration.edge import checked, code_of
from tests.support import RedisServer
from tests.turns_log import add_turn, look

pytestmark = pytest.mark.anyio


@pytest.fixture
async def redis(redis_server: RedisServer) -> AsyncIterator[Redis]:
    async with Redis.from_url(redis_server.url, decode_responses=True) as client:
        await client.flushall()
        yield client


def limited(redis_server: RedisServer, stand_in: HindsightStandIn, **changes: object) -> run_api:
    """An API under which turns stay waiting."""
    return run_api(settings_for(redis_server.url, stand_in.url, quiet_s=600, max_wait_s=600, **changes))


async def test_one_user_cannot_fill_the_queue(
    redis: Redis, redis_server: RedisServer, stand_in: HindsightStandIn, user: str
) -> None:
    async with limited(redis_server, stand_in, max_waiting_per_user=3) as api:
        first = checked(await api.add(user, "turn 0"), 202)
        for number in (1, 2):
            checked(await api.add(user, f"turn {number}"), 202)
        refused = await api.add(user, "turn 3")
        assert code_of(refused, 429) == "too_many_waiting"
        assert int(refused.headers["retry-after"]) > 0
        assert "this user" in refused.json()["error"]["message"]
        # What was taken before is still a repetition, and others are not held up.
        again = checked(await api.add(user, "turn 0"), 202)
        assert (again["status"], again["job_id"]) == ("duplicate", first["job_id"])
        checked(await api.add(f"{user}-2", "turn 3"), 202)
    assert (await look(redis)).faults() == []


async def test_all_users_together_cannot_either(
    redis: Redis, redis_server: RedisServer, stand_in: HindsightStandIn, user: str
) -> None:
    async with limited(redis_server, stand_in, max_waiting=4) as api:
        for number in range(4):
            checked(await api.add(f"{user}-{number}", "hello"), 202)
        refused = await api.add(f"{user}-5", "hello")
        assert code_of(refused, 429) == "too_many_waiting"
        assert "this user" not in refused.json()["error"]["message"]
        assert checked(await api.add(f"{user}-0", "hello"), 202)["status"] == "duplicate"


async def test_there_is_room_again_once_turns_are_stored(
    api: Api,
    workshop: Workshop,
    redis: Redis,
    redis_server: RedisServer,
    stand_in: HindsightStandIn,
    user: str,
) -> None:
    async with run_api(settings_for(redis_server.url, stand_in.url, max_waiting=2)) as small:
        for number in range(3):
            checked(await small.add(user, f"first {number}"), 202 if number < 2 else 429)
        await workshop.work()
        for number in range(3):
            checked(await small.add(user, f"second {number}"), 202 if number < 2 else 429)
        await workshop.work()
    assert await redis.exists(keyspace.WAITING) == 0, "nothing waits, nothing is left"


async def test_the_limit_holds_for_turns_that_come_at_once(redis: Redis, redis_server: RedisServer) -> None:
    most = MostWaiting(of_bank=10, of_all=15)
    async with TurnsLog(redis_server.url, Debounce(600, 600, 20), most_waiting=most) as log:

        async def add(bank: BankId) -> bool:
            try:
                await add_turn(log, bank, texts=("a", "b"))
            except TooManyWaiting:
                return False
            return True

        banks = [bank_of("default", name) for name in "xyz"]
        taken = await asyncio.gather(*(add(bank) for _ in range(10) for bank in banks))
    held = await look(redis)
    assert held.faults() == []
    assert sum(taken) == 7, "fourteen of at most fifteen turns, two at a time"
    assert max(map(len, held.turns.values())) <= 10


async def test_a_request_with_too_many_turns_is_refused_whole(
    redis: Redis, redis_server: RedisServer, stand_in: HindsightStandIn, user: str
) -> None:
    def turns(many: int) -> str:
        return json.dumps(
            [{"role": role, "content": f"{n}"} for n in range(many) for role in ("user", "assistant")]
        )

    async with limited(redis_server, stand_in, max_request_turns=3) as api:
        refused = await api.client.post("/memory/add", data={"user_id": user, "messages": turns(4)})
        assert code_of(refused, 413) == "too_large"
        assert "at most 3 turns" in refused.json()["error"]["message"]
        assert (await look(redis)).documents == set()
        taken: Any = checked(
            await api.client.post("/memory/add", data={"user_id": user, "messages": turns(3)}), 202
        )
        assert taken["accepted"] == 6
        assert len((await look(redis)).documents) == 3


async def test_a_long_turn_is_split_and_a_longer_one_refused(
    redis: Redis, redis_server: RedisServer, stand_in: HindsightStandIn, user: str
) -> None:
    async with limited(redis_server, stand_in, max_turn_chars=20_000, max_request_turns=1) as api:
        checked(await api.add(user, "One sentence. " * 1_300), 202)
        assert len((await look(redis)).documents) == 3, "parts of one turn are one turn"
        refused = await api.add(user, "One sentence. " * 1_500)
        assert re.search("at most 20000 characters", checked(refused, 413)["error"]["message"])


async def test_the_limit_is_of_one_turn_and_not_of_a_request(
    redis_server: RedisServer, stand_in: HindsightStandIn, user: str
) -> None:
    turns = [{"role": role, "content": "x" * 500} for _ in range(3) for role in ("user", "assistant")]
    async with limited(redis_server, stand_in, max_turn_chars=1000) as api:
        taken: Any = checked(
            await api.client.post("/memory/add", data={"user_id": user, "messages": json.dumps(turns)}), 202
        )
        assert taken["accepted"] == 6
        turns[-1]["content"] += "x"
        refused = await api.client.post("/memory/add", data={"user_id": user, "messages": json.dumps(turns)})
        assert code_of(refused, 413) == "too_large"


@pytest.mark.parametrize("wrong", [None, 1, 99])
async def test_the_sweep_puts_a_wrong_count_right(
    redis: Redis, redis_server: RedisServer, wrong: int | None
) -> None:
    async with TurnsLog(redis_server.url, Debounce(600, 600, 20)) as log:
        for number in range(7):
            await add_turn(log, bank_of("default", f"user {number}"), texts=("one", "two"))
        if wrong is None:
            await redis.delete(keyspace.WAITING)
        else:
            await redis.set(keyspace.WAITING, wrong)
        await log.sweep()
    assert (await look(redis)).counted == 14


async def test_the_sweep_leaves_the_count_alone_while_turns_come_and_go(
    redis: Redis, redis_server: RedisServer, workshop: Workshop
) -> None:
    stop = asyncio.Event()

    async def come_and_go(name: str) -> None:
        while not stop.is_set():
            await add_turn(workshop.log, bank_of("default", name), texts=("one", "two"))
            for claim in await workshop.log.claim(1):
                batch = await workshop.log.take(claim, "b")
                if batch is not None:
                    kept = {turn.document_id: 1 for turn in batch.turns}
                    await workshop.log.settle(claim, batch, kept, outcome="done", reason="", job_ttl_s=60)
                await workshop.log.release(claim)

    busy = [asyncio.create_task(come_and_go(name)) for name in ("a", "b")]
    for _ in range(30):
        await workshop.log.sweep()
    stop.set()
    await asyncio.gather(*busy)
    assert (await look(redis)).faults() == []
