"""Who gets in: every route without a key, with every form of a key, and with somebody else's."""

import re

import httpx
import pytest

from tests.fakes.hindsight import HindsightStandIn
from tests.integration.conftest import KEY, Api, Workshop, run_api, settings_for
from tests.integration.edge import checked, code_of, shared, texts_of
from tests.support import RedisServer

pytestmark = pytest.mark.anyio
__all__ = ["shared"]

# Whoever asks may see these: they know nothing of users.
OPEN = {"/dify/openapi.json", "/dify/openapi.yaml", "/health/live", "/health/ready", "/metrics"}
# Refuse in the form of others: Dify's, with 403 (see test_dify_knowledge), and OpenAI's (see test_openai).
OTHER_FORM = {"/dify/knowledge/retrieval", "/v1/chat/completions", "/v1/models", "/v1/models/{model}"}
# Asks for a signature instead of a key: see test_hooks.
SIGNED = {"/hooks/hindsight"}
# Ask for a personal link instead, and refuse with a page: see test_me_access.
PERSONAL = {"/me", "/me/correct", "/me/download", "/me/end", "/me/forget", "/me/forget-all", "/me/view"}

# Ask for a visit that began with signing in, and refuse with a page.
SIGNED_IN = {
    "/admin",
    "/admin/create-key",
    "/admin/drop",
    "/admin/replay",
    "/admin/revoke-key",
    "/admin/rotate-key",
    "/admin/sign-in",
    "/admin/sign-out",
}


async def guarded(api: Api) -> list[tuple[str, str]]:
    """Method and path of every route that wants a key."""
    paths = (await api.stranger.get("/openapi.json")).json()["paths"]
    return [
        (method.upper(), re.sub(r"\{\w+\}", "0" * 32, path))
        for path, methods in paths.items()
        if path not in OPEN | OTHER_FORM | SIGNED | PERSONAL | SIGNED_IN
        for method in methods
    ]


async def test_every_route_refuses_without_a_key(shared: Api) -> None:
    routes = await guarded(shared)
    assert {("POST", "/memory/add"), ("POST", "/memory/recall")} <= set(routes)
    for method, path in routes:
        for body in (b"", b"{}", b'{"user_id": "u"', b"x" * 2_000_000):
            reply = await shared.stranger.request(method, path, content=body if method == "POST" else None)
            assert code_of(reply, 401) == "key_refused", path
            assert "not a network block" in reply.json()["error"]["message"]
            assert reply.headers["www-authenticate"] == "Bearer"


async def test_every_route_refuses_a_wrong_key_in_the_same_words(shared: Api) -> None:
    for method, path in await guarded(shared):
        none = checked(await shared.stranger.request(method, path), 401)
        headers = {"Authorization": "Bearer wrong-key-0123456"}
        wrong = checked(await shared.stranger.request(method, path, headers=headers), 401)
        assert none["error"]["message"] == wrong["error"]["message"]


async def test_open_routes_need_no_key(shared: Api) -> None:
    for path in OPEN:
        assert (await shared.stranger.get(path)).status_code == 200


# dify#35974: the second tool call of an agent run carries "Bearer Bearer KEY".
@pytest.mark.parametrize(
    ("headers", "params"),
    [
        ({"Authorization": f"Bearer {KEY}"}, {}),
        ({"Authorization": f"Bearer Bearer {KEY}"}, {}),
        ({"Authorization": f"bearer bearer bearer {KEY}"}, {}),
        ({"Authorization": f"Basic {KEY}"}, {}),
        ({"Authorization": KEY}, {}),
        ({"X-API-Key": KEY}, {}),
        ({"Api-Key": KEY}, {}),
        ({}, {"api_key": KEY}),
        ({"Authorization": ""}, {"api_key": KEY}),
        ({"Authorization": "Bearer"}, {"api_key": KEY}),
        ({"Authorization": f"Bearer {KEY}", "X-API-Key": KEY}, {"api_key": KEY}),
    ],
)
async def test_a_key_in_each_of_its_forms(
    shared: Api, user: str, headers: dict[str, str], params: dict[str, str]
) -> None:
    for path, field in (("/memory/add", "user_message"), ("/memory/recall", "query")):
        reply = await shared.stranger.post(
            path, data={"user_id": user, field: "hello"}, headers=headers, params=params
        )
        checked(reply, 200, 202)


@pytest.mark.parametrize(
    ("headers", "params"),
    [
        ([("Authorization", "Bearer")], {}),
        ([("Authorization", "Bearer Bearer")], {}),
        ([("Authorization", f"Bearer {KEY}x")], {}),
        ([("Authorization", f"Bearer {KEY}"), ("X-API-Key", "another-key-0123456")], {}),
        ([("Authorization", f"Bearer {KEY}"), ("Authorization", "Bearer another-key-0123456")], {}),
        ([("Authorization", f"Bearer {KEY}")], {"api_key": "another-key-0123456"}),
        ([("Authorization", "Bearer clé".encode())], {}),
        ([("Authorization", b"Bearer \xff\xfe\xfd")], {}),
        ([], {"api_key": ""}),
        ([], {"api_key": "钥匙"}),
        ([("Cookie", f"api_key={KEY}")], {}),
    ],
)
async def test_a_wrong_an_odd_or_a_second_key_is_refused(
    shared: Api, user: str, headers: list[tuple[str, str | bytes]], params: dict[str, str]
) -> None:
    raw = [(name.encode(), v if isinstance(v, bytes) else v.encode()) for name, v in headers]
    for path in ("/memory/add", "/memory/recall"):
        reply = await shared.stranger.post(path, data={"user_id": user}, headers=raw, params=params)
        assert code_of(reply, 401) == "key_refused"


async def test_another_users_memory_is_not_found(api: Api, workshop: Workshop, user: str) -> None:
    text = "My locker code is quokka"
    assert (await api.add(user, text)).status_code == 202
    for _ in range(2):  # while it waits, and once it is stored
        assert texts_of(checked(await api.recall(user, text), 200))
        for other in (f"{user}1", user[:-1], user.upper(), f"{user} ", "somebody"):
            assert checked(await api.recall(other, text), 200)["memories"] == []
        await workshop.work()


async def test_another_tenants_memory_and_jobs_are_not_found(
    api: Api, workshop: Workshop, redis_server: RedisServer, stand_in: HindsightStandIn, user: str
) -> None:
    text = "My locker code is quokka"
    job_id = checked(await api.add(user, text), 202)["job_id"]
    await workshop.work()
    async with run_api(settings_for(redis_server.url, stand_in.url, tenant="another")) as other:
        assert checked(await other.recall(user, text), 200)["memories"] == []
        theirs = checked(await other.client.get(f"/memory/jobs/{job_id}"), 404)
        unknown = checked(await other.client.get(f"/memory/jobs/{'0' * 32}"), 404)
        theirs["error"].pop("request_id")
        unknown["error"].pop("request_id")
        assert theirs == unknown
        # The same words of the same user under another tenant are another turn.
        assert checked(await other.add(user, text), 202)["status"] == "queued"
    assert (await api.job(job_id))["status"] == "done"


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/", 404, "not_found"),
        ("POST", "/memory/unknown", 404, "not_found"),
        ("POST", "/memory//recall", 404, "not_found"),
        ("GET", "/memory/jobs/a/b", 404, "not_found"),
        ("GET", "/memory/recall", 405, "method_not_allowed"),
        ("PUT", "/memory/add", 405, "method_not_allowed"),
        ("DELETE", f"/memory/jobs/{'0' * 32}", 405, "method_not_allowed"),
        ("POST", "/memory/recall/", 404, "not_found"),
        ("POST", "/memory/add/?api_key=x", 404, "not_found"),
        ("OPTIONS", "/memory/add", 405, "method_not_allowed"),
        ("POST", "/health/live", 405, "method_not_allowed"),
    ],
)
async def test_what_there_is_not_answers_in_our_form(
    shared: Api, method: str, path: str, status: int, code: str
) -> None:
    for client in (shared.client, shared.stranger):
        reply = await client.request(method, path)
        assert code_of(reply, status) == code
        assert status != 405 or reply.headers["allow"]


@pytest.mark.parametrize(
    ("given", "is_kept"),
    [
        ("run-1_A", True),
        ("x" * 64, True),
        ("x" * 65, False),
        ("a b", False),
        ("<b>", False),
        ("", False),
    ],
)
async def test_a_request_id_is_taken_over_if_it_is_a_plain_one(
    shared: Api, given: str, is_kept: bool
) -> None:
    reply = await shared.stranger.get("/health/live", headers={"X-Request-Id": given})
    assert (reply.headers["x-request-id"] == given) is is_kept
    checked(reply, 200)


async def test_request_ids_differ(shared: Api) -> None:
    replies: list[httpx.Response] = [await shared.stranger.get("/health/live") for _ in range(20)]
    assert len({reply.headers["x-request-id"] for reply in replies}) == 20


async def test_what_nobody_foresaw_is_a_500_in_our_form_without_its_text(api: Api) -> None:
    async def boom() -> None:
        raise RuntimeError("the user's words")

    api.app.add_api_route("/boom", boom)
    reply = await api.stranger.get("/boom")
    assert code_of(reply, 500) == "internal_error"
    assert "words" not in reply.text
