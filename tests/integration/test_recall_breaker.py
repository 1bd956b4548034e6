"""A Hindsight that fails is left alone for a while; it is found again by itself, at one caller's cost."""

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest
from service.adapters.hindsight import HindsightAdapter
from service.errors import HindsightRejected, HindsightUnavailable
from service.scope import BankId
from service.settings import Settings

from tests.fakes.hindsight import HindsightStandIn
from tests.integration.conftest import Api, settings_for
from tests.integration.recall_parts import QUERY, how
from tests.support import RedisServer, wait_until

pytestmark = pytest.mark.anyio
BANK = BankId("u-breaker")
OPEN_S = 0.7


@pytest.fixture
async def settings(redis_server: RedisServer, stand_in: HindsightStandIn) -> Settings:
    """Without a floor, so that nothing here depends on the ranking."""
    await redis_server.command("FLUSHALL")
    return settings_for(redis_server.url, stand_in.url, min_score=0)


@pytest.fixture
async def hindsight(settings: Settings) -> AsyncIterator[HindsightAdapter]:
    """One that is left alone for a shorter time than usual."""
    async with HindsightAdapter(
        settings.hindsight_url, None, recall_timeout_s=10, retain_timeout_s=1, open_s=OPEN_S
    ) as opened:
        yield opened


async def recall(hindsight: HindsightAdapter, timeout_s: float = 0.6) -> bool:
    """Whether Hindsight answers."""
    try:
        await hindsight.recall(BANK, QUERY, budget="low", max_tokens=100, timeout_s=timeout_s)
    except HindsightUnavailable:
        return False
    return True


def asked(stand_in: HindsightStandIn) -> int:
    """How often Hindsight was asked to recall."""
    return len(stand_in.requests_for("recall"))


@pytest.mark.parametrize("fault", ["status", "close", "garbage", "wrong_shape", "cut"])
async def test_after_five_failures_it_is_not_asked(
    hindsight: HindsightAdapter, stand_in: HindsightStandIn, fault: str
) -> None:
    stand_in.store.ensure_bank(BANK)
    stand_in.fail("recall", fault)  # type: ignore[arg-type]
    for _ in range(5):
        assert not await recall(hindsight)
    assert asked(stand_in) == 5
    for _ in range(20):
        assert not await recall(hindsight)
    assert asked(stand_in) == 5


async def test_a_hanging_one_costs_five_their_deadline_and_nobody_else(
    api: Api, stand_in: HindsightStandIn, user: str
) -> None:
    stand_in.fail("recall", "hang")
    loop = asyncio.get_running_loop()
    slow = await asyncio.gather(*(api.recall(user, f"{QUERY} {n}", timeout_ms="800") for n in range(5)))
    assert {how(reply)["reason"] for reply in slow} == {"hindsight_unavailable"}
    started = loop.time()
    for n in range(10):
        assert how(await api.recall(user, f"{QUERY} again {n}"))["reason"] == "hindsight_unavailable"
    assert loop.time() - started < 2, "ten answers took as long as one deadline"
    assert asked(stand_in) == 5


async def test_it_half_opens_by_itself_for_one_at_a_time(
    hindsight: HindsightAdapter, stand_in: HindsightStandIn
) -> None:
    stand_in.store.ensure_bank(BANK)
    stand_in.fail("recall", "status", status=503, times=5)
    for _ in range(5):
        await recall(hindsight)
    stand_in.fail("recall", "hang", times=1)

    async def is_asked_again() -> bool:
        return not await recall(hindsight) and asked(stand_in) == 6

    await wait_until(is_asked_again, "it is asked again", OPEN_S + 5)
    # That one hung, and it is left alone again.
    assert not await recall(hindsight)
    assert asked(stand_in) == 6
    stand_in.fail("recall", "slow", seconds=0.3, times=1)
    probe: list[asyncio.Task[bool]] = []

    async def is_probed() -> bool:
        task = asyncio.create_task(recall(hindsight, 9))
        await asyncio.wait([task], timeout=0.05)
        if not task.done():
            probe.append(task)
        return bool(probe)

    await wait_until(is_probed, "it is asked again", OPEN_S + 5)
    # While one asks, nobody else does.
    assert await asyncio.gather(*(recall(hindsight) for _ in range(10))) == [False] * 10
    assert asked(stand_in) == 7
    assert await probe[0]
    assert await recall(hindsight)
    assert asked(stand_in) == 8


async def test_a_probe_that_is_cancelled_leaves_the_place_to_the_next(
    hindsight: HindsightAdapter, stand_in: HindsightStandIn
) -> None:
    stand_in.store.ensure_bank(BANK)
    stand_in.fail("recall", "status", status=503, times=5)
    for _ in range(5):
        await recall(hindsight)
    stand_in.fail("recall", "hang", times=1)
    probes: list[asyncio.Task[bool]] = []

    async def is_probed() -> bool:
        task = asyncio.create_task(recall(hindsight, 30))
        await asyncio.wait([task], timeout=0.05)
        if not task.done():
            probes.append(task)
        return bool(probes)

    await wait_until(is_probed, "it is asked again", OPEN_S + 5)
    probes[0].cancel()
    await asyncio.wait(probes)
    # Neither opened nor closed: the next one finds out.
    assert await recall(hindsight)


async def test_who_leaves_neither_opens_nor_closes_it(
    hindsight: HindsightAdapter, stand_in: HindsightStandIn
) -> None:
    stand_in.store.ensure_bank(BANK)
    stand_in.fail("recall", "status", status=500, times=4)
    for _ in range(4):
        await recall(hindsight)
    stand_in.fail("recall", "hang", times=8)
    leaving = [asyncio.create_task(recall(hindsight, 30)) for _ in range(8)]
    await wait_until(lambda: asked(stand_in) == 12, "all have asked")
    for task in leaving:
        task.cancel()
    await asyncio.wait(leaving)
    # Not opened by those who left; and not closed either, since one more failure opens it.
    stand_in.fail("recall", "status", status=500, times=1)
    assert not await recall(hindsight)
    assert asked(stand_in) == 13
    assert not await recall(hindsight)
    assert asked(stand_in) == 13


async def test_callers_in_a_hurry_do_not_open_it(
    hindsight: HindsightAdapter, stand_in: HindsightStandIn
) -> None:
    stand_in.store.ensure_bank(BANK)
    stand_in.fail("recall", "hang", times=20)
    assert await asyncio.gather(*(recall(hindsight, 0.05) for _ in range(20))) == [False] * 20
    stand_in.heal()
    assert await recall(hindsight, 5)


async def test_a_short_usual_deadline_is_no_hurry(stand_in: HindsightStandIn, settings: Settings) -> None:
    short = settings.model_copy(update={"recall_deadline_ms": 200})
    async with HindsightAdapter.from_settings(short) as hindsight:
        stand_in.fail("recall", "hang")
        for _ in range(5):
            assert not await recall(hindsight, 0.16)
        before = asked(stand_in)
        assert not await recall(hindsight, 0.16)
        assert asked(stand_in) == before


async def test_a_refusal_of_the_request_does_not_open_it(
    hindsight: HindsightAdapter, stand_in: HindsightStandIn
) -> None:
    stand_in.store.ensure_bank(BANK)
    stand_in.fail("recall", "status", status=422, times=10)
    for _ in range(10):
        with pytest.raises(HindsightRejected):
            await recall(hindsight)
    assert await recall(hindsight)


async def test_no_bank_is_no_failure(api: Api, hindsight: HindsightAdapter, user: str) -> None:
    for _ in range(10):
        assert await recall(hindsight)
    reply = await api.recall(user, QUERY)
    assert how(reply) == {"cached": False, "stale": False, "degraded": False, "reason": ""}


async def test_a_full_listen_queue_is_a_hang(settings: Settings) -> None:
    # Nobody accepts: the connection is made by the kernel, or not at all.
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with HindsightAdapter.from_settings(
            settings.model_copy(update={"hindsight_url": url})
        ) as hindsight:
            results = await asyncio.gather(*(recall(hindsight, 0.6) for _ in range(10)))
            assert results == [False] * 10
            loop = asyncio.get_running_loop()
            started = loop.time()
            assert not await recall(hindsight, 10)
            assert loop.time() - started < 1
