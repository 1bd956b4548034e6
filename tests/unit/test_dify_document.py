"""The document for Dify's custom tools: what it must hold to arrive there whole."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from pydantic import BaseModel, Field
from service.cli.openapi import openapi, render_documents
from service.policy.dify_document import EXAMPLE_URL, OPERATIONS, ToolOperation, as_yaml, build_document
from service.schemas import Request

from tests.fakes.dify_tools import ImportRefused, Provider, parse

_COMMITTED = Path(__file__).parents[2] / "openapi"
_HAN = re.compile(r"[\u4e00-\u9fff]")


@pytest.fixture
def document() -> dict[str, Any]:
    return build_document("https://memory.example.com", "1.2.3")


def _schemas(document: dict[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """(operation, its body's schema)."""
    for item in document["paths"].values():
        assert list(item) == ["post"]
        content = item["post"]["requestBody"]["content"]
        assert list(content) == ["application/json"], "every further type adds the parameters again"
        yield item["post"], content["application/json"]["schema"]


def test_both_renderings_are_the_same_tools(document: dict[str, Any]) -> None:
    from_json, from_yaml = parse(json.dumps(document)), parse(as_yaml(document))
    assert from_json == from_yaml
    assert [tool.name for tool in from_json] == [operation.operation_id for operation in OPERATIONS]
    assert {"recall_memory", "add_memory"} <= {tool.name for tool in from_json}


def test_every_field_of_the_models_is_a_parameter(document: dict[str, Any]) -> None:
    tools = {tool.name: tool for tool in parse(json.dumps(document))}
    for operation in OPERATIONS:
        names = [parameter.name for parameter in tools[operation.operation_id].parameters]
        assert names == list(operation.model.model_fields)


def test_properties_are_flat_and_plain(document: dict[str, Any]) -> None:
    assert "$ref" not in json.dumps(document)
    for _, schema in _schemas(document):
        for name, prop in schema["properties"].items():
            assert prop["type"] in ("string", "integer", "number"), name
            assert {"anyOf", "oneOf", "allOf", "properties", "items"}.isdisjoint(prop), name


def test_nothing_optional_is_sent_as_null(document: dict[str, Any]) -> None:
    for tool in parse(json.dumps(document)):
        body = tool.body(dict.fromkeys(tool.required, "x"))
        assert None not in body.values()


def test_there_are_no_parameters_outside_the_body(document: dict[str, Any]) -> None:
    for tool in parse(json.dumps(document)):
        assert "parameters" not in tool.operation
        assert "{" not in tool.url


def test_descriptions_speak_both_languages_and_fit_a_function(document: dict[str, Any]) -> None:
    for tool in parse(json.dumps(document)):
        texts = [tool.description, *(parameter.description for parameter in tool.parameters)]
        for text in texts:
            assert _HAN.search(text), text
            assert re.search("[A-Za-z]{3}", text), text
        assert len(tool.description) <= 1024
        for word in ("Call it", "Pass user_id unchanged", "Reply:"):
            assert word in tool.description


def test_allowed_values_and_ranges_are_said(document: dict[str, Any]) -> None:
    for _, schema in _schemas(document):
        for prop in schema["properties"].values():
            for choice in prop.get("enum", ()):
                assert choice in prop["description"]
    recall = document["paths"]["/memory/recall"]["post"]["requestBody"]["content"]["application/json"]
    assert "From 1 to 50" in recall["schema"]["properties"]["top_k"]["description"]


def test_a_boolean_travels_as_a_word(document: dict[str, Any]) -> None:
    tool = next(tool for tool in parse(json.dumps(document)) if tool.name == "recall_memory")
    arguments = {"user_id": "u", "query": "q"}
    assert tool.body({**arguments, "fresh": "false"})["fresh"] == "false"
    assert tool.body(arguments)["fresh"] == "false"


@pytest.mark.parametrize("url", ["https://memory.example.com", "https://memory.example.com/"])
def test_the_server_url_has_no_slash_at_its_end(url: str) -> None:
    tools = parse(json.dumps(build_document(url, "1")))
    assert tools[0].url == "https://memory.example.com/memory/recall"


def test_what_a_model_is_offered_names_its_required_fields() -> None:
    provider = Provider(as_yaml(build_document(EXAMPLE_URL, "1")))
    assert provider.llm_schema("recall_memory")["parameters"]["required"] == ["user_id", "query"]
    assert provider.llm_schema("add_memory")["parameters"]["required"] == ["user_id"]


class _Nested(BaseModel):
    name: str


class _Untranslated(Request):
    unheard_of: str = Field("", description="A field nobody described in Chinese.")


class _Deep(Request):
    query: _Nested = Field(description="No flat field.")


class _Perhaps(Request):
    query: str | None = Field(None, description="Text or null.")


@pytest.mark.parametrize("model", [_Untranslated, _Deep, _Perhaps])
def test_a_field_dify_would_lose_is_refused(model: type[Request]) -> None:
    operation = ToolOperation("/x", "x", model, "x", "x", "x")
    with pytest.raises(ValueError, match="The field"):
        build_document(EXAMPLE_URL, "1", [operation])


def test_the_committed_documents_are_current() -> None:
    for name, text in render_documents(EXAMPLE_URL).items():
        assert (_COMMITTED / name).read_text(encoding="utf-8") == text, f"run `dify-memory openapi` ({name})"


def test_the_whole_document_has_a_server() -> None:
    whole = json.loads(render_documents("https://m.example.com/")["full.json"])
    assert whole["servers"] == [{"url": "https://m.example.com"}]
    assert "/memory/jobs/{job_id}" in whole["paths"]


def test_the_whole_document_is_taken_by_dify_with_every_operation() -> None:
    text = (_COMMITTED / "full.json").read_text(encoding="utf-8")
    whole = json.loads(text)
    tools = {tool.name: tool for tool in parse(text)}
    operations = {
        operation["operationId"]: (method.upper(), path, operation)
        for path, item in whole["paths"].items()
        for method, operation in item.items()
    }
    assert tools.keys() == operations.keys(), "two operations of one name are one tool"
    for name, (method, path, operation) in operations.items():
        assert (tools[name].method, tools[name].url) == (method, whole["servers"][0]["url"] + path)
        # What Dify reads of the parameters is all there is: nothing of a body or a path is lost.
        names = {parameter.name for parameter in tools[name].parameters}
        assert {parameter["name"] for parameter in operation.get("parameters", ())} <= names
        for content in operation.get("requestBody", {}).get("content", {}).values():
            assert set(content["schema"].get("properties", {})) <= names, name
        assert tools[name].description, name


def test_the_whole_document_has_the_same_fields_as_the_one_for_dify(document: dict[str, Any]) -> None:
    whole = {tool.url: tool for tool in parse((_COMMITTED / "full.json").read_text(encoding="utf-8"))}
    server = json.loads((_COMMITTED / "full.json").read_text(encoding="utf-8"))["servers"][0]["url"]
    for operation, tool in zip(OPERATIONS, parse(json.dumps(document)), strict=True):
        same = whole[server + operation.path]
        assert {one.name for one in tool.parameters} == {one.name for one in same.parameters}
        assert set(tool.required) <= set(same.required)


def test_the_command_writes_and_then_finds_drift(tmp_path: Path) -> None:
    options = ["--server-url", "https://m.example.com", "--out", str(tmp_path / "docs")]
    runner = CliRunner()
    assert runner.invoke(openapi, [*options, "--check"]).exit_code == 1
    assert runner.invoke(openapi, options).exit_code == 0
    assert runner.invoke(openapi, [*options, "--check"]).exit_code == 0
    written = tmp_path / "docs" / "dify-tool.yaml"
    assert yaml.safe_load(written.read_text(encoding="utf-8"))["servers"] == [
        {"url": "https://m.example.com"}
    ]
    written.write_text(written.read_text(encoding="utf-8") + "#\n", encoding="utf-8")
    drifted = runner.invoke(openapi, [*options, "--check"])
    assert drifted.exit_code == 1
    assert "dify-tool.yaml" in drifted.output
    assert "full.json" not in drifted.output


def test_the_command_refuses_a_url_dify_cannot_use() -> None:
    assert CliRunner().invoke(openapi, ["--server-url", "memory.example.com"]).exit_code == 2


# --- The re-statement of Dify itself: it must refuse and lose what Dify does -------------------------------
def _minimal(**changes: Any) -> dict[str, Any]:
    operation = {
        "operationId": "x",
        "description": "d",
        "requestBody": {
            "content": {
                "application/json": {
                    "schema": {"type": "object", "properties": {"a": {"type": "string", "description": "d"}}}
                }
            }
        },
    }
    return {
        "openapi": "3.0.3",
        "info": {"title": "t", "version": "1"},
        "servers": [{"url": "https://x"}],
        "paths": {"/a": {"post": {**operation, **changes}}},
    }


def _body(schema: dict[str, Any]) -> dict[str, Any]:
    return {"content": {"application/json": {"schema": schema}}}


def test_dify_refuses_fastapis_own_document() -> None:
    whole = json.loads(render_documents(EXAMPLE_URL)["full.json"])
    del whole["servers"]
    with pytest.raises(ImportRefused):
        parse(json.dumps(whole))


@pytest.mark.parametrize(
    "changes",
    [
        {"requestBody": _body({"properties": {"a": {"type": ["string", "null"]}}})},
        {"requestBody": _body({"properties": {"a": {"type": "string", "description": None}}})},
        {"description": None},
        {"operationId": "x" * 65},
        {"operationId": "记忆"},
    ],
)
def test_dify_refuses(changes: dict[str, Any]) -> None:
    with pytest.raises(ImportRefused):
        parse(json.dumps(_minimal(**changes)))


@pytest.mark.parametrize("gone", ["info", "servers", "paths"])
def test_dify_refuses_a_document_without(gone: str) -> None:
    document = _minimal()
    del document[gone]
    with pytest.raises(ImportRefused):
        parse(json.dumps(document))


@pytest.mark.parametrize(
    "body",
    [
        {"$ref": "#/components/requestBodies/A"},
        _body({"allOf": [{"type": "object", "properties": {"a": {"type": "string"}}}]}),
    ],
)
def test_dify_loses_every_parameter(body: dict[str, Any]) -> None:
    assert parse(json.dumps(_minimal(requestBody=body)))[0].parameters == []


@pytest.mark.parametrize(
    "prop", [{"anyOf": [{"type": "integer"}]}, {"type": "object"}, {"$ref": "#/components/schemas/A"}]
)
def test_dify_makes_text_of_it(prop: dict[str, Any]) -> None:
    tool = parse(json.dumps(_minimal(requestBody=_body({"properties": {"a": prop}}))))[0]
    assert [parameter.type for parameter in tool.parameters] == ["string"]


def test_dify_doubles_the_parameters_of_a_second_content_type() -> None:
    content = _body({"properties": {"a": {"type": "string"}}})["content"]
    twice = {"content": {**content, "application/x-www-form-urlencoded": content["application/json"]}}
    assert len(parse(json.dumps(_minimal(requestBody=twice)))[0].parameters) == 2


def test_dify_makes_true_of_the_word_false() -> None:
    tool = parse(json.dumps(_minimal(requestBody=_body({"properties": {"a": {"type": "boolean"}}}))))[0]
    assert tool.body({"a": "false"}) == {"a": True}


def test_dify_sends_null_for_an_optional_without_a_default() -> None:
    assert parse(json.dumps(_minimal()))[0].body({}) == {"a": None}


def test_dify_sends_header_parameters_empty() -> None:
    document = _minimal(parameters=[{"name": "Authorization", "in": "header", "schema": {"type": "string"}}])
    assert parse(json.dumps(document))[0].headers() == {"Authorization": ""}
