"""The nodes of a Dify app file (DSL), each as the data Dify itself would export (see `dify_app`).

Only what our templates use. An import checks nothing, so that a part with a wrong field imports
"successfully" and fails in the chat; these shapes were run in Dify's engine and are held by
`dify_check`.
"""

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

URL_VARIABLE: Final = "MEMORY_URL"
KEY_VARIABLE: Final = "MEMORY_API_KEY"

_IDS: Final = uuid.UUID("0b6ad1a4-6d65-5d6f-8279-000000000000")
_COLUMN_PX, _ROW_PX, _TOP_PX = 304, 180, 282

Json = dict[str, Any]


def reference(*selector: str) -> str:
    """The text by which Dify names a variable inside other text."""
    return "{{#" + ".".join(selector) + "#}}"


def stable_id(*parts: str) -> str:
    """A UUID that is the same in every rendering, so that files only differ where they should."""
    return str(uuid.uuid5(_IDS, "/".join(parts)))


@dataclass(frozen=True, slots=True)
class Node:
    """One node: its id, its place on the canvas in columns and rows, and Dify's data for it."""

    id: str
    column: float
    row: float
    data: Json
    height: int = 90
    width: int = 244
    kind: str = "custom"

    def as_json(self) -> Json:
        """As exported."""
        position = {
            "x": round(80 + self.column * _COLUMN_PX),
            "y": round(_TOP_PX + self.row * _ROW_PX),
        }
        return {
            "data": self.data,
            "height": self.height,
            "id": self.id,
            "position": position,
            "positionAbsolute": dict(position),
            "selected": False,
            "sourcePosition": "right",
            "targetPosition": "left",
            "type": self.kind,
            "width": self.width,
        }


def _data(kind: str, title: str, desc: str = "", **fields: Any) -> Json:
    return {"desc": desc, "selected": False, "title": title, "type": kind, **fields}


def start(title: str, variables: Sequence[Json] = ()) -> Node:
    """The start; `variables` are what a Workflow app asks for."""
    return Node("start", 0, 0, _data("start", title, variables=list(variables)), height=54)


def text_input(name: str, label: str, *, is_required: bool, max_length: int, is_long: bool = False) -> Json:
    """A text that a Workflow app asks for."""
    return {
        "default": "",
        "hint": "",
        "label": label,
        "max_length": max_length,
        "options": [],
        "placeholder": "",
        "required": is_required,
        "type": "paragraph" if is_long else "text-input",
        "variable": name,
    }


def memory_call(
    node_id: str,
    at: tuple[float, float],
    title: str,
    desc: str,
    path: str,
    fields: Mapping[str, str],
    *,
    read_s: int = 4,
    retries: int = 0,
) -> Node:
    """A call of the memory service: a form, the key in the authorization, and a default on any error.

    A form is byte-exact and a text cannot break out of its field, unlike in a JSON body. The default
    lets the chat go on without the memory; its status code is 0. Retries come half a second apart and
    repeat 4xx too, so they are only for calls that may be repeated.
    """
    return Node(
        node_id,
        *at,
        _data(
            "http-request",
            title,
            desc,
            authorization={
                "config": {"api_key": reference("env", KEY_VARIABLE), "header": "", "type": "bearer"},
                "type": "api-key",
            },
            body={
                "data": [
                    {"id": f"key-value-{number}", "key": name, "type": "text", "value": value}
                    for number, (name, value) in enumerate(fields.items(), 1)
                ],
                "type": "x-www-form-urlencoded",
            },
            default_value=[
                {"key": "body", "type": "string", "value": ""},
                {"key": "status_code", "type": "number", "value": 0},
                {"key": "headers", "type": "object", "value": "{}"},
            ],
            error_strategy="default-value",
            headers="",
            method="post",
            params="",
            retry_config={
                "max_retries": retries or 1,
                "retry_enabled": retries > 0,
                "retry_interval": 500,
            },
            ssl_verify=True,
            timeout={
                "connect": 3,
                "max_connect_timeout": 0,
                "max_read_timeout": 0,
                "max_write_timeout": 0,
                "read": read_s,
                "write": 5,
            },
            url=reference("env", URL_VARIABLE) + path,
            variables=[],
        ),
        height=135,
    )


def llm(
    node_id: str,
    at: tuple[float, float],
    title: str,
    desc: str,
    model: tuple[str, str],
    system: str,
    query: str,
    *,
    window: int = 10,
) -> Node:
    """A chat model (provider, name) with a system prompt; `window` earlier turns, 0 for none.

    `reasoning_format: separated` keeps a model's thinking out of the text, and so out of the memory.
    """
    provider, name = model
    prompt = [{"id": stable_id(node_id, "system"), "role": "system", "text": system}]
    fields: Json = {}
    if window:
        fields["memory"] = {
            "query_prompt_template": query,
            "role_prefix": {"assistant": "", "user": ""},
            "window": {"enabled": True, "size": window},
        }
    else:
        prompt.append({"id": stable_id(node_id, "user"), "role": "user", "text": query})
    return Node(
        node_id,
        *at,
        _data(
            "llm",
            title,
            desc,
            context={"enabled": False, "variable_selector": []},
            **fields,
            model={
                "completion_params": {},
                "mode": "chat",
                "name": name,
                "provider": provider,
            },
            prompt_template=prompt,
            reasoning_format="separated",
            structured_output_enabled=False,
            variables=[],
            vision={"enabled": False},
        ),
    )


def answer(node_id: str, at: tuple[float, float], title: str, text: str) -> Node:
    """What the user reads."""
    return Node(node_id, *at, _data("answer", title, answer=text, variables=[]), height=105)


def end(at: tuple[float, float], title: str, outputs: Mapping[str, tuple[str, str]]) -> Node:
    """The result of a Workflow app: name → selector."""
    return Node(
        "end",
        *at,
        _data(
            "end",
            title,
            outputs=[
                {"value_selector": list(selector), "value_type": "string", "variable": name}
                for name, selector in outputs.items()
            ],
        ),
    )


@dataclass(frozen=True, slots=True)
class Case:
    """One way out of an if-else: taken when any (or every) condition holds.

    A condition is (selector, operator, value); the value of a number is compared as a number.
    """

    id: str
    conditions: Sequence[tuple[tuple[str, str], str, str]]
    is_any: bool = True


def if_else(node_id: str, at: tuple[float, float], title: str, desc: str, cases: Sequence[Case]) -> Node:
    """A choice; its handles are the ids of the cases, and `false` for none of them."""
    return Node(
        node_id,
        *at,
        _data(
            "if-else",
            title,
            desc,
            cases=[
                {
                    "case_id": case.id,
                    "conditions": [
                        {
                            "comparison_operator": operator,
                            "id": stable_id(node_id, case.id, str(number)),
                            "value": value,
                            "varType": "number" if selector[1] == "status_code" else "string",
                            "variable_selector": list(selector),
                        }
                        for number, (selector, operator, value) in enumerate(case.conditions)
                    ],
                    "id": case.id,
                    "logical_operator": "or" if case.is_any else "and",
                }
                for case in cases
            ],
        ),
        height=126,
    )


def python_code(
    node_id: str,
    at: tuple[float, float],
    title: str,
    desc: str,
    code: str,
    inputs: Mapping[str, tuple[str, str]],
    output: str,
    otherwise: str,
) -> Node:
    """A Python `main` from texts to one text, `otherwise` when Dify's sandbox fails."""
    return Node(
        node_id,
        *at,
        _data(
            "code",
            title,
            desc,
            code=code,
            code_language="python3",
            default_value=[{"key": output, "type": "string", "value": otherwise}],
            error_strategy="default-value",
            outputs={output: {"children": None, "type": "string"}},
            variables=[
                {"value_selector": list(selector), "value_type": "string", "variable": name}
                for name, selector in inputs.items()
            ],
        ),
        height=98,
    )


def first_of(node_id: str, at: tuple[float, float], title: str, selectors: Sequence[tuple[str, str]]) -> Node:
    """The text of whichever branch ran."""
    return Node(
        node_id,
        *at,
        _data(
            "variable-aggregator",
            title,
            output_type="string",
            variables=[list(selector) for selector in selectors],
        ),
        height=110,
    )


def note(node_id: str, at: tuple[float, float], text: str, *, width: int = 320, height: int = 160) -> Node:
    """A note on the canvas; it is part of no flow."""
    paragraphs = [
        {
            "children": [
                {
                    "detail": 0,
                    "format": 0,
                    "mode": "normal",
                    "style": "",
                    "text": line,
                    "type": "text",
                    "version": 1,
                }
            ],
            "direction": "ltr",
            "format": "",
            "indent": 0,
            "type": "paragraph",
            "version": 1,
        }
        for line in text.splitlines()
    ]
    root = {
        "children": paragraphs,
        "direction": "ltr",
        "format": "",
        "indent": 0,
        "type": "root",
        "version": 1,
    }
    data = {
        "author": "",
        "desc": "",
        "height": height,
        "selected": False,
        "showAuthor": False,
        "text": json.dumps({"root": root}, ensure_ascii=False),
        "theme": "yellow",
        "title": "",
        "type": "",
        "width": width,
    }
    return Node(node_id, *at, data, height=height, width=width, kind="custom-note")
