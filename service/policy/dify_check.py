"""Says in plain words what would break in a Dify app file.

Dify imports a broken file "successfully" and fails in the chat, or worse, works and mixes up its users.
The shape of the flow is checked here, its calls of the memory service in `dify_check_calls`.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, Final

from service.policy.dify_check_calls import check_calls
from service.policy.dify_finding import Finding, error, warning
from service.policy.dify_flow import (
    LOOKS_LIKE_REFERENCE,
    REFERENCE,
    Flow,
    FlowNode,
    Reference,
    UnreadableFlow,
    mapping,
    outputs_of,
    read_flow,
)

__all__ = ["Finding", "check_template"]

_LEGAL_ID: Final = re.compile(r"[A-Za-z0-9_]{1,50}")
_VERSION: Final = re.compile(r"\d+\.\d+\.\d+")
_NEWEST_EVERYWHERE: Final = (0, 6, 0)
_LONGEST_NAME: Final = 30


def check_template(text: str) -> list[Finding]:
    """All findings for an exported app, the errors first; an empty list means nothing was found."""
    try:
        flow = read_flow(text)
    except UnreadableFlow as exc:
        return [error("unreadable", str(exc))]
    found = dict.fromkeys(
        chain(
            _check_file(flow),
            _check_ids(flow),
            _check_edges(flow),
            _check_shape(flow),
            _check_references(flow),
            _check_failures(flow),
            _check_portable(flow),
            check_calls(flow),
        )
    )
    return sorted(found, key=lambda finding: finding.severity)


def _check_file(flow: Flow) -> Iterator[Finding]:
    if not isinstance(flow.version, str) or not _VERSION.fullmatch(flow.version):
        yield error("version", "`version` must be a text of three numbers, such as '0.6.0'.")
    elif tuple(map(int, flow.version.split("."))) > _NEWEST_EVERYWHERE:
        yield warning(
            "version_new", f"`version` {flow.version}: Dify before 1.16 asks before it imports the file."
        )


def _check_ids(flow: Flow) -> Iterator[Finding]:
    for node_id, count in Counter(node.id for node in flow.nodes).items():
        if count > 1:
            yield error("node_id_twice", f"The node id {node_id} is used {count} times.")
    for node in flow.nodes:
        if not _LEGAL_ID.fullmatch(node.id):
            yield error(
                "node_id",
                "Its id may only have letters, digits and _ (at most 50): with others nothing can refer "
                "to it.",
                node,
            )
        if not node.kind:
            yield error("node_kind", "It has no type.", node)
    for edge_id, count in Counter(edge.id for edge in flow.edges).items():
        if count > 1:
            yield error("edge_id_twice", f"The edge id {edge_id or '(empty)'} is used {count} times.")


def _handles(node: FlowNode) -> set[str]:
    """The handles on a node's right side."""
    if node.kind == "if-else":
        cases = node.data.get("cases")
        if not isinstance(cases, list):
            return {"true", "false"}
        return {str(mapping(case).get("case_id")) for case in cases} | {"false"}
    if node.kind == "question-classifier":
        return _ids(node.data.get("classes"))
    if node.kind == "human-input":
        return _ids(node.data.get("user_actions")) | {"__timeout"}
    if node.data.get("error_strategy") == "fail-branch":
        return {"source", "fail-branch"}
    return {"source"}


def _ids(items: object) -> set[str]:
    return {str(mapping(item).get("id")) for item in items} if isinstance(items, list) else set()


def _check_edges(flow: Flow) -> Iterator[Finding]:
    for edge in flow.edges:
        source = flow.by_id.get(edge.source)
        if source is None or edge.target not in flow.by_id:
            missing = edge.source if source is None else edge.target
            yield error("edge_nowhere", f"The edge {edge.id} begins or ends at {missing}, which is no node.")
        elif edge.handle == "success-branch":
            yield error(
                "edge_success_branch",
                "An edge leaves it by the handle success-branch: that way is never taken. On success the "
                "handle is `source`.",
                source,
            )
        elif edge.handle not in _handles(source):
            yield error(
                "edge_handle",
                f"An edge leaves it by the handle {edge.handle or '(none)'}, which it does not have; that "
                "way is never taken.",
                source,
            )
    taken = {(edge.source, edge.handle) for edge in flow.edges}
    for node in flow.of_kind("if-else", "question-classifier"):
        for handle in sorted(_handles(node)):
            if (node.id, handle) not in taken:
                yield error(
                    "branch_open",
                    f"Nothing follows its branch {handle}: the chat ends there without a word.",
                    node,
                )


def _check_shape(flow: Flow) -> Iterator[Finding]:
    starts = [node for node in flow.of_kind("start") if not node.parent]
    if len(starts) != 1:
        yield error("start", f"There must be one Start node; there are {len(starts)}.")
        return
    last = "end" if flow.mode == "workflow" else "answer"
    if not flow.of_kind(last):
        yield error("no_result", f"There is no {last} node: nobody would see a result.")
    for node in flow.nodes:
        if node.id in flow.ancestors[node.id]:
            yield error("cycle", "It runs after itself: the edges form a circle.", node)
        elif not node.parent and node is not starts[0] and starts[0].id not in flow.ancestors[node.id]:
            yield error("unreachable", "No way leads to it from Start, so it never runs.", node)


def _check_references(flow: Flow) -> Iterator[Finding]:
    for node in flow.nodes:
        for text in _texts(node.data):
            for found in LOOKS_LIKE_REFERENCE.findall(text):
                if not REFERENCE.fullmatch(found) and found.strip("{} ") != "#context#":
                    yield error(
                        "reference_form",
                        f"{found} is not read as a variable, it stays in the text as it is (names have at "
                        f"most {_LONGEST_NAME} letters, digits and _; no blanks, no [0]).",
                        node,
                    )
    for reference in flow.references:
        reason = _unresolved(flow, reference)
        if reason:
            yield error(
                "reference",
                f"{reference.name} ({reference.path}) {reason}"
                + (f"; Dify would put the words “{reference.name}” there." if reference.is_text else "."),
                reference.node,
            )


def _unresolved(flow: Flow, reference: Reference) -> str:
    """Why a reference cannot be resolved; empty if it can."""
    first, name = reference.selector[0], reference.selector[1]
    spaces: Mapping[str, Iterable[str]] = {
        "sys": flow.system(),
        "env": flow.environment,
        "conversation": flow.conversation,
    }
    if first in spaces:
        if name in spaces[first]:
            return ""
        return f"does not exist in this {'Workflow' if flow.mode == 'workflow' else 'Chatflow'}"
    if first == "rag":
        return ""
    target = flow.by_id.get(first)
    if target is None:
        return "names a node that does not exist"
    inside = {node.id for node in flow.nodes if node.parent == reference.node.id}
    is_before = first in flow.ancestors[reference.node.id] or first == reference.node.parent
    if not is_before and first not in inside and first != reference.node.id:
        return "names a node that does not run before this one"
    outputs = outputs_of(target)
    if outputs is None or name in outputs or (target.kind == "start" and name.startswith("sys")):
        return ""
    return f"is no output of “{target.title}”"


def _texts(value: object, depth: int = 0) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif depth < 50:
        inner: Iterable[Any] = ()
        if isinstance(value, Mapping):
            inner = value.values()
        elif isinstance(value, list):
            inner = value
        for item in inner:
            yield from _texts(item, depth + 1)


def _check_failures(flow: Flow) -> Iterator[Finding]:
    """What happens when a call fails: the chat must go on, and what is read must then exist."""
    for node in flow.nodes:
        strategy = node.data.get("error_strategy")
        if strategy == "default-value":
            defaults = node.data.get("default_value")
            given = (
                {str(mapping(item).get("key")) for item in defaults} if isinstance(defaults, list) else set()
            )
            wanted = {item.selector[1] for item in flow.references if item.selector[0] == node.id}
            wanted -= {"error_message", "error_type", "files"}
            wanted |= {"body"} if node.kind == "http-request" else set()
            for name in sorted(wanted - given):
                yield error(
                    "no_default",
                    f"On an error its {name} has no default value: whatever uses it would read a variable "
                    "name.",
                    node,
                )
        elif strategy == "fail-branch":
            yield from _check_fail_branch(flow, node)
        elif node.kind == "http-request":
            yield error(
                "no_error_strategy",
                "It has no error handling: an error of 400 to 499 counts as success and its text gets "
                "into the "
                "prompt, any other ends the chat. Choose “Default value” with an empty body.",
                node,
            )


def _check_fail_branch(flow: Flow, node: FlowNode) -> Iterator[Finding]:
    if not any(edge.source == node.id and edge.handle == "fail-branch" for edge in flow.edges):
        yield error("branch_open", "Nothing follows its fail branch: the chat ends there on an error.", node)
    before = flow.ancestors[node.id]
    has_model_before = any(flow.by_id[item].kind in ("llm", "agent") for item in before)
    has_answer_after = any(node.id in flow.ancestors[item.id] for item in flow.of_kind("answer"))
    if has_model_before and has_answer_after:
        yield error(
            "blocks_streaming",
            "A fail branch between the model and the answer: nothing is shown until this node is done. Use "
            "“Default value”.",
            node,
        )


def _check_portable(flow: Flow) -> Iterator[Finding]:
    if flow.dependencies:
        yield warning(
            "dependencies",
            "`dependencies` pins exact builds of plugins, which another Dify may not have; [] works.",
        )
    for node in flow.nodes:
        if node.kind == "tool" and node.data.get("provider_type") == "api":
            yield error(
                "custom_tool",
                "A custom tool is named by an id of one workspace: imported elsewhere it does not exist. "
                "Use an "
                "HTTP Request node.",
                node,
            )
        if node.kind == "knowledge-retrieval" and node.data.get("dataset_ids"):
            yield warning(
                "datasets",
                "Its knowledge bases belong to one workspace; choose them again after import.",
                node,
            )
