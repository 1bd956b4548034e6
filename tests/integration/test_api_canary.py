"""Content stays out of logs, metrics, errors, job ids and key names: a marker is sent through everything.

API and worker run as the processes that ship, with their logs at DEBUG. The values of accepted turns and
of cached answers hold content by design; the names of keys, and all else, do not.
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis

from tests.fakes.hindsight import HindsightStandIn
from tests.integration.conftest import KEY
from tests.support import RedisServer, ServerProcess, free_port, wait_until

pytestmark = pytest.mark.anyio

MARK = "canary7f3a91"


@dataclass
class Stack:
    """API and worker as processes; `replies` collects what the API answered."""

    client: httpx.AsyncClient
    api: ServerProcess
    worker: ServerProcess
    stand_in: HindsightStandIn
    replies: list[httpx.Response]

    async def send(self, method: str, path: str, **options: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {KEY}", **options.pop("headers", {})}
        reply = await self.client.request(method, path, headers=headers, **options)
        self.replies.append(reply)
        return reply


@pytest.fixture(scope="module")
async def stack(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """Both processes, up."""
    port, folder = free_port(), tmp_path_factory.mktemp("logs")
    async with AsyncExitStack() as exits:
        stand_in = await exits.enter_async_context(HindsightStandIn())
        client = await exits.enter_async_context(httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}"))
        env = {name: value for name, value in os.environ.items() if not name.startswith("MEMORY_")} | {
            "MEMORY_API_KEY": KEY,
            "MEMORY_PORT": str(port),
            "MEMORY_REDIS_URL": redis_server.url,
            "MEMORY_HINDSIGHT_URL": stand_in.url,
            "MEMORY_QUIET_S": "0",
            "MEMORY_MAX_ATTEMPTS": "1",
            "MEMORY_RETAIN_TIMEOUT_S": "1",
            "MEMORY_LOG_LEVEL": "debug",
        }

        async def answers() -> bool:
            return (await client.get("/health/live")).is_success

        async def beats() -> bool:
            return bool((await client.get("/health/ready")).json()["parts"]["turns_log"]["worker"])

        processes: list[ServerProcess] = []
        for name, is_ready in (("serve", answers), ("worker", beats)):
            argv = [sys.executable, "-m", "service.cli.main", name]
            process = ServerProcess(
                argv, log_path=folder / name, is_ready=is_ready, env=env, start_timeout_s=90
            )
            exits.push_async_callback(process.stop)
            processes.append(process)
        api, worker = await asyncio.gather(*(process.start() for process in processes))
        yield Stack(client, api, worker, stand_in, [])


def marked(value: object) -> Iterator[object]:
    """The marker in one field, as valid and as invalid as it can be."""
    yield value
    yield [value]
    yield {str(value): value}
    yield f"{value}\ud800"
    yield f"{value}\x00"
    yield f"{value}" * 1000


async def bother(stack: Stack) -> list[str]:
    """Send the marker wherever something can be sent; the ids of the jobs that came of it."""
    turn: dict[str, Any] = {
        "user_id": f"user-{MARK}",
        "user_message": f"My code is {MARK}",
        "assistant_message": f"Noted: {MARK}",
        "conversation_id": f"conversation-{MARK}",
        "turn_id": f"turn-{MARK}",
        "timestamp": "2026-01-31",
        "tags": f"tag-{MARK}",
        "metadata": {f"name-{MARK}": f"value-{MARK}"},
    }
    asked: dict[str, Any] = {
        "user_id": f"user-{MARK}",
        "query": f"My code is {MARK}",
        "tags": f"tag-{MARK}",
        "kinds": f"kind-{MARK}",
        "conversation_id": f"other-{MARK}",
    }
    plain = {"user_id": f"user-{MARK}", "query": f"My code is {MARK}"}
    jobs = [(await stack.send("POST", "/memory/add", json=turn)).json()["job_id"]]
    for body in (asked, plain, plain, {**plain, "format": "text"}):
        assert (await stack.send("POST", "/memory/recall", json=body)).status_code == 200

    for path, least in (("/memory/add", turn), ("/memory/recall", asked)):
        for name in [*least, "messages", "budget", "fresh", "top_k", "min_score", f"unknown-{MARK}"]:
            for value in marked(MARK):
                await stack.send("POST", path, content=json.dumps({**plain, name: value}))
                await stack.send("POST", path, content=json.dumps({**least, name: value}))
        broken = [
            MARK,
            f'{{"{MARK}": "{MARK}"',
            f'["{MARK}"]',
            f'{{"a": 1, "a": "{MARK}"}}',
            f"{MARK}&{MARK}",
        ]
        for text in broken:
            for kind in ("application/json", "application/x-www-form-urlencoded", f"x/{MARK}"):
                await stack.send("POST", path, content=text, headers={"Content-Type": kind})
        for headers in ({"Authorization": f"Bearer {MARK}"}, {"X-API-Key": MARK}, {"Cookie": MARK}):
            await stack.send("POST", path, headers=headers, json=least)
        odd = {"X-Request-Id": f"{MARK} {MARK}", "User-Agent": MARK, "Referer": MARK, f"X-{MARK}": MARK}
        await stack.send("POST", path, headers=odd, json=least)
        await stack.send("POST", f"{path}?user_id={MARK}&{MARK}={MARK}", json=least)
        await stack.send("POST", f"{path}?api_key={MARK}", json=least)
        await stack.send("POST", f"{path}/{MARK}?{MARK}", json=least)
        await stack.send("POST", path, content=MARK.encode() * 200_000)
    for path in (f"/memory/jobs/{MARK}", f"/memory/jobs/x?wait_s={MARK}", f"/{MARK}"):
        await stack.send("GET", path)
        await stack.send("DELETE", path)

    # The first turn gets through before Hindsight begins to fail.
    await stack.send("GET", f"/memory/jobs/{jobs[0]}?wait_s=30")

    # What Hindsight says, right or wrong, is content as well.
    said = {"detail": MARK, "results": [{"id": MARK, "text": 5, MARK: MARK}]}
    for number, kind in enumerate(("wrong_shape", "garbage", "close", "status")):
        stack.stand_in.fail("recall", kind, body=said, status=500, times=1)  # type: ignore[arg-type]
        await stack.send("POST", "/memory/recall", json={**plain, "query": f"{MARK} {number}"})
    stack.stand_in.fail("retain", "wrong_shape", body=said)
    stack.stand_in.fail("bank", "wrong_shape", body=said)
    reply = await stack.send("POST", "/memory/add", json={**turn, "user_id": f"{MARK}2"})
    jobs.append(reply.json()["job_id"])
    return jobs


async def test_the_logs_say_what_happened_and_to_which_request(stack: Stack) -> None:
    named = {"X-Request-Id": "run-1"}
    reply = await stack.send("POST", "/memory/recall", json={"user_id": "u"}, headers=named)
    assert reply.status_code == 422

    async def lines() -> list[dict[str, Any]]:
        logged = [json.loads(line) for line in stack.api.log().splitlines()]
        return [line for line in logged if line.get("request_id") == "run-1"]

    (line,) = await wait_until(lines, "the request is logged")
    assert line["event"] == "request_done"
    assert (line["route"], line["status"]) == ("/memory/recall", 422)
    assert line["ms"] > 0


async def test_the_marker_is_only_in_turns_and_answers(stack: Stack, redis_server: RedisServer) -> None:
    stored, failed = await bother(stack)
    for job_id, status in ((stored, "done"), (failed, "failed")):
        reply = await stack.send("GET", f"/memory/jobs/{job_id}?wait_s=30")
        assert reply.json()["status"] == status, reply.text
    metrics = (await stack.client.get("/metrics")).text
    async with Redis.from_url(redis_server.url, decode_responses=True) as redis:
        names = [name async for name in redis.scan_iter(count=1000)]
        job_states = [await redis.hgetall(name) for name in names if name.startswith("mem:job:")]
        left_for_ever = {name for name in names if await redis.ttl(name) == -1}
    await stack.worker.stop()
    await stack.api.stop()

    # The marker did go everywhere, so that its absence says something.
    assert any(MARK in text for bank in stack.stand_in.banks.values() for text in bank.texts)
    assert any(MARK in reply.text for reply in stack.replies if reply.status_code == 200)
    statuses = {reply.status_code for reply in stack.replies}
    assert statuses >= {200, 202, 400, 401, 404, 405, 409, 413, 422}
    assert not any(status >= 500 for status in statuses)

    assert MARK not in metrics
    for reply in stack.replies:
        assert MARK not in str(reply.headers), reply.request.url
        assert reply.status_code < 400 or MARK not in reply.text, reply.request.url
    assert [name for name in names if MARK in name] == []
    assert MARK not in json.dumps(job_states)
    for process, event in ((stack.api, "request_done"), (stack.worker, "store_failed")):
        lines = process.log().splitlines()
        assert any(event in line for line in lines)
        assert [line for line in lines if MARK in line.lower() or KEY in line] == []
        assert all(isinstance(json.loads(line), dict) for line in lines)

    # Every name is ours or arq's; only accepted work, the queue and dead letters stay for ever.
    assert all(name.startswith(("mem:", "arq:")) for name in names)
    stays = {"arq", "due", "claims", "claim-number", "waiting", "turns", "conversations", "batch"}
    stays |= {"dead", "dead-of", "data-version"}
    assert [name for name in left_for_ever if name.split(":")[1] not in stays] == []
