"""A whole Dify app file (DSL): what stands around the nodes, and how they are linked.

Like the nodes (see `dify_nodes`) only what our templates use, and as Dify itself would export it.
"""

from collections.abc import Sequence
from typing import Final

from service.policy.dify_nodes import Json, Node, stable_id

# Dify 1.13 to 1.15; newer ones import it as well and export a newer one.
DSL_VERSION: Final = "0.6.0"


def edges(nodes: Sequence[Node], links: Sequence[tuple[str, str, str]]) -> list[Json]:
    """Edges for links (source, its handle, target)."""
    kinds = {node.id: str(node.data["type"]) for node in nodes}
    return [
        {
            "data": {
                "isInIteration": False,
                "isInLoop": False,
                "sourceType": kinds[source],
                "targetType": kinds[target],
            },
            "id": f"{source}-{handle}-{target}-target",
            "source": source,
            "sourceHandle": handle,
            "target": target,
            "targetHandle": "target",
            "type": "custom",
            "zIndex": 0,
        }
        for source, handle, target in links
    ]


def environment(name: str, description: str, value: str, *, is_secret: bool = False) -> Json:
    """An environment variable of the app; a secret is always written empty."""
    return {
        "description": description,
        "id": stable_id("env", name),
        "name": name,
        "selector": ["env", name],
        "value": "" if is_secret else value,
        "value_type": "secret" if is_secret else "string",
    }


def app(
    *,
    mode: str,
    name: str,
    description: str,
    opening: str,
    variables: Sequence[Json],
    nodes: Sequence[Node],
    links: Sequence[tuple[str, str, str]],
) -> Json:
    """A whole app file; `mode` is `advanced-chat` (a Chatflow) or `workflow`."""
    is_chat = mode == "advanced-chat"
    return {
        "app": {
            "description": description,
            "icon": "\U0001f9e0",
            "icon_background": "#FFEAD5",
            "icon_type": "emoji",
            "mode": mode,
            "name": name,
            "use_icon_as_answer_icon": False,
        },
        "dependencies": [],
        "kind": "app",
        "version": DSL_VERSION,
        "workflow": {
            "conversation_variables": [],
            "environment_variables": list(variables),
            "features": {
                "file_upload": {"enabled": False},
                "opening_statement": opening,
                "retriever_resource": {"enabled": is_chat},
                "sensitive_word_avoidance": {"enabled": False},
                "speech_to_text": {"enabled": False},
                "suggested_questions": [],
                "suggested_questions_after_answer": {"enabled": False},
                "text_to_speech": {"enabled": False, "language": "", "voice": ""},
            },
            "graph": {
                "edges": edges(nodes, links),
                "nodes": [node.as_json() for node in nodes],
                "viewport": {"x": 0, "y": 0, "zoom": 0.8},
            },
            "rag_pipeline_variables": [],
        },
    }
