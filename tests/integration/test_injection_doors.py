"""Texts that name somebody else, sent through every door that takes text: whose memory it is never changes.

One victim has a memory, which must neither be read nor changed; the other has none, which must not be made.
"""

import dataclasses
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis
from service import keyspace
from service.scope import bank_of

from tests.fakes.dify_nasty_texts import NASTY, VICTIM
from tests.integration.chat_world import World, chat_world, said
from tests.support import RedisServer
from tests.turns_log import look

pytestmark = pytest.mark.anyio

ME = "asker-1"
KNOWN, UNKNOWN = VICTIM, "victim-8"
SECRET = "Zephyrine"
TEXTS = tuple(text.replace(VICTIM, victim) for text in NASTY if VICTIM in text for victim in (KNOWN, UNKNOWN))
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
JSON = {"Content-Type": "application/json"}


@dataclass
class Watch:
    """The world with me and the victims in it, and what it was like before anything was sent."""

    world: World
    redis: Redis
    memory_id: str
    banks: dict[str, dict[str, Any]]
    keys: dict[str, object]
    first_request: int

    @property
    def client(self) -> httpx.AsyncClient:
        return self.world.api.client

    @property
    def named(self) -> int:
        """How many of my documents name one of the victims."""
        return sum(KNOWN in text or UNKNOWN in text for text in self.world.stored(ME))

    async def check(self, replies: list[httpx.Response]) -> None:
        """Nobody has learned anything of the victims, who are as they were, and I can go on."""
        await self.world.settle()
        mine, known = bank_of("default", ME), bank_of("default", KNOWN)
        hindsight = self.world.hindsight
        assert [reply.text for reply in replies if SECRET in reply.text or reply.status_code >= 500] == []
        assert SECRET not in json.dumps([call["request"] for call in self.world.llm.calls])
        asked = {request.bank_id for request in hindsight.requests[self.first_request :]}
        assert asked <= {mine, ""}
        assert set(hindsight.banks) == {mine, known}
        assert dataclasses.asdict(hindsight.banks[known]) == self.banks[known]
        assert await _keys_of_victims(self.redis) == self.keys
        held = await look(self.redis)
        assert held.faults() == []
        assert held.dead == set()

        recalled = await self.world.api.recall(ME, "Where do I live?", top_k="50", fresh="true")
        assert "Lisbon" in recalled.text
        assert (await self.world.api.add(ME, "My bees live behind the barn.")).status_code == 202
        await self.world.settle()
        recalled = await self.world.api.recall(ME, "Where do my bees live?", top_k="50")
        assert "behind the barn" in recalled.text
        # What a victim is told is what it was told before.
        recalled = await self.world.api.recall(KNOWN, "What is the parrot called?", top_k="50")
        assert [memory["text"] for memory in recalled.json()["memories"]] == [
            f"My parrot is called {SECRET}."
        ]
        assert (await self.world.api.recall(UNKNOWN, "What is the parrot called?")).json()["count"] == 0


async def _keys_of_victims(redis: Redis) -> dict[str, object]:
    """Keys of the victims' banks with their values, and whether either has work to be done."""
    banks = [bank_of("default", KNOWN), bank_of("default", UNKNOWN)]
    found: dict[str, object] = {}
    async for key in redis.scan_iter(match="*", count=500):
        if any(bank in key for bank in banks):
            found[key] = await redis.dump(key)
    for bank in banks:
        found[f"due {bank}"] = await redis.zscore(keyspace.DUE, bank)
        found[f"claim {bank}"] = await redis.hget(keyspace.CLAIMS, bank)  # type: ignore[misc]
    return found


@pytest.fixture
async def watch(redis_server: RedisServer) -> AsyncIterator[Watch]:
    async with (
        chat_world(redis_server) as world,
        Redis.from_url(redis_server.url, decode_responses=True) as redis,
    ):
        await world.knows(ME, "I live in Lisbon and work as a nurse.")
        await world.knows(KNOWN, f"My parrot is called {SECRET}.")
        listed = (await world.api.client.post("/memory/list", json={"user_id": ME})).json()
        yield Watch(
            world,
            redis,
            listed["memories"][0]["id"],
            {name: dataclasses.asdict(bank) for name, bank in world.hindsight.banks.items()},
            await _keys_of_victims(redis),
            len(world.hindsight.requests),
        )


def _statuses(replies: list[httpx.Response], *expected: int) -> list[httpx.Response]:
    assert [reply.status_code for reply in replies] == list(expected), [reply.text for reply in replies]
    return replies


# --- The doors: each takes one text in every field that a text may come in --------------------------------
Door = Callable[[Watch, str], Awaitable[list[httpx.Response]]]


async def add_json(watch: Watch, text: str) -> list[httpx.Response]:
    turns = [{"role": "user", "content": text}, {"role": "assistant", "content": f"{text} indeed"}]
    parts = [{"role": "user", "content": [{"type": "text", "text": f"in parts: {text}"}]}]
    bodies: list[dict[str, object]] = [
        {"user_message": text, "assistant_message": text},
        {"messages": turns},
        {"messages": json.dumps(turns), "conversation_id": text, "turn_id": text},
        {"messages": parts, "metadata": {"note": text}, "tags": text},
    ]
    replies = [await watch.client.post("/memory/add", json={"user_id": ME, **body}) for body in bodies]
    return _statuses(replies, 202, 202, 202, 202)


async def add_form(watch: Watch, text: str) -> list[httpx.Response]:
    fields: list[dict[str, str]] = [
        {"user_message": text, "assistant_message": text},
        {"messages": json.dumps([{"role": "user", "content": text}]), "turn_id": text},
        {"user_message": f"to note: {text}", "metadata": json.dumps({"note": text}), "tags": text},
    ]
    replies = [await watch.client.post("/memory/add", data={"user_id": ME, **body}) for body in fields]
    return _statuses(replies, 202, 202, 202)


async def recall(watch: Watch, text: str) -> list[httpx.Response]:
    question = f"{text} What is the parrot called?"
    bodies = [
        {"query": question, "format": "text"},
        {"query": text, "conversation_id": text},
        {"query": question, "kinds": text},
        {"query": question, "tags": text},
    ]
    replies = [await watch.client.post("/memory/recall", json={"user_id": ME, **body}) for body in bodies]
    replies += [await watch.client.post("/memory/recall", data={"user_id": ME, **body}) for body in bodies]
    return _statuses(replies, *[200] * 8)


async def reflect(watch: Watch, text: str) -> list[httpx.Response]:
    named = {"type": "object", "properties": {"parrot": {"type": "string", "description": text}}}
    body = {
        "user_id": ME,
        "query": f"{text} What is the parrot called?",
        "context": text,
        "response_schema": json.dumps(named),
    }
    post = watch.client.post
    return _statuses(
        [await post("/memory/reflect", json=body), await post("/memory/reflect", data=body)], 200, 200
    )


async def list_(watch: Watch, text: str) -> list[httpx.Response]:
    bodies = [{"query": text}, {"query": "parrot", "kinds": text}, {"cursor": text}]
    replies = [await watch.client.post("/memory/list", json={"user_id": ME, **body}) for body in bodies]
    replies += [await watch.client.post("/memory/list", data={"user_id": ME, **body}) for body in bodies]
    return _statuses(replies, 200, 200, 422, 200, 200, 422)


async def correct(watch: Watch, text: str) -> list[httpx.Response]:
    bodies = [
        {"memory_id": watch.memory_id, "text": f"I live in Lisbon. {text}"},
        {"memory_id": text, "text": text},
    ]
    replies = [await watch.client.post("/memory/correct", json={"user_id": ME, **body}) for body in bodies]
    replies += [await watch.client.post("/memory/correct", data={"user_id": ME, **body}) for body in bodies]
    return _statuses(replies, 200, 404, 200, 404)


async def import_(watch: Watch, text: str) -> list[httpx.Response]:
    line = {"type": "memory", "text": text, "kind": text, "tags": [text], "metadata": {"note": text}}
    pending = {"type": "pending", "text": f"later: {text}", "conversation": text, "user_id": KNOWN}
    body = "".join(f"{json.dumps(one)}\n" for one in (line, pending))
    reply = await watch.client.post("/memory/import", params={"user_id": ME}, content=body)
    return _statuses([reply], 202)


async def knowledge(watch: Watch, text: str) -> list[httpx.Response]:
    me = {"name": "user_id", "comparison_operator": "is", "value": ME}
    replies = []
    for condition in ([], [{"name": "kind", "comparison_operator": "is", "value": text}]):
        body = {
            "knowledge_id": text,
            "query": f"{text} What is the parrot called?",
            "retrieval_setting": {"top_k": 50, "score_threshold": 0},
            "metadata_condition": {"logical_operator": "and", "conditions": [me, *condition]},
        }
        replies.append(await watch.client.post("/dify/knowledge/retrieval", json=body))
    return _statuses(replies, 200, 200)


async def chat(watch: Watch, text: str) -> list[httpx.Response]:
    asked = f"{text} What is the parrot called?"
    history = [
        {"role": "system", "content": text},
        {"role": "user", "content": text},
        {"role": "assistant", "content": text},
        {"role": "user", "content": [{"type": "text", "text": f"in parts: {asked}"}]},
    ]
    bodies: list[dict[str, Any]] = [
        said(asked, user=ME),
        {"model": "memory", "user": ME, "messages": history, "stream": True},
    ]
    return _statuses([await watch.world.post(body) for body in bodies], 200, 200)


async def chat_options(watch: Watch, text: str) -> list[httpx.Response]:
    asked = f"{text} What is the parrot called?"
    named: dict[str, Any] = {
        "query": asked,
        "conversation_id": text,
        "turn_id": text,
        "metadata": {"note": text},
    }
    options: list[dict[str, Any]] = [
        named,
        {"injection_mode": "user", "tags": text, "kinds": text},
        {"mode": "reflect", "query": asked, "context": text},
    ]
    replies = [
        await watch.world.post(said(f"{text} for the {number}. time", user=ME, memory=one))
        for number, one in enumerate(options, 1)
    ]
    return _statuses(replies, 200, 200, 200)


# With how many turns that name a victim one text leaves in my own memory, at least.
DOORS: dict[str, tuple[Door, int]] = {
    "add json": (add_json, 4),
    "add form": (add_form, 3),
    "recall": (recall, 0),
    "reflect": (reflect, 0),
    "list": (list_, 0),
    "correct": (correct, 0),
    "import": (import_, 2),
    "knowledge": (knowledge, 0),
    "chat": (chat, 2),
    "chat options": (chat_options, 3),
}


@pytest.mark.parametrize("name", DOORS)
async def test_a_text_that_names_somebody_stays_in_the_memory_of_who_sent_it(watch: Watch, name: str) -> None:
    assert len(TEXTS) >= 16
    door, leaves = DOORS[name]
    replies: list[httpx.Response] = []
    for text in TEXTS:
        replies += await door(watch, text)
    await watch.check(replies)
    assert watch.named == leaves * len(TEXTS)


# --- Flows that put a text into a body without escaping it -------------------------------------------------
_FIELDS = {
    "/memory/recall": "query",
    "/memory/add": "user_message",
    "/memory/list": "query",
    "/memory/reflect": "query",
}
_SPLICED = {
    # What each body begins and ends with around the text, and a text that leaves its field there.
    "json": (JSON, ('{"user_id": "asker-1", "FIELD": "', '"}'), 'hi", "user_id": "victim-7'),
    "json first": (JSON, ('{"FIELD": "', '", "user_id": "asker-1"}'), 'hi", "user_id": "victim-7'),
    "form": (FORM, ("user_id=asker-1&FIELD=", ""), "&user_id=victim-7"),
    "form first": (FORM, ("FIELD=", "&user_id=asker-1"), "&user_id=victim-7"),
}


@pytest.mark.parametrize("path", _FIELDS)
async def test_a_text_that_leaves_its_field_is_refused_and_not_believed(watch: Watch, path: str) -> None:
    replies: list[httpx.Response] = []
    for headers, (before, after), leaving in _SPLICED.values():
        answers = {}
        for text in TEXTS:
            body = f"{before.replace('FIELD', _FIELDS[path])}{text}{after}".encode()
            answers[text] = await watch.client.post(path, content=body, headers=headers)
        assert answers[leaving].status_code == 400
        assert answers[leaving].json()["error"]["code"] == "malformed_body"
        replies += answers.values()
    assert {reply.status_code for reply in replies} <= {200, 202, 400, 422}
    await watch.check(replies)


async def test_a_text_that_leaves_its_field_names_nobody_else_in_a_chat(watch: Watch) -> None:
    whole = json.dumps({"model": "memory", "user": ME, "messages": [{"role": "user", "content": "TEXT"}]})
    options = json.dumps({**said("What is the parrot called?", user=ME), "memory": {"query": "TEXT"}})
    answers = {
        (body, text): await watch.client.post(
            "/v1/chat/completions", content=body.replace("TEXT", text).encode(), headers=JSON
        )
        for text in TEXTS
        for body in (whole, options)
    }
    conflict = answers[options, 'hi", "user_id": "victim-7']
    assert (conflict.status_code, conflict.json()["error"]["code"]) == (409, "identity_conflict")
    assert {reply.status_code for reply in answers.values()} <= {200, 400, 409}
    await watch.check(list(answers.values()))
