"""What the tests of forgetting share: an API, a worker that works when told to, and a look at both sides."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis
from service.scope import bank_of

from tests.fakes.hindsight import HindsightStandIn
from tests.integration.conftest import Api, Workshop, open_workshop, run_api, settings_for
from tests.integration.edge import checked, texts_of
from tests.support import RedisServer
from tests.turns_log import look, pass_time, without_ttl


@dataclass
class World:
    """An API, a worker's parts, their Hindsight and their Redis."""

    api: Api
    workshop: Workshop
    stand_in: HindsightStandIn
    redis: Redis

    async def add(self, user: str, text: str, **fields: str) -> str:
        """Accept a turn; its job."""
        job: str = checked(await self.api.add(user, text, **fields), 202)["job_id"]
        return job

    async def store(self) -> None:
        """Let the worker store all that waits."""
        await pass_time(self.redis)
        await self.workshop.work()

    async def forget(self, user: str, **fields: str) -> Any:
        """The receipt."""
        return checked(await self.api.client.post("/memory/forget", data={"user_id": user, **fields}), 200)

    async def recalled(self, user: str, query: str, **fields: str) -> list[str]:
        """Texts that are recalled."""
        return texts_of(checked(await self.api.recall(user, query, **fields), 200))

    def texts(self, user: str) -> list[str]:
        """What Hindsight can recall of a user."""
        bank = self.stand_in.banks.get(bank_of("default", user))
        return [text.removeprefix("User: ") for text in bank.texts] if bank else []


@asynccontextmanager
async def open_world(redis_server: RedisServer) -> AsyncIterator[World]:
    """All of it on an empty Redis; in the end the log is as it has to be."""
    await redis_server.command("FLUSHALL")
    async with (
        HindsightStandIn() as stand_in,
        Redis.from_url(redis_server.url, decode_responses=True) as redis,
    ):
        settings = settings_for(redis_server.url, stand_in.url)
        async with run_api(settings) as api, open_workshop(settings) as workshop:
            yield World(api, workshop, stand_in, redis)
            assert (await look(redis)).faults() == []
            assert await without_ttl(redis) == set()


def counts(receipt: Any) -> tuple[int, int, int, int]:
    """Memories, documents, pending turns, jobs of a receipt that is verified."""
    forgotten = receipt["forgotten"]
    assert receipt["verified"] is True
    return forgotten["memories"], forgotten["documents"], forgotten["pending"], forgotten["jobs"]
