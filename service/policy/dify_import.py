"""What Dify refuses or silently loses of an OpenAPI document that is imported as a custom tool.

Measured on Dify 1.13 to 1.17; see `dify_document` for what our own document keeps to.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

_METHODS: Final = ("get", "post", "put", "delete", "patch", "head", "options", "trace")
_TOOL_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_PLAIN: Final = ("string", "integer", "number")


@dataclass(frozen=True, slots=True)
class ImportFault:
    """One thing Dify stumbles over; `place` is an operation or field, empty for the whole document.

    no_document: no object with info and paths. no_server: no `servers`. relative_server: joined with the
    path as text, which needs a whole URL. slash: at its end. no_operation: nothing to import. tool_name:
    not `[A-Za-z0-9_-]{1,64}`. description: missing or no text. parameters: header or path parameters are
    sent wrong. body: not exactly one flat `application/json` object. field: no plain string or number.
    """

    code: Literal[
        "no_document",
        "no_server",
        "relative_server",
        "slash",
        "no_operation",
        "tool_name",
        "description",
        "parameters",
        "body",
        "field",
    ]
    place: str = ""


def server_url_of(document: object) -> str:
    """The URL Dify takes, that of the first server; empty without one."""
    servers = document.get("servers") if isinstance(document, Mapping) else None
    first = servers[0] if isinstance(servers, list) and servers else None
    url = first.get("url") if isinstance(first, Mapping) else None
    return url if isinstance(url, str) else ""


def import_faults(document: object) -> list[ImportFault]:
    """Everything Dify would stumble over in a document (JSON data, whatever it is)."""
    if (
        not isinstance(document, Mapping)
        or not document.get("info")
        or not isinstance(document.get("paths"), Mapping)
    ):
        return [ImportFault("no_document")]
    return [*_server_faults(server_url_of(document)), *_path_faults(document["paths"])]


def _server_faults(url: str) -> Iterator[ImportFault]:
    if not url:
        yield ImportFault("no_server")
    elif not url.startswith(("http://", "https://")):
        yield ImportFault("relative_server")
    elif url.endswith("/"):
        yield ImportFault("slash")


def _path_faults(paths: Mapping[str, Any]) -> Iterator[ImportFault]:
    operations = [
        (f"{method.upper()} {path}", item[method])
        for path, item in paths.items()
        if isinstance(item, Mapping)
        for method in _METHODS
        if isinstance(item.get(method), Mapping)
    ]
    if not operations:
        yield ImportFault("no_operation")
    for place, operation in operations:
        name = operation.get("operationId")
        if not isinstance(name, str) or not _TOOL_NAME.fullmatch(name):
            yield ImportFault("tool_name", place)
        text = operation.get("description", operation.get("summary"))
        if not isinstance(text, str) or not text:
            yield ImportFault("description", place)
        if operation.get("parameters"):
            yield ImportFault("parameters", place)
        yield from _body_faults(place, operation.get("requestBody"))


def _body_faults(place: str, body: object) -> Iterator[ImportFault]:
    content = body.get("content") if isinstance(body, Mapping) else None
    only = content.get("application/json") if isinstance(content, Mapping) and len(content) == 1 else None
    schema = only.get("schema") if isinstance(only, Mapping) else None
    fields = schema.get("properties") if isinstance(schema, Mapping) else None
    if not isinstance(fields, Mapping):
        yield ImportFault("body", place)
        return
    for name, field in fields.items():
        if (
            not isinstance(field, Mapping)
            or field.get("type") not in _PLAIN
            or not isinstance(field.get("description"), str)
        ):
            yield ImportFault("field", f"{place} {name}")
