"""The order of a conversation whose turns took both ways: the times that they carry tell it."""

from datetime import datetime
from pathlib import Path

import pytest
from service.scope import bank_of

from tests.fakes.hindsight import HindsightStandIn
from tests.integration.conftest import open_workshop, run_api, settings_for
from tests.integration.edge import checked
from tests.support import valkey, wait_until

pytestmark = pytest.mark.anyio


async def test_what_went_past_the_queue_has_its_place(
    folder: Path, stand_in: HindsightStandIn, user: str
) -> None:
    async with valkey(folder / "redis") as redis:
        settings = settings_for(redis.url, stand_in.url)
        async with run_api(settings) as api, open_workshop(settings) as workshop:

            async def add(text: str) -> str:
                job: str = checked(await api.add(user, text, conversation_id="c1"), 202)["job_id"]
                return job

            await add("the first waits")
            await redis.kill()
            direct = await add("the second goes past it")
            assert (await api.job(direct, wait_s=5))["status"] == "done"
            await redis.start()
            await add("the third waits, too")

            async def are_stored() -> bool:
                await workshop.work()
                return len(bank.documents) == 3

            bank = stand_in.banks[bank_of("default", user)]
            await wait_until(are_stored, "all are stored")
        said = [text.removeprefix("User: ") for _, text in bank.written]
        assert said == ["the second goes past it", "the first waits", "the third waits, too"]

        def time_of(text: str) -> datetime:
            [memory] = [memory for memory in bank.memories.values() if memory.text.endswith(text)]
            return datetime.fromisoformat(str(memory.mentioned_at))

        assert sorted(said, key=time_of) == [
            "the first waits",
            "the second goes past it",
            "the third waits, too",
        ]
