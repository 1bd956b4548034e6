"""A process that is told to stop while a model answers: the client is told so, and what was said is kept."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis
from service import keyspace
from service.scope import bank_of

from tests.fakes.hindsight import HindsightStandIn
from tests.integration.chat_world import MODEL, EndlessModel, said
from tests.processes import KEY, ApiProcess
from tests.support import RedisServer, serve, valkey

pytestmark = pytest.mark.anyio
FACT = "I live in Lisbon and work as a nurse."


async def _turns(server: RedisServer) -> list[str]:
    async with Redis.from_url(server.url, decode_responses=True) as redis:
        found: dict[str, str] = await redis.hgetall(keyspace.turns(bank_of("default", "ana")))
    return list(found.values())


async def test_a_stream_that_is_cut_off_says_so_and_leaves_its_turn(folder: Path) -> None:
    model = EndlessModel()
    async with valkey(folder / "redis") as redis, HindsightStandIn() as stand_in, serve(model.app) as url:
        api = ApiProcess(
            folder / "api", redis.url, stand_in.url, in_flight_s=1, recall_deadline_ms=8000,
            gateway_direct=True, gateway_model=MODEL, gateway_api_key="key", gateway_base_url=f"{url}/v1",
        )  # fmt: skip
        try:
            await api.start()
            headers = {"Authorization": f"Bearer {KEY}"}
            async with httpx.AsyncClient(trust_env=False, timeout=30, headers=headers) as client:
                body = said(FACT, user="ana", stream=True)
                events: list[Any] = []
                async with client.stream("POST", f"{api.url}/v1/chat/completions", json=body) as reply:
                    assert reply.status_code == 200
                    # Without the end of a body this raises.
                    async for line in reply.aiter_lines():
                        if line.startswith("data: "):
                            events.append(json.loads(line.removeprefix("data: ")))
                            if len(events) == len(EndlessModel.WORDS):
                                os.kill(api.pid, signal.SIGTERM)
            assert events[-1]["error"]["code"] == "server_leaving"
            await api.stop()
            assert api.returncode in (0, -signal.SIGTERM), api.log()
            assert "Exception in ASGI application" not in api.log()
        finally:
            await api.stop()
        assert model.hung_up.is_set()
        [turn] = await _turns(redis)
        assert FACT in turn
        assert "It is a long story" in turn
