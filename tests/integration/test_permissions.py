"""Every route, every scope: who gets in with which key. A new route belongs into the table."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import httpx
import pytest
from service.auth import ALL_SCOPES, Scope

from tests.integration.conftest import Api
from tests.integration.edge import checked, code_of, shared
from tests.integration.test_api_refusals import OPEN, PERSONAL, SIGNED

pytestmark = pytest.mark.anyio
__all__ = ["shared"]

JOB = f"/memory/jobs/{'0' * 32}"
# Routes that want a key, and the scopes that open each, all together.
NEEDED: dict[tuple[str, str], set[Scope]] = {
    ("POST", "/memory/recall"): {"recall"},
    ("POST", "/memory/add"): {"add"},
    ("GET", JOB): {"add"},
    ("POST", "/memory/list"): {"review"},
    ("POST", "/memory/correct"): {"review"},
    ("GET", "/memory/export"): {"review"},
    ("POST", "/memory/import"): {"add", "review"},
    ("POST", "/memory/forget"): {"forget"},
    ("POST", "/memory/reflect"): {"recall"},
    ("POST", "/dify/knowledge/retrieval"): {"recall"},
    ("POST", "/v1/chat/completions"): {"chat"},
    ("GET", "/v1/models"): {"chat"},
    ("GET", "/admin/dead-letters"): {"admin"},
    ("POST", "/admin/dead-letters/replay"): {"admin"},
    ("POST", "/admin/dead-letters/drop"): {"admin"},
    ("GET", "/admin/diagnosis"): {"admin"},
    ("GET", "/admin/keys"): {"admin"},
    ("POST", "/admin/keys"): {"admin"},
    ("POST", "/admin/keys/rotate"): {"admin"},
    ("POST", "/admin/keys/expire"): {"admin"},
    ("POST", "/admin/keys/revoke"): {"admin"},
    ("POST", "/admin/user-tokens"): {"admin"},
    ("POST", "/admin/me-links"): {"admin"},
    ("POST", "/admin/me-links/end"): {"admin"},
}


@pytest.fixture(scope="module")
async def clients(shared: Api) -> AsyncIterator[dict[frozenset[Scope], httpx.AsyncClient]]:
    """Clients by the scopes of their keys: each scope alone, and what one route or another needs."""
    wanted = {frozenset[Scope]({scope}) for scope in ALL_SCOPES} | {frozenset(n) for n in NEEDED.values()}
    async with AsyncExitStack() as stack:
        found: dict[frozenset[Scope], httpx.AsyncClient] = {}
        for scopes in wanted:
            reply = await shared.client.post("/admin/keys", json={"name": "n", "scopes": sorted(scopes)})
            headers = {"Authorization": f"Bearer {checked(reply, 201)['key']}"}
            found[scopes] = await stack.enter_async_context(
                httpx.AsyncClient(base_url=shared.url, headers=headers)
            )
        yield found


async def test_the_table_has_every_route(shared: Api) -> None:
    paths = (await shared.stranger.get("/openapi.json")).json()["paths"]
    routes = {
        (method.upper(), path.replace("{job_id}", "0" * 32))
        for path, methods in paths.items()
        if path not in OPEN | SIGNED | PERSONAL
        for method in methods
    }
    assert routes == set(NEEDED)


@pytest.mark.parametrize(("route", "needed"), NEEDED.items(), ids=lambda value: " ".join(sorted(value)))
async def test_a_route_opens_to_its_scopes_alone(
    clients: dict[frozenset[Scope], httpx.AsyncClient], route: tuple[str, str], needed: set[Scope]
) -> None:
    method, path = route
    for scopes, client in clients.items():
        # Nothing is said, so that whoever gets in is only told what is missing.
        reply = await client.request(method, path, json={} if method == "POST" else None)
        if scopes >= needed:
            assert reply.status_code in (200, 404, 422), reply.text
        elif path == "/dify/knowledge/retrieval":  # errors of Dify's contract
            assert (reply.status_code, reply.json()["error_code"]) == (403, 1002)
        elif path.startswith("/v1/"):  # errors in OpenAI's shape
            error = reply.json()["error"]
            assert (reply.status_code, error["type"], error["code"]) == (
                403,
                "permission_error",
                "scope_missing",
            )
        else:
            assert code_of(reply, 403) == "scope_missing"
            assert any(f"lacks the scope {scope}." in reply.text for scope in needed - scopes)


@pytest.mark.parametrize(
    "path", ["/memory/recall", "/memory/add", "/memory/list", "/memory/forget", "/memory/reflect"]
)
async def test_a_missing_scope_is_told_before_anything_is_read(
    clients: dict[frozenset[Scope], httpx.AsyncClient], path: str
) -> None:
    for body in (b"{", b"x" * 2_000_000, b'{"user_id": "victim"}'):
        assert code_of(await clients[frozenset({"chat"})].post(path, content=body), 403) == "scope_missing"
