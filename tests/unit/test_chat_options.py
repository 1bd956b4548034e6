"""The options of a chat's memory, and the file of models and defaults."""

from typing import Any

import pytest
from service.errors import InvalidRequest
from service.policy.chat_options import MemoryOptions
from service.policy.gateway_file import read_gateway_file
from service.policy.policy_mistakes import PolicyFileError

FILE = """
model_list:
  - model_name: a
    litellm_params: {model: openai/x, api_key: secret-value, rpm: 5}
    model_info: {id: one}
  - model_name: a
    litellm_params: {model: openai/y}
  - model_name: b
    litellm_params: {model: openai/z}
memory:
  exclude_models: [b*]
  defaults: {mode: recall, max_memories: 8, debug: true}
  keys:
    abc: {mode: reflect, exclude_models: ""}
"""


def read(given: object = None, *headers: tuple[bytes, bytes]) -> MemoryOptions:
    return MemoryOptions.read(given, headers)


def test_an_object_and_headers_say_the_same() -> None:
    in_body = read(
        {"max_memories": "3", "inject": "false", "tags": ["a", "b"], "query": "  x", "mode": "RECALL"}
    )
    in_headers = read(
        None,
        (b"x-memory-max-memories", b"3"),
        (b"x-memory-inject", b"False"),
        (b"x-memory-tags", b"a,b"),
        (b"x-memory-query", b"  x"),
        (b"x-memory-mode", b"recall"),
        (b"x-other", b"1"),
        (b"x-memory-budget", b""),
    )
    assert in_body.model_copy(update={"query": "x"}) == in_headers
    assert (in_body.max_memories, in_body.inject, in_body.tags) == (3, False, "a,b")
    assert read({"max_memories": 3}, (b"x-memory-max-memories", b"3")) == read({"max_memories": 3})


@pytest.mark.parametrize(
    ("given", "headers"),
    [
        ("x", ()),
        ([], ()),
        ({"modus": 1}, ()),
        ({"max_memories": 0}, ()),
        ({"mode": "both"}, ()),
        ({"tags": [1]}, ()),
        ({"tags": ["a,b"]}, ()),
        ({"mode": "recall"}, ((b"x-memory-mode", b"reflect"),)),
        (None, ((b"x-memory-mode", b"reflect"), (b"x-memory-mode", b"recall"))),
        (None, ((b"x-memory-marigold", b"1"),)),
    ],
)
def test_what_cannot_be_used_is_refused_without_its_words(given: Any, headers: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(given, *headers)
    assert "marigold" not in caught.value.detail


def test_options_become_a_recall() -> None:
    options = read(
        {"max_memories": 2, "kinds": "preference", "tags": "a", "tags_match": "any", "min_score": 0.5}
    )
    request = options.recall_request("question", 1500)
    assert (request.query, request.top_k, request.kinds, request.tags) == ("question", 2, "preference", "a")
    assert (request.tags_match, request.min_score, request.timeout_ms) == ("any", 0.5, 1500)
    assert read({"timeout_ms": 300}).recall_request("q", 1500).timeout_ms == 300
    assert read({"query": "other"}).recall_request("q", 1).query == "other"
    assert len(read().recall_request("x" * 2_000_000, 1).query) == 100_000


def test_types_and_tags_of_a_recall_and_of_the_turn() -> None:
    options = read({"fact_types": ["world", "observation"], "tags": ["a", "b"], "store_tags": "c"})
    assert options.recall_request("q", 1).fact_type_list == ("world", "observation")
    assert options.recall_request("q", 1).tag_list == ("a", "b")
    assert options.tags_of_turn == "c"
    reflect = read({"kinds": "k", "fact_types": "world", "tags": "a", "tags_match": "any"}).reflect_request(
        "q"
    )
    assert (reflect.kind_list, reflect.fact_type_list, reflect.tag_list) == (("k",), ("world",), ("a",))
    assert reflect.tags_match == "any"
    assert read({"tags": "a"}).tags_of_turn == "a"
    assert read({"tags": "a", "store_tags": ""}).tags_of_turn == ""
    assert read().tags_of_turn == ""
    with pytest.raises(InvalidRequest, match="fact_types"):
        read({"fact_types": "opinion"}).recall_request("q", 1)


def test_tokens_are_characters_by_language() -> None:
    assert read({"max_tokens": 10}).recall_request("where", 1).max_total_chars == 40
    assert read({"max_tokens": 10}).recall_request("我住在哪里", 1).max_total_chars == 10
    assert read({"max_tokens": 100_000}).recall_request("where", 1).max_total_chars == 100_000


def test_options_become_a_reflection() -> None:
    schema = {"type": "object", "properties": {}}
    request = read({"context": "c", "response_schema": schema, "budget": "high"}).reflect_request("q")
    assert (request.query, request.context, request.budget) == ("q", "c", "high")
    assert request.schema_object == schema
    with pytest.raises(InvalidRequest):
        read({"response_schema": {"type": "array"}}).reflect_request("q")


@pytest.mark.parametrize(
    ("said", "query", "expected"),
    [
        ({}, "Where?", None),
        ({"max_tokens": 10}, "Where?", 40),
        ({"max_tokens": 10}, "我住在哪里？", 10),
        ({"max_tokens": 10, "max_chars": 30}, "Where?", 30),
        ({"max_chars": 50}, "Where?", 50),
        ({"max_tokens": 100_000}, "Where?", 100_000),
    ],
)
def test_what_reflect_says_has_the_limits_of_the_memories(
    said: dict[str, Any], query: str, expected: int | None
) -> None:
    assert read(said).most_chars(query) == expected


def test_models_are_excluded_by_globs() -> None:
    options = read({"exclude_models": "gpt-4*, *-mini"})
    assert [options.excludes(name) for name in ("gpt-4o", "x-mini", "gpt-5", "GPT-4")] == [
        True,
        True,
        False,
        False,
    ]
    assert not read().excludes("x")


def test_a_file_names_models_and_defaults() -> None:
    file = read_gateway_file(FILE)
    assert file.names == ("a", "b")
    assert file.deployments[0]["litellm_params"]["rpm"] == 5
    plain = file.memory.for_key("zzz")
    assert (plain.mode, plain.max_memories, plain.debug, plain.exclude_models) == ("recall", 8, True, "b*")
    special = file.memory.for_key("abc")
    assert (special.mode, special.max_memories, special.exclude_models) == ("reflect", 8, "")
    said = read({"max_memories": 1}).over(special)
    assert (said.mode, said.max_memories) == ("reflect", 1)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "- a",
        "a: [",
        "model_list: []",
        "model_list: [{model_name: a, litellm_params: {api_key: secret-value}}]",
        FILE.replace("recall", "secret-value"),
        FILE + "\nother: 1",
        FILE + "\nrouter_settings: {redis_url: secret-value}",
    ],
)
def test_a_wrong_file_says_where_and_never_a_value(text: str) -> None:
    with pytest.raises(PolicyFileError) as caught:
        read_gateway_file(text)
    assert "secret-value" not in str(caught.value)
