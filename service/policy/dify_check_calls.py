"""What would break in a flow's HTTP calls, those of the memory service above all: whose memory it is,
what a text can break out of, where the key is."""

import re
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

from service.policy.dify_finding import Finding, error, warning
from service.policy.dify_flow import Flow, FlowNode, body_text, fields_of, mapping, selectors_in
from service.policy.dify_network import address_faults

_MEMORY_PATH: Final = re.compile(r"/memory/(recall|add|reflect|list|forget|correct)\b")
_USER_IN_JSON: Final = re.compile(r'"user_id"\s*:\s*"([^"]*)"')
_KEY_NAME: Final = re.compile(r"key|token|secret|passw|密钥|密码", re.IGNORECASE)
_KEY_PARAMETER: Final = re.compile(r"\b(?:api_?key|key|token|access_token)\s*[=:]\s*(\S*)", re.IGNORECASE)
_KEY_HEADER: Final = re.compile(
    r"^\s*(?:authorization|x-api-key|api-key)\s*:\s*(\S.*)$", re.IGNORECASE | re.MULTILINE
)
_SCHEME_WORDS: Final = ("bearer ", "basic ", "token ")
# The same for every turn of a conversation, a user or an app: no names for a turn.
_SHARED: Final = frozenset({"conversation_id", "user_id", "app_id", "workflow_id", "dialogue_count"})
# What a person or a model wrote: it may name anybody.
_WRITTEN: Final = frozenset({"llm", "agent", "parameter-extractor", "question-classifier", "answer"})


def check_calls(flow: Flow) -> Iterator[Finding]:
    """Findings about environment variables and HTTP nodes."""
    yield from _check_environment(flow)
    for node in flow.of_kind("http-request"):
        yield from _check_url(flow, node)
        yield from _check_headers(flow, node)
        yield from _check_key(flow, node)
        yield from _check_body(flow, node)
        call = _memory_call(node)
        if call:
            yield from _check_user(flow, node)
        if call == "add":
            yield from _check_add(flow, node)
        if call == "recall":
            yield from _check_recall(flow, node)
    yield from _check_same_user(flow)


def _memory_call(node: FlowNode) -> str:
    """`recall`, `add` …, or empty for another service."""
    found = _MEMORY_PATH.search(str(node.data.get("url")))
    return found[1] if found else ""


def _body_type(node: FlowNode) -> str:
    return str(mapping(node.data.get("body")).get("type") or "none")


# --- Environment and URLs ----------------------------------------------------------------------------------
def _check_environment(flow: Flow) -> Iterator[Finding]:
    for name, (kind, value) in flow.environment.items():
        if kind == "secret" and value not in ("", None):
            yield error(
                "secret_with_value",
                f"The secret {name} is in the file as plain text: export without secrets and renew that key.",
            )
        elif kind != "secret" and value not in ("", None) and _KEY_NAME.search(name):
            yield error(
                "secret_as_text",
                f"{name} looks like a key and is no secret: its value is in this file, in every export "
                "and in "
                "the logs. Make it a secret and renew that key.",
            )
    used = {
        selectors_in(str(node.data.get("url")))[0][1]
        for node in flow.of_kind("http-request")
        if str(node.data.get("url")).startswith("{{#env.") and selectors_in(str(node.data.get("url")))
    }
    for name in sorted(used & set(flow.environment)):
        yield from _check_address(name, str(flow.environment[name][1] or ""))


def _check_address(name: str, url: str) -> Iterator[Finding]:
    if not url:
        return
    host = urlsplit(url).hostname if address_faults(url) != ["not_a_url"] else ""
    for fault in address_faults(url):
        match fault:
            case "not_a_url":
                yield error("url", f"{name} must be a whole URL, such as http://memory-api:8000.")
            case "slash":
                yield error(
                    "url_slash",
                    f"{name} ends with a slash: every call would go to //memory/… and find nothing.",
                )
            case "https_port":
                yield error("url_port", f"{name}: Dify's proxy lets HTTPS pass on port 443 only.")
            case "http_port":
                yield error(
                    "url_port", f"{name}: Dify's proxy lets plain HTTP pass on port 80 and from 1025 on."
                )
            case "localhost":
                yield error(
                    "url_localhost",
                    f"{name}: {host} is Dify's own proxy container there. Use the service's name in Dify's "
                    "compose network, or host.docker.internal.",
                )
            case "private":
                yield warning(
                    "url_private",
                    f"{name}: Dify denies private addresses since 1.15; allow it with "
                    "SSRF_PROXY_ALLOW_PRIVATE_DOMAINS and a host name.",
                )


def _check_url(flow: Flow, node: FlowNode) -> Iterator[Finding]:
    url = str(node.data.get("url") or "")
    if not url.startswith("{{#env."):
        yield warning(
            "url_fixed",
            "Its URL does not begin with an environment variable: it has to be changed by hand in every "
            "node.",
            node,
        )
    yield from (
        error("text_in_url", "Text of a user or a model is part of its URL; send it in the body.", node)
        for selector in selectors_in(url)
        if _is_written(flow, selector)
    )
    for place in (url, str(node.data.get("params") or "")):
        for found in _KEY_PARAMETER.findall(place):
            selector = (selectors_in(found) or [()])[0]
            if selector[:1] == ("env",):
                yield warning("key_in_url", "The key is part of the URL, which gets into logs.", node)
            elif not selector:
                yield error("key_in_plain_text", "A key is written into its URL or parameters.", node)


def _check_headers(flow: Flow, node: FlowNode) -> Iterator[Finding]:
    headers = str(node.data.get("headers") or "")
    del flow
    for selector in selectors_in(headers):
        if selector[0] != "env":
            yield error(
                "user_text_in_headers",
                f"{'.'.join(selector)} is in its headers: a line break in it adds headers of the user's "
                "choice, "
                "and any letter outside ASCII makes the call fail. Send it in the body.",
                node,
            )
    for value in _KEY_HEADER.findall(headers):
        if selectors_in(value):
            yield warning(
                "key_in_headers", "The key is in the headers, where logs show it; use Authorization.", node
            )
        else:
            yield error("key_in_plain_text", "A key is written into its headers in plain text.", node)


def _check_key(flow: Flow, node: FlowNode) -> Iterator[Finding]:
    authorization = mapping(node.data.get("authorization"))
    key = str(mapping(authorization.get("config")).get("api_key") or "")
    if authorization.get("type") != "api-key":
        has_other = _KEY_HEADER.search(str(node.data.get("headers") or "")) or _KEY_PARAMETER.search(
            f"{node.data.get('url')} {node.data.get('params')}"
        )
        if _memory_call(node) and not has_other:
            yield error("no_key", "It sends no API key (Authorization), so that every call is refused.", node)
        return
    selectors = selectors_in(key)
    if not key.strip():
        yield error("no_key", "Its API key is empty, so that the call always fails.", node)
    elif not selectors:
        yield error("key_in_plain_text", "Its API key is written into the file; use a secret variable.", node)
    for selector in selectors:
        if selector[0] != "env":
            yield error(
                "key_not_secret", f"Its API key comes from {'.'.join(selector)}; use a secret variable.", node
            )
        elif flow.environment.get(selector[1], ("secret", ""))[0] != "secret":
            yield error("key_not_secret", f"{selector[1]} holds its API key and is no secret variable.", node)
    if key.lower().startswith(_SCHEME_WORDS):
        yield warning("key_prefix", "Its API key begins with Bearer, which Dify adds by itself.", node)


# --- Bodies ------------------------------------------------------------------------------------------------
def _check_body(flow: Flow, node: FlowNode) -> Iterator[Finding]:
    kind = _body_type(node)
    text = body_text(node)
    if kind == "json" or (kind == "raw-text" and text.lstrip().startswith(("{", "["))):
        for selector in selectors_in(text):
            if not _is_json_safe(flow, selector):
                worst = " – another user's user_id, for example" if '"user_id"' in text else ""
                yield error(
                    "json_breakout",
                    f"{'.'.join(selector)} is put into a JSON body as it is: a quote, a backslash or a "
                    "line break "
                    f"in it breaks the body, and a text can add fields of its own{worst}. Use an "
                    "x-www-form-urlencoded body.",
                    node,
                )
    elif _memory_call(node) and kind != "x-www-form-urlencoded":
        yield error(
            "body_kind", f"Its body is {kind}; the service reads x-www-form-urlencoded and JSON.", node
        )
    if kind == "x-www-form-urlencoded":
        items = mapping(node.data.get("body")).get("data")
        names = [str(mapping(item).get("key", "")) for item in items] if isinstance(items, list) else []
        for name in sorted({name for name in names if names.count(name) > 1}):
            yield error("field_twice", f"Its field {name} is there twice; only the last one is sent.", node)


def _is_json_safe(flow: Flow, selector: tuple[str, ...]) -> bool:
    """Whether a value is JSON already: a number, or text a node has encoded."""
    first, name = selector[0], selector[1]
    if first == "env":
        return flow.environment.get(name, ("", ""))[0] == "number"
    node = flow.by_id.get(first)
    if node is None:
        return selector == ("sys", "dialogue_count")
    if node.kind == "http-request":
        return name == "status_code"
    if node.kind == "template-transform":
        return "tojson" in str(node.data.get("template"))
    if node.kind == "code":
        kind = str(mapping(mapping(node.data.get("outputs")).get(name)).get("type"))
        return kind != "string" or "json.dumps" in str(node.data.get("code"))
    if node.kind == "start":
        for variable in node.data.get("variables") or ():
            if mapping(variable).get("variable") == name:
                return mapping(variable).get("type") in ("number", "checkbox")
    return False


# --- Whose memory ------------------------------------------------------------------------------------------
def _user_of(node: FlowNode) -> str | None:
    """The text a call sends as the user's id; None if it sends none."""
    if _body_type(node) in ("json", "raw-text"):
        found = _USER_IN_JSON.search(body_text(node))
        return found[1] if found else None
    return fields_of(node).get("user_id")


def _check_user(flow: Flow, node: FlowNode) -> Iterator[Finding]:
    user = _user_of(node)
    if user is None or not user.strip():
        yield error(
            "user_missing", "It sends no user_id, so that every call is refused. Use sys.user_id.", node
        )
        return
    selectors = selectors_in(user)
    if not [selector for selector in selectors if selector[0] != "env"]:
        name = " DEFAULT-USER is what Dify sends for everybody it does not know." if "DEFAULT" in user else ""
        yield error(
            "user_fixed",
            f"Its user_id is always the same: everybody would share one memory.{name} Use sys.user_id.",
            node,
        )
    for selector in selectors:
        if selector[0] == "sys" and selector[1] in (
            "conversation_id",
            "workflow_run_id",
            "app_id",
            "workflow_id",
        ):
            yield error(
                "user_not_a_person",
                f"Its user_id is {'.'.join(selector)}, which is no person: nothing is found again in the "
                "next "
                "conversation. Use sys.user_id.",
                node,
            )
        elif _is_written(flow, selector):
            yield error(
                "user_from_text",
                f"Its user_id comes from {'.'.join(selector)}: whoever writes that text chooses whose "
                "memory is "
                "read. Use sys.user_id.",
                node,
            )
        elif _is_optional_input(flow, selector):
            yield error(
                "user_optional",
                f"The input {selector[1]} may be left empty; without it every call is refused.",
                node,
            )


def _is_written(flow: Flow, selector: tuple[str, ...]) -> bool:
    if selector[:2] == ("sys", "query"):
        return True
    node = flow.by_id.get(selector[0])
    return node is not None and node.kind in _WRITTEN


def _is_optional_input(flow: Flow, selector: tuple[str, ...]) -> bool:
    node = flow.by_id.get(selector[0])
    if node is None or node.kind != "start":
        return False
    return any(
        mapping(item).get("variable") == selector[1] and not mapping(item).get("required")
        for item in node.data.get("variables") or ()
    )


def _check_same_user(flow: Flow) -> Iterator[Finding]:
    users = {
        (_user_of(node) or "").strip() for node in flow.of_kind("http-request") if _memory_call(node)
    } - {""}
    if len(users) > 1:
        yield error(
            "users_differ",
            f"The calls name the user in different ways ({', '.join(sorted(users))}): what one remembers "
            "the "
            "others do not find.",
        )


# --- Add and recall ----------------------------------------------------------------------------------------
def _check_add(flow: Flow, node: FlowNode) -> Iterator[Finding]:
    turn = fields_of(node).get("turn_id", "")
    if _body_type(node) in ("json", "raw-text"):
        turn = body_text(node) if '"turn_id"' in body_text(node) else ""
    retries = mapping(node.data.get("retry_config")).get("retry_enabled")
    selectors = selectors_in(turn)
    if not turn.strip():
        if retries:
            yield error(
                "add_repeats",
                "It tries again on errors and names no turn_id: one turn may be stored several times. Send "
                "sys.workflow_run_id as turn_id, or switch retries off.",
                node,
            )
    elif all(selector[0] in ("env", "sys") and selector[1] in _SHARED for selector in selectors):
        yield error(
            "turn_id_shared",
            "Its turn_id is the same for many turns: all but the first could pass for repetitions. Use "
            "sys.workflow_run_id.",
            node,
        )
    if any(node.id in flow.ancestors[answer.id] for answer in flow.of_kind("answer")):
        yield warning(
            "add_before_answer",
            "It runs before an answer: the user waits for it. Put it behind the answer.",
            node,
        )


def _check_recall(flow: Flow, node: FlowNode) -> Iterator[Finding]:
    is_text = fields_of(node).get("format") == "text"
    is_text = is_text or re.search(r'"format"\s*:\s*"text"', body_text(node)) is not None
    readers = {
        reference.node.title
        for reference in flow.references
        if reference.selector[:2] == (node.id, "body") and reference.node.kind in ("llm", "answer", "agent")
    }
    if readers and not is_text:
        yield warning(
            "json_in_prompt",
            f"Its whole JSON reply goes into {', '.join(sorted(readers))}; with the field format = text "
            "it is "
            "the block for the prompt alone.",
            node,
        )
