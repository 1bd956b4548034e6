"""The Dify app templates: what each flow does, in Chinese and in English, rendered for a deployment.

A template never holds a key: the URL and the key of the service are environment variables of the app,
the key an empty secret that the person who imports it fills in.
"""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Final, Literal, get_args

import yaml

from service.policy.dify_app import app, environment
from service.policy.dify_nodes import (
    KEY_VARIABLE,
    URL_VARIABLE,
    Json,
    Node,
    answer,
    end,
    llm,
    memory_call,
    reference,
    start,
    text_input,
)
from service.policy.dify_support import support_flow
from service.policy.dify_texts import TEXTS, Language

TemplateName = Literal["chatflow-memory", "chatflow-support", "workflow-memory", "chatflow-openai"]
TEMPLATES: Final[tuple[TemplateName, ...]] = get_args(TemplateName)
LANGUAGES: Final[tuple[Language, ...]] = get_args(Language)

# The service's name in a compose network; `dify-memory templates --base-url` writes another.
DEFAULT_BASE_URL: Final = "http://memory-api:8000"

_QUERY: Final = reference("sys", "query")


def file_name(template: TemplateName, language: Language) -> str:
    """Name of the rendered file."""
    return f"{template}.{language}.yml"


def render(template: TemplateName, language: Language, base_url: str = DEFAULT_BASE_URL) -> str:
    """The app file as YAML, for a service that Dify reaches at `base_url`."""
    text = TEXTS[language]
    flow = {
        "chatflow-memory": _chatflow_memory,
        "chatflow-support": _chatflow_support,
        "workflow-memory": _workflow_memory,
        "chatflow-openai": _chatflow_openai,
    }[template](text, base_url.rstrip("/"))
    body = yaml.dump(flow, Dumper=_Dumper, allow_unicode=True, sort_keys=False, width=110)
    comment = text["openai_file_comment" if template == "chatflow-openai" else "file_comment"]
    return f"# {comment}\n{body}"


def _environment(text: Mapping[str, str], base_url: str) -> list[Json]:
    return [
        environment(URL_VARIABLE, text["env_url"], base_url),
        environment(KEY_VARIABLE, text["env_key"], "", is_secret=True),
    ]


def _model(text: Mapping[str, str]) -> tuple[str, str]:
    return text["model_provider"], text["model_name"]


def _chatflow_memory(text: Mapping[str, str], base_url: str) -> Json:
    nodes = [
        start(text["start"]),
        memory_call(
            "recall",
            (1, 0),
            text["recall"],
            text["recall_desc"],
            "/memory/recall",
            {
                "user_id": reference("sys", "user_id"),
                "query": _QUERY,
                "conversation_id": reference("sys", "conversation_id"),
                "format": "text",
            },
        ),
        llm(
            "llm",
            (2, 0),
            text["llm"],
            text["llm_desc"],
            _model(text),
            f"{text['prompt']}\n\n{reference('recall', 'body')}",
            _QUERY,
        ),
        answer("answer", (3, 0), text["answer"], reference("llm", "text")),
        _remember_chat((4, 0), text, reference("llm", "text")),
    ]
    return app(
        mode="advanced-chat",
        name=text["memory_name"],
        description=text["memory_description"],
        opening="",
        variables=_environment(text, base_url),
        nodes=nodes,
        links=_chain(nodes),
    )


def _remember_chat(at: tuple[float, float], text: Mapping[str, str], answered: str) -> Node:
    """Behind the answer, where nobody waits for it to read; may be repeated, the run's id names the turn."""
    return memory_call(
        "remember",
        at,
        text["remember"],
        text["remember_desc"],
        "/memory/add",
        {
            "user_id": reference("sys", "user_id"),
            "conversation_id": reference("sys", "conversation_id"),
            "turn_id": reference("sys", "workflow_run_id"),
            "user_message": _QUERY,
            "assistant_message": answered,
        },
        read_s=3,
        retries=1,
    )


def _chatflow_support(text: Mapping[str, str], base_url: str) -> Json:
    nodes, links = support_flow(text, _model(text), lambda at, answered: _remember_chat(at, text, answered))
    return app(
        mode="advanced-chat",
        name=text["support_name"],
        description=text["support_description"],
        opening=text["support_opening"],
        variables=_environment(text, base_url),
        nodes=nodes,
        links=links,
    )


def _workflow_memory(text: Mapping[str, str], base_url: str) -> Json:
    user, query, conversation = (reference("start", name) for name in ("user_id", "query", "conversation_id"))
    nodes = [
        start(
            text["start"],
            [
                text_input("user_id", text["input_user"], is_required=True, max_length=256),
                text_input("query", text["input_query"], is_required=True, max_length=20_000, is_long=True),
                text_input("conversation_id", text["input_conversation"], is_required=False, max_length=256),
            ],
        ),
        memory_call(
            "recall",
            (1, 0),
            text["recall"],
            text["recall_desc"],
            "/memory/recall",
            {"user_id": user, "query": query, "conversation_id": conversation, "format": "text"},
        ),
        llm(
            "llm",
            (2, 0),
            text["llm"],
            text["llm_desc"],
            _model(text),
            f"{text['prompt']}\n\n{reference('recall', 'body')}",
            query,
            window=0,
        ),
        end((3, 0), text["end"], {"answer": ("llm", "text")}),
        memory_call(
            "remember",
            (3, 1),
            text["remember"],
            text["remember_desc"],
            "/memory/add",
            {
                "user_id": user,
                "conversation_id": conversation,
                "turn_id": reference("sys", "workflow_run_id"),
                "user_message": query,
                "assistant_message": reference("llm", "text"),
            },
            read_s=3,
            retries=1,
        ),
    ]
    return app(
        mode="workflow",
        name=text["workflow_name"],
        description=text["workflow_description"],
        opening="",
        variables=_environment(text, base_url),
        nodes=nodes,
        links=[*_chain(nodes[:4]), ("llm", "source", "remember")],
    )


def _chatflow_openai(text: Mapping[str, str], base_url: str) -> Json:
    del base_url  # it belongs to the model provider's settings, not to the flow
    nodes = [
        start(text["start"]),
        llm(
            "llm",
            (1, 0),
            text["llm"],
            text["openai_llm_desc"],
            ("langgenius/openai_api_compatible/openai_api_compatible", "memory"),
            text["openai_prompt"],
            _QUERY,
        ),
        answer("answer", (2, 0), text["answer"], reference("llm", "text")),
    ]
    return app(
        mode="advanced-chat",
        name=text["openai_name"],
        description=text["openai_description"],
        opening="",
        variables=[],
        nodes=nodes,
        links=_chain(nodes),
    )


def _chain(nodes: list[Node]) -> list[tuple[str, str, str]]:
    return [(source.id, "source", target.id) for source, target in pairwise(nodes)]


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as blocks, which people can read and edit."""


def _write_text(dumper: yaml.SafeDumper, text: str) -> Any:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _write_text)
