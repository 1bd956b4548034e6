"""Whose memory: odd ids are people of their own, placeholders are nobody, two ids are a conflict."""

import asyncio
import json
import unicodedata

import pytest

from tests.fakes.hindsight import HindsightStandIn
from tests.integration.conftest import Api, Workshop, run_api, settings_for
from tests.integration.edge import checked, code_of, shared, texts_of
from tests.support import RedisServer

pytestmark = pytest.mark.anyio
__all__ = ["shared"]

# graphiti#1269, graphiti#1144, dify#14669 (separators, paths, UUIDs, CJK: a query error, or the write is
# silently dropped); kube-agents#634 (ids made safe collide: punctuation, a cut at 80, NFC and NFD, case).
IDS = (
    "a:b",
    "a/b",
    "a\\b",
    "../../etc/passwd",
    "..",
    ".",
    "/",
    "%",
    "%2e%2e%2f",
    "%00",
    "a.b@x",
    "a-b-x",
    "a_b_x",
    "A.B@X",
    "a b",
    " a b",
    "a  b",
    "a+b",
    "a&user_id=a",
    "a=b;c",
    "c2f1d0de-8a3f-4d52-9c3e-0d6a3f2f6f11",
    "用户：王小明",
    "用戶：王小明",
    "ユーザー",
    "😀",
    "👨‍👩‍👧",
    "👨👩👧",
    unicodedata.normalize("NFC", "José"),
    unicodedata.normalize("NFD", "José"),
    "JOSÉ",
    "x" * 300,
    "x" * 299 + "y",
    "x" * 80,
    "字" * 300,
    '"',
    "'; DROP TABLE users; --",
    "{{user}}{",
    "$(id)",
    "mem:due",
    "*",
    "[a-z]*",
    "\u202egnirts",
    "0",
    "true",
)


async def test_people_with_odd_ids_get_and_forget_their_own_memories_and_nobody_elses(
    api: Api, workshop: Workshop, stand_in: HindsightStandIn
) -> None:
    # Every text shares its words with every query, so that a shared bank would show.
    texts = {user: f"My locker code is quokka{number}" for number, user in enumerate(IDS)}
    jobs = [checked(await api.add(user, text), 202)["job_id"] for user, text in texts.items()]
    for user, text in texts.items():
        assert texts_of(checked(await api.recall(user, text), 200)) == [text], user
    claims = await workshop.claims()
    assert len(claims) == len(IDS)
    await asyncio.gather(*map(workshop.storer.drain, claims))
    assert [(await api.job(job))["status"] for job in jobs] == ["done"] * len(IDS)
    for user, text in texts.items():
        recalled = checked(await api.recall(user, text, top_k="50"), 200)
        assert len(recalled["memories"]) == 1, user
        assert text in recalled["context"], user
        assert not recalled["degraded"], user
    kept = dict(texts)
    for user in IDS:
        receipt = checked(await api.client.post("/memory/forget", json={"user_id": user, "all": True}), 200)
        assert receipt["verified"], user
        assert texts_of(checked(await api.recall(user, kept.pop(user)), 200)) == [], user
        listed = checked(await api.client.post("/memory/list", json={"user_id": user}), 200)
        assert listed["memories"] == [], user
        assert {text for bank in stand_in.banks.values() for text in bank.texts} == {
            f"User: {text}" for text in kept.values()
        }, user


async def test_odd_conversation_and_turn_ids_are_kept_apart(
    api: Api, workshop: Workshop, stand_in: HindsightStandIn, user: str
) -> None:
    ids = IDS[:12]
    for conversation in ids:
        assert checked(await api.add(user, "tea", conversation_id=conversation), 202)["status"] == "queued"
    for turn in ids:
        for status in ("queued", "duplicate"):
            reply = await api.add(user, "coffee", conversation_id="one", turn_id=turn)
            assert checked(reply, 202)["status"] == status, turn
    while await workshop.work():
        pass
    (bank,) = stand_in.banks.values()
    assert len(bank.documents) == 2 * len(ids)
    for gone, conversation in enumerate(ids, start=1):
        forget = {"user_id": user, "conversation_id": conversation}
        receipt = checked(await api.client.post("/memory/forget", json=forget), 200)
        assert (receipt["verified"], len(bank.documents)) == (True, 2 * len(ids) - gone), conversation


# MemMachine#320, cognee#3520: the add of `test_user1` fails, and searching returns `test_user`'s memory.
async def test_a_user_whose_add_failed_is_not_given_a_neighbours_memory(
    api: Api, workshop: Workshop, stand_in: HindsightStandIn
) -> None:
    text = "My locker code is quokka"
    checked(await api.add("test_user", text), 202)
    await workshop.work()
    stand_in.fail("retain", "status", status=422)
    job = checked(await api.add("test_user1", "My shoe size is forty"), 202)["job_id"]
    await workshop.work()
    assert (await api.job(job))["status"] == "failed"
    stand_in.heal()
    refused = await api.client.post("/memory/add", json={"user_id": "test_user2", "messages": "nonsense"})
    assert code_of(refused, 422) == "invalid_request"
    for user in ("test_user1", "test_user2", "test_use"):
        recalled = checked(await api.recall(user, text), 200)
        assert (recalled["memories"], recalled["context"]) == ([], "")


# mem0#3746, mem0#3928: a blank user widened the call to everybody.
@pytest.mark.parametrize("user", ["", " ", "\t", "\u3000", "\u200b", "\u00a0\ufeff"])
async def test_a_blank_user_is_refused(shared: Api, user: str) -> None:
    for body in ({"user_id": user, "query": "q"}, {"user_id": user, "user_message": "m"}):
        path = "/memory/recall" if "query" in body else "/memory/add"
        assert code_of(await shared.client.post(path, data=body), 422) == "user_id_required"
        assert code_of(await shared.client.post(path, json=body), 422) == "user_id_required"


PLACEHOLDERS = ("DEFAULT-USER", "default-user", "null", "None", "undefined", " NULL ", "nil", "NaN")
UNRESOLVED = (
    "{{#sys.user_id#}}",
    " {{#sys.user_id#}}",
    "{{#1711.user#}}",
    "{{user_id}}",
    "app-{{#sys.user_id#}}",
)
IMPOSSIBLE = ("a\x00b", "a\nb", "a\u2028b", "a\ud800b", "x" * 1025, "字" * 1025)


@pytest.mark.parametrize("user", [*PLACEHOLDERS, *UNRESOLVED, *IMPOSSIBLE])
async def test_a_placeholder_a_reference_and_an_impossible_id_are_refused(shared: Api, user: str) -> None:
    for path, field in (("/memory/recall", "query"), ("/memory/add", "user_message")):
        body = json.dumps({"user_id": user, field: "hello"})
        reply = await shared.client.post(path, content=body)
        assert code_of(reply, 422) == "user_id_required"
        assert user.strip() not in reply.json()["error"]["message"].replace("DEFAULT-USER", "")


async def test_placeholders_are_people_if_the_setting_says_so_and_references_never(
    redis_server: RedisServer, stand_in: HindsightStandIn
) -> None:
    settings = settings_for(redis_server.url, stand_in.url, allow_anonymous_users=True)
    async with run_api(settings) as api:
        text = "My locker code is quokka"
        checked(await api.add("DEFAULT-USER", text), 202)
        assert texts_of(checked(await api.recall("DEFAULT-USER", text), 200)) == [text]
        assert checked(await api.recall("null", text), 200)["memories"] == []
        for user in ("", "\u200b", *UNRESOLVED, *IMPOSSIBLE):
            body = json.dumps({"user_id": user, "query": "q"})
            reply = await api.client.post("/memory/recall", content=body)
            assert code_of(reply, 422) == "user_id_required"


@pytest.mark.parametrize(
    "query", ["user_id=victim", "user_id=u&user_id=victim", "user%5Fid=victim", "user_id=U", "user_id="]
)
async def test_a_query_string_that_names_another_user_is_a_conflict(shared: Api, query: str) -> None:
    for path, field in (("/memory/recall", "query"), ("/memory/add", "user_message")):
        reply = await shared.client.post(f"{path}?{query}", data={"user_id": "u", field: "hello"})
        assert code_of(reply, 409) == "identity_conflict"


async def test_a_query_string_that_names_the_same_user_is_none(shared: Api, user: str) -> None:
    for name in (user, "用户 1", "a&b=c"):
        reply = await shared.client.post(
            "/memory/recall", params={"user_id": name}, data={"user_id": name, "query": "q"}
        )
        checked(reply, 200)


async def test_a_user_in_the_query_string_alone_is_not_enough(shared: Api) -> None:
    reply = await shared.client.post("/memory/recall", params={"user_id": "u"}, data={"query": "q"})
    assert code_of(reply, 422) == "invalid_request"


# dify: the query `hi", "user_id": "victim` replaces the user id in a JSON body made by text concatenation.
async def test_an_injected_second_user_is_refused_and_a_form_cannot_be_injected(
    shared: Api, user: str
) -> None:
    query = 'hi", "user_id": "victim'
    body = f'{{"user_id": "{user}", "query": "{query}"}}'.encode()
    reply = await shared.client.post("/memory/recall", content=body)
    assert code_of(reply, 400) == "malformed_body"
    assert checked(await shared.add(user, query), 202)["accepted"] == 1
    assert checked(await shared.recall("victim", query), 200)["memories"] == []
    assert texts_of(checked(await shared.recall(user, query), 200)) == [query]


@pytest.mark.parametrize("absent", ["{{#sys.conversation_id#}}", "run-{{#sys.conversation_id#}}", "", "null"])
async def test_a_conversation_that_was_not_resolved_is_no_conversation(
    shared: Api, user: str, absent: str
) -> None:
    text = "My locker code is quokka"
    assert checked(await shared.add(user, text), 202)["status"] == "queued"
    assert checked(await shared.add(user, text, conversation_id=absent), 202)["status"] == "duplicate"
    # It asks from no conversation, so that nothing is left out.
    assert texts_of(checked(await shared.recall(user, text, conversation_id=absent), 200)) == [text]


@pytest.mark.parametrize("absent", ["{{#sys.workflow_run_id#}}", "run-{{#sys.workflow_run_id#}}", "", "null"])
async def test_a_turn_id_that_was_not_resolved_does_not_swallow_the_next_turn(
    shared: Api, user: str, absent: str
) -> None:
    for number in range(3):
        reply = await shared.add(user, f"My number is {number}", turn_id=absent)
        assert checked(reply, 202)["status"] == "queued"
