"""The flow of the customer-service template: three wishes about the memory itself, and the chat around them.

Forgetting cannot be undone, so that it needs one exact sentence; asking for it only explains that
sentence. Nothing said in those branches is remembered.
"""

from collections.abc import Callable, Mapping
from typing import Final

from service.policy.dify_nodes import (
    Case,
    Node,
    answer,
    first_of,
    if_else,
    llm,
    memory_call,
    note,
    python_code,
    reference,
    start,
)

Link = tuple[str, str, str]
_USER: Final = reference("sys", "user_id")
_ASKED: Final = ("sys", "query")

# The reply of /memory/list becomes lines; the two texts come from the language's own table.
_LIST_CODE: Final = """import json


def main(body: str) -> dict:
    try:
        reply = json.loads(body)
    except ValueError:
        return {{"text": {unreadable!r}}}
    lines = []
    for item in reply.get("memories", []) + reply.get("pending", []):
        words = " ".join(str(item.get("text", "")).split())
        day = str(item.get("created_at") or "")[:10]
        if words:
            lines.append("- " + (day + " " if day else "") + words)
    if not lines:
        return {{"text": {nothing!r}}}
    more = {more!r} if reply.get("next_cursor") else ""
    return {{"text": {heading!r} + "\\n\\n" + "\\n".join(lines) + more}}
"""


def support_flow(
    text: Mapping[str, str],
    model: tuple[str, str],
    remember: Callable[[tuple[float, float], str], Node],
) -> tuple[list[Node], list[Link]]:
    """Nodes and links of the flow; `remember` makes the last node for its place and the answered text."""
    nodes = [
        start(text["start"]),
        if_else("wish", (1, 0), text["wish"], text["wish_desc"], _wishes(text)),
        *_forget(text),
        answer("how_to_forget", (2, 3), text["how_to_forget"], text["how_to_forget_answer"]),
        *_known(text),
        *_chat(text, model),
        first_of("reply", (6, 0.5), text["reply"], [("llm", "text"), ("llm_without", "text")]),
        remember((7, 0.5), reference("reply", "output")),
        note("place_for_knowledge", (1.9, -1.15), text["knowledge_note"], width=440, height=190),
    ]
    links = [
        ("start", "source", "wish"),
        ("wish", "forget", "forget"),
        ("forget", "source", "is_forgotten"),
        ("is_forgotten", "yes", "forgotten"),
        ("is_forgotten", "false", "not_forgotten"),
        ("wish", "how_to_forget", "how_to_forget"),
        ("wish", "known", "list"),
        ("list", "source", "is_listed"),
        ("is_listed", "yes", "as_lines"),
        ("as_lines", "source", "known"),
        ("is_listed", "false", "not_listed"),
        ("wish", "false", "recall"),
        ("recall", "source", "in_reach"),
        ("in_reach", "yes", "llm"),
        ("in_reach", "false", "llm_without"),
        ("llm", "source", "answer"),
        ("llm_without", "source", "answer_without"),
        ("answer", "source", "reply"),
        ("answer_without", "source", "reply"),
        ("reply", "source", "remember"),
    ]
    return nodes, links


def _wishes(text: Mapping[str, str]) -> list[Case]:
    return [
        Case("forget", [(_ASKED, "is", phrase) for phrase in text["say_forget"].split("|")]),
        Case("known", [(_ASKED, "contains", phrase) for phrase in text["say_known"].split("|")]),
        Case("how_to_forget", [(_ASKED, "contains", phrase) for phrase in text["say_how"].split("|")]),
    ]


def _forget(text: Mapping[str, str]) -> list[Node]:
    # Replies are rendered with ": ", so that the words of the receipt can be looked for as text.
    done = [(("forget", "status_code"), "=", "200"), (("forget", "body"), "contains", '"verified": true')]
    return [
        memory_call(
            "forget",
            (2, 2),
            text["forget"],
            text["forget_desc"],
            "/memory/forget",
            {"user_id": _USER, "all": "true"},
            read_s=30,
        ),
        if_else("is_forgotten", (3, 2), text["is_forgotten"], "", [Case("yes", done, is_any=False)]),
        answer("forgotten", (4, 2), text["forgotten"], text["forgotten_answer"]),
        answer("not_forgotten", (4, 2.7), text["not_forgotten"], text["not_forgotten_answer"]),
    ]


def _known(text: Mapping[str, str]) -> list[Node]:
    code = _LIST_CODE.format(
        unreadable=text["not_listed_answer"],
        nothing=text["known_nothing"],
        heading=text["known_heading"],
        more=text["known_more"],
    )
    return [
        memory_call(
            "list",
            (2, 4),
            text["list"],
            text["list_desc"],
            "/memory/list",
            {"user_id": _USER, "limit": "50"},
            read_s=10,
        ),
        if_else(
            "is_listed",
            (3, 4),
            text["is_listed"],
            "",
            [Case("yes", [(("list", "status_code"), "=", "200")], is_any=False)],
        ),
        python_code(
            "as_lines",
            (4, 4),
            text["as_lines"],
            text["as_lines_desc"],
            code,
            {"body": ("list", "body")},
            "text",
            text["not_listed_answer"],
        ),
        answer("known", (5, 4), text["known"], reference("as_lines", "text")),
        answer("not_listed", (4, 4.8), text["not_listed"], text["not_listed_answer"]),
    ]


def _chat(text: Mapping[str, str], model: tuple[str, str]) -> list[Node]:
    query = reference(*_ASKED)
    return [
        memory_call(
            "recall",
            (2, 0),
            text["recall"],
            text["support_recall_desc"],
            "/memory/recall",
            {
                "user_id": _USER,
                "query": query,
                "conversation_id": reference("sys", "conversation_id"),
                "format": "text",
                # A memory out of reach becomes an error, which the next node can see.
                "on_error": "fail",
            },
        ),
        if_else(
            "in_reach",
            (3, 0),
            text["in_reach"],
            text["in_reach_desc"],
            [Case("yes", [(("recall", "status_code"), "=", "200")], is_any=False)],
        ),
        llm(
            "llm",
            (4, 0),
            text["llm_with"],
            text["llm_desc"],
            model,
            f"{text['support_prompt']}\n\n{reference('recall', 'body')}",
            query,
        ),
        answer("answer", (5, 0), text["answer"], reference("llm", "text")),
        llm(
            "llm_without",
            (4, 1),
            text["llm_without"],
            text["llm_desc"],
            model,
            text["support_prompt_without"],
            query,
        ),
        answer("answer_without", (5, 1), text["answer_without"], reference("llm_without", "text")),
    ]
