"""No user id has to be in a URL, which proxies write down; and this service writes down no URLs."""

import json
import os
import sys
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from tests.fakes.hindsight import HindsightStandIn
from tests.integration.conftest import KEY, Api
from tests.integration.edge import checked, code_of
from tests.support import RedisServer, ServerProcess, free_port

pytestmark = pytest.mark.anyio
HEADER = "X-Memory-User-Id"


async def exported(api: Api, **headers: str) -> list[str]:
    reply = await api.client.get("/memory/export", headers=headers)
    assert reply.status_code == 200, reply.text
    return [json.loads(line).get("text", "") for line in reply.text.splitlines()]


@pytest.mark.parametrize("user", ["anne", "a:b/../c d", "用户 一", "a+b%20c&x=1", "é"])
async def test_a_header_names_the_user_of_an_export_and_an_import(api: Api, user: str) -> None:
    await api.add(user, "I keep bees.")
    assert "User: I keep bees." in await exported(api, **{HEADER: quote(user, safe="")})
    line = json.dumps({"type": "memory", "text": "I fly kites."})
    reply = await api.client.post("/memory/import", headers={HEADER: quote(user, safe="")}, content=line)
    assert checked(reply, 202)["accepted"] == 1
    assert "I fly kites." in (await api.recall(user, "kites")).text


async def test_two_users_in_one_request_are_refused(api: Api) -> None:
    for headers in ([(HEADER, "anne"), (HEADER, "bert")], [(HEADER, "anne")]):
        reply = await api.client.get(
            "/memory/export",
            params={"user_id": "carl"},
            headers=[(n.encode(), v.encode()) for n, v in headers],
        )
        assert code_of(reply, 409) == "identity_conflict"
    # Bytes that nobody has encoded would be read as Latin-1: they are another user's name.
    for wrong in ("", "%20", "null", "%FF", "José".encode(), "张伟".encode()):
        name = wrong.encode() if isinstance(wrong, str) else wrong
        reply = await api.client.get("/memory/export", headers=[(HEADER.encode(), name)])
        assert reply.status_code == 422


async def test_the_log_of_a_process_has_routes_and_no_urls(
    redis_server: RedisServer, stand_in: HindsightStandIn, tmp_path: Path
) -> None:
    port = free_port()
    env = {name: value for name, value in os.environ.items() if not name.startswith("MEMORY_")} | {
        "MEMORY_API_KEY": KEY,
        "MEMORY_PORT": str(port),
        "MEMORY_REDIS_URL": redis_server.url,
        "MEMORY_HINDSIGHT_URL": stand_in.url,
        "MEMORY_LOG_LEVEL": "debug",
    }
    headers = {"Authorization": f"Bearer {KEY}"}
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers) as client:

        async def is_ready() -> bool:
            return (await client.get("/health/live")).status_code == 200

        process = ServerProcess(
            [sys.executable, "-m", "service.cli.main", "serve"],
            log_path=tmp_path / "api.log",
            is_ready=is_ready,
            env=env,
        )
        await process.start()
        try:
            await client.get("/memory/export", params={"user_id": "secret-anne"})
            await client.get("/memory/export", headers={HEADER: "secret-anna"})
            await client.get("/memory/jobs/secret-job", params={"wait_s": 0})
            await client.post("/memory/recall?user_id=secret-bert", json={"user_id": "b", "query": "q"})
            await client.post("/memory/recall?api_key=secret-key", json={"user_id": "b", "query": "q"})
            await client.get("/me?token=secret-token")
            await client.get("/secret-path?user_id=secret-carl")
        finally:
            await process.stop()
    routes = [json.loads(line).get("route") for line in process.log().splitlines()]
    assert [route for route in routes if route not in (None, "/health/live")] == [
        "/memory/export",
        "/memory/export",
        "/memory/jobs/{job_id}",
        "/memory/recall",
        "/memory/recall",
        "/me",
        "unknown",
    ]
    assert "secret" not in process.log()
