"""Dify's custom tools against the running API: import by URL, then every way a parameter can come."""

import json
from collections.abc import Mapping

import httpx
import pytest
import yaml
from service.policy.dify_document import OPERATIONS, build_document

from tests.fakes.dify_tools import Auth, Provider, ToolFailed, parse, prompt_text
from tests.fakes.hindsight import HindsightStandIn
from tests.integration.conftest import KEY, Api, run_api, settings_for
from tests.support import RedisServer

pytestmark = pytest.mark.anyio

BEARER = Auth("header", prefix="bearer", value=KEY)
_NOTHING = ("", "null", "None", None, "undefined", "  ")
_MESSAGES = [{"role": "user", "content": 'I\'m "new"\nhere'}, {"role": "assistant", "content": "你好"}]
# Where exactly one of several fields is wanted, these leave it to another.
_NO_WORDS = ("", "null", "none", "undefined", "false")
# What models and flows' variables give for each kind of field.
_VALUES: Mapping[str, tuple[object, ...]] = {
    "integer": ("5", "5.0", 5, 5.0, " 5 ", *_NOTHING),
    "number": ("0.5", 0.5, 1, "1", "-1", *_NOTHING),
    "tags": ("a", "a,b", "a，b", *_NOTHING),
    "kinds": ("preference", "preference, user_profile", *_NOTHING),
    "fact_types": ("world", "world, observation", *_NOTHING),
    "messages": (
        json.dumps(_MESSAGES),
        json.dumps(_MESSAGES, ensure_ascii=False),
        json.dumps(_MESSAGES[0]),
        _MESSAGES,  # arrives as Python writes it: Dify calls str()
        _MESSAGES[0],
        "[]",
        *(nothing for nothing in _NOTHING if nothing != "undefined"),
    ),
    "metadata": ('{"channel": "web", "vip": true}', "{}", *_NOTHING),
    "response_schema": ('{"type": "object", "properties": {"city": {"type": "string"}}}', *_NOTHING),
    "cursor": _NOTHING,
    "timestamp": ("2026-01-31T09:30:00+08:00", "2026-01-31T09:30:00Z", "2026-01-31 09:30", *_NOTHING),
}
_TEXTS = ("hello", 'He said "no"\n{"a": 1}', "你好，世界 🌍", "null", "None", 5, 5.0, True, ["a", "b"])
_OPERATIONS = {operation.operation_id: operation for operation in OPERATIONS}


async def _import(api: Api, auth: Auth = BEARER, path: str = "/dify/openapi.json") -> Provider:
    """Fetched without the key, as Dify does."""
    reply = await api.stranger.get(path)
    assert reply.status_code == 200
    return Provider(reply.text, auth)


def _cases() -> list[tuple[str, str, object]]:
    """(operation, field, value) for every optional field of every operation."""
    cases: list[tuple[str, str, object]] = []
    document = build_document("https://memory.example.com", "1")
    for tool in parse(json.dumps(document)):
        for name, prop in tool.properties.items():
            if name in tool.required and name != "query":
                continue
            values: tuple[object, ...]
            if "enum" in prop:
                values = (*prop["enum"], *(choice.upper() for choice in prop["enum"]), *_NOTHING)
                values += (True, False) if "true" in prop["enum"] else ()
            elif name in _VALUES:
                values = _VALUES[name]
            elif prop["type"] in _VALUES:
                values = _VALUES[prop["type"]]
            else:
                values = _TEXTS if name == "query" else (*_TEXTS, *_NOTHING)
            cases += [(tool.name, name, value) for value in values]
    return cases


def _arguments(operation: str, user: str, field: str, value: object) -> dict[str, object]:
    required = {"user_id": user, "query": "Where do I live?"}
    known = _OPERATIONS[operation].model.model_fields
    arguments: dict[str, object] = {name: text for name, text in required.items() if name in known}
    if operation == "add_memory" and field not in ("messages", "user_message"):
        arguments["user_message"] = "I live in Lisbon."
    if operation == "forget_memory" and str(value).strip().lower() in _NO_WORDS:
        arguments |= {"memory_id": "none-such"} if field == "all" else {"all": "true"}
    return {**arguments, field: value}


@pytest.mark.parametrize("operation", list(_OPERATIONS))
async def test_every_parameter_in_every_form_a_model_gives(api: Api, user: str, operation: str) -> None:
    provider = await _import(api)
    seen = 0
    for name, field, value in _cases():
        if name != operation:
            continue
        seen += 1
        try:
            text = await provider.call(api.stranger, operation, _arguments(operation, user, field, value))
        except ToolFailed as exc:
            raise AssertionError(f"{operation}({field}={value!r}): {exc}") from exc
        if field != "format" or str(value).lower() != "text":
            assert prompt_text(text) == text, f"a model reads the reply to {field}={value!r} twice"
            assert isinstance(json.loads(text), dict)
    assert seen > 40


async def test_a_word_for_false_is_not_true(api: Api, user: str) -> None:
    provider = await _import(api)
    asked = {"user_id": user, "query": "Where do I live?"}
    await provider.call(api.stranger, "recall_memory", asked)
    for word, is_cached in (("false", True), ("true", False)):
        reply = json.loads(await provider.call(api.stranger, "recall_memory", {**asked, "fresh": word}))
        assert reply["cached"] is is_cached


async def test_a_list_a_model_gave_arrives_as_the_messages_it_is(api: Api, user: str) -> None:
    provider = await _import(api)
    first = json.loads(
        await provider.call(api.stranger, "add_memory", {"user_id": user, "messages": _MESSAGES})
    )
    again = json.loads(
        await provider.call(api.stranger, "add_memory", {"user_id": user, "messages": json.dumps(_MESSAGES)})
    )
    assert first["accepted"] == 2
    assert again["status"] == "duplicate", "as Python writes it and as JSON is the same turn"


@pytest.mark.parametrize("user_id", ["", "null", "DEFAULT-USER", "{{#sys.user_id#}}", None])
async def test_a_missing_user_is_said_in_words_dify_shows(api: Api, user_id: object) -> None:
    provider = await _import(api)
    with pytest.raises(ToolFailed, match=r"422 and .*user_id"):
        await provider.call(api.stranger, "recall_memory", {"user_id": user_id, "query": "Where do I live?"})


@pytest.mark.parametrize(
    "auth",
    [
        BEARER,
        Auth("header", prefix="basic", value=KEY),
        Auth("header", prefix="custom", value=KEY),
        Auth("header", prefix="custom", value=f"Bearer {KEY}"),
        Auth("header", name="X-API-Key", prefix="custom", value=KEY),
        Auth("header", name="Api-Key", prefix="custom", value=KEY),
        Auth("header", name="X-API-Key", prefix="bearer", value=KEY),
        Auth("query", name="api_key", value=KEY),
    ],
    ids=lambda auth: f"{auth.kind}-{auth.name}-{auth.prefix}",
)
async def test_the_key_in_every_place_dify_puts_it_three_calls_long(api: Api, user: str, auth: Auth) -> None:
    provider = await _import(api, auth)
    for _ in range(3):  # dify#35974: the second call says `Bearer Bearer KEY`, the third one more
        await provider.call(api.stranger, "recall_memory", {"user_id": user, "query": "Where do I live?"})


@pytest.mark.parametrize("auth", [Auth(), Auth("header", prefix="bearer", value="wrong-key-0123456789")])
async def test_a_wrong_key_is_refused_with_a_body_that_tells_it_from_a_network_block(
    api: Api, user: str, auth: Auth
) -> None:
    provider = await _import(api, auth)
    with pytest.raises(ToolFailed, match="blocked by SSRF protection"):
        await provider.call(api.stranger, "add_memory", {"user_id": user, "user_message": "hello"})
    bare = await api.stranger.post("/memory/add", json={"user_id": user, "user_message": "hello"})
    assert bare.status_code == 401
    assert "not a network block" in bare.json()["error"]["message"]


async def test_the_document_names_the_url_it_was_asked_by(api: Api) -> None:
    for path in ("/dify/openapi.json", "/dify/openapi.yaml"):
        provider = await _import(api, path=path)
        assert provider.tools["recall_memory"].url == f"{api.url}/memory/recall"


async def test_the_document_names_the_public_url(
    redis_server: RedisServer, stand_in: HindsightStandIn
) -> None:
    settings = settings_for(redis_server.url, stand_in.url, public_url="https://memory.example.com/")
    async with run_api(settings) as api:
        for path in ("/dify/openapi.json", "/dify/openapi.yaml"):
            provider = await _import(api, path=path)
            assert provider.tools["add_memory"].url == "https://memory.example.com/memory/add"


async def test_the_documents_are_equal_hold_no_key_and_are_not_cached(api: Api) -> None:
    as_json = await api.stranger.get("/dify/openapi.json")
    as_yaml = await api.stranger.get("/dify/openapi.yaml")
    assert as_json.json() == yaml.safe_load(as_yaml.text)
    assert as_json.content == json.dumps(as_json.json(), ensure_ascii=False).encode()
    for reply in (as_json, as_yaml):
        assert KEY not in reply.text
        assert reply.headers["cache-control"] == "no-store"
    assert as_yaml.headers["content-type"].startswith("text/plain")


async def test_a_document_asked_for_under_a_hostile_name_stays_a_document(api: Api) -> None:
    for host in ('x"\\: {a: b}', "[", "a b", "例え.jp".encode().decode("latin-1")):
        reply = await api.stranger.get("/dify/openapi.yaml", headers=[(b"host", host.encode("latin-1"))])
        if reply.status_code == 200:
            assert list(yaml.safe_load(reply.text)) == ["openapi", "info", "servers", "paths"]
        else:
            assert reply.status_code == 400


async def test_no_document_is_served_by_another_method(api: Api) -> None:
    reply: httpx.Response = await api.client.post("/dify/openapi.json")
    assert reply.status_code == 405
