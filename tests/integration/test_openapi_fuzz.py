"""schemathesis sends thousands of requests made from the OpenAPI document: none of them breaks the service.

The document is held to what really comes back: status codes, content types and the forms of all replies.
`FUZZ_EXAMPLES` (25) is how many random requests each operation gets besides those for its edges.
"""

import asyncio
import logging
import os
import re
import sys
from pathlib import Path

import pytest
from redis.asyncio import Redis
from service import keyspace
from service.scope import bank_of

from tests.fakes.hindsight import HindsightStandIn
from tests.fakes.llm import FakeLlm
from tests.integration.conftest import KEY, Api, run_api, settings_for
from tests.integration.edge import checked
from tests.integration.openapi_hooks import USER
from tests.support import RedisServer, serve
from tests.turns_log import without_ttl

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(3600)]
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "unsupported_method",
)
EXAMPLES = os.environ.get("FUZZ_EXAMPLES", "25")


async def cookies_of(api: Api) -> str:
    """Of somebody who has opened their personal link, and has signed in to the operators' page."""
    made = checked(await api.client.post("/admin/me-links", json={"user_id": USER}), 201)["url"]
    opened = await api.stranger.get(f"/me?token={made.partition('token=')[2]}")
    assert opened.status_code == 200
    signed_in = await api.stranger.post("/admin/sign-in", data={"key": KEY})
    assert signed_in.status_code == 303
    found = {**opened.cookies, **signed_in.cookies}
    return "; ".join(f"{name}={found[name]}" for name in ("memory-me", "memory-admin"))


async def schemathesis(api: Api, folder: Path) -> tuple[int, str]:
    """Exit code and report of a run over the whole document."""
    process = await asyncio.create_subprocess_exec(
        *(Path(sys.executable).with_name("schemathesis"), "run", f"{api.url}/openapi.json"),
        *("--header", f"Authorization: Bearer {KEY}", "--header", f"Cookie: {await cookies_of(api)}"),
        *("--seed", "1", "--max-examples", EXAMPLES, "--generation-database", "none"),
        *("--phases", "coverage,fuzzing", "--checks", ",".join(CHECKS), "--continue-on-failure"),
        *("--request-timeout", "30", "--no-color"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=folder,
        env=os.environ
        | {
            "SCHEMATHESIS_HOOKS": "tests.integration.openapi_hooks",
            "PYTHONPATH": str(Path(__file__).parents[2]),
        },
    )
    try:
        said, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return process.returncode, said.decode("utf-8", "replace")


async def test_no_request_breaks_the_service_or_its_document(
    redis_server: RedisServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await redis_server.command("FLUSHALL")
    caplog.set_level(logging.ERROR)
    async with HindsightStandIn() as hindsight, serve(FakeLlm().app) as llm_url:
        hindsight.add_memory(bank_of("default", USER), "Anne keeps bees behind the harbour.")
        settings = settings_for(
            redis_server.url,
            hindsight.url,
            token_keys=f"a:{'s' * 40}",
            webhook_secret="a-secret-of-the-webhook",
            audit_days=1,
            reflect_deadline_ms=2000,
            gateway_model="openai/fake-model",
            gateway_api_key="key-of-the-upstream",
            gateway_base_url=f"{llm_url}/v1",
        )
        async with run_api(settings) as api:
            code, report = await schemathesis(api, tmp_path)
            operations = sum(
                len(methods) for methods in (await api.stranger.get("/openapi.json")).json()["paths"].values()
            )
            checked(await api.recall(USER, "bees"), 200)
        async with Redis.from_url(settings.redis_url, decode_responses=True) as redis:
            assert await without_ttl(redis) <= {keyspace.KEYS}
    assert code == 0, report
    [tested] = re.findall(r"^ +Tested: (\d+)$", report, re.MULTILINE)
    assert int(tested) == operations, report
    [generated] = re.findall(r"^ +(\d+) generated", report, re.MULTILINE)
    assert int(generated) >= 2000, report
    assert not [record.getMessage() for record in caplog.records if record.name.startswith("service")]
