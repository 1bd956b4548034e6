"""Keys that are made and ended: by the API, by the command, known to every process within seconds."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner, Result
from redis.asyncio import Redis
from service import keyspace
from service.cli.main import main
from service.settings import Settings

from tests.fakes.hindsight import HindsightStandIn
from tests.integration.conftest import KEY, Api, run_api, settings_for
from tests.integration.edge import checked, code_of
from tests.processes import ApiProcess
from tests.support import RedisServer, wait_until

pytestmark = pytest.mark.anyio
TOKEN_KEYS = "a:a-secret-of-more-than-32-characters"
KEYS, TOKENS = "/admin/keys", "/admin/user-tokens"


@pytest.fixture
async def settings(redis_server: RedisServer, stand_in: HindsightStandIn) -> Settings:
    await redis_server.command("FLUSHALL")
    return settings_for(redis_server.url, stand_in.url, token_keys=TOKEN_KEYS)


@asynccontextmanager
async def client_of(api: Api, key: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=api.url, headers={"Authorization": f"Bearer {key}"}) as client:
        yield client


async def make(api: Api, by: httpx.AsyncClient | None = None, **fields: Any) -> dict[str, Any]:
    body = {"name": "a key", "scopes": "recall", **fields}
    made: dict[str, Any] = checked(await (by or api.client).post(KEYS, json=body), 201)
    return made


async def status_of(api: Api, key: str, user: str = "somebody") -> int:
    async with client_of(api, key) as client:
        return (await client.post("/memory/recall", json={"user_id": user, "query": "tea?"})).status_code


async def test_a_key_is_shown_once_and_good_at_once(api: Api) -> None:
    made = await make(api, scopes=["recall", "add"], name="my app")
    assert made["key"].startswith(f"dm_{made['id']}_")
    assert (made["scopes"], made["tenant"], made["is_good"]) == (["add", "recall"], "default", True)
    assert await status_of(api, made["key"]) == 200
    listed = checked(await api.client.get(KEYS), 200)["keys"]
    assert [key["id"] for key in listed] == [made["id"]]
    assert made["key"] not in json.dumps(listed)
    async with Redis.from_url(api.settings.redis_url, decode_responses=True) as redis:
        stored = await redis.hgetall(keyspace.KEYS)
    assert made["key"].rpartition("_")[2] not in json.dumps(stored)


async def test_a_form_says_the_same(api: Api) -> None:
    reply = await api.client.post(
        KEYS,
        data={
            "name": "n",
            "scopes": "recall, add",
            "expires_in_s": "60",
            "user_prefix": "",
            "rate_per_minute": "",
        },
    )
    made = checked(reply, 201)
    assert made["scopes"] == ["add", "recall"]
    assert made["expires_at"] > made["created_at"]


async def test_a_revoked_key_stops_in_every_process(
    api: Api, redis_server: RedisServer, settings: Settings
) -> None:
    async with run_api(settings) as other:
        made = await make(api)
        await wait_until(lambda: _is(other, made["key"], 200), "the other process knows the key")
        assert await status_of(api, made["key"]) == 200
        revoked = checked(await api.client.post(f"{KEYS}/revoke", json={"id": made["id"]}), 200)
        assert revoked["revoked_at"]
        assert not revoked["is_good"]
        assert await status_of(api, made["key"]) == 401
        await wait_until(lambda: _is(other, made["key"], 401), "the other process refuses the key")
        # Again is fine and changes nothing; no other change brings it back.
        again = checked(await other.client.post(f"{KEYS}/revoke", json={"id": made["id"]}), 200)
        assert again["revoked_at"] == revoked["revoked_at"]
        reply = await api.client.post(f"{KEYS}/expire", json={"id": made["id"], "in_s": 3600})
        assert code_of(reply, 422) == "invalid_request"
        assert code_of(await api.client.post(f"{KEYS}/rotate", json={"id": made["id"]}), 422)
        assert await status_of(api, made["key"]) == 401


async def test_a_key_ended_by_the_command_stops_in_processes_that_share_nothing_but_redis(
    redis_server: RedisServer, stand_in: HindsightStandIn, settings: Settings, folder: Path
) -> None:
    made = await asyncio.to_thread(command, settings, "keys", "create", "app")
    key = made.stdout.strip()
    servers = [ApiProcess(folder / name, settings.redis_url, stand_in.url) for name in ("one", "two")]
    try:
        await asyncio.gather(*(server.start() for server in servers))

        async def statuses() -> list[int]:
            headers = {"Authorization": f"Bearer {key}"}
            body = {"user_id": "somebody", "query": "tea?"}
            async with httpx.AsyncClient(headers=headers) as client:
                replies = [await client.post(f"{s.url}/memory/recall", json=body) for s in servers]
            return [reply.status_code for reply in replies]

        assert await statuses() == [200, 200], "It was made before they were started."
        await asyncio.to_thread(command, settings, "keys", "revoke", key.split("_")[1])

        async def stopped() -> bool:
            return await statuses() == [401, 401]

        await wait_until(stopped, "both refuse the key")
    finally:
        for server in servers:
            await server.stop()
    assert not any(key.rpartition("_")[2] in server.log() for server in servers)


async def _is(api: Api, key: str, status: int) -> bool:
    return await status_of(api, key) == status


async def test_rotated_old_and_new_are_good_together_for_a_while(api: Api) -> None:
    old = await make(api, scopes="recall,add", user_prefix="app-", rate_per_minute=50)
    new = checked(await api.client.post(f"{KEYS}/rotate", json={"id": old["id"], "overlap_s": 3}), 201)
    assert new["id"] != old["id"]
    for name in ("name", "scopes", "identity", "user_prefix", "rate_per_minute", "tenant"):
        assert new[name] == old[name]
    assert [await status_of(api, key["key"], "app-u") for key in (old, new)] == [200, 200]
    await wait_until(lambda: _is(api, old["key"], 401), "the old key has ended")
    assert await status_of(api, new["key"], "app-u") == 200
    assert code_of(await api.client.post(f"{KEYS}/rotate", json={"id": old["id"]}), 422)


async def test_a_rotation_never_prolongs_a_key(api: Api) -> None:
    old = await make(api, expires_in_s=60)
    new = checked(await api.client.post(f"{KEYS}/rotate", json={"id": old["id"], "overlap_s": 3600}), 201)
    assert new["expires_at"] == old["expires_at"]
    [listed, _] = checked(await api.client.get(KEYS), 200)["keys"]
    assert listed["expires_at"] == old["expires_at"]


async def test_a_key_that_expires_stops_by_itself(api: Api) -> None:
    made = await make(api)
    checked(await api.client.post(f"{KEYS}/expire", json={"id": made["id"], "in_s": 1}), 200)
    await wait_until(lambda: _is(api, made["key"], 401), "the key has ended")


async def test_while_redis_is_away_keys_stay_as_they_were(
    redis_server: RedisServer, stand_in: HindsightStandIn, settings: Settings
) -> None:
    async with run_api(settings) as api:
        good, bad = await make(api), await make(api)
        checked(await api.client.post(f"{KEYS}/revoke", json={"id": bad["id"]}), 200)
        ends = await make(api, expires_in_s=4)
        await redis_server.stop()
        try:
            assert code_of(await api.client.get(KEYS), 503) == "keys_unavailable"
            assert code_of(await api.client.post(KEYS, json={"name": "n", "scopes": "add"}), 503)
            # Long enough for a look that fails.
            await wait_until(lambda: _is(api, ends["key"], 401), "what ends has ended all the same")
            assert [await status_of(api, key) for key in (good["key"], bad["key"], KEY)] == [200, 401, 200]
            async with run_api(settings) as late:
                assert [await status_of(late, key) for key in (KEY, good["key"])] == [200, 401]
                await redis_server.start()
                await wait_until(lambda: _is(late, good["key"], 200), "it has seen the keys after all")
                assert await status_of(late, bad["key"]) == 401
        finally:
            if not redis_server.is_running:
                await redis_server.start()


async def test_nobody_gives_what_they_do_not_have(api: Api) -> None:
    keeper = await make(api, scopes="admin,recall", name="keeper")
    strong = await make(api, scopes="admin,review")
    async with client_of(api, keeper["key"]) as client:
        child = await make(api, client, scopes="recall")
        reply = await client.post(KEYS, json={"name": "n", "scopes": "recall,review"})
        assert code_of(reply, 422) == "invalid_request"
        # Rotating would hand out its scopes; ending it hands out nothing.
        assert code_of(await client.post(f"{KEYS}/rotate", json={"id": strong["id"]}), 422)
        checked(await client.post(f"{KEYS}/revoke", json={"id": strong["id"]}), 200)
    async with client_of(api, child["key"]) as client:
        assert code_of(await client.get(KEYS), 403) == "scope_missing"


async def test_another_tenants_keys_are_not_found(
    api: Api, redis_server: RedisServer, stand_in: HindsightStandIn
) -> None:
    made = await make(api)
    async with run_api(settings_for(redis_server.url, stand_in.url, tenant="another")) as other:
        assert checked(await other.client.get(KEYS), 200)["keys"] == []
        for path, more in (("rotate", {}), ("expire", {"in_s": 5}), ("revoke", {})):
            reply = await other.client.post(f"{KEYS}/{path}", json={"id": made["id"], **more})
            assert code_of(reply, 404) == "not_found"
            none = await api.client.post(f"{KEYS}/{path}", json={"id": "0" * 10, **more})
            assert none.json()["error"]["message"] == reply.json()["error"]["message"]
        # The key itself is good in every process; its tenant is its own.
        await api.add("u", "my locker code is quokka")
        async with client_of(other, made["key"]) as client:
            reply = await client.post("/memory/recall", json={"user_id": "u", "query": "locker code"})
            assert "quokka" in checked(reply, 200)["context"]
        assert "quokka" not in (await other.recall("u", "locker code")).text


@pytest.mark.parametrize(
    "fields",
    [
        {"scopes": ""},
        {"scopes": "recall,everything"},
        {"scopes": []},
        {"name": ""},
        {"name": "x" * 65},
        {"identity": "bound"},
        {"identity": "trusted", "user_id": "alice"},
        {"identity": "bound", "user_id": "alice", "user_prefix": "a"},
        {"identity": "bound", "user_id": "DEFAULT-USER"},
        {"identity": "signed", "user_prefix": "a"},
        {"identity": "root"},
        # Who sees what concerns all users has to be good for all of them.
        {"scopes": "admin", "identity": "bound", "user_id": "alice"},
        {"scopes": "admin", "identity": "signed"},
        {"scopes": "recall,admin", "user_prefix": "a"},
        {"rate_per_minute": -1},
        {"expires_in_s": 0},
        {"tenant": "another"},
    ],
)
async def test_what_does_not_fit_together_is_refused(api: Api, fields: dict[str, Any]) -> None:
    reply = await api.client.post(KEYS, json={"name": "n", "scopes": "recall", **fields})
    assert code_of(reply, 422) in ("invalid_request", "user_id_required")
    assert checked(await api.client.get(KEYS), 200)["keys"] == []


async def test_signed_keys_want_keys_for_tokens(
    redis_server: RedisServer, stand_in: HindsightStandIn
) -> None:
    async with run_api(settings_for(redis_server.url, stand_in.url)) as api:
        reply = await api.client.post(KEYS, json={"name": "n", "scopes": "recall", "identity": "signed"})
        assert code_of(reply, 422) == "invalid_request"
        assert code_of(await api.client.post(TOKENS, json={"user_id": "u"}), 404) == "not_found"


# --- The commands ---------------------------------------------------------------------------------------
def command(settings: Settings, *words: str) -> Result:
    env = {"MEMORY_REDIS_URL": settings.redis_url, "MEMORY_TOKEN_KEYS": TOKEN_KEYS, "MEMORY_AUDIT_DAYS": "1"}
    return CliRunner().invoke(main, [*words], env=env, catch_exceptions=False)


async def run_command(api: Api, *words: str, code: int = 0) -> str:
    """Off this loop: a command brings a loop of its own. What it says on standard output."""
    result = await asyncio.to_thread(command, api.settings, *words)
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.output


async def test_the_commands_make_list_rotate_expire_and_revoke(api: Api) -> None:
    assert "no keys besides" in await run_command(api, "keys", "list")
    key = (
        await run_command(api, "keys", "create", "my app", "--scopes", "recall,add", "--rate", "60")
    ).strip()
    await wait_until(lambda: _is(api, key, 200), "the process knows the key")
    key_id = key.split("_")[1]
    listed = await run_command(api, "keys", "list")
    assert key_id in listed
    assert "my app" in listed
    assert "rate=60/min" in listed
    assert key not in listed
    new = (await run_command(api, "keys", "rotate", key_id, "--overlap", "1h")).strip()
    assert "good until" in await run_command(api, "keys", "expire", key_id, "--in", "30m")
    assert "revoked" in await run_command(api, "keys", "revoke", key_id)
    await wait_until(lambda: _is(api, key, 401), "the process refuses the key")
    assert await status_of(api, new) == 200
    assert "There is no such key" in await run_command(api, "keys", "revoke", "unknown", code=1)
    assert "The field scopes" in await run_command(api, "keys", "create", "x", "--scopes", "all", code=1)
    assert "with a unit" in await run_command(api, "keys", "expire", key_id, "--in", "soon", code=2)
    told = [json.loads(line) for line in (await run_command(api, "audit", "export")).splitlines()]
    assert [event["action"].split()[-1] for event in told] == ["create", "rotate", "expire", "revoke"]
    assert {event["key_id"] for event in told} == {"cli"}
    assert told[0]["subject"] == key_id


async def test_the_command_makes_keys_for_any_tenant_and_one_user(api: Api) -> None:
    key = await run_command(
        api, "keys", "create", "x", "--tenant", "another", "--identity", "bound", "--user", "alice"
    )
    await wait_until(lambda: _is(api, key.strip(), 409), "the key is known, and not somebody's")
    assert await status_of(api, key.strip(), "alice") == 200


async def test_a_token_from_the_command_is_good_where_it_says(api: Api) -> None:
    made = await make(api, identity="signed")
    token = (await run_command(api, "token", "alice", "--ttl", "10m")).strip()
    theirs = (await run_command(api, "token", "alice", "--tenant", "another")).strip()
    assert [await status_of(api, made["key"], user) for user in (token, theirs, "alice")] == [200, 422, 422]
    assert "placeholder" in await run_command(api, "token", "DEFAULT-USER", code=1)
    assert "between 60s and 31d" in await run_command(api, "token", "alice", "--ttl", "5s", code=2)
