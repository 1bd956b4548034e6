"""What every reply carries, whatever was asked and however it ended."""

import httpx
import pytest
from fastapi.routing import iter_route_contexts
from service.settings import Settings

from tests.fakes.hindsight import HindsightStandIn
from tests.integration.conftest import Api, settings_for
from tests.integration.edge import code_of
from tests.integration.permissions_world import ENTRIES
from tests.integration.test_permissions import path_of
from tests.support import RedisServer

pytestmark = pytest.mark.anyio


@pytest.fixture
async def settings(redis_server: RedisServer, stand_in: HindsightStandIn) -> Settings:
    await redis_server.command("FLUSHALL")
    return settings_for(redis_server.url, stand_in.url, token_keys=f"a:{'s' * 40}", audit_days=1)


def check(reply: httpx.Response) -> None:
    # The operators' page has its own forms tell where they come from (see `policy/admin_style`).
    is_page = reply.headers.get("content-type", "").startswith("text/html")
    referrer = "same-origin" if is_page and reply.request.url.path.startswith("/admin") else "no-referrer"
    seen = f"{reply.request.method} {reply.request.url.path}: {reply.status_code} {reply.headers}"
    for name, value in (
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", referrer),
        ("cache-control", "no-store"),
    ):
        assert reply.headers.get_list(name) == [value], seen
    assert len(reply.headers.get_list("x-request-id")) == 1, seen
    assert "access-control-allow-origin" not in reply.headers, seen
    # A page may run nothing; what is no page can be none.
    if is_page:
        assert reply.headers["content-security-policy"].startswith("default-src 'none'"), seen


async def test_every_reply_is_kept_by_nobody_and_taken_for_what_it_is(api: Api) -> None:
    routes = [
        (method, path_of(str(route.path)))
        for route in iter_route_contexts(api.app.routes)
        for method in sorted(route.methods or ())
    ]
    assert len(routes) > 40
    for method, path in routes:
        for client in (api.stranger, api.client):
            check(await client.request(method, path))
    for (method, path), entry in ENTRIES.items():
        request = entry.about("anne") if entry.about else entry.plain()
        check(await api.client.request(method, path_of(path), **request))


async def test_so_is_what_goes_wrong(api: Api) -> None:
    async def fail() -> None:
        raise RuntimeError("the user's words")

    api.app.add_api_route("/boom", fail)
    for path, size in (("/memory/recall", 2_000_000), ("/memory/add", 2_000_000), ("/nowhere", 1)):
        check(await api.client.post(path, content=b"x" * size))
    check(await api.client.put("/memory/add"))
    check(await api.client.get("/memory/jobs/x", params={"wait_s": "long"}))
    reply = await api.client.get("/boom")
    assert code_of(reply, 500) == "internal_error"
    check(reply)


async def test_no_other_site_is_let_in(api: Api) -> None:
    """A browser asks before it sends another site's JSON: nobody is told yes."""
    asked = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    for path in ("/memory/recall", "/memory/forget", "/admin/keys", "/v1/chat/completions"):
        reply = await api.stranger.options(path, headers=asked)
        assert reply.status_code == 405
        check(reply)
