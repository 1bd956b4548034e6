"""Whatever text an event is known by, it is seen to once."""

import json
from collections.abc import AsyncIterator

import pytest
from service.scope import bank_of

from tests.fakes.hindsight import HindsightStandIn
from tests.integration.conftest import Api, run_api, settings_for
from tests.integration.edge import checked
from tests.integration.test_hooks import PATH, SECRET, event, signature
from tests.support import RedisServer

pytestmark = pytest.mark.anyio


@pytest.fixture
async def api(redis_server: RedisServer, stand_in: HindsightStandIn) -> AsyncIterator[Api]:
    await redis_server.command("FLUSHALL")
    async with run_api(settings_for(redis_server.url, stand_in.url, webhook_secret=SECRET)) as running:
        yield running


async def test_odd_ids_are_ids_that_differ(api: Api, user: str) -> None:
    for event_id in ("\ud800", "\ud801", "a\udfff", "?", "\x00", "\U0001f600" * 200):
        body = json.dumps(event(bank_of("default", user), event_id=event_id)).encode()
        headers = {"X-Hindsight-Signature-V2": signature(body)}
        for outcome in ("seen", "known"):
            reply = await api.stranger.post(PATH, content=body, headers=headers)
            assert checked(reply, 200)["status"] == outcome
