"""A job is shown to the keys whose user it is about; to others there is none."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import httpx
import pytest

from tests.fakes.hindsight import HindsightStandIn
from tests.integration.conftest import Api, Workshop
from tests.integration.edge import checked, code_of
from tests.support import RedisServer

pytestmark = pytest.mark.anyio


async def check(api: Api, clients: dict[str, httpx.AsyncClient]) -> None:
    """Everybody sees their own job, however they wait, and nobody another's."""
    jobs = {
        user: checked(await client.post("/memory/add", json={"user_id": "", "user_message": "Tea"}), 202)[
            "job_id"
        ]
        for user, client in clients.items()
    }
    for user, client in clients.items():
        for of, job_id in jobs.items():
            for query in ("", "?wait_s=0.2"):
                reply = await client.get(f"/memory/jobs/{job_id}{query}")
                if of == user:
                    assert checked(reply, 200)["job_id"] == job_id
                else:
                    assert code_of(reply, 404) == "not_found"
                    assert job_id not in reply.text
    for job_id in jobs.values():  # a key that is nobody's sees all of its tenant
        assert (await api.job(job_id))["job_id"] == job_id


@pytest.fixture
async def clients(api: Api) -> AsyncIterator[dict[str, httpx.AsyncClient]]:
    """One for each user, with a key that is bound to them."""
    async with AsyncExitStack() as stack:
        made: dict[str, httpx.AsyncClient] = {}
        for user in ("ana", "bob"):
            body = {"name": "n", "scopes": "add", "identity": "bound", "user_id": user}
            key = checked(await api.client.post("/admin/keys", json=body), 201)["key"]
            made[user] = await stack.enter_async_context(
                httpx.AsyncClient(base_url=api.url, headers={"Authorization": f"Bearer {key}"}, timeout=30)
            )
        yield made


async def test_a_bound_key_sees_jobs_of_its_own_user_alone(
    api: Api, workshop: Workshop, clients: dict[str, httpx.AsyncClient]
) -> None:
    await check(api, clients)
    job_id = checked(await api.add("ana", "Coffee"), 202)["job_id"]
    await workshop.work()
    assert checked(await clients["ana"].get(f"/memory/jobs/{job_id}"), 200)["status"] == "done"
    assert code_of(await clients["bob"].get(f"/memory/jobs/{job_id}"), 404) == "not_found"


async def test_so_it_is_while_the_log_is_away(
    api: Api, stand_in: HindsightStandIn, clients: dict[str, httpx.AsyncClient], redis_server: RedisServer
) -> None:
    await redis_server.stop()
    try:
        await check(api, clients)
        # Who may not see a job makes Hindsight no work either.
        theirs = checked(await api.add("ana", "Coffee"), 202)["job_id"]
        asked = len(stand_in.requests_for("operation"))
        assert code_of(await clients["bob"].get(f"/memory/jobs/{theirs}"), 404) == "not_found"
        assert len(stand_in.requests_for("operation")) == asked
    finally:
        await redis_server.start()
