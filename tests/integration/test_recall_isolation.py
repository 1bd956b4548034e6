"""Nobody sees another's memory: many users at once, the same questions, adds and stores in between."""

import asyncio
import random
import re

import pytest
from service.settings import Settings

from tests.fakes.hindsight import HindsightStandIn
from tests.integration.conftest import Api, Workshop, run_api, settings_for
from tests.integration.recall_parts import QUERY, remember, said
from tests.support import RedisServer, free_port

pytestmark = pytest.mark.anyio
USERS = 16
CALLERS = 64
CALLS = 8
# Every text of a user carries the user's number.
NUMBERED = re.compile(r"owner(\d+)x")


@pytest.fixture
async def settings(redis_server: RedisServer, stand_in: HindsightStandIn) -> Settings:
    """Without a floor, so that nothing here depends on the ranking."""
    await redis_server.command("FLUSHALL")
    return settings_for(redis_server.url, stand_in.url, min_score=0)


async def test_64_callers_over_16_users(
    api: Api, stand_in: HindsightStandIn, workshop: Workshop, user: str
) -> None:
    dice = random.Random(16)
    for number in range(USERS):
        remember(stand_in, f"{user}-{number}", f"owner{number}x")
    seen: dict[int, set[str]] = {number: set() for number in range(USERS)}

    async def call(number: int, what: int) -> None:
        name = f"{user}-{number}"
        if what < 2:
            text = f"owner{number}x {said(f'owner{number}x')} {dice.random()}"
            reply = await api.add(name, text, conversation_id=f"c{what}")
            # A busy machine may be told to come back; what counts here is whose words are whose.
            assert reply.status_code in (202, 503), reply.text
        else:
            fields = {"format": "text" if what == 2 else "json", "fresh": str(what == 3).lower()}
            reply = await api.recall(name, f"{QUERY} {what % 4}", max_chars="400", **fields)
            assert reply.status_code == 200
            seen[number] |= set(NUMBERED.findall(reply.text))

    async def caller() -> None:
        for _ in range(CALLS):
            await call(dice.randrange(USERS), dice.randrange(10))

    async def worker(is_over: asyncio.Event) -> None:
        while not is_over.is_set():
            if not await workshop.work():
                await asyncio.wait([asyncio.ensure_future(is_over.wait())], timeout=0.02)

    is_over = asyncio.Event()
    working = asyncio.create_task(worker(is_over))
    await asyncio.gather(*(caller() for _ in range(CALLERS)))
    is_over.set()
    await working
    assert seen == {number: {str(number)} for number in range(USERS)}


async def test_without_a_cache_people_with_the_same_question_share_no_flight(
    settings: Settings, stand_in: HindsightStandIn, user: str
) -> None:
    """Epochs tell banks apart only as long as there is a cache to have them from."""
    for number in range(USERS):
        remember(stand_in, f"{user}-{number}", f"owner{number}x")
    stand_in.fail("recall", "slow", seconds=0.3)
    nowhere = f"redis://127.0.0.1:{free_port()}/0"
    changes = {"cache_redis_url": nowhere, "recall_concurrency": USERS, "recall_deadline_ms": 8000}
    async with run_api(settings.model_copy(update=changes)) as api:
        replies = await asyncio.gather(*(api.recall(f"{user}-{n}", QUERY) for n in range(USERS)))
    for number, reply in enumerate(replies):
        assert set(NUMBERED.findall(reply.text)) == {str(number)}, reply.text
