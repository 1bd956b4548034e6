"""Failures reported on products of this kind, replayed from Dify's side: rows 17 to 20.

The scenarios are the reports', the expectations ours. What the HTTP nodes of the templates send in Dify's
own engine is in `e2e/test_templates_wire.py`.
"""

import json
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

import pytest
import yaml
from service.policy.content import parse_rendered
from service.policy.dify_document import OPERATIONS
from service.policy.dify_template import LANGUAGES, TEMPLATES, TemplateName, file_name
from service.policy.dify_texts import Language

from tests.fakes.dify_nasty_texts import NASTY, VICTIM
from tests.fakes.dify_tools import Auth, Provider
from tests.fakes.hindsight import HindsightStandIn
from tests.integration.conftest import KEY, Api, Workshop

pytestmark = pytest.mark.anyio

_TEMPLATES = Path(__file__).parents[2] / "dify_templates"
# Each tool with what it cannot do without.
_CALLS: dict[str, dict[str, object]] = {
    "recall_memory": {"query": "Where do I live?"},
    "add_memory": {"user_message": "I live in Lisbon."},
    "reflect_on_memory": {"query": "Where do I live?"},
    "list_memories": {},
    "forget_memory": {"all": "true"},
}
_REFERENCE = "{{#"


async def _provider(api: Api, path: str = "/dify/openapi.json") -> Provider:
    return Provider((await api.stranger.get(path)).text, Auth("header", prefix="bearer", value=KEY))


# Row 17, dify#35974: each further tool call of an agent's run carries one more "Bearer".
async def test_replay_17_a_key_with_more_and_more_bearers_is_the_key(api: Api, user: str) -> None:
    provider = await _provider(api)
    assert set(provider.tools) == set(_CALLS)
    for _ in range(2):
        for name, arguments in _CALLS.items():
            reply = json.loads(await provider.call(api.stranger, name, {"user_id": user, **arguments}))
            assert "error" not in reply, name


# Row 18, dify#2914, #27095, #32894: FastAPI's own schema does not import, or the model refuses an array.
@pytest.mark.parametrize("path", ["/dify/openapi.json", "/dify/openapi.yaml"])
async def test_replay_18_the_document_imports_and_a_model_takes_every_tool(
    api: Api, user: str, path: str
) -> None:
    provider = await _provider(api, path)
    for name, arguments in _CALLS.items():
        offered = provider.llm_schema(name)["parameters"]
        # An array without items, or an object without properties, is what OpenAI's API refuses.
        assert {prop["type"] for prop in offered["properties"].values()} <= {"string", "number"}, name
        await provider.call(api.stranger, name, {"user_id": user, **arguments})


# Row 19, dify-tool-LongTermMemory#8, dify#21889: a quote, a newline or a backslash breaks the node's JSON.
async def test_replay_19_texts_arrive_byte_for_byte_by_tool_and_by_form(
    api: Api, workshop: Workshop, stand_in: HindsightStandIn, user: str
) -> None:
    provider = await _provider(api)
    texts = [text for text in NASTY if text.strip() not in ("null", "None") and len(text) < 5000]
    assert len(texts) >= 40
    for number, text in enumerate(texts):
        said = {"user_message": text, "assistant_message": "The Nile is long."}
        arguments = {"user_id": user, "turn_id": f"tool-{number}", **said}
        reply = json.loads(await provider.call(api.stranger, "add_memory", arguments))
        assert reply["status"] in ("queued", "duplicate"), text
        body = urlencode({**arguments, "turn_id": f"form-{number}"}).encode("ascii")
        assert dict(parse_qsl(body.decode(), keep_blank_values=True))["user_message"] == text
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        assert (await api.client.post("/memory/add", content=body, headers=headers)).status_code == 202
    while await workshop.work():
        pass
    (bank,) = stand_in.banks.values()
    stored = [
        message.text for document in bank.documents.values() for message in parse_rendered(document.text)
    ]
    for text in texts:
        assert stored.count(text.replace("\r\n", "\n").strip()) == 2, text


async def test_injection_texts_reach_nobody_else_through_the_tools_or_the_knowledge(
    api: Api, stand_in: HindsightStandIn, workshop: Workshop, user: str
) -> None:
    victim = f"{VICTIM}-{user}"
    texts = [text.replace(VICTIM, victim) for text in NASTY if VICTIM in text]
    assert len(texts) >= 8
    provider = await _provider(api)
    secret = f"zebra-{user}"
    await api.add(victim, f"My secret word is {secret}.")
    while await workshop.work():
        pass
    told: list[str] = []
    for text in texts:
        question = f"{text} secret word"
        told += [
            await provider.call(api.stranger, name, {"user_id": user, "query": question})
            for name in ("recall_memory", "reflect_on_memory", "list_memories")
        ]
        condition = {"name": "user_id", "comparison_operator": "is", "value": user}
        body = {"query": question, "metadata_condition": {"conditions": [condition]}}
        told.append((await api.client.post("/dify/knowledge/retrieval", json=body)).text)
        # A user id that holds the text is a user of its own.
        body = {"query": "secret word", "metadata_condition": {"conditions": [{**condition, "value": text}]}}
        told.append((await api.client.post("/dify/knowledge/retrieval", json=body)).text)
        said = {"user_id": user, "user_message": f"{text} planted", "assistant_message": "The Nile is long."}
        await provider.call(api.stranger, "add_memory", said)
    assert [reply for reply in told if secret in reply] == []
    while await workshop.work():
        pass
    known = await provider.call(api.stranger, "list_memories", {"user_id": victim})
    assert secret in known
    assert "planted" not in known
    assert len(stand_in.banks) == 2


# Row 20, the MemOS template: its parameters no longer match the API.
@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("template", TEMPLATES)
async def test_replay_20_what_the_templates_send_is_what_the_api_takes(
    api: Api, template: TemplateName, language: Language
) -> None:
    models = {operation.path: operation.model for operation in OPERATIONS}
    flow = yaml.safe_load((_TEMPLATES / file_name(template, language)).read_text("utf-8"))
    calls = [
        node["data"] for node in flow["workflow"]["graph"]["nodes"] if node["data"]["type"] == "http-request"
    ]
    assert bool(calls) is (template != "chatflow-openai")
    for call in calls:
        path = call["url"].removeprefix("{{#env.MEMORY_URL#}}")
        fields = {item["key"]: _filled(item["key"], item["value"]) for item in call["body"]["data"]}
        models[path].read(fields)  # raises for a field that is unknown, missing or of the wrong kind
        reply = await api.client.request(call["method"], path, data=fields)
        assert reply.status_code in (200, 202), (path, reply.text)


def _filled(name: str, value: str) -> Any:
    """A value as Dify fills it in: literals stay, references become something of their kind."""
    return f"some-{name}" if _REFERENCE in value else value
