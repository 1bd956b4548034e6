"""Who may see the page `/me`: who has a link that is good, of one person, until it ends."""

import asyncio
import json
import logging
import time
from typing import Any
from urllib.parse import urlencode, urlsplit

import httpx
import jwt
import pytest
from click.testing import CliRunner
from redis.asyncio import Redis
from service import keyspace
from service.adapters.audit import AuditTrail
from service.cli.main import main
from service.scope import bank_of
from service.settings import Settings

from tests.fakes.hindsight import HindsightStandIn
from tests.integration.conftest import KEY, Api, run_api, settings_for
from tests.integration.edge import checked, code_of
from tests.integration.me_world import SECRET, browser_of, check_headers, make_link, visit
from tests.integration.test_api_refusals import PERSONAL
from tests.pages import Page
from tests.support import RedisServer, wait_until
from tests.turns_log import without_ttl

pytestmark = pytest.mark.anyio
ANNE, BERT = bank_of("default", "anne"), bank_of("default", "bert")
LINKS = "/admin/me-links"
FORM = "application/x-www-form-urlencoded"
GETS = ("/me", "/me/download", "/me/forget-all")
POSTS = ("/me/view", "/me/correct", "/me/forget", "/me/forget-all", "/me/end")


@pytest.fixture
async def settings(redis_server: RedisServer, stand_in: HindsightStandIn) -> Settings:
    await redis_server.command("FLUSHALL")
    return settings_for(redis_server.url, stand_in.url, token_keys=f"a:{SECRET}", audit_days=7)


def signed(secret: str = SECRET, kid: str = "a", **changes: object) -> str:
    """A token like that of a link."""
    now_s = int(time.time())
    claims = {
        "aud": "memory-me-link",
        "sub": ANNE,
        "tenant": "default",
        "made_ms": now_s * 1000,
        "exp": now_s + 60,
    }
    claims.update(changes)
    return jwt.encode(claims, secret, "HS256", headers={"kid": kid})


async def refused(reply: httpx.Response) -> str:
    """The one page that everybody without a good link gets."""
    assert reply.status_code == 401
    check_headers(reply)
    assert not reply.headers.get_list("set-cookie")
    page = Page(reply.text)
    page.check()
    return reply.text


async def test_without_a_link_every_page_is_the_same_refusal(api: Api) -> None:
    seen = {await refused(await api.stranger.get("/me"))}
    for client in (api.stranger, api.client):  # no API key opens it either
        for path in GETS[1:]:
            seen.add((await refused(await client.get(path))).replace("../me", "me"))
        for path in POSTS:
            for body in (b"", b"x" * 2_000_000):
                seen.add((await refused(await client.post(path, content=body))).replace("../me", "me"))
    assert len(seen) == 1
    assert {*GETS, *POSTS} == PERSONAL
    for path in POSTS[:2]:
        assert (await api.stranger.get(path)).status_code == 405


async def test_every_wrong_link_is_refused_in_the_same_words(api: Api, stand_in: HindsightStandIn) -> None:
    stand_in.add_memory(ANNE, "Anne keeps bees.")
    now_s = int(time.time())
    assert (await api.stranger.get("/me", params={"token": signed()})).status_code == 200
    api.stranger.cookies.clear()
    user_token = checked(await api.client.post("/admin/user-tokens", json={"user_id": "anne"}), 201)["token"]
    made = signed()
    wrong = [
        "",
        " ",
        "nonsense",
        "x" * 5000,
        "用户",
        user_token,
        signed(exp=now_s - 40),
        signed("another-secret-of-more-than-32-chars"),
        signed(kid="b"),
        signed(aud="memory-me-visit"),
        signed(aud="memory-user:default"),
        signed(sub="anne"),
        signed(tenant=5),
        signed(made_ms="now"),
        made.rpartition(".")[0] + ".AAAA",
        KEY,
        ANNE,
    ]
    replies = [await api.stranger.get("/me", params={"token": token}) for token in wrong]
    replies.append(await api.stranger.get("/me", params=[("token", made), ("token", made)]))
    assert {await refused(reply) for reply in replies} == {await refused(await api.stranger.get("/me"))}
    # As a cookie they are worth no more, and a good link is no visit.
    for token in [*wrong[2:], made]:
        raw = token.encode("utf-8")
        reply = await api.stranger.get("/me", headers={"Cookie": b"memory-me=" + raw})
        await refused(reply)


async def test_a_link_is_no_user_token(api: Api) -> None:
    fields = {"name": "n", "scopes": "recall", "identity": "signed"}
    key = checked(await api.client.post("/admin/keys", json=fields), 201)["key"]
    reply = await api.stranger.post(
        "/memory/recall",
        json={"user_id": signed(), "query": "bees"},
        headers={"Authorization": f"Bearer {key}"},
    )
    assert code_of(reply, 422) == "user_token_refused"


async def test_another_users_memories_are_neither_shown_nor_touched(
    api: Api, stand_in: HindsightStandIn
) -> None:
    theirs = stand_in.add_memory(BERT, "Bert keeps ducks.").id
    stand_in.add_memory(ANNE, "Anne keeps bees.")
    async with visit(api, "anne") as browser:
        page = await browser.get()
        assert page.words == ["Anne keeps bees."]
        gone = await browser.send(page, "me/forget", memory_id=theirs)
        assert "It was deleted already." in gone.text
        await browser.send(page, "me/correct", memory_id=theirs, text="Bert keeps nothing.")
        assert browser.status == 404
        assert "Bert" not in (await browser.client.get("/me/download")).text
    assert stand_in.banks[BERT].texts == ["Bert keeps ducks."]


async def test_another_tenants_user_of_that_name_is_somebody_else(
    api: Api, stand_in: HindsightStandIn, redis_server: RedisServer
) -> None:
    stand_in.add_memory(ANNE, "Anne keeps bees.")
    settings = settings_for(redis_server.url, stand_in.url, token_keys=f"a:{SECRET}", tenant="another")
    async with run_api(settings) as other, browser_of(api) as browser:
        # The link of the other tenant's operator, opened where ours are served as well.
        await browser.get(await make_link(other, "anne"))
        assert (await browser.get("/me")).words == []


@pytest.mark.parametrize("path", POSTS)
async def test_a_form_that_is_not_of_this_visit_does_nothing(
    api: Api, stand_in: HindsightStandIn, path: str
) -> None:
    memory_id = stand_in.add_memory(ANNE, "Anne keeps bees.").id
    async with visit(api, "anne") as browser, visit(api, "anne") as other:
        mine = (await browser.get()).forms[0].fields["form_key"]
        others = (await other.get()).forms[0].fields["form_key"]
        assert mine != others
        fields: dict[str, Any] = {"memory_id": memory_id, "text": "Anne keeps nothing.", "sure": "yes"}
        for key in (None, "", others, mine[:-1], mine + "x", "用户", "\ud800"):
            sent = fields if key is None else fields | {"form_key": key}
            as_form = urlencode(sent, errors="replace")
            for content, kind in ((as_form, FORM), (json.dumps(sent), "application/json")):
                reply = await browser.client.post(path, content=content, headers={"Content-Type": kind})
                assert reply.status_code == 403, key
                check_headers(reply)
                Page(reply.text).check()
        both = f"form_key={mine}&form_key={mine}&memory_id={memory_id}&sure=yes"
        reply = await browser.client.post(path, content=both, headers={"Content-Type": FORM})
        assert reply.status_code == 400
        assert (await browser.get("/me")).words == ["Anne keeps bees."]


async def test_a_link_can_be_opened_again_until_it_ends(api: Api) -> None:
    async with browser_of(api) as one, browser_of(api) as two:
        link = await make_link(api, "anne")
        for browser in (one, two, one):
            await browser.get(link)
            assert browser.status == 200
            await browser.get("/me")
            assert browser.status == 200
        visits = {browser.client.cookies["memory-me"] for browser in (one, two)}
        assert len(visits) == 2


async def test_a_visit_ends_with_its_link(api: Api) -> None:
    # Clocks may differ by 30 seconds, so that this one is good for two more.
    async with browser_of(api) as browser:
        now_s = time.time()
        await browser.get(f"/me?token={signed(exp=int(now_s) - 28)}")
        (cookie, _) = browser.replies[-1].headers.get_list("set-cookie")
        assert "Max-Age=0" in cookie
        visit_proof = cookie.partition("=")[2].partition(";")[0]

        async def ended() -> bool:
            reply = await api.stranger.get("/me", headers={"Cookie": f"memory-me={visit_proof}"})
            return reply.status_code == 401

        assert not await ended()
        await wait_until(ended, "the visit has ended", timeout_s=6)


async def test_ended_links_are_good_no_more_in_any_process(
    api: Api, settings: Settings, stand_in: HindsightStandIn
) -> None:
    async with run_api(settings) as other, visit(other, "anne") as mine, visit(api, "bert") as theirs:
        link = await make_link(api, "anne")
        await mine.get("/me")
        assert mine.status == 200
        ended = checked(await api.client.post(f"{LINKS}/end", json={"user_id": "anne"}), 200)
        assert ended["status"] == "ended"
        for path in ("/me", link):
            await mine.get(path)
            assert mine.status == 401
        await theirs.get("/me")
        assert theirs.status == 200
        # One that is made now is good, whatever the clocks say.
        async with visit(other, "anne") as again:
            await again.get("/me")
            assert again.status == 200
    async with Redis.from_url(settings.redis_url, decode_responses=True) as redis:
        assert 7 * 86_400 <= await redis.ttl(keyspace.me_ended(ANNE)) <= 8 * 86_400
        assert not [key for key in await without_ttl(redis) if "me-ended" in key]


async def test_the_person_can_end_it_on_every_device(api: Api) -> None:
    async with visit(api, "anne") as phone, visit(api, "anne") as desk:
        page = await phone.get("/me")
        await phone.send(page, "me/end")
        assert phone.replies[-2].status_code == 303
        assert phone.status == 401
        assert "memory-me" not in phone.client.cookies
        await desk.get("/me")
        assert desk.status == 401


async def test_while_redis_is_away_no_link_is_taken_for_good(api: Api, redis_server: RedisServer) -> None:
    async with visit(api, "anne") as browser:
        redis_server.pause()
        try:
            page = await browser.get("/me")
        finally:
            redis_server.resume()
        assert browser.status == 503
        assert "cannot be reached now" in page.text
        await browser.get("/me")
        assert browser.status == 200


async def test_without_keys_to_sign_with_there_is_no_page(
    redis_server: RedisServer, stand_in: HindsightStandIn, api: Api
) -> None:
    async with run_api(settings_for(redis_server.url, stand_in.url)) as bare:
        assert code_of(await bare.client.post(LINKS, json={"user_id": "anne"}), 404) == "not_found"
        reply = await bare.stranger.get("/me", params={"token": signed()})
        assert await refused(reply) == await refused(await api.stranger.get("/me"))


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"user_id": "anne"}, 201),
        ({"user_id": "anne", "ttl_s": 60}, 201),
        ({"user_id": "anne", "ttl_s": 59}, 422),
        ({"user_id": "anne", "ttl_s": 604_801}, 422),
        ({"user_id": ""}, 422),
        ({"user_id": "null"}, 422),
        ({"user_id": "{{#sys.user_id#}}"}, 422),
        ({"user_id": "anne", "tenant": "another"}, 422),
        ({}, 422),
    ],
)
async def test_a_link_is_for_one_person_and_not_for_long(
    api: Api, body: dict[str, object], status: int
) -> None:
    made = checked(await api.client.post(LINKS, json=body), status)
    if status == 201:
        url = urlsplit(made["url"])
        assert url.netloc == f"127.0.0.1:{api.settings.port}"
        assert "anne" not in made["url"]
        claims = jwt.decode(url.query.partition("=")[2], options={"verify_signature": False})
        assert claims["exp"] - time.time() <= int(str(body.get("ttl_s", 3600)))


async def test_a_visitors_requests_count_as_that_users(
    redis_server: RedisServer, stand_in: HindsightStandIn
) -> None:
    settings = settings_for(redis_server.url, stand_in.url, token_keys=f"a:{SECRET}", user_rate_limit=4)
    async with run_api(settings) as api, visit(api, "anne") as browser:
        for _ in range(3):
            page = await browser.get("/me")
        assert browser.status == 429
        assert "too much at once" in page.text
        assert int(browser.replies[-1].headers["retry-after"]) >= 1


async def test_what_is_done_there_is_in_the_audit_trail_and_in_no_log(
    api: Api, stand_in: HindsightStandIn, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    stand_in.add_memory(ANNE, "Anne keeps quokkas.")
    async with browser_of(api) as browser:
        link = await make_link(api, "anne")
        await browser.get(link)
        page = await browser.send(await browser.get("/me"), "me/view", "Show", query="quokkas")
        await browser.send(page, "me/correct", text="Anne keeps quokkas, two.")
        await browser.send(await browser.get("/me"), "me/forget")
    ours = [record for record in caplog.records if record.name.startswith("service")]
    logged = "\n".join(str(vars(record)) for record in ours)
    assert "/me/correct" in logged
    for secret in ("quokka", link.partition("=")[2], "anne"):
        assert secret not in logged

    async def done() -> bool:
        async with AuditTrail.from_settings(api.settings) as trail:
            events = [event async for event in trail.read()]
        mine = {(event.action, event.status) for event in events if event.key_id == "me"}
        assert {event.subject for event in events if event.key_id == "me"} <= {ANNE}
        assert {event.tenant for event in events} <= {"default"}
        return mine >= {("/me", 200), ("/me/view", 303), ("/me/correct", 303), ("/me/forget", 303)}

    await wait_until(done, "the visit is in the audit trail")


async def test_the_command_makes_and_ends_links(api: Api, settings: Settings) -> None:
    env = {
        "MEMORY_REDIS_URL": settings.redis_url,
        "MEMORY_TOKEN_KEYS": f"a:{SECRET}",
        "MEMORY_ME_URL": "https://memory.example.com",
    }

    async def command(*args: str, **more: str) -> str:
        done = await asyncio.to_thread(CliRunner().invoke, main, ["link", *args], env=env | more)
        return f"{done.exit_code} {done.output.strip()}"

    said = await command("anne", "--ttl", "10m")
    assert said.startswith("0 https://memory.example.com/me?token=")
    link = "/me?" + said.partition("?")[2]
    async with browser_of(api) as browser:
        await browser.get(link)
        await browser.get("/me")
        assert browser.status == 200
        assert await command("anne", "--end") == "0 All links of this user are ended."
        await browser.get("/me")
        assert browser.status == 401
    assert (await command("anne", MEMORY_TOKEN_KEYS="")).startswith("1 ")
    assert "MEMORY_TOKEN_KEYS" in await command("anne", MEMORY_TOKEN_KEYS="")
    assert (await command("null")).startswith("1 ")
    assert "between 60s and 7d" in await command("anne", "--ttl", "30d")
