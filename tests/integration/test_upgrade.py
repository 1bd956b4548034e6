"""The layout of the data in Redis: carried forward at start, and never touched when it is a newer one."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from redis.asyncio import Redis
from service import keyspace
from service.adapters import data_version
from service.adapters.data_version import (
    CURRENT,
    DataTooNew,
    DataUnreadable,
    bring_up_to_date,
    refuse_newer,
)
from service.adapters.turns import Debounce, TurnsLog
from service.errors import TurnsLogUnavailable
from service.scope import JobId, bank_of

from tests.fakes.hindsight import HindsightStandIn
from tests.processes import ApiProcess, WorkerProcess, environment
from tests.support import RedisServer, free_port, valkey, wait_until

pytestmark = pytest.mark.anyio

ANNE = bank_of("default", "anne")
BEN = bank_of("other", "ben")
Keep = Callable[[], Awaitable[None]]


@pytest.fixture
async def redis(redis_server: RedisServer) -> AsyncIterator[Redis]:
    await redis_server.command("FLUSHALL")
    async with Redis.from_url(redis_server.url, decode_responses=True) as client:
        yield client


async def _as_the_first_version_left_it(redis: Redis) -> dict[str, tuple[str, str]]:
    """Dead letters that no bank lists; document → bank and tenant. The third one's job is long forgotten."""
    letters: dict[str, tuple[str, str]] = {"d1": (ANNE, "default"), "d2": (BEN, "other"), "d3": (ANNE, "")}
    for number, (document, (bank, tenant)) in enumerate(letters.items()):
        if tenant:
            await cast("Any", redis.hset(keyspace.job(JobId(f"j{number}")), "tenant", tenant))
        turn = f"{number}\n1700000000000\nj{number}\nconversation\nUser: a\nb"
        await cast("Any", redis.hset(keyspace.DEAD, document, f"{bank}\nbecause\n{turn}"))
    return letters


async def test_a_fresh_redis_gets_the_number_of_today(redis: Redis, redis_server: RedisServer) -> None:
    assert await bring_up_to_date(redis_server.url) == CURRENT
    assert await redis.get(keyspace.DATA_VERSION) == str(CURRENT)
    assert await redis.keys() == [keyspace.DATA_VERSION]


async def test_what_the_first_version_left_is_carried_forward(
    redis: Redis, redis_server: RedisServer
) -> None:
    letters = await _as_the_first_version_left_it(redis)
    before = await cast("Any", redis.hgetall(keyspace.DEAD))
    assert await bring_up_to_date(redis_server.url) == 1
    listed = {
        document: (bank, tenant)
        for bank in (ANNE, BEN)
        for document, tenant in (await cast("Any", redis.hgetall(keyspace.dead_of(bank)))).items()
    }
    assert listed == letters
    assert await cast("Any", redis.hgetall(keyspace.DEAD)) == before
    assert await redis.get(keyspace.DATA_VERSION) == str(CURRENT)
    assert not await redis.exists(keyspace.DATA_MIGRATION)
    assert await bring_up_to_date(redis_server.url) == CURRENT


async def test_a_step_that_broke_off_is_done_again(redis: Redis, redis_server: RedisServer) -> None:
    await _as_the_first_version_left_it(redis)
    runs: list[int] = []

    async def breaks_once(client: Redis, keep: Keep) -> None:
        runs.append(1)
        await data_version.STEPS[1](client, keep)
        if len(runs) == 1:
            raise OSError("the process ends here")

    with pytest.raises(TurnsLogUnavailable):
        await bring_up_to_date(redis_server.url, steps={1: breaks_once})
    assert await redis.get(keyspace.DATA_VERSION) == "1"
    assert await bring_up_to_date(redis_server.url, steps={1: breaks_once}) == 1
    assert len(runs) == 2
    assert await cast("Any", redis.hlen(keyspace.dead_of(ANNE))) == 2


async def test_the_way_is_gone_step_by_step_and_by_one_process_at_a_time(
    redis: Redis, redis_server: RedisServer
) -> None:
    await redis.set(keyspace.DATA_VERSION, "1")
    at_work, most, order = 0, 0, list[int]()

    def step(number: int) -> data_version.Step:
        async def work(client: Redis, keep: Keep) -> None:
            nonlocal at_work, most
            at_work += 1
            most = max(most, at_work)
            order.append(number)
            await asyncio.gather(*(client.ping() for _ in range(20)))
            await keep()
            at_work -= 1

        return work

    steps = {number: step(number) for number in (1, 2, 3)}
    found = await asyncio.gather(*(bring_up_to_date(redis_server.url, steps=steps) for _ in range(8)))
    assert (order, most) == ([1, 2, 3], 1)
    assert 1 in found
    assert await redis.get(keyspace.DATA_VERSION) == "4"


async def test_whoever_lost_the_lease_changes_nothing(redis: Redis, redis_server: RedisServer) -> None:
    await redis.set(keyspace.DATA_VERSION, "1")

    async def too_slow(client: Redis, keep: Keep) -> None:
        await client.set(keyspace.DATA_MIGRATION, "somebody else", px=5000)
        await keep()

    with pytest.raises(TurnsLogUnavailable):
        await bring_up_to_date(redis_server.url, steps={1: too_slow})
    assert await redis.get(keyspace.DATA_VERSION) == "1"
    assert await redis.get(keyspace.DATA_MIGRATION) == "somebody else"


async def test_a_process_that_never_ends_its_step_is_not_waited_for_for_ever(
    redis: Redis, redis_server: RedisServer
) -> None:
    await redis.set(keyspace.DATA_VERSION, "1")
    await redis.set(keyspace.DATA_MIGRATION, "somebody else", px=60_000)
    with pytest.raises(TurnsLogUnavailable):
        await bring_up_to_date(redis_server.url, patience_s=0.3)


async def test_a_newer_layout_is_refused_and_left_alone(redis: Redis, redis_server: RedisServer) -> None:
    await redis.set(keyspace.DATA_VERSION, str(CURRENT + 1))
    with pytest.raises(
        DataTooNew, match=f"layout {CURRENT + 1}, and this version of dify-memory knows {CURRENT}"
    ):
        await bring_up_to_date(redis_server.url)
    assert await redis.get(keyspace.DATA_VERSION) == str(CURRENT + 1)


async def _write_nonsense(redis: Redis, text: str | None) -> None:
    if text is None:
        await cast("Any", redis.lpush(keyspace.DATA_VERSION, "2"))
    else:
        await redis.set(keyspace.DATA_VERSION, text.encode("latin-1"))


@pytest.mark.parametrize("text", ["0", "-1", "x", "2.0", "", " 2", "\u00ff", "9" * 30, None])
async def test_what_is_no_number_of_a_layout_is_refused_and_left_alone(
    redis: Redis, redis_server: RedisServer, text: str | None
) -> None:
    await _write_nonsense(redis, text)
    before = await redis.dump(keyspace.DATA_VERSION) if text != "\u00ff" else None
    for step in (bring_up_to_date, refuse_newer):
        with pytest.raises(DataUnreadable, match="not the number of a layout"):
            await step(redis_server.url)
    assert await redis.keys() == [keyspace.DATA_VERSION]
    assert before is None or await redis.dump(keyspace.DATA_VERSION) == before


@pytest.mark.parametrize("command", [("serve",), ("worker",), ("dead", "list"), ("keys", "list")])
async def test_nothing_starts_on_a_layout_without_a_number(
    redis: Redis, redis_server: RedisServer, command: tuple[str, ...]
) -> None:
    await _write_nonsense(redis, "x")
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "service.cli.main", *command],
        env=environment(redis_server.url, "http://127.0.0.1:9", port=free_port()),
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == os.EX_CONFIG
    assert "Error: What mem:data-version holds" in done.stderr
    assert "Traceback" not in done.stderr + done.stdout


async def test_letters_of_a_worker_that_knew_no_lists_are_listed_by_the_sweep(
    redis: Redis, redis_server: RedisServer
) -> None:
    assert await bring_up_to_date(redis_server.url) == CURRENT
    letters = await _as_the_first_version_left_it(redis)
    async with TurnsLog(redis_server.url, Debounce(0, 60, 20)) as log:
        await log.sweep()
        for bank in (ANNE, BEN):
            listed = await cast("Any", redis.hgetall(keyspace.dead_of(bank)))
            assert listed == {d: tenant for d, (its_bank, tenant) in letters.items() if its_bank == bank}
        # With all of them listed, the letters themselves are not looked at.
        await redis.config_resetstat()
        await log.sweep()
        calls = await redis.info("commandstats")
        assert calls["cmdstat_hscan"]["calls"] == 1, "more than the claims were walked through"


@pytest.mark.parametrize("command", ["serve", "worker"])
async def test_no_process_starts_on_a_newer_layout(
    redis: Redis, redis_server: RedisServer, folder: Path, command: str
) -> None:
    await redis.set(keyspace.DATA_VERSION, "999")
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "service.cli.main", command],
        env=environment(redis_server.url, "http://127.0.0.1:9", port=free_port()),
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == os.EX_CONFIG
    assert "Error: The data in Redis has layout 999" in done.stderr
    assert "Traceback" not in done.stderr + done.stdout
    assert await redis.keys() == [keyspace.DATA_VERSION]


@pytest.mark.parametrize("command", [("dead", "list"), ("keys", "list")])
async def test_commands_leave_a_newer_layout_alone(
    redis: Redis, redis_server: RedisServer, command: tuple[str, ...]
) -> None:
    await redis.set(keyspace.DATA_VERSION, "999")
    env = environment(redis_server.url, "http://127.0.0.1:9")
    argv = [sys.executable, "-m", "service.cli.main", *command]
    done = await asyncio.to_thread(
        subprocess.run,
        argv,
        env=env,
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == os.EX_CONFIG
    assert "Error: The data in Redis has layout 999" in done.stderr
    assert await redis.keys() == [keyspace.DATA_VERSION]


async def test_processes_carry_old_data_forward_when_they_start(
    redis: Redis, redis_server: RedisServer, stand_in: HindsightStandIn, folder: Path
) -> None:
    await _as_the_first_version_left_it(redis)
    processes = [
        ApiProcess(folder / "api", redis_server.url, stand_in.url),
        WorkerProcess(folder / "worker", redis_server.url, stand_in.url),
    ]
    try:
        await asyncio.gather(*(process.start() for process in processes))
        assert await redis.get(keyspace.DATA_VERSION) == str(CURRENT)
        assert await cast("Any", redis.hlen(keyspace.dead_of(ANNE))) == 2
        assert "data_migrated" in "".join(process.log() for process in processes)
    finally:
        await asyncio.gather(*(process.stop() for process in processes))


async def test_an_api_that_started_without_redis_ends_once_it_sees_a_newer_layout(
    stand_in: HindsightStandIn, folder: Path
) -> None:
    async with valkey(folder / "redis") as server:
        await server.command("SET", keyspace.DATA_VERSION, "999")
    port = free_port()
    api = ApiProcess(folder / "api", f"redis://127.0.0.1:{port}/0", stand_in.url)
    try:
        await api.start()
        async with httpx.AsyncClient(base_url=api.url, trust_env=False) as client:
            assert (await client.get("/health/live")).status_code == 200
        async with valkey(folder / "redis", port=port):
            await wait_until(lambda: not api.is_running, "the process has ended", timeout_s=30)
        assert api.returncode == os.EX_CONFIG
        assert "layout 999" in api.log()
    finally:
        await api.stop()
