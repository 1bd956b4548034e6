"""Every door that takes text redacts it, also one so long that it is done in a thread."""

import json
from pathlib import Path

import pytest
from redis.asyncio import Redis
from service.scope import bank_of
from service.settings import Settings

from tests.fakes.hindsight import HindsightStandIn
from tests.integration.conftest import Api, Workshop, run_api
from tests.support import RedisServer

pytestmark = pytest.mark.anyio

ID = "11010519491231002X"
# Nothing in it is sensitive, and looking for that takes its time.
FILLER = "a.b@c 1 2 3 4 password "


async def kept(redis_server: RedisServer) -> str:
    """The payloads of all turns that wait."""
    async with Redis.from_url(redis_server.url, decode_responses=True) as redis:
        keys = [key async for key in redis.scan_iter("mem:turns:*")]
        return "".join([text for key in keys for text in await redis.hvals(key)])


async def test_a_tag_that_is_left_of_a_dropped_sentence_is_no_reserved_one(
    settings: Settings, redis_server: RedisServer, user: str, tmp_path: Path
) -> None:
    """Else a caller could pass a turn off as vetted, or put it into another conversation."""
    path = tmp_path / "policy.yaml"
    path.write_text("version: 1\ndefault:\n  redaction: {secret: drop}\n", "utf-8")
    async with run_api(settings.model_copy(update={"policy_file": path})) as strict:
        for tag in ("memory_type:preference", "importance:1.0", "c-" + "0" * 48):
            reply = await strict.add(user, f"I like {tag[:6]}.", tags=f"plain,密码是a1b2c3。{tag}")
            assert reply.json()["redacted"] == 1
    assert (await kept(redis_server)).count('"tags":["plain"]') == 3


@pytest.mark.parametrize("door", ["tags", "metadata", "message"])
async def test_an_add_of_any_length(api: Api, redis_server: RedisServer, user: str, door: str) -> None:
    fields = {"user_message": "I like green tea."}
    if door == "tags":
        fields["tags"] = ",".join([ID, *(f"{n} {FILLER}" for n in range(19))])
    elif door == "metadata":
        fields["metadata"] = json.dumps({"id": ID, **{f"n{n}": (FILLER * 30)[:480] for n in range(10)}})
    else:
        fields["user_message"] = f"{FILLER * 200}。我的身份证号是{ID}"
    reply = await api.client.post("/memory/add", data={"user_id": user, **fields})
    assert reply.status_code == 202, reply.text
    assert reply.json()["redacted"] >= 1
    said = await kept(redis_server)
    assert "[national_id]" in said
    assert ID not in said


async def test_a_correction_of_any_length(
    api: Api, workshop: Workshop, stand_in: HindsightStandIn, user: str
) -> None:
    await api.add(user, "I like green tea.")
    await workshop.work()
    [bank] = stand_in.banks.values()
    [memory] = bank.memories.values()
    text = f"{FILLER * 200}。我的身份证号是{ID}"
    reply = await api.client.post(
        "/memory/correct", json={"user_id": user, "memory_id": memory.id, "text": text}
    )
    assert reply.status_code == 200, reply.text
    assert "[national_id]" in memory.text
    assert ID not in memory.text


async def test_a_question_to_reflect_of_any_length(api: Api, stand_in: HindsightStandIn, user: str) -> None:
    stand_in.add_memory(bank_of("default", user), "Anne likes green tea.")
    fields = {"query": "Which tea?", "context": f"{FILLER * 200}。我的身份证号是{ID}"}
    reply = await api.client.post("/memory/reflect", json={"user_id": user, **fields})
    assert reply.status_code == 200, reply.text
    [asked] = stand_in.requests_for("reflect")
    assert "[national_id]" in json.dumps(asked.body)
    assert ID not in json.dumps(asked.body)
