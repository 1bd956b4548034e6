"""What Dify's custom tools make of an OpenAPI document, and the requests they then send.

A re-statement of measured behaviour (Dify 1.13 to 1.17), its losses included: it takes what Dify takes,
loses what Dify loses and refuses what Dify refuses, so that a document which survives here survives there.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx
import yaml

_METHODS = ("get", "post", "put", "delete", "patch", "head", "options", "trace")
_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_TYPES = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean", "array": "array"}
# Dify's proxy retries these and then tells nothing of what the service said.
_HIDDEN = (429, 500, 502, 503, 504)
# Behind Dify's squid these are taken for the squid's own refusals (dify#41434).
_BLOCKED = (401, 403)


class ImportRefused(ValueError):
    """Dify does not import the document."""


class ToolFailed(Exception):
    """The call failed; the text is what Dify shows."""


@dataclass(frozen=True)
class Parameter:
    """One parameter as a model sees it."""

    name: str
    type: str
    description: str
    is_required: bool
    default: object = None


@dataclass(frozen=True)
class Auth:
    """A provider's credentials: none, one header, or one query parameter."""

    kind: Literal["none", "header", "query"] = "none"
    name: str = "Authorization"
    prefix: Literal["basic", "bearer", "custom"] = "custom"
    value: str = ""


@dataclass
class Tool:
    """One operation."""

    name: str
    description: str
    method: str
    url: str
    parameters: list[Parameter]
    media_type: str
    properties: Mapping[str, Mapping[str, Any]]
    required: list[str]
    operation: Mapping[str, Any] = field(repr=False)

    def body(self, arguments: Mapping[str, object]) -> dict[str, object]:
        """The body for what a model or a flow's variables gave.

        An optional parameter that was left out becomes its default, and null without one.
        """
        body: dict[str, object] = {}
        for name, prop in self.properties.items():
            if name in arguments:
                body[name] = _converted(prop, arguments[name])
            elif name in self.required:
                raise ToolFailed(f"Missing required parameter {name}")
            else:
                body[name] = prop.get("default")
        return body

    def headers(self) -> dict[str, str]:
        """Header parameters nobody filled: each is sent, as an empty string."""
        return {
            str(item["name"]): ""
            for item in self.operation.get("parameters", ())
            if item.get("in") == "header"
        }


class Provider:
    """An imported document with its credentials; remembers what Dify remembers between calls."""

    def __init__(self, document: str, auth: Auth | None = None) -> None:
        self.tools = {tool.name: tool for tool in parse(document)}
        self._auth = auth or Auth()

    def llm_schema(self, name: str) -> dict[str, Any]:
        """The function a model is offered."""
        tool = self.tools[name]
        properties: dict[str, dict[str, Any]] = {
            parameter.name: {"type": parameter.type, "description": parameter.description}
            for parameter in tool.parameters
        }
        return {
            "name": tool.name,
            "description": tool.description,
            "parameters": {
                "type": "object",
                "properties": properties,
                "required": [parameter.name for parameter in tool.parameters if parameter.is_required],
            },
        }

    async def call(self, client: httpx.AsyncClient, name: str, arguments: Mapping[str, object]) -> str:
        """What the tool returns as text; raises `ToolFailed` with what Dify would show."""
        tool = self.tools[name]
        headers, params = tool.headers(), {}
        headers |= self._auth_headers()
        if self._auth.kind == "query":
            params[self._auth.name] = self._auth.value
        content = json.dumps(tool.body(arguments)).encode()
        headers["Content-Type"] = tool.media_type
        reply = await client.request(
            tool.method,
            tool.url,
            content=content,
            headers=headers,
            params=params,
            timeout=httpx.Timeout(60, connect=10),
            follow_redirects=True,
        )
        if reply.status_code in _HIDDEN:
            raise ToolFailed("Reached maximum retries (3)")
        if reply.status_code in _BLOCKED:
            raise ToolFailed("blocked by SSRF protection")
        if reply.status_code >= 400:
            raise ToolFailed(f"Request failed with status code {reply.status_code} and {reply.text}")
        if not reply.content:
            return "Empty response from the tool, please check your parameters and try again."
        return reply.text

    def _auth_headers(self) -> dict[str, str]:
        if self._auth.kind != "header":
            return {}
        if self._auth.prefix in ("basic", "bearer"):
            # The prefix is written into the stored credential, so that each further call of an agent's
            # run puts one more before it (dify#35974). "Basic" is a word here, nothing is encoded.
            value = f"{self._auth.prefix.capitalize()} {self._auth.value}"
            self._auth = Auth("header", self._auth.name, self._auth.prefix, value)
        return {self._auth.name: self._auth.value}


def prompt_text(reply: str) -> str:
    """What a model reads of a reply: text and JSON, unless both are the same bytes."""
    try:
        parsed = json.loads(reply)
    except ValueError:
        return reply
    if not isinstance(parsed, dict):
        return reply
    rendered = json.dumps(parsed, ensure_ascii=False)
    return reply if rendered == reply else reply + rendered


def parse(document: str) -> list[Tool]:
    """The tools of a document; raises `ImportRefused`."""
    data = _load(document)
    if not isinstance(data, dict) or not data.get("info") or not data.get("servers"):
        raise ImportRefused("info and a server are needed")
    base = data["servers"][0]["url"]
    tools = [
        _tool(data, base, path, method, item[method])
        for path, item in data.get("paths", {}).items()
        for method in _METHODS
        if method in item
    ]
    if not tools:
        raise ImportRefused("no operation")
    return tools


def _load(document: str) -> Any:
    try:
        return json.loads(document)
    except ValueError:
        pass
    try:
        return yaml.safe_load(document)
    except yaml.YAMLError as exc:
        raise ImportRefused("neither JSON nor YAML") from exc


def _tool(data: dict[str, Any], base: str, path: str, method: str, operation: dict[str, Any]) -> Tool:
    parameters = [
        _parameter(item["name"], item.get("schema", {}), item.get("description"), item.get("required", False))
        for item in operation.get("parameters", ())
    ]
    # A `$ref` here is not followed: every parameter is lost without a word.
    contents = operation.get("requestBody", {}).get("content", {})
    schema: dict[str, Any] = {}
    for content in contents.values():
        schema = _resolved(data, content.get("schema", {}))
        # Only `properties` counts; those inside a top-level allOf are lost.
        required = schema.get("required", [])
        parameters += [
            _parameter(name, prop, prop.get("description"), name in required)
            for name, prop in schema.get("properties", {}).items()
        ]
    name = (
        operation.get("operationId") or re.sub(r"[^a-zA-Z0-9_-]", "", path.replace("/", "_")) + f"_{method}"
    )
    if not _TOOL_NAME.fullmatch(name):
        raise ImportRefused(f"{name} cannot be a tool's name")
    description = operation["description"] if "description" in operation else operation.get("summary", "")
    if not isinstance(description, str):
        raise ImportRefused(f"the description of {name} is no text")
    return Tool(
        name=name,
        description=description,
        method=method.upper(),
        url=base + path,
        parameters=parameters,
        media_type=next(reversed(contents), ""),
        properties=schema.get("properties", {}),
        required=schema.get("required", []),
        operation=operation,
    )


def _resolved(data: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """One level, nothing below it."""
    if "$ref" not in schema:
        return schema
    found: Any = data
    for part in schema["$ref"].split("/")[1:]:
        found = found[part]
    if not isinstance(found, dict):
        raise ImportRefused(f"{schema['$ref']} is no schema")
    return found


def _parameter(name: str, prop: Mapping[str, Any], description: object, is_required: bool) -> Parameter:
    kind = prop.get("type")
    if isinstance(kind, list):
        raise ImportRefused(f"{name} has more than one type")
    if description is None and "description" in prop:
        raise ImportRefused(f"the description of {name} is null")
    # anyOf, $ref, object: all become text.
    known = _TYPES.get(kind, "string") if isinstance(kind, str) else "string"
    return Parameter(name, known, str(description or ""), is_required, prop.get("default"))


def _converted(prop: Mapping[str, Any], value: object) -> object:
    kind = prop.get("type")
    try:
        if kind == "integer":
            return int(value)  # type: ignore[call-overload]
        if kind == "number":
            return float(value) if "." in str(value) else int(value)  # type: ignore[arg-type,call-overload]
    except (TypeError, ValueError):
        return value
    if kind == "string":
        return str(value)
    return bool(value) if kind == "boolean" else value
