"""What is sensitive gets through no door: not into Redis, not to Hindsight, not into a log or a reply."""

import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
from redis.asyncio import Redis
from service.settings import Settings

from tests.fakes.hindsight import HindsightStandIn
from tests.integration.conftest import Api, run_api, settings_for
from tests.integration.recall_parts import remember
from tests.support import RedisServer

pytestmark = pytest.mark.anyio

# A test card of the card networks, an identity number whose check digit fits and that belongs to nobody.
CARD, ID, PHONE, MAIL = "4111 1111 1111 1111", "11010519491231002X", "13800138000", "anne@example.org"
SECRETS = ("4111", "1101051949", "13800138000", "anne@example", "hunter2butlonger")
TURN = {
    "user_message": f"My card is {CARD}, my mail {MAIL}; 身份证号{ID}。 I like green tea.",
    "assistant_message": f"好的，会打 {PHONE}。 Your password is hunter2butlonger, order 20260131-7 is sent.",
    "tags": f"vip,{PHONE}",
    "metadata": json.dumps({"contact": MAIL, "order": "20260131-7"}),
}


@pytest.fixture
async def redis(redis_server: RedisServer) -> AsyncIterator[Redis]:
    async with Redis.from_url(redis_server.url) as client:
        yield client


async def everything_in(redis: Redis) -> bytes:
    """All that Redis holds, names and values."""
    found = b""
    async for key in redis.scan_iter():
        found += key + (await redis.dump(key) or b"")
        if await redis.type(key) == b"hash":
            found += repr(await redis.hgetall(key)).encode()  # type: ignore[misc]
    return found


async def test_names_of_metadata_and_tags_that_are_asked_for(
    api: Api, redis: Redis, stand_in: HindsightStandIn, user: str
) -> None:
    turn = {"user_message": "I like green tea.", "tags": PHONE, "metadata": json.dumps({PHONE: "mine"})}
    reply = await api.client.post("/memory/add", json={"user_id": user, **turn})
    assert reply.json()["redacted"] == 2
    assert PHONE.encode() not in await everything_in(redis)
    found = await api.recall(user, "Which tea do I like?", tags=PHONE)
    (asked,) = stand_in.requests_for("recall")
    assert PHONE not in json.dumps(asked.body)
    assert found.json()["count"] == 1


async def test_reserved_tags_are_not_taken(api: Api, redis: Redis, user: str) -> None:
    """Else a caller could pass a turn off as vetted, or put it into another conversation."""
    reserved = ["memory_type:preference", "Importance:1.0", "c-" + "0" * 48, "t-" + "a" * 48]
    turn = {"user_id": user, "user_message": "I like green tea.", "tags": ",".join([*reserved, "c-major"])}
    assert (await api.client.post("/memory/add", json=turn)).status_code == 202
    (turns,) = [key async for key in redis.scan_iter("mem:turns:*")]
    (value,) = await redis.hvals(turns.decode())  # type: ignore[misc]
    assert json.loads(value.split(b"\n", 4)[4])["tags"] == ["c-major"]


@pytest.mark.parametrize("form", ["json", "form", "messages"])
async def test_an_added_turn(
    api: Api,
    redis: Redis,
    stand_in: HindsightStandIn,
    user: str,
    form: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    turn = {"user_id": user, **TURN}
    if form == "form":
        kind = {"Content-Type": "application/x-www-form-urlencoded"}
        reply = await api.client.post("/memory/add", content=urlencode(turn), headers=kind)
    else:
        if form == "messages":
            said = [("user", turn.pop("user_message")), ("assistant", turn.pop("assistant_message"))]
            turn["messages"] = json.dumps([{"role": role, "content": text} for role, text in said])
        reply = await api.client.post("/memory/add", json=turn)
    assert reply.status_code == 202, reply.text
    # Five in the texts, one tag, one value of the metadata.
    assert (reply.json()["accepted"], reply.json()["redacted"]) == (2, 7)

    held = await everything_in(redis)
    assert b"green tea" in held
    recalled = await api.recall(user, f"Which tea do I like? My card is {CARD}, call {PHONE}.", fresh="true")
    (asked,) = stand_in.requests_for("recall")
    assert "tea" in asked.body["query"]
    listed = await api.client.post("/memory/list", json={"user_id": user})
    for where, text in {
        "Redis": held.decode("latin-1"),
        "the question to Hindsight": json.dumps(asked.body),
        "the recalled": recalled.text,
        "the list": listed.text,
        "the log": caplog.text,
    }.items():
        assert [secret for secret in SECRETS if secret in text] == [], where
    assert "20260131-7" in listed.text, "An order number is nobody's secret."
    assert "[card]" in listed.text


async def test_a_question_to_reflect(api: Api, stand_in: HindsightStandIn, user: str) -> None:
    remember(stand_in, user, "first")
    await api.client.post(
        "/memory/reflect",
        json={"user_id": user, "query": f"Is {MAIL} mine?", "context": f"They gave {CARD}."},
    )
    (asked,) = stand_in.requests_for("reflect")
    assert [secret for secret in SECRETS if secret in json.dumps(asked.body)] == []
    assert "[email]" in json.dumps(asked.body)


async def test_nothing_is_left_of_it(api: Api, redis: Redis, user: str) -> None:
    """A policy that drops sentences can leave nothing of a message."""
    reply = await api.client.post("/memory/add", json={"user_id": user, "user_message": PHONE})
    assert reply.status_code in (200, 202)
    assert reply.json()["redacted"] == 1
    assert PHONE.encode() not in await everything_in(redis)


async def test_what_a_policy_file_says_counts(
    redis_server: RedisServer, stand_in: HindsightStandIn, redis: Redis, user: str, folder: Path
) -> None:
    policy = folder / "policy.yaml"
    policy.write_text("version: 1\ndefault:\n  redaction:\n    phone: drop\n    email: keep\n", "utf-8")
    settings: Settings = settings_for(redis_server.url, stand_in.url, policy_file=policy)
    async with run_api(settings) as api:
        text = f"I like green tea. Call me at {PHONE}. Write to {MAIL}."
        reply = await api.client.post("/memory/add", json={"user_id": user, "user_message": text})
        assert reply.json()["redacted"] == 1
        only = await api.client.post("/memory/add", json={"user_id": user, "user_message": f"Call {PHONE}."})
        assert (only.status_code, only.json()["status"]) == (200, "skipped")
        assert (only.json()["skipped"], only.json()["redacted"]) == (1, 1)
    held = await everything_in(redis)
    assert b"green tea" in held
    assert MAIL.encode() in held
    assert b"Call" not in held
