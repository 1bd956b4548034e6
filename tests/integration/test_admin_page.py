"""The page `/admin`: who gets in, for how long, what they see and what they can do."""

import re
import time
from datetime import UTC, datetime
from pathlib import Path

import jwt
import pytest
from redis.asyncio import Redis
from service import keyspace
from service.adapters.admin_visits import AdminVisits
from service.adapters.audit import AuditTrail
from service.adapters.usage import UsageStore
from service.memory.limits import SIGN_INS_PER_MINUTE
from service.settings import Settings

from tests.fakes.hindsight import HindsightStandIn
from tests.integration.admin_world import kill_turns, make_usage, operator_of, stranger_to
from tests.integration.conftest import KEY, Api, Workshop, run_api, settings_for
from tests.integration.edge import checked
from tests.integration.me_world import SECRET, make_link
from tests.pages import Page
from tests.processes import WorkerProcess
from tests.support import RedisServer, wait_until

pytestmark = pytest.mark.anyio


async def make_key(api: Api, scopes: str, **fields: object) -> tuple[str, str]:
    """A key of the API's own tenant, and its id."""
    made = checked(await api.client.post("/admin/keys", json={"name": "k", "scopes": scopes, **fields}), 201)
    return made["key"], made["id"]


def cookie_of(reply_cookies: list[str], name: str = "memory-admin") -> str:
    (found,) = [one for one in reply_cookies if one.startswith(f"{name}=")]
    return found


def body_without_keys(text: str) -> str:
    return re.sub(r'value="[^"]*"', "", text)


async def test_signing_in_shows_every_panel_and_keeps_no_key(api: Api) -> None:
    async with stranger_to(api) as browser:
        page = await browser.get()
        assert browser.status == 401
        assert page.form("admin/sign-in").method == "post"
        page = await browser.send(page, "admin/sign-in", key=f" Bearer {KEY} ")
        assert browser.status == 200
        assert [one.text for one in page.all("h2")] == [
            "Now", "Usage", "Tenants", "Dead letters", "Health", "API keys", "Policy in force",
        ]  # fmt: skip
        signed = next(reply for reply in browser.replies if reply.status_code == 303)
        cookie = cookie_of(signed.headers.get_list("set-cookie"))
        # No path: the browser keeps it for the folder it came from, whatever a proxy puts before it.
        assert "path" not in cookie.lower()
        assert "secure" not in cookie.lower()
        assert "Max-Age=3600" in cookie
        claims = jwt.decode(cookie.partition("=")[2].partition(";")[0], options={"verify_signature": False})
        assert claims.keys() == {"sub", "jti", "exp", "form_key", "aud"}
        assert KEY not in cookie
        assert KEY not in "".join(reply.text for reply in browser.replies)


async def test_every_wrong_key_meets_the_same_answer(api: Api) -> None:
    plain, _ = await make_key(api, "recall,add,review,forget,chat")
    revoked, key_id = await make_key(api, "admin")
    checked(await api.client.post("/admin/keys/revoke", json={"id": key_id}), 200)
    answers = set()
    async with stranger_to(api) as browser:
        for wrong in (
            "nonsense",
            "",
            plain,
            revoked,
            revoked[:-1] + "x",
            "dm_aaaaaaaaaa_" + "x" * 43,
            "钥匙",
        ):
            await browser.post("/admin/sign-in", {"key": wrong})
            assert browser.status == 401
            assert not browser.replies[-1].headers.get_list("set-cookie")
            answers.add(browser.replies[-1].text)
    assert len(answers) == 1
    assert "This is no key that opens this page." in answers.pop()


async def test_vain_tries_are_limited_and_lock_nobody_out(api: Api) -> None:
    async with stranger_to(api) as browser:
        for _ in range(SIGN_INS_PER_MINUTE):
            await browser.post("/admin/sign-in", {"key": "nonsense"})
            assert browser.status == 401
        page = await browser.post("/admin/sign-in", {"key": "nonsense"})
        assert browser.status == 429
        assert int(browser.replies[-1].headers["retry-after"]) >= 1
        assert "too much at once" in page.text
        # All may come from one address, a proxy's: the right key opens all the same.
        await browser.post("/admin/sign-in", {"key": KEY})
        assert browser.status == 200
        # Who calls the API by key is not held up by it.
        assert (await api.client.get("/admin/keys")).status_code == 200


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:1"])
async def test_nobody_is_signed_in_from_another_site(api: Api, origin: str) -> None:
    reply = await api.client.post("/admin/sign-in", data={"key": KEY}, headers={"Origin": origin})
    assert reply.status_code == 403
    assert "set-cookie" not in reply.headers


async def test_the_page_s_own_forms_tell_their_origin(api: Api) -> None:
    async with stranger_to(api) as browser:
        await browser.get("/admin")
        assert browser.replies[-1].headers["referrer-policy"] == "same-origin"
    own = await api.client.post("/admin/sign-in", data={"key": KEY}, headers={"Origin": api.url})
    assert own.status_code == 303


async def test_behind_a_proxy_the_public_address_makes_the_visit_https(
    redis_server: RedisServer, stand_in: HindsightStandIn
) -> None:
    settings = settings_for(redis_server.url, stand_in.url, public_url="https://memory.example")
    async with run_api(settings) as api:
        headers = {"Host": "memory.example", "Origin": "https://memory.example"}
        reply = await api.client.post("/admin/sign-in", data={"key": KEY}, headers=headers)
    cookie = cookie_of(reply.headers.get_list("set-cookie"), "__Secure-memory-admin")
    assert "; Secure" in cookie


async def test_a_key_with_a_rate_is_told_from_a_wrong_one_by_nothing(api: Api) -> None:
    key, _ = await make_key(api, "recall", rate_per_minute=1)
    for _ in range(3):
        reply = await api.client.post("/admin/sign-in", data={"key": key})
        assert reply.status_code == 401


async def test_a_revoked_key_is_signed_out_in_every_process(
    api: Api, redis_server: RedisServer, stand_in: HindsightStandIn
) -> None:
    key, key_id = await make_key(api, "admin")
    async with (
        run_api(settings_for(redis_server.url, stand_in.url)) as other,
        operator_of(other, key) as browser,
    ):
        checked(await api.client.post("/admin/keys/revoke", json={"id": key_id}), 200)

        async def is_out() -> bool:
            await browser.get()
            return browser.status == 401

        await wait_until(is_out, "the other process has learnt that the key was revoked")


async def test_signing_out_ends_the_visit_also_for_a_copy_of_it(api: Api) -> None:
    async with operator_of(api) as browser, stranger_to(api) as thief:
        proof = browser.client.cookies["memory-admin"]
        thief.client.cookies.set("memory-admin", proof)
        assert (await thief.get()).all("h2")
        await browser.send(await browser.get(), "admin/sign-out")
        assert "memory-admin" not in browser.client.cookies
        assert browser.status == 401
        await thief.get()
        assert thief.status == 401


async def test_forged_old_and_foreign_proofs_are_refused_alike(api: Api, settings: Settings) -> None:
    visits = AdminVisits.from_settings(settings)
    own, _ = visits.make("0" * 8, 600)
    seed = jwt.decode((await _proof(api)), options={"verify_signature": False})
    body = {**seed, "jti": "x"}
    key = AdminVisits.from_settings(settings)._keys[0]
    wrong = {
        "nothing": "",
        "nonsense": "abc.def.ghi",
        "not our key": jwt.encode(body, "x" * 32, "HS256"),
        "the raw secret": jwt.encode(body, KEY + " " * 16, "HS256"),
        "no algorithm": jwt.encode(body, "", "none"),
        "ended": jwt.encode({**body, "exp": int(time.time()) - 1}, key, "HS256"),
        "another audience": jwt.encode({**body, "aud": "memory-me-visit"}, key, "HS256"),
        "no end": jwt.encode({name: body[name] for name in body if name != "exp"}, key, "HS256"),
        "no form key": jwt.encode({**body, "form_key": ""}, key, "HS256"),
        "no such key": own,
        "too long": "a" * 5000,
    }
    answers = set()
    for proof in wrong.values():
        async with stranger_to(api) as browser:
            browser.client.cookies.set("memory-admin", proof)
            await browser.get()
            assert browser.status == 401
            answers.add(browser.replies[-1].text)
    assert len(answers) == 1
    # What was made up is right but for what is wrong with it.
    async with stranger_to(api) as browser:
        browser.client.cookies.set("memory-admin", jwt.encode(body, key, "HS256"))
        await browser.get()
        assert browser.status == 200


async def _proof(api: Api) -> str:
    async with operator_of(api) as browser:
        return str(browser.client.cookies["memory-admin"])


@pytest.mark.parametrize("action", ["sign-out", "replay", "drop", "revoke-key", "rotate-key", "create-key"])
async def test_no_form_but_the_visits_own_does_anything(api: Api, action: str) -> None:
    fields = {"all": "true", "sure": "yes", "name": "x", "scope_admin": "yes", "days": "0", "id": "x"}
    async with operator_of(api) as browser, operator_of(api) as another:
        page = await browser.get()
        for form_key in ("", "x", another_form_key(await another.get())):
            await browser.post(f"/admin/{action}", fields | {"form_key": form_key})
            assert browser.status == 403
        own = page.form("admin/sign-out").fields
        await browser.post(f"/admin/{action}", fields | own, **{"Sec-Fetch-Site": "cross-site"})
        assert browser.status == 403
        await browser.get("/admin")
        assert browser.status == 200
        assert checked(await api.client.get("/admin/keys"), 200)["keys"] == []
    async with stranger_to(api) as stranger:
        await stranger.post(f"/admin/{action}", fields | own)
        assert stranger.status == 401


def another_form_key(page: Page) -> str:
    return page.form("admin/sign-out").fields["form_key"]


async def test_a_link_to_somebodys_page_opens_no_door_here(
    redis_server: RedisServer, stand_in: HindsightStandIn
) -> None:
    settings = settings_for(redis_server.url, stand_in.url, token_keys=f"a:{SECRET}")
    async with run_api(settings) as api, stranger_to(api) as browser:
        await browser.client.get(await make_link(api, "anne"))
        visit = browser.client.cookies["memory-me"]
        browser.client.cookies.set("memory-admin", visit)
        await browser.get()
        assert browser.status == 401
    async with run_api(settings) as api, operator_of(api) as operator:
        proof = operator.client.cookies["memory-admin"]
        reply = await api.stranger.get("/me", headers={"Cookie": f"memory-me={proof}"})
        assert reply.status_code == 401


async def test_the_numbers_of_all_processes_are_shown(
    api: Api, settings: Settings, redis_server: RedisServer, stand_in: HindsightStandIn
) -> None:
    async with run_api(settings_for(redis_server.url, stand_in.url)) as other:
        for one in (api, other):
            for _ in range(3):
                checked(await one.recall("anne", "Where do I live?"), 200)
        checked(await other.add("anne", "I live in Suzhou."), 202)
        checked(await other.recall("anne", "Where do I live?"), 200)
    # The other process has written what it had when it ended.
    async with operator_of(api) as browser:
        page = await browser.get()
        row = rows_of(page, "Tenants")["default"]
        assert row[3:5] == ["1", "0"]
        assert row[2] == "4"


def rows_of(page: Page, title: str) -> dict[str, list[str]]:
    """The rows of the table in the section with that heading, by their first cells."""
    rows: dict[str, list[str]] = {}
    cells: list[str] = []
    is_there = False
    for one in page.elements:
        if one.tag in ("h2", "figcaption"):
            is_there = one.text == title
        elif is_there and one.tag == "th" and one.attributes["scope"] == "row":
            cells = rows.setdefault(one.text, [])
        elif is_there and one.tag == "td":
            cells.append(one.text)
    return rows


async def test_what_a_worker_stores_is_counted_for_its_tenant(
    redis_server: RedisServer, stand_in: HindsightStandIn, folder: Path
) -> None:
    await redis_server.command("FLUSHALL")
    worker = WorkerProcess(folder, redis_server.url, stand_in.url, tenant="acme")
    await worker.start()
    settings = settings_for(redis_server.url, stand_in.url, tenant="acme")
    async with run_api(settings) as api, UsageStore.from_settings(settings) as store:
        try:
            job = checked(await api.add("anne", "I live in Suzhou."), 202)["job_id"]
            assert (await api.job(job, wait_s=20))["status"] == "done"
        finally:
            await worker.stop()
        # It has written what it had when it ended.
        (today,) = await store.days([datetime.now(UTC)])
        (hour,) = await store.hours([datetime.now(UTC)])
    assert today["turn_stored", "acme"] == hour["turn_stored", "acme"] == 1


async def test_charts_have_their_numbers_as_tables(api: Api, settings: Settings) -> None:
    await make_usage(settings)
    async with operator_of(api) as browser:
        page = await browser.get()
    assert len(page.all("svg")) == 4
    recalls = rows_of(page, "Recalls by hour")
    assert len(recalls) == 24
    hits = sum(int(row[0].replace(",", "")) for row in recalls.values())
    assert f"{hits:,} of" in page.text
    times = rows_of(page, "How long recalls take, by hour")
    assert all(row[0].endswith(" ms") for row in times.values())
    tenants = rows_of(page, "Tenants")
    assert list(tenants) == ["default", "acme"]
    assert tenants["acme"][-1] == "$0.00"
    assert float(tenants["default"][-1].replace("$", "")) > 0


async def test_another_tenants_operator_sees_only_their_own(
    api: Api, settings: Settings, redis_server: RedisServer, stand_in: HindsightStandIn, workshop: Workshop
) -> None:
    await make_usage(settings)
    await kill_turns(settings, workshop, stand_in, "my locker code is quokka")
    own, _ = await make_key(api, "admin,review")
    async with run_api(settings_for(redis_server.url, stand_in.url, tenant="acme")) as acme:
        theirs, _ = await make_key(acme, "admin,review")
        # The installation's own key sees what there is of all tenants, but not what theirs have said.
        async with operator_of(acme) as browser:
            page = await browser.get("/admin?show=yes")
            assert list(rows_of(page, "Tenants")) == ["default", "acme"]
            assert "Hindsight refuses this with 422." in page.text
            assert "quokka" not in page.text
    async with operator_of(api, own) as browser:
        page = await browser.get("/admin?show=yes")
        assert list(rows_of(page, "Tenants")) == ["default"]
        assert "quokka" in page.text

    async def is_known() -> bool:
        return (
            await api.client.get("/admin/keys", headers={"Authorization": f"Bearer {theirs}"})
        ).status_code == 200

    await wait_until(is_known, "this process knows a key that another has made")
    async with operator_of(api, theirs) as browser:
        page = await browser.get("/admin?show=yes")
        assert list(rows_of(page, "Tenants")) == ["acme"]
        assert "There are none" in page.text
        assert "quokka" not in page.text
        # Nor that anybody else has dead letters or turns that wait: not as a number, not as trouble.
        assert re.search(r"Dead letters\s*0\s*turns that could not be stored", page.text)
        assert "Turns waiting" not in page.text
        assert "There are dead letters" not in page.text
        key = {"form_key": another_form_key(page)}
        page = await browser.post("/admin/drop", key | {"all": "true", "sure": "yes"})
        assert "Dead letters dropped: 0." in page.text
    listed = checked(await api.client.get("/admin/dead-letters"), 200)
    (letter,) = listed["dead_letters"]
    async with operator_of(api, theirs) as browser:
        key = {"form_key": another_form_key(await browser.get())}
        await browser.post("/admin/drop", key | {"ids": letter["id"]})
        assert browser.status == 404


async def test_what_was_said_is_shown_only_to_a_key_that_may_review(
    api: Api, settings: Settings, workshop: Workshop, stand_in: HindsightStandIn
) -> None:
    await kill_turns(settings, workshop, stand_in, "my locker code is quokka")
    plain, _ = await make_key(api, "admin")
    async with operator_of(api, plain) as browser:
        page = await browser.get("/admin?show=yes")
        assert "Hindsight refuses this with 422." in page.text
        assert "quokka" not in page.source
        assert "Show what was said" not in page.text
    async with operator_of(api) as browser:
        assert "quokka" not in (await browser.get()).source
        assert "quokka" in (await browser.get("/admin?show=yes")).text


async def test_dead_letters_are_replayed_and_dropped_one_or_all(
    api: Api, settings: Settings, workshop: Workshop, stand_in: HindsightStandIn
) -> None:
    await kill_turns(settings, workshop, stand_in, "one", "two", "three")

    async def letters() -> int:
        return len(checked(await api.client.get("/admin/dead-letters"), 200)["dead_letters"])

    async with operator_of(api) as browser:
        page = await browser.send(await browser.get(), "admin/replay", "Replay")
        assert "Dead letters put back: 1." in page.text
        assert await letters() == 2
        page = await browser.send(page, "admin/drop", "Drop for good")
        assert "Dead letters dropped: 1." in page.text
        assert await letters() == 1
        form = page.form("admin/drop", "Drop all for good").fields
        unsure = await browser.post("/admin/drop", form)
        assert browser.status == 422
        assert "Nothing was done" in unsure.text
        assert await letters() == 1
        await browser.post("/admin/replay", form | {"sure": "yes"})
        assert await letters() == 0
        await workshop.work()
    assert len(stand_in.banks[next(iter(stand_in.banks))].texts) >= 2


async def test_keys_are_made_rotated_and_revoked_there(api: Api) -> None:
    async def may_recall(key: str) -> bool:
        reply = await api.stranger.post(
            "/memory/recall", data={"user_id": "u", "query": "hello"}, headers={"X-API-Key": key}
        )
        return reply.status_code == 200

    async with operator_of(api) as browser:
        page = await browser.get()
        form = page.form("admin/create-key").fields
        assert {name for name in form if name.startswith("scope_")} == {"scope_recall", "scope_add"}
        page = await browser.send(page, "admin/create-key", name="Sales <bot>", days="30")
        (code,) = page.all("code", "key-shown")
        assert "Sales <bot>" in page.text
        assert await may_recall(code.text)
        page = await browser.get("/admin")
        assert code.text not in page.source
        page = await browser.send(page, "admin/rotate-key")
        (new,) = page.all("code", "key-shown")
        assert new.text != code.text
        assert await may_recall(new.text)
        assert await may_recall(code.text)  # for a day more
        page = await browser.send(await browser.get("/admin"), "admin/revoke-key")
        assert "The key is revoked." in page.text
        assert sorted([await may_recall(new.text), await may_recall(code.text)]) == [False, True]
        form = page.form("admin/create-key").fields
        for wrong in (
            {"days": "31"},
            {"name": "x" * 65},
            {"name": ""},
            {"scope_recall": "", "scope_add": ""},
        ):
            await browser.post("/admin/create-key", form | {"name": "x"} | wrong)
            assert browser.status == 422


async def test_nobody_gives_away_more_than_they_have(api: Api) -> None:
    key, _ = await make_key(api, "admin,recall")
    async with operator_of(api, key) as browser:
        page = await browser.get()
        assert 'name="scope_review"' not in page.source
        await browser.send(page, "admin/create-key", name="x", scope_review="yes")
        assert browser.status == 422


async def test_it_is_in_the_audit_trail(redis_server: RedisServer, stand_in: HindsightStandIn) -> None:
    await redis_server.command("FLUSHALL")
    settings = settings_for(redis_server.url, stand_in.url, audit_days=1)
    async with run_api(settings) as api:
        key, key_id = await make_key(api, "admin")
        async with operator_of(api, key) as browser:
            await browser.get()

        async def is_noted() -> bool:
            async with AuditTrail.from_settings(settings) as trail:
                seen = {(one.action, one.status) async for one in trail.read() if one.key_id == key_id}
            return seen >= {("/admin/sign-in", 303), ("/admin", 200)}

        await wait_until(is_noted, "the visit is in the audit trail")


async def test_without_any_secret_nobody_can_sign_in(
    redis_server: RedisServer, stand_in: HindsightStandIn
) -> None:
    async with (
        run_api(settings_for(redis_server.url, stand_in.url, api_key=None)) as api,
        stranger_to(api) as it,
    ):
        assert "MEMORY_TOKEN_KEYS" in (await it.get()).text
        await it.post("/admin/sign-in", {"key": KEY})
        assert it.status == 401


async def test_over_https_the_cookie_stays_there(
    redis_server: RedisServer, stand_in: HindsightStandIn
) -> None:
    settings = settings_for(redis_server.url, stand_in.url, me_url="https://memory.example.com/m")
    async with run_api(settings) as api:
        for headers in ({"X-Forwarded-Proto": "https"}, {"Host": "memory.example.com"}):
            reply = await api.stranger.post("/admin/sign-in", data={"key": KEY}, headers=headers)
            cookie = cookie_of(reply.headers.get_list("set-cookie"), "__Secure-memory-admin")
            assert "Secure" in cookie


async def test_the_page_opens_while_redis_and_hindsight_are_away(
    api: Api, redis_server: RedisServer, stand_in: HindsightStandIn
) -> None:
    async with operator_of(api) as browser:
        await redis_server.stop()
        stand_in.fail("version", "close")
        try:
            page = await browser.get()
            assert browser.status == 200
            assert "Something essential does not work" in page.text
            key = {"form_key": another_form_key(page), "name": "x", "scope_add": "yes", "days": "0"}
            await browser.post("/admin/create-key", key)
            assert browser.status == 503
        finally:
            await redis_server.start()


async def test_the_language_is_the_browsers_until_another_is_chosen(api: Api) -> None:
    async with stranger_to(api, "zh-CN,zh;q=0.9") as browser:
        assert (await browser.get()).all("h1")[0].text == "记忆服务"
        page = await browser.get("/admin?lang=en")
        assert page.all("h1")[0].text == "Memory service"
        assert (await browser.get("/admin")).all("h1")[0].text == "Memory service"
        assert (await browser.get("/admin?lang=xx")).all("h1")[0].text == "Memory service"


@pytest.mark.parametrize(
    "query",
    [
        "cursor=abc",
        f"cursor={'9' * 30}",
        "cursor=²",
        "done=<b>&count=1",
        "done=dropped&count=²",
        "show=1",
        "%ff=%00",
    ],
)
async def test_an_odd_address_does_no_harm(api: Api, query: str) -> None:
    async with operator_of(api) as browser:
        await browser.get(f"/admin?{query}")
        assert browser.status == 200


async def test_nothing_of_it_stays_in_redis_for_ever(api: Api, settings: Settings) -> None:
    await make_usage(settings)
    async with operator_of(api) as browser:
        await browser.send(await browser.get(), "admin/sign-out")
    async with Redis.from_url(settings.redis_url, decode_responses=True) as redis:
        found = [key async for key in redis.scan_iter(match="mem:*")]
        ours = [key for key in found if key.startswith((keyspace.usage(""), keyspace.admin_ended("")))]
        assert len(ours) > 50
        for key in ours:
            assert await redis.ttl(key) > 0
