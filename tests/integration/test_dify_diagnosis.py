"""What an installation says about itself, whole and broken."""

from pathlib import Path
from typing import Any

import pytest

from tests.fakes.faults import FaultKind
from tests.fakes.hindsight import HindsightStandIn
from tests.integration.conftest import Api, run_api, settings_for
from tests.integration.edge import checked, code_of, shared
from tests.support import RedisServer, free_port, valkey

pytestmark = pytest.mark.anyio
__all__ = ["shared"]

PATH = "/admin/diagnosis"


async def _ask(api: Api) -> Any:
    return checked(await api.client.get(PATH), 200)


async def test_without_a_key_nothing_is_told(shared: Api) -> None:
    assert code_of(await shared.stranger.get(PATH), 401) == "key_refused"


async def test_says_how_durable_and_how_up_to_date_the_parts_are(shared: Api) -> None:
    told = await _ask(shared)
    assert told["turns_redis"]["ok"]
    assert told["turns_redis"]["append_only"] is True
    assert told["turns_redis"]["fsync"] == "always"
    assert told["turns_redis"]["eviction"] == "noeviction"
    assert told["turns_redis"]["version"]
    assert told["hindsight"]["ok"]
    assert told["hindsight"]["version"]
    assert set(told["hindsight"]["features"].values()) <= {True, False}
    assert told["settings"]["allow_anonymous_users"] is False
    for secret in (shared.settings.redis_url, shared.settings.hindsight_url):
        assert secret not in str(told), "where the parts are is nobody's business"


async def test_a_redis_that_forgets_is_seen(tmp_path: Path, stand_in: HindsightStandIn) -> None:
    extra = ("--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru")
    async with (
        valkey(tmp_path / "redis", aof=False, extra=extra) as server,
        run_api(settings_for(server.url, stand_in.url)) as api,
    ):
        told = await _ask(api)
    assert told["turns_redis"]["append_only"] is False
    assert told["turns_redis"]["eviction"] == "allkeys-lru"
    assert told["turns_redis"]["max_memory_bytes"] == 64 * 2**20
    assert told["cache_redis"] == told["turns_redis"] | {
        "used_memory_bytes": told["cache_redis"]["used_memory_bytes"]
    }


async def test_a_redis_that_does_not_tell_is_not_guessed_at(
    tmp_path: Path, stand_in: HindsightStandIn
) -> None:
    """Managed servers forbid CONFIG."""
    extra = ("--rename-command", "CONFIG", '""')
    async with (
        valkey(tmp_path / "redis", extra=extra) as server,
        run_api(settings_for(server.url, stand_in.url)) as api,
    ):
        told = await _ask(api)
    assert told["turns_redis"]["append_only"] is True
    assert told["turns_redis"]["fsync"] is None


async def test_parts_out_of_reach_are_said_and_hold_nothing_up(
    redis_server: RedisServer, stand_in: HindsightStandIn
) -> None:
    nowhere = free_port()
    dead = settings_for(f"redis://127.0.0.1:{nowhere}/0", f"http://127.0.0.1:{nowhere}")
    async with run_api(dead) as api:
        told = await _ask(api)
    assert told["turns_redis"]["ok"] is told["cache_redis"]["ok"] is told["hindsight"]["ok"] is False

    faults: tuple[FaultKind, ...] = ("status", "garbage", "wrong_shape", "close", "cut")
    async with run_api(settings_for(redis_server.url, stand_in.url)) as api:
        for fault in faults:
            stand_in.fail("version", fault)
            told = await _ask(api)
            assert told["turns_redis"]["ok"] is True
            assert told["hindsight"] == {"ok": False, "version": "", "features": {}}, fault
            stand_in.heal()
        assert (await _ask(api))["hindsight"]["ok"] is True
