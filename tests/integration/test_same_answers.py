"""Refusals tell nothing apart: every wrong token, key or job is the same answer but for its request's id.

Likewise somebody who was never here and somebody of whom nothing is left: no answer tells who is a user.
"""

import base64
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import jwt
import pytest
from service.adapters.admin_visits import AdminVisits
from service.adapters.keys import ALL_SCOPES, Grant, KeyRecord, KeyStore, digest_of, new_key
from service.adapters.me_links import MeLinks
from service.adapters.user_tokens import UserTokens
from service.scope import bank_of
from service.settings import Settings

from tests.fakes.hindsight import HindsightStandIn
from tests.fakes.llm import FakeLlm
from tests.integration.admin_world import operator_of
from tests.integration.conftest import Api, Workshop, run_api, settings_for
from tests.integration.edge import checked
from tests.integration.permissions_world import ENTRIES, forged
from tests.support import RedisServer, serve

pytestmark = pytest.mark.anyio
SECRET, OLD = "secret-of-64-characters-" + "s" * 40, "old-secret-of-64-characters-" + "o" * 40
BANK = bank_of("default", "anne")
TOKENS = UserTokens({"a": SECRET})
GOOD = TOKENS.make("default", BANK, 86_400).text
LINKS = MeLinks({"a": SECRET})
NOW_MS = int(time.time() * 1000)
# Good ones, for another door each.
LINK = LINKS.make("default", BANK, 86_400, NOW_MS).token
VISIT, VISITED = LINKS.open(LINK)
VIEW = LINKS.seal(VISITED, {})
OPERATOR = AdminVisits("redis://127.0.0.1:1", [SECRET.encode()]).make("0" * 8, 86_400)[0]


@pytest.fixture
async def settings(redis_server: RedisServer, stand_in: HindsightStandIn) -> Settings:
    await redis_server.command("FLUSHALL")
    return settings_for(redis_server.url, stand_in.url, min_score=0, token_keys=f"a:{SECRET}")


@pytest.fixture
async def signed(settings: Settings) -> AsyncIterator[Callable[..., Awaitable[httpx.Response]]]:
    """Requests with a key that wants user tokens."""
    key, key_id = new_key()
    grant = Grant("default", tuple(sorted(ALL_SCOPES)), "signed")
    async with KeyStore.from_settings(settings) as store:
        await store.add(KeyRecord(key_id, "n", grant, 0, 1, digest_of(key, grant, b"")))
    async with run_api(settings) as api:

        async def ask(method: str, path: str, **request: Any) -> httpx.Response:
            headers = {"Authorization": f"Bearer {key}", **request.pop("headers", {})}
            return await api.stranger.request(method, path, headers=headers, **request)

        yield ask


def answer(reply: httpx.Response) -> tuple[int, tuple[tuple[str, str], ...], str]:
    """All that is in a reply but what names the request, and when it was."""
    request_id = reply.headers["x-request-id"]
    headers = {name: value for name, value in reply.headers.items() if name not in ("x-request-id", "date")}
    return reply.status_code, tuple(sorted(headers.items())), reply.text.replace(request_id, "")


def token(secret: str = SECRET, kid: str = "a", algorithm: str = "HS256", **changes: object) -> str:
    claims = {"aud": "memory-user:default", "sub": BANK, "exp": int(time.time()) + 600, **changes}
    return jwt.encode(
        {name: value for name, value in claims.items() if value is not None},
        "" if algorithm == "none" else secret,
        algorithm,
        headers={"kid": kid},
    )


def _unsigned_twin(text: str) -> str:
    """The same claims under `alg: none`, with the old signature still there."""
    _, claims, signature = text.split(".")
    head = base64.urlsafe_b64encode(json.dumps({"alg": "none", "kid": "a"}).encode()).decode().rstrip("=")
    return f"{head}.{claims}.{signature}"


WRONG = {
    "none at all": "",
    "no token": "anne",
    "a bank": str(BANK),
    "expired": token(exp=int(time.time()) - 60),
    "without an end": token(exp=None),
    "not yet good": token(nbf=int(time.time()) + 600),
    "forged claims": forged(GOOD, bank_of("default", "bert")),
    "forged signature": f"{GOOD[:-6]}AAAAAA",
    "cut off": GOOD[:-1],
    "of another secret": token(OLD),
    "of a key that was taken away": token(OLD, kid="old"),
    "of another tenant": TOKENS.make("another", BANK, 600).text,
    "of a key that was taken away, under the name of ours": token(OLD, kid="a"),
    "a personal link": LINK,
    "a visit by a personal link": VISIT,
    "what a visitor's browser keeps": VIEW,
    "an operator's visit": OPERATOR,
    "unsigned": token(algorithm="none"),
    "unsigned twin": _unsigned_twin(GOOD),
    "of another algorithm": token(algorithm="HS512"),
    "about no bank": token(sub="anne"),
    "about all banks": token(sub="*"),
    "too long": f"{GOOD}{'A' * 2000}",
}


async def test_every_wrong_token_is_the_same_answer_on_every_route(
    signed: Callable[..., Awaitable[httpx.Response]],
) -> None:
    asked = 0
    for (method, path), entry in ENTRIES.items():
        if entry.about is None or "signed" in entry.soft or path.startswith("/admin/"):
            continue  # no user is named, the answer has no memory instead, or the key is an operator's
        good = await signed(method, path, **entry.about(GOOD))
        assert good.status_code == entry.done, (path, good.text)
        seen: dict[Any, str] = {}
        for name, wrong in WRONG.items():
            reply = await signed(method, path, **entry.about(wrong))
            assert checked(reply, 422)["error"]["code"] == "user_token_refused", (path, name)
            seen[answer(reply)] = name
            asked += 1
        assert len(seen) == 1, (path, seen)
    assert asked >= 8 * len(WRONG)


@pytest.mark.parametrize("path", ["/dify/knowledge/retrieval", "/v1/chat/completions"])
async def test_where_a_chat_has_to_go_on_every_wrong_token_is_the_same_answer(
    settings: Settings, stand_in: HindsightStandIn, path: str
) -> None:
    """There it is an answer without memory. No token at all is told as that: it is nobody's secret."""
    stand_in.add_memory(BANK, "which harbour restaurant serves grilled sardines: the quokka")
    key, key_id = new_key()
    grant = Grant("default", tuple(sorted(ALL_SCOPES)), "signed")
    async with KeyStore.from_settings(settings) as store:
        await store.add(KeyRecord(key_id, "n", grant, 0, 1, digest_of(key, grant, b"")))
    about = ENTRIES["POST", path].about
    assert about is not None
    async with serve(FakeLlm().app) as llm_url:
        gateway = {
            "gateway_model": "openai/fake-model",
            "gateway_api_key": "key-of-the-upstream",
            "gateway_base_url": f"{llm_url}/v1",
        }
        async with run_api(Settings.model_validate({**settings.model_dump(), **gateway})) as api:
            headers = {"Authorization": f"Bearer {key}"}
            good = await api.stranger.post(path, headers=headers, **about(GOOD))
            assert good.status_code == 200
            assert "quokka" in good.text or good.headers["x-memory-count"] == "1"
            seen: dict[Any, str] = {}
            for name, wrong in WRONG.items():
                if not wrong:
                    continue
                reply = await api.stranger.post(path, headers=headers, **about(wrong))
                assert reply.status_code == 200, (name, reply.text)
                assert "user_token_refused" in (reply.headers.get("x-memory-reason") or reply.text), name
                assert "quokka" not in reply.text
                seen[without_model(reply)] = name
            assert len(seen) == 1, seen


def without_model(reply: httpx.Response) -> Any:
    """All of an answer but what the model's provider numbers and times."""
    status, headers, text = answer(reply)
    said = json.loads(text)
    for name in ("id", "created"):
        said.pop(name, None)
    return status, tuple(one for one in headers if one[0] != "content-length"), json.dumps(said)


async def test_every_wrong_link_and_visit_is_the_same_answer(settings: Settings) -> None:
    """A link opens as often as one likes until it ends; what has ended, or is for another door, does not."""
    async with run_api(settings) as api:

        async def opened(link: str) -> httpx.Response:
            api.stranger.cookies.clear()
            return await api.stranger.get("/me", params={"token": link})

        async def visited(visit: str) -> httpx.Response:
            api.stranger.cookies.clear()
            return await api.stranger.get("/me", headers={"Cookie": f"memory-me={visit}"})

        for _ in range(2):
            assert (await opened(LINK)).status_code == 200
        proof = api.stranger.cookies["memory-me"]
        assert (await visited(proof)).status_code == 200
        as_links = {"a visit": VISIT, "what is kept": VIEW, "a user token": GOOD, "an operator": OPERATOR}
        as_visits = {"a link": LINK, "what is kept": VIEW, "a user token": GOOD, "an operator": OPERATOR}
        old = MeLinks({"old": OLD}).make("default", BANK, 86_400, NOW_MS).token
        as_links["of a key that was taken away"] = old
        as_visits["of a key that was taken away"] = MeLinks({"old": OLD}).open(old)[0]
        checked(await api.client.post("/admin/me-links/end", json={"user_id": "anne"}), 200)
        as_links["ended"], as_visits["ended"], as_visits["ended, opened here"] = LINK, VISIT, proof
        answers = {answer(await opened("")): "none"}
        answers |= {answer(await opened(link)): name for name, link in as_links.items()}
        answers |= {answer(await visited(visit)): name for name, visit in as_visits.items()}
    assert len(answers) == 1, answers
    assert next(iter(answers))[0] == 401


async def test_every_wrong_operators_visit_is_the_same_answer(settings: Settings) -> None:
    async with run_api(settings) as api:

        async def visited(proof: str) -> httpx.Response:
            api.stranger.cookies.clear()
            return await api.stranger.get("/admin", headers={"Cookie": f"memory-admin={proof}"})

        made = checked(await api.client.post("/admin/keys", json={"name": "n", "scopes": "admin"}), 201)
        async with operator_of(api, made["key"]) as browser:
            revoked = browser.client.cookies["memory-admin"]
        async with operator_of(api) as browser:
            own = browser.client.cookies["memory-admin"]
            seed = jwt.decode(own, options={"verify_signature": False})["sub"]
            taken_away = AdminVisits(settings.redis_url, [OLD.encode()]).make(seed, 600)[0]
            assert {(await visited(proof)).status_code for proof in (own, revoked)} == {200}
            await browser.send(await browser.get(), "admin/sign-out")
        checked(await api.client.post("/admin/keys/revoke", json={"id": made["id"]}), 200)
        wrong = {
            "none": "",
            "signed out": own,
            "its key was revoked": revoked,
            "of a secret that was taken away": taken_away,
            "of no such key": OPERATOR,
            "a link": LINK,
            "a visit": VISIT,
            "a user token": GOOD,
        }
        answers = {answer(await visited(proof)): name for name, proof in wrong.items()}
    assert len(answers) == 1, answers
    assert next(iter(answers))[0] == 401


async def test_every_wrong_key_is_the_same_answer(settings: Settings) -> None:
    grant = Grant("default", ("recall",))
    good, good_id = new_key()
    ended, ended_id = new_key()
    revoked, revoked_id = new_key()
    stranger, _ = new_key()
    async with KeyStore.from_settings(settings) as store:
        for key, key_id, ends_s in ((good, good_id, None), (ended, ended_id, 2), (revoked, revoked_id, None)):
            await store.add(KeyRecord(key_id, "n", grant, 0, 1, digest_of(key, grant, b""), ends_s))
        await store.revoke(revoked_id, 2)
    wrong = [
        ended,
        revoked,
        stranger,
        "x",
        good[:-1],
        f"{good}x",
        f"dm_{good_id}_",
        f"dm_{good_id}_{'A' * 43}",
    ]
    async with run_api(settings) as api:
        said = {"user_id": "anne", "query": "q"}
        assert (await _with(api, good).post("/memory/recall", json=said)).status_code == 200
        for path in ("/memory/recall", "/memory/list", "/admin/keys"):
            answers = {answer(await _with(api, key).post(path, json=said)) for key in wrong}
            answers.add(answer(await api.stranger.post(path, json=said)))
            assert len(answers) == 1, path
            [(status, _, _)] = answers
            assert status == 401


class _with:  # noqa: N801 - used as `_with(api, key).post(…)`
    """A client's requests with another key."""

    def __init__(self, api: Api, key: str) -> None:
        self._client = api.stranger
        self._headers = {"Authorization": f"Bearer {key}"}

    async def post(self, path: str, **request: Any) -> httpx.Response:
        """POST with that key."""
        return await self._client.post(path, headers=self._headers, **request)


ABOUT = {
    ("POST", "/memory/recall"): {"query": "where does Anne live"},
    ("POST", "/memory/list"): {},
    ("POST", "/memory/reflect"): {"query": "where does Anne live"},
    ("POST", "/memory/correct"): {"memory_id": "00000000-0000-0000-0000-000000000000", "text": "x"},
    ("POST", "/memory/forget"): {"all": "true"},
    ("GET", "/memory/export"): {},
}


async def test_nobody_can_tell_who_is_a_user(api: Api, workshop: Workshop) -> None:
    """Somebody never seen, somebody of whom nothing is left, and somebody who only ever asked."""
    said = {"user_id": "gone", "user_message": "I live in Lisbon"}
    checked(await api.client.post("/memory/add", json=said), 202)
    await workshop.work()
    assert (await api.recall("gone", "Lisbon")).json()["memories"]
    receipt = checked(await api.client.post("/memory/forget", json={"user_id": "gone", "all": "true"}), 200)
    assert receipt["forgotten"]["documents"] == 1
    await api.recall("asked", "Lisbon")
    for (method, path), fields in ABOUT.items():
        answers: dict[Any, str] = {}
        for user in ("gone", "asked", "never"):
            what: dict[str, Any] = (
                {"params": {"user_id": user}} if method == "GET" else {"json": {"user_id": user, **fields}}
            )
            answers[answer(await api.client.request(method, path, **what))] = user
        assert len(answers) == 1, (path, answers)


async def test_a_job_that_is_over_forgotten_or_somebody_elses_is_no_job(
    api: Api, redis_server: RedisServer, stand_in: HindsightStandIn
) -> None:
    said = {"user_id": "anne", "user_message": "I live in Lisbon"}
    job_id = checked(await api.client.post("/memory/add", json=said), 202)["job_id"]
    async with run_api(settings_for(redis_server.url, stand_in.url, tenant="another")) as other:
        answers = {
            answer(await other.client.get(f"/memory/jobs/{one}"))
            for one in (job_id, "0" * 32, "no-such-job", f"direct{'0' * 112}", "x" * 500, "%00", "*")
        }
    assert len(answers) == 1, answers
    [(status, _, _)] = answers
    assert status == 404
