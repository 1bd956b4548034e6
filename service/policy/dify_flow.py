"""A Dify app file (DSL) as a graph: nodes, edges, variables, and every reference between them.

Takes whatever somebody exported: what cannot be understood is left out or raises `UnreadableFlow`, never
anything else.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import yaml

# Dify's own rule; what looks like a reference and breaks it stays in the text as it is.
REFERENCE: Final = re.compile(r"\{\{#([a-zA-Z0-9_]{1,50}(?:\.[a-zA-Z_][a-zA-Z0-9_]{0,29}){1,10})#\}\}")
LOOKS_LIKE_REFERENCE: Final = re.compile(r"\{\{\s*#[^{}\n]{0,200}#\s*\}\}")

_CHAT_SYSTEM: Final = frozenset(
    [
        "query",
        "files",
        "conversation_id",
        "user_id",
        "dialogue_count",
        "app_id",
        "workflow_id",
        "workflow_run_id",
        "timestamp",
    ]
)
_WORKFLOW_SYSTEM: Final = _CHAT_SYSTEM - {"query", "conversation_id", "dialogue_count"}
# Outputs by kind of node; a kind that is not here may have any.
_OUTPUTS: Final[Mapping[str, frozenset[str]]] = {
    "http-request": frozenset({"body", "status_code", "headers", "files"}),
    "llm": frozenset({"text", "reasoning_content", "usage", "structured_output", "finish_reason", "files"}),
    "template-transform": frozenset({"output"}),
    "if-else": frozenset({"result", "selected_case_id"}),
    "knowledge-retrieval": frozenset({"result", "files"}),
    "question-classifier": frozenset({"class_name", "class_id", "class_label", "usage"}),
    "document-extractor": frozenset({"text"}),
    "list-operator": frozenset({"result", "first_record", "last_record"}),
    "answer": frozenset({"answer", "files"}),
    "end": frozenset(),
}
# The one written in C, where PyYAML was built with it, reads a large export ten times as fast.
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_ERROR_OUTPUTS: Final = frozenset({"error_message", "error_type"})


class UnreadableFlow(ValueError):
    """The text is no Dify app with a flow; the message says in one sentence what it is instead."""


@dataclass(frozen=True, slots=True)
class FlowNode:
    """A node; `parent` is the iteration or loop it lies in, or empty."""

    id: str
    kind: str
    title: str
    parent: str
    data: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True, slots=True)
class FlowEdge:
    """An edge from a handle of one node to another node."""

    id: str
    source: str
    handle: str
    target: str


@dataclass(frozen=True, slots=True)
class Reference:
    """One use of a variable in a node's data; `path` names the field, `is_text` whether it stands in text."""

    node: FlowNode
    path: str
    selector: tuple[str, ...]
    is_text: bool

    @property
    def name(self) -> str:
        """As Dify writes it."""
        return ".".join(self.selector)


@dataclass(frozen=True)
class Flow:
    """A whole app."""

    mode: str
    version: object
    dependencies: Sequence[object]
    nodes: Sequence[FlowNode]
    edges: Sequence[FlowEdge]
    environment: Mapping[str, tuple[str, object]]
    conversation: frozenset[str]

    @cached_property
    def by_id(self) -> Mapping[str, FlowNode]:
        """Nodes by id; of two with one id the last."""
        return {node.id: node for node in self.nodes}

    @cached_property
    def ancestors(self) -> Mapping[str, frozenset[str]]:
        """Node id → ids of all nodes that may run before it."""
        before: dict[str, set[str]] = {node.id: set() for node in self.nodes}
        for edge in self.edges:
            if edge.target in before:
                before[edge.target].add(edge.source)
        for node in self.nodes:
            if node.parent in before:
                # What runs before a loop also runs before what is in it.
                before[node.id].add(node.parent)
        found: dict[str, frozenset[str]] = {}
        for node in self.nodes:
            seen: set[str] = set()
            waiting = list(before[node.id])
            while waiting:
                current = waiting.pop()
                if current not in seen and current in before:
                    seen.add(current)
                    waiting.extend(before[current])
            found[node.id] = frozenset(seen)
        return found

    def of_kind(self, *kinds: str) -> list[FlowNode]:
        """The nodes of these kinds, in their order."""
        return [node for node in self.nodes if node.kind in kinds]

    @cached_property
    def references(self) -> Sequence[Reference]:
        """Every reference of every node."""
        return [reference for node in self.nodes for reference in _walk(node, node.data, "")]

    def system(self) -> frozenset[str]:
        """Names after `sys.` in this kind of app."""
        return _WORKFLOW_SYSTEM if self.mode == "workflow" else _CHAT_SYSTEM


def outputs_of(node: FlowNode) -> frozenset[str] | None:
    """Names of a node's outputs; None when anything may be one."""
    data = node.data
    names: frozenset[str] | None
    if node.kind == "start":
        names = frozenset(str(item.get("variable")) for item in _mappings(data.get("variables")))
    elif node.kind == "code":
        outputs = data.get("outputs")
        names = frozenset(outputs) if isinstance(outputs, Mapping) else frozenset()
    elif node.kind in ("variable-aggregator", "variable-assigner"):
        groups = _mappings(mapping(data.get("advanced_settings")).get("groups"))
        is_grouped = mapping(data.get("advanced_settings")).get("group_enabled")
        names = frozenset(str(group.get("group_name")) for group in groups) if is_grouped else None
        names = names if names is not None else frozenset({"output"})
    else:
        names = _OUTPUTS.get(node.kind)
    return names | _ERROR_OUTPUTS if names is not None and data.get("error_strategy") else names


def mapping(value: object) -> Mapping[str, Any]:
    """`value` if it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def selectors_in(text: str) -> list[tuple[str, ...]]:
    """The references in a text."""
    return [tuple(found.split(".")) for found in REFERENCE.findall(text)]


def fields_of(node: FlowNode) -> Mapping[str, str]:
    """Form fields of an HTTP node: name → value."""
    items = _mappings(mapping(node.data.get("body")).get("data"))
    return {str(item.get("key", "")): str(item.get("value") or "") for item in items}


def body_text(node: FlowNode) -> str:
    """The text of an HTTP node's JSON or raw body."""
    data = mapping(node.data.get("body")).get("data")
    if isinstance(data, str):
        return data
    return "\n".join(str(item.get("value") or "") for item in _mappings(data))


def read_flow(text: str) -> Flow:
    """The flow in an exported file; raises `UnreadableFlow`."""
    try:
        data = yaml.load(text, Loader=_LOADER)  # noqa: S506 - a safe loader in both cases
    except (yaml.YAMLError, RecursionError, ValueError) as exc:
        raise UnreadableFlow("The file is not valid YAML.") from exc
    if not isinstance(data, Mapping) or data.get("kind") != "app":
        raise UnreadableFlow("The file is no Dify app: it needs `kind: app`.")
    workflow = mapping(data.get("workflow"))
    graph = mapping(workflow.get("graph"))
    mode = str(mapping(data.get("app")).get("mode"))
    if mode not in ("advanced-chat", "workflow"):
        raise UnreadableFlow(
            f"An app of the mode {mode!r} has no flow to check; Chatflows (advanced-chat) and Workflows have."
        )
    if not isinstance(graph.get("nodes"), list):
        raise UnreadableFlow("The app has no nodes (workflow.graph.nodes).")
    dependencies = data.get("dependencies")
    return Flow(
        mode=mode,
        version=data.get("version"),
        dependencies=dependencies if isinstance(dependencies, list) else (),
        nodes=[_node(item) for item in _mappings(graph["nodes"]) if item.get("type") != "custom-note"],
        edges=[_edge(item) for item in _mappings(graph.get("edges"))],
        environment={
            str(item.get("name")): (str(item.get("value_type")), item.get("value"))
            for item in _mappings(workflow.get("environment_variables"))
        },
        conversation=frozenset(
            str(item.get("name")) for item in _mappings(workflow.get("conversation_variables"))
        ),
    )


def _mappings(value: object) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def _node(item: Mapping[str, Any]) -> FlowNode:
    data = mapping(item.get("data"))
    parent = item.get("parentId") or data.get("iteration_id") or data.get("loop_id") or ""
    node_id = str(item.get("id") or "")
    return FlowNode(
        node_id, str(data.get("type") or ""), str(data.get("title") or node_id), str(parent), data
    )


def _edge(item: Mapping[str, Any]) -> FlowEdge:
    names = ("id", "source", "sourceHandle", "target")
    return FlowEdge(*(str(item.get(name) or "") for name in names))


def _walk(node: FlowNode, value: object, path: str, depth: int = 0) -> Iterator[Reference]:
    if depth > 50:
        return
    if isinstance(value, str):
        for selector in selectors_in(value):
            yield Reference(node, path, selector, is_text=True)
    elif isinstance(value, Mapping):
        is_variable = value.get("type") == "variable" and isinstance(value.get("value"), list)
        for key, inner in value.items():
            is_selector = str(key).endswith("selector") or (key == "value" and is_variable)
            if is_selector and (selector := _selector(inner)):
                yield Reference(node, f"{path}.{key}".lstrip("."), selector, is_text=False)
            else:
                yield from _walk(node, inner, f"{path}.{key}".lstrip("."), depth + 1)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            is_aggregated = path.rsplit(".", 1)[-1] == "variables"
            if is_aggregated and (selector := _selector(inner)):
                yield Reference(node, path, selector, is_text=False)
            else:
                yield from _walk(node, inner, f"{path}.{number}", depth + 1)


def _selector(value: object) -> tuple[str, ...]:
    """`value` as a selector, empty if it is none (or one that was left empty)."""
    if isinstance(value, list) and len(value) > 1 and all(isinstance(part, str) for part in value):
        return tuple(value)
    return ()
