"""An add that failed stays undone: what is still on its way to Redis does nothing when it arrives."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.asyncio import Redis
from service.adapters.turns import Debounce, TurnsLog
from service.errors import TurnsLogUnavailable
from service.scope import bank_of

from tests.fakes.hindsight import HindsightStandIn
from tests.integration.conftest import run_api, settings_for
from tests.support import RedisServer, valkey, wait_until
from tests.turns_log import add_turn, everything, look

pytestmark = pytest.mark.anyio

BANK = bank_of("default", "anne")


@pytest.fixture
async def server(folder: Path) -> AsyncIterator[RedisServer]:
    async with valkey(folder / "redis") as running:
        yield running


async def _calls(redis: Redis) -> int:
    """How many scripts the server has run."""
    stats = await redis.info("commandstats")
    return int(stats["cmdstat_evalsha"]["calls"])


async def test_a_server_that_was_frozen_does_nothing_for_those_who_gave_up(server: RedisServer) -> None:
    async with (
        Redis.from_url(server.url, decode_responses=True) as redis,
        TurnsLog(server.url, Debounce(0, 60, 20), timeout_s=0.5) as log,
    ):
        _, _, [first] = await add_turn(log, BANK, turn_id="first")
        before = await _calls(redis)
        server.pause()
        with pytest.raises(TurnsLogUnavailable):
            await add_turn(log, BANK, turn_id="given up")
        server.resume()

        async def has_come_through() -> bool:
            return await _calls(redis) > before

        await wait_until(has_come_through, "the server has run what was on its way")
        assert (await look(redis)).documents == {first}
        # It is new when it is said again, and the clock that was compared before the pause is still right.
        assert (await add_turn(log, BANK, turn_id="given up"))[0] == "queued"
        held = await look(redis)
        assert (len(held.documents), held.faults()) == (2, [])


async def test_a_server_that_was_replaced_is_asked_for_its_own_clock(server: RedisServer) -> None:
    async with TurnsLog(server.url, Debounce(0, 60, 20)) as log:
        await add_turn(log, BANK)
        await server.restart()
        assert (await add_turn(log, BANK))[0] == "queued"


async def test_too_few_replicas_take_nothing_and_are_no_good_health(server: RedisServer) -> None:
    async with (
        HindsightStandIn() as stand_in,
        Redis.from_url(server.url, decode_responses=True) as redis,
        TurnsLog(server.url, Debounce(0, 60, 20)) as log,
        run_api(settings_for(server.url, stand_in.url)) as api,
    ):
        await add_turn(log, BANK)
        assert (await api.stranger.get("/health/ready?only=accepting")).status_code == 200
        await redis.config_set("min-replicas-to-write", "1")
        before = await everything(redis)
        with pytest.raises(TurnsLogUnavailable):
            await add_turn(log, BANK)
        with pytest.raises(TurnsLogUnavailable):
            await log.check()

        async def says_so() -> bool:
            reply = await api.stranger.get("/health/ready?only=accepting")
            return reply.status_code == 503 and "redis_down" in reply.json()["reasons"]

        await wait_until(says_so, "the health is not green", timeout_s=15)
        # To Hindsight's own queue, as while Redis is away.
        added = await api.add("ben", "I like tea.")
        assert added.status_code == 202
        ben = stand_in.banks[bank_of("default", "ben")]
        await wait_until(lambda: ben.documents, "Hindsight has stored it")
        assert await everything(redis) == before
        await redis.config_set("min-replicas-to-write", "0")
        assert (await add_turn(log, BANK))[0] == "queued"


async def test_a_clock_that_was_set_is_noticed(folder: Path) -> None:
    """A server whose clock jumps ahead refuses one call as late; the clocks are compared anew."""
    offset_s = 0

    async def ahead(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Tells a time that lies behind, once: as if the clock was set forward right after it."""
        nonlocal offset_s
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            while command := await reader.read(1 << 20):
                up_writer.write(command)
                reply = await up_reader.read(1 << 20)
                if b"$4\r\nTIME\r\n" in command and offset_s:
                    seconds = reply.split(b"\r\n")[2]
                    reply = reply.replace(seconds, b"%010d" % (int(seconds) - offset_s), 1)
                    offset_s = 0
                writer.write(reply)
        finally:
            up_writer.close()
            writer.close()

    async with valkey(folder / "behind") as server:
        port = server.port
        offset_s = 3600
        proxy = await asyncio.start_server(ahead, "127.0.0.1", 0)
        async with proxy:
            url = f"redis://127.0.0.1:{proxy.sockets[0].getsockname()[1]}/0"
            async with TurnsLog(url, Debounce(0, 60, 20)) as log:
                assert (await add_turn(log, BANK))[0] == "queued"
        assert offset_s == 0, "the time was not asked for"
