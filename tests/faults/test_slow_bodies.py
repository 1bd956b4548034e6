"""A body that never ends: its sender is told so in time, and nobody else waits for it."""

import asyncio
import json

import pytest

from tests.fakes.hindsight import HindsightStandIn
from tests.integration.conftest import KEY, Api, run_api, settings_for
from tests.support import RedisServer

pytestmark = pytest.mark.anyio

_BOUND_S = 15.0


async def _trickle(api: Api, path: str, every_s: float) -> tuple[float, bytes]:
    """Send a body byte by byte; seconds until the answer, and the answer."""
    host, _, port = api.url.partition("//")[2].partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    loop = asyncio.get_running_loop()
    head = [f"POST {path} HTTP/1.1", "Host: x", f"Authorization: Bearer {KEY}", "Content-Length: 100000"]
    writer.write("\r\n".join([*head, "Content-Type: application/json", "", "{"]).encode())
    started = loop.time()
    answer = asyncio.ensure_future(reader.readuntil(b"}}"))
    while not answer.done():
        writer.write(b" ")
        await asyncio.wait([answer], timeout=every_s)
    took_s = loop.time() - started
    writer.close()
    return took_s, answer.result()


@pytest.mark.parametrize("path", ["/memory/recall", "/memory/add"])
async def test_a_body_that_trickles_is_cut_off(redis_server: RedisServer, path: str, user: str) -> None:
    async with HindsightStandIn() as stand_in, run_api(settings_for(redis_server.url, stand_in.url)) as api:
        slow = asyncio.ensure_future(_trickle(api, path, every_s=0.5))
        served = 0
        while not slow.done():
            reply = await api.client.post(
                "/memory/recall", content=json.dumps({"user_id": user, "query": f"question {served}"})
            )
            assert reply.status_code == 200
            served += 1
            await asyncio.wait([slow], timeout=0.2)
        took_s, answer = slow.result()
    assert _BOUND_S - 0.5 <= took_s <= _BOUND_S + 2
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"malformed_body" in answer
    assert served > 20
