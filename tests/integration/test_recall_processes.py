"""Two processes of the API, one Redis: one backend call for both, also when the one that asks is killed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest

from tests.fakes.hindsight import HindsightStandIn
from tests.integration.recall_parts import HIT, MISS, QUERY, how, remember, stored, texts
from tests.processes import KEY, ApiProcess
from tests.support import RedisServer, wait_until

pytestmark = pytest.mark.anyio


class Replica:
    """One process of the API and a client of it."""

    def __init__(self, process: ApiProcess, client: httpx.AsyncClient) -> None:
        self.process = process
        self._client = client

    async def recall(self, user: str) -> httpx.Response:
        """A recall that is given four seconds."""
        return await self._client.post(
            "/memory/recall", data={"user_id": user, "query": QUERY, "timeout_ms": "4000"}
        )


@pytest.fixture
async def replicas(
    redis_server: RedisServer, stand_in: HindsightStandIn, folder: Path
) -> AsyncIterator[tuple[Replica, Replica]]:
    await redis_server.command("FLUSHALL")
    async with AsyncExitStack() as stack:
        opened: list[Replica] = []
        processes = [
            ApiProcess(folder / name, redis_server.url, stand_in.url, min_score=0) for name in ("one", "two")
        ]
        for process in processes:
            stack.push_async_callback(process.stop)
        await asyncio.gather(*(process.start() for process in processes))
        for process in processes:
            client = httpx.AsyncClient(
                base_url=process.url, headers={"Authorization": f"Bearer {KEY}"}, timeout=30, trust_env=False
            )
            opened.append(Replica(process, await stack.enter_async_context(client)))
        yield opened[0], opened[1]


async def test_one_call_and_a_holder_that_is_killed(
    replicas: tuple[Replica, Replica], stand_in: HindsightStandIn, user: str
) -> None:
    one, two = replicas
    remember(stand_in, user, "first")
    stand_in.fail("recall", "slow", seconds=0.5, times=1)
    replies = await asyncio.gather(*(replica.recall(user) for replica in replicas for _ in range(32)))
    assert len(stand_in.requests_for("recall")) == 1
    assert {tuple(texts(reply)) for reply in replies} == {(stored("first"),)}
    assert all(how(reply) in (HIT, MISS) for reply in replies)

    other = f"{user}-other"
    remember(stand_in, other, "second")
    stand_in.fail("recall", "hang", times=1)
    doomed = asyncio.create_task(one.recall(other))
    await wait_until(lambda: len(stand_in.requests_for("recall")) == 2, "the first process has asked")
    loop = asyncio.get_running_loop()
    await one.process.kill()
    started = loop.time()
    reply = await two.recall(other)
    took_s = loop.time() - started
    assert texts(reply) == [stored("second")]
    assert took_s < 2, "the lease outlived its holder"
    with pytest.raises(httpx.HTTPError):
        await doomed
