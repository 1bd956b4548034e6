"""Every route × every scope × every way a user is known × oneself, another user, another tenant.

The routes come from the application itself: one that is new fails here until it has an entry in
`permissions_world`, or in one of the lists of `test_api_refusals` if it wants something else than a key.
"""

import json
import re
from collections.abc import AsyncIterator

import httpx
import pytest
from fastapi.routing import iter_route_contexts
from service.adapters.keys import ALL_SCOPES
from service.scope import bank_of

from tests.integration.edge import checked, code_of
from tests.integration.permissions_world import (
    ANNE,
    BERT,
    ENTRIES,
    TENANTS,
    Entry,
    Person,
    Target,
    World,
    mark,
    permissions_world,
)
from tests.integration.test_api_refusals import OPEN, PERSONAL, SIGNED, SIGNED_IN
from tests.support import RedisServer

pytestmark = pytest.mark.anyio
ROUTES = list(ENTRIES.items())
IDS = [f"{method} {path}" for method, path in ENTRIES]
ALL_MARKS = {mark(tenant, user) for tenant in TENANTS for user in (ANNE, BERT)}
# The framework's own, which knows no users either.
DOCUMENT = "/openapi.json"


@pytest.fixture(scope="module")
async def world(redis_server: RedisServer) -> AsyncIterator[World]:
    async with permissions_world(redis_server) as made:
        yield made


def path_of(template: str) -> str:
    return re.sub(r"\{[^}]*\}", "0" * 32, template)


def refusal(reply: httpx.Response, path: str) -> str:
    """The code of a refusal, in whichever form the route has, after a look at its status."""
    if path == "/dify/knowledge/retrieval":  # errors of Dify's contract
        said = reply.json()
        assert (reply.status_code, said["error_code"]) == (403, 1002), reply.text
        return "scope_missing" if "lacks the scope" in said["error_msg"] else "key_refused"
    if path.startswith("/v1/"):  # errors in OpenAI's shape
        code: str = reply.json()["error"]["code"]
        assert reply.status_code == {"scope_missing": 403, "identity_conflict": 409}[code], reply.text
        return code
    return code_of(reply, {"scope_missing": 403, "identity_conflict": 409}.get(code_in(reply), 422))


def code_in(reply: httpx.Response) -> str:
    code: str = reply.json()["error"]["code"]
    return code


def marks_in(reply: httpx.Response) -> set[str]:
    return {one for one in ALL_MARKS if one in reply.text}


def test_every_route_of_the_application_has_an_entry(world: World) -> None:
    keyless = OPEN | PERSONAL | SIGNED | SIGNED_IN | {DOCUMENT}
    routes = {
        (method, route.path)
        for route in iter_route_contexts(world.api.app.routes)
        if route.path not in keyless
        for method in route.methods or ()
    }
    assert routes == set(ENTRIES)
    listed = {route.path for route in iter_route_contexts(world.api.app.routes)}
    assert keyless <= listed, keyless - listed


@pytest.mark.parametrize(("route", "entry"), ROUTES, ids=IDS)
async def test_who_gets_what(world: World, route: tuple[str, str], entry: Entry) -> None:
    cells = 0
    for person in world.people:
        targets: tuple[Target, ...] = ("own", "other user") if entry.about else ("own",)
        for target in targets:
            await check(world, route, entry, person, target)
            cells += 1
    assert cells >= 60


async def check(world: World, route: tuple[str, str], entry: Entry, person: Person, target: Target) -> None:
    method, template = route
    named = person.named(target, world.tokens)
    request = entry.about(named) if entry.about else entry.plain()
    reply = await world.ask(person, method, path_of(template), **request)
    seen = f"{person} {target}: {reply.status_code} {reply.text[:300]}"
    mine = {mark(person.tenant, ANNE)}
    documented = world.api.app.openapi()["paths"][re.sub(r":\w+}", "}", template)][method.lower()]
    assert str(reply.status_code) in documented["responses"], seen
    # Whatever the answer is, it holds nothing of another user or tenant.
    assert marks_in(reply) <= mine, seen
    if not person.scopes >= entry.needs:
        assert refusal(reply, template) == "scope_missing", seen
        assert any(f"lacks the scope {scope}." in reply.text for scope in entry.needs - person.scopes), seen
    elif target == "own":
        assert reply.status_code == entry.done, seen
        assert marks_in(reply) == (mine if entry.shows else set()), seen
    elif person.identity in entry.soft:
        assert reply.status_code == 200, seen
        assert not marks_in(reply), seen
    else:
        expected = "user_token_refused" if person.identity == "signed" else "identity_conflict"
        assert refusal(reply, template) == expected, seen


@pytest.mark.parametrize("tenant", TENANTS)
async def test_a_token_of_another_tenant_opens_nothing(world: World, tenant: str) -> None:
    person = world.of(tenant=tenant, identity="signed")
    [elsewhere] = set(TENANTS) - {tenant}
    token = world.tokens.make(elsewhere, bank_of(elsewhere, ANNE), 600).text
    for (method, path), entry in ENTRIES.items():
        if entry.about is None:
            continue
        reply = await world.ask(person, method, path, **entry.about(token))
        assert not marks_in(reply), (path, reply.text)
        if "signed" not in entry.soft:
            assert code_of(reply, 422) == "user_token_refused", path


async def test_operators_meet_only_the_keys_and_jobs_of_their_tenant(world: World) -> None:
    here, there = world.of(tenant="default"), world.of(tenant="another")
    keys = checked(await world.ask(here, "GET", "/admin/keys"), 200)["keys"]
    assert there.key_id not in {one["id"] for one in keys}
    assert {one["tenant"] for one in keys} == {"default"}
    for path, more in (("rotate", {}), ("expire", {"in_s": 1}), ("revoke", {})):
        reply = await world.ask(here, "POST", f"/admin/keys/{path}", json={"id": there.key_id, **more})
        assert code_of(reply, 404) == "not_found"
    checked(await world.ask(there, "GET", "/v1/models"), 200)


async def test_a_job_is_its_tenants_and_with_a_bound_key_its_users(world: World) -> None:
    added: dict[str, str] = {}
    for tenant in TENANTS:
        person = world.of(tenant=tenant)
        said = {"user_id": "app1-carl", "user_message": f"a job of {tenant}"}
        added[tenant] = checked(await world.ask(person, "POST", "/memory/add", json=said), 202)["job_id"]
    unknown = await world.ask(world.of(), "GET", f"/memory/jobs/{'f' * 32}")
    for person in world.people:
        for tenant, job_id in added.items():
            reply = await world.ask(person, "GET", f"/memory/jobs/{job_id}")
            if "add" not in person.scopes:
                assert code_of(reply, 403) == "scope_missing"
            elif person.tenant == tenant and person.identity != "bound":
                assert checked(reply, 200)["job_id"] == job_id
            else:
                assert code_of(reply, 404) == "not_found"
                assert same_but_for_the_request(reply) == same_but_for_the_request(unknown)


def same_but_for_the_request(reply: httpx.Response) -> str:
    return reply.text.replace(json.dumps(reply.headers["x-request-id"]), "")


async def test_no_key_opens_what_wants_something_else(world: World) -> None:
    """Personal pages want a link, the operators' page somebody who has signed in, events a signature."""
    for person in (one for one in world.people if one.scopes == ALL_SCOPES):
        for path in sorted(OPEN | PERSONAL):
            reply = await world.ask(person, "GET", path)
            assert not marks_in(reply)
            assert path in OPEN or reply.status_code in (401, 405), (path, reply.status_code)
        for path in SIGNED_IN:
            reply = await world.ask(person, "GET" if path == "/admin" else "POST", path)
            assert reply.status_code in (401, 403, 429), (path, reply.status_code)
            assert reply.headers["content-type"].startswith("text/html")
            assert not reply.headers.get_list("set-cookie")
            assert not marks_in(reply)
        for path in SIGNED:  # without a secret for events there is no such path
            assert code_of(await world.ask(person, "POST", path, json={}), 404) == "not_found"


async def test_after_all_this_everybody_has_their_memory_and_nobody_anothers_words(world: World) -> None:
    """Runs last: no cell of the matrix has added to, changed or forgotten what is not its caller's."""
    for tenant in TENANTS:
        for user in (ANNE, BERT):
            assert sum(mark(tenant, user) in text for text in world.knows(tenant, user)) == 1
    bert = await world.api.client.post("/memory/list", json={"user_id": BERT})
    assert checked(bert, 200)["pending"] == []
    assert "intruder" not in bert.text


@pytest.mark.parametrize(
    "path", ["/memory/recall", "/memory/add", "/memory/list", "/memory/forget", "/memory/reflect"]
)
async def test_a_missing_scope_is_told_before_anything_is_read(world: World, path: str) -> None:
    chatter = next(one for one in world.everybody("default", "trusted") if one.scopes == {"chat"})
    for body in (b"{", b"x" * 2_000_000, b'{"user_id": "victim"}'):
        reply = await world.ask(chatter, "POST", path, content=body)
        assert code_of(reply, 403) == "scope_missing"


async def test_operators_keys_are_made_for_all_users_or_not_at_all(world: World) -> None:
    """The matrix goes past the API to make them; the API does not make them."""
    for fields in ({"identity": "signed"}, {"identity": "bound", "user_id": ANNE}, {"user_prefix": "a"}):
        said = {"name": "n", "scopes": "admin", **fields}
        assert code_of(await world.api.client.post("/admin/keys", json=said), 422) == "invalid_request"
    said = {"name": "n", "scopes": ""}
    assert code_of(await world.api.client.post("/admin/keys", json=said), 422) == "invalid_request"
