"""Single faults of a Dify app file, each with the finding that must name it.

A fault changes the data of one of our own templates, which have no findings.
"""

from collections.abc import Callable
from typing import Any

from service.policy.dify_template import TemplateName

Json = dict[str, Any]
Change = Callable[[Json], object]


def node_of(data: Json, node_id: str) -> Json:
    """A node by its id."""
    node: Json = next(item for item in data["workflow"]["graph"]["nodes"] if item["id"] == node_id)
    return node


def data_of(data: Json, node_id: str) -> Json:
    """A node's data."""
    found: Json = node_of(data, node_id)["data"]
    return found


def edges_of(data: Json) -> list[Json]:
    """All edges."""
    edges: list[Json] = data["workflow"]["graph"]["edges"]
    return edges


def variables_of(data: Json) -> dict[str, Json]:
    """Environment variables by name."""
    return {item["name"]: item for item in data["workflow"]["environment_variables"]}


def set_data(node_id: str, **fields: Any) -> Change:
    """Change fields of a node's data."""
    return lambda data: data_of(data, node_id).update(fields)


def set_field(node_id: str, name: str, value: str | None) -> Change:
    """Change, add or (None) remove a form field."""

    def change(data: Json) -> None:
        body = data_of(data, node_id)["body"]
        kept = [item for item in body["data"] if item["key"] != name]
        added = [] if value is None else [{"id": "x", "key": name, "type": "text", "value": value}]
        body["data"] = kept + added

    return change


def set_env(name: str, **fields: Any) -> Change:
    """Change an environment variable."""
    return lambda data: variables_of(data)[name].update(fields)


def set_key(**fields: Any) -> Change:
    """Change recall's authorization."""
    return lambda data: data_of(data, "recall")["authorization"]["config"].update(fields)


def json_body(text: str, kind: str = "json") -> Change:
    """Give recall a body of one text."""
    return set_data(
        "recall", body={"type": kind, "data": [{"id": "x", "key": "", "type": "text", "value": text}]}
    )


def set_edge(between: tuple[str, str], **fields: Any) -> Change:
    """Change fields of the edge between two nodes."""

    def change(data: Json) -> None:
        (edge,) = [item for item in edges_of(data) if (item["source"], item["target"]) == between]
        edge.update(fields)

    return change


def cut(source: str, target: str) -> Change:
    """Take away the edge between two nodes."""

    def change(data: Json) -> None:
        graph = data["workflow"]["graph"]
        kept = [item for item in graph["edges"] if (item["source"], item["target"]) != (source, target)]
        assert len(kept) == len(graph["edges"]) - 1
        graph["edges"] = kept

    return change


def link(source: str, target: str, handle: str = "source") -> Change:
    """Add an edge."""
    return lambda data: edges_of(data).append(
        {"id": "new", "source": source, "target": target, "sourceHandle": handle, "targetHandle": "target"}
    )


def add_node(node_id: str, after: str, **fields: Any) -> Change:
    """Add a node behind another."""

    def change(data: Json) -> None:
        node = {"id": node_id, "type": "custom", "data": {"title": node_id, **fields}}
        data["workflow"]["graph"]["nodes"].append(node)
        link(after, node_id)(data)

    return change


def remove(node_id: str) -> Change:
    """Remove a node with its edges."""

    def change(data: Json) -> None:
        graph = data["workflow"]["graph"]
        graph["nodes"] = [item for item in graph["nodes"] if item["id"] != node_id]
        graph["edges"] = [item for item in graph["edges"] if node_id not in (item["source"], item["target"])]

    return change


def several(*changes: Change) -> Change:
    """One change after another."""

    def change(data: Json) -> None:
        for item in changes:
            item(data)

    return change


def set_prompt(text: str) -> Change:
    """Replace the model's system prompt."""
    return lambda data: data_of(data, "llm")["prompt_template"][0].update(text=text)


def drop_default(node_id: str, name: str) -> Change:
    """Take away one default value."""

    def change(data: Json) -> None:
        node = data_of(data, node_id)
        node["default_value"] = [item for item in node["default_value"] if item["key"] != name]

    return change


def rename(node_id: str, new: str) -> Change:
    """Give a node another id, without telling anybody."""
    return lambda data: node_of(data, node_id).update(id=new)


_RETRY = {"retry_enabled": True, "max_retries": 3, "retry_interval": 100}
_NO_AUTH = {"type": "no-auth", "config": None}
CHAT: TemplateName = "chatflow-memory"
SUPPORT: TemplateName = "chatflow-support"
WORK: TemplateName = "workflow-memory"

# (code, template, node the finding is about (its id, or empty for the file), the fault)
FAULTS: list[tuple[str, TemplateName, str, Change]] = [
    # The file
    ("unreadable", CHAT, "", lambda data: data.update(kind="agent")),
    ("unreadable", CHAT, "", lambda data: data["app"].update(mode="agent-chat")),
    ("unreadable", CHAT, "", lambda data: data["workflow"].pop("graph")),
    ("version", CHAT, "", lambda data: data.update(version=0.6)),
    ("version", CHAT, "", lambda data: data.update(version="6")),
    ("version", CHAT, "", lambda data: data.pop("version")),
    ("version_new", CHAT, "", lambda data: data.update(version="0.7.0")),
    ("dependencies", CHAT, "", lambda data: data.update(dependencies=[{"type": "marketplace"}])),
    # Nodes and edges
    ("node_id", CHAT, "remember", rename("remember", "re-member")),
    ("node_id", CHAT, "remember", rename("remember", "r" * 51)),
    ("node_id", CHAT, "remember", rename("remember", "记住")),
    ("node_id_twice", CHAT, "", add_node("llm", "recall", type="answer", answer="x")),
    ("node_kind", CHAT, "remember", lambda data: data_of(data, "remember").pop("type")),
    ("edge_id_twice", CHAT, "", lambda data: [edge.update(id="e") for edge in edges_of(data)]),
    ("edge_nowhere", CHAT, "", set_edge(("answer", "remember"), target="gone")),
    ("edge_nowhere", CHAT, "", set_edge(("answer", "remember"), source="gone")),
    ("edge_handle", CHAT, "recall", set_edge(("recall", "llm"), sourceHandle="true")),
    ("edge_handle", CHAT, "recall", set_edge(("recall", "llm"), sourceHandle="fail-branch")),
    ("edge_handle", SUPPORT, "wish", set_edge(("wish", "list"), sourceHandle="source")),
    ("edge_success_branch", CHAT, "recall", set_edge(("recall", "llm"), sourceHandle="success-branch")),
    ("branch_open", SUPPORT, "in_reach", cut("in_reach", "llm_without")),
    ("branch_open", SUPPORT, "wish", cut("wish", "forget")),
    ("branch_open", CHAT, "recall", set_data("recall", error_strategy="fail-branch")),
    ("start", CHAT, "", add_node("second", "recall", type="start", variables=[])),
    ("start", CHAT, "", remove("start")),
    ("no_result", CHAT, "", remove("answer")),
    ("no_result", WORK, "", remove("end")),
    ("unreachable", CHAT, "remember", cut("answer", "remember")),
    ("cycle", CHAT, "llm", link("remember", "recall")),
    # References
    ("reference", CHAT, "llm", set_prompt("{{#recal.body#}}")),
    ("reference", CHAT, "llm", set_prompt("{{#recall.text#}}")),
    ("reference", CHAT, "llm", set_prompt("{{#env.MEMORY#}}")),
    ("reference", CHAT, "llm", set_prompt("{{#conversation.mood#}}")),
    ("reference", CHAT, "llm", set_prompt("{{#sys.message_id#}}")),
    ("reference", CHAT, "llm", set_prompt("{{#remember.body#}}")),
    ("reference", WORK, "recall", set_field("recall", "query", "{{#sys.query#}}")),
    ("reference", WORK, "recall", set_field("recall", "user_id", "{{#start.user#}}")),
    ("reference", SUPPORT, "reply", set_data("reply", variables=[["llm", "text"], ["llm_with", "text"]])),
    (
        "reference",
        WORK,
        "end",
        set_data("end", outputs=[{"variable": "a", "value_selector": ["llm", "answer"]}]),
    ),
    ("reference_form", CHAT, "llm", set_prompt("{{# recall.body #}}")),
    ("reference_form", CHAT, "llm", set_prompt("{{#recall.body[0]#}}")),
    ("reference_form", CHAT, "llm", set_prompt("{{#re-call.body#}}")),
    ("reference_form", CHAT, "llm", set_prompt("{{#recall." + "b" * 31 + "#}}")),
    # Failures
    ("no_error_strategy", CHAT, "recall", set_data("recall", error_strategy=None)),
    ("no_default", CHAT, "recall", drop_default("recall", "body")),
    ("no_default", CHAT, "remember", set_data("remember", default_value=[])),
    ("no_default", SUPPORT, "recall", drop_default("recall", "status_code")),
    ("no_default", SUPPORT, "as_lines", drop_default("as_lines", "text")),
    (
        "blocks_streaming",
        CHAT,
        "remember",
        several(
            cut("llm", "answer"),
            cut("answer", "remember"),
            link("llm", "remember"),
            set_data("remember", error_strategy="fail-branch"),
            lambda data: edges_of(data).append(
                {"id": "b", "source": "remember", "target": "answer", "sourceHandle": "source"}
            ),
        ),
    ),
    # URLs
    ("url_fixed", CHAT, "recall", set_data("recall", url="http://memory:8000/memory/recall")),
    (
        "text_in_url",
        CHAT,
        "recall",
        set_data("recall", url="{{#env.MEMORY_URL#}}/memory/recall?q={{#sys.query#}}"),
    ),
    ("url", CHAT, "", set_env("MEMORY_URL", value="memory:8000")),
    ("url", CHAT, "", set_env("MEMORY_URL", value="http://[bad")),
    ("url_slash", CHAT, "", set_env("MEMORY_URL", value="http://memory:8000/")),
    ("url_port", CHAT, "", set_env("MEMORY_URL", value="https://memory:8443")),
    ("url_port", CHAT, "", set_env("MEMORY_URL", value="http://memory:81")),
    ("url_localhost", CHAT, "", set_env("MEMORY_URL", value="http://localhost:8000")),
    ("url_localhost", CHAT, "", set_env("MEMORY_URL", value="http://127.0.0.1:8000")),
    ("url_private", CHAT, "", set_env("MEMORY_URL", value="http://192.168.1.20:8000")),
    # Keys
    ("secret_with_value", CHAT, "", set_env("MEMORY_API_KEY", value="k-123456")),
    ("secret_as_text", CHAT, "", set_env("MEMORY_API_KEY", value="k-123456", value_type="string")),
    ("key_not_secret", CHAT, "recall", set_env("MEMORY_API_KEY", value_type="string")),
    ("key_not_secret", CHAT, "recall", set_key(api_key="{{#sys.user_id#}}")),
    ("key_in_plain_text", CHAT, "recall", set_key(api_key="k-123456")),
    ("key_in_plain_text", CHAT, "recall", set_data("recall", headers="X-API-Key: k-123456")),
    ("key_in_plain_text", CHAT, "recall", set_data("recall", params="api_key: k-123456")),
    (
        "key_in_plain_text",
        CHAT,
        "recall",
        set_data("recall", url="{{#env.MEMORY_URL#}}/memory/recall?api_key=k-123456"),
    ),
    ("key_in_url", CHAT, "recall", set_data("recall", params="api_key: {{#env.MEMORY_API_KEY#}}")),
    (
        "key_in_headers",
        CHAT,
        "recall",
        set_data("recall", headers="Authorization: Bearer {{#env.MEMORY_API_KEY#}}"),
    ),
    ("key_prefix", CHAT, "recall", set_key(api_key="Bearer {{#env.MEMORY_API_KEY#}}")),
    ("no_key", CHAT, "recall", set_key(api_key="")),
    ("no_key", CHAT, "recall", set_data("recall", authorization=_NO_AUTH)),
    # Headers and bodies
    ("user_text_in_headers", CHAT, "recall", set_data("recall", headers="X-User: {{#sys.user_id#}}")),
    ("user_text_in_headers", CHAT, "recall", set_data("recall", headers="X-Query: {{#sys.query#}}")),
    (
        "json_breakout",
        CHAT,
        "recall",
        json_body('{"user_id": "{{#sys.user_id#}}", "query": "{{#sys.query#}}"}'),
    ),
    ("json_breakout", CHAT, "recall", json_body('{"query": {{#sys.query#}}}')),
    ("json_breakout", CHAT, "recall", json_body(' {"query": "{{#sys.query#}}"}', "raw-text")),
    ("body_kind", CHAT, "recall", set_data("recall", body={"type": "form-data", "data": []})),
    ("body_kind", CHAT, "recall", set_data("recall", body={"type": "none", "data": []})),
    (
        "field_twice",
        CHAT,
        "recall",
        lambda data: data_of(data, "recall")["body"]["data"].append(
            {"id": "x", "key": "user_id", "type": "text", "value": "{{#sys.user_id#}}"}
        ),
    ),
    # Whose memory
    ("user_missing", CHAT, "recall", set_field("recall", "user_id", None)),
    ("user_missing", CHAT, "recall", set_field("recall", "user_id", "")),
    ("user_fixed", CHAT, "recall", set_field("recall", "user_id", "DEFAULT-USER")),
    ("user_fixed", CHAT, "recall", set_field("recall", "user_id", "{{#env.MEMORY_URL#}}")),
    ("user_not_a_person", CHAT, "recall", set_field("recall", "user_id", "{{#sys.conversation_id#}}")),
    ("user_from_text", CHAT, "recall", set_field("recall", "user_id", "{{#sys.query#}}")),
    ("user_from_text", CHAT, "remember", set_field("remember", "user_id", "{{#llm.text#}}")),
    ("user_from_text", CHAT, "recall", json_body('{"user_id": "{{#sys.query#}}", "format": "text"}')),
    (
        "user_optional",
        WORK,
        "recall",
        lambda data: data_of(data, "start")["variables"][0].update(required=False),
    ),
    ("users_differ", CHAT, "", set_field("recall", "user_id", "web-{{#sys.user_id#}}")),
    # Add and recall
    ("add_repeats", CHAT, "remember", set_field("remember", "turn_id", None)),
    (
        "add_repeats",
        CHAT,
        "remember",
        several(set_field("remember", "turn_id", ""), set_data("remember", retry_config=_RETRY)),
    ),
    ("turn_id_shared", CHAT, "remember", set_field("remember", "turn_id", "turn")),
    ("turn_id_shared", CHAT, "remember", set_field("remember", "turn_id", "{{#sys.conversation_id#}}")),
    (
        "add_before_answer",
        CHAT,
        "remember",
        several(
            cut("llm", "answer"),
            cut("answer", "remember"),
            link("llm", "remember"),
            link("remember", "answer"),
        ),
    ),
    ("json_in_prompt", CHAT, "recall", set_field("recall", "format", None)),
    ("json_in_prompt", CHAT, "recall", set_field("recall", "format", "json")),
    # What does not travel
    (
        "custom_tool",
        CHAT,
        "tool",
        add_node("tool", "llm", type="tool", provider_type="api", provider_id="1-2"),
    ),
    (
        "datasets",
        CHAT,
        "knowledge",
        add_node("knowledge", "start", type="knowledge-retrieval", dataset_ids=["1"]),
    ),
]

WARNINGS = {
    "version_new",
    "dependencies",
    "url_fixed",
    "url_private",
    "key_in_url",
    "key_in_headers",
    "key_prefix",
    "add_before_answer",
    "json_in_prompt",
    "datasets",
}
