"""What Hindsight 1.1 asks an LLM, told apart by its prompts, and the fake LLM's answers to it."""

import json
import re
from dataclasses import dataclass, field
from typing import Any

from tests.fakes import llm_extraction
from tests.fakes.llm_rules import classified, ends, statements, subjects_of, updated
from tests.fakes.words import is_cjk

Json = dict[str, Any]

_FACT_LINE = re.compile(
    r"^\[([0-9a-f-]{36})\] (.*?)(?: \(((?:occurred_start|occurred_end|mentioned_at)=.*)\))?$"
)
_MENTIONED = re.compile(r"mentioned_at=([^,)]+)")
_REFLECT_TOOLS = {"search_mental_models", "search_observations", "recall", "answer_ready", "done"}
_GROUP = re.compile(r"^- (\w+) \((?:single value|multi-value|free text|list of free text)")
_VALUE = re.compile(r'^\s+• "([^"]+)"')


def kind_of(request: Json) -> str:
    """What a request is for: ping, memories (ours), extraction, consolidation, reflect, or other."""
    messages = request["messages"]
    system = "\n".join(text_of(m) for m in messages if m["role"] == "system")
    user = "\n".join(text_of(m) for m in messages if m["role"] == "user")
    tools = {tool["function"]["name"] for tool in request.get("tools") or []}
    if user == "Say 'ok'":
        return "ping"
    if llm_extraction.is_ours(system):
        return "memories"
    if "Extract facts from the following chunk." in user:
        return "extraction"
    if system.startswith("You are a memory consolidation system") or "You reconcile long-term memory" in user:
        return "consolidation"
    if (
        tools & _REFLECT_TOOLS
        or "precise data extraction assistant" in system
        or "retrieved tool results" in system
    ):
        return "reflect"
    return "other"


def text_of(message: Json) -> str:
    """The text of a message, whether it is a string or parts."""
    content = message.get("content")
    if isinstance(content, list):
        return "\n".join(part.get("text", "") for part in content if part.get("type") == "text")
    return content or ""


def last_user_text(request: Json) -> str:
    """What the user has said last."""
    return next((text_of(m) for m in reversed(request["messages"]) if m["role"] == "user"), "")


def extract(request: Json) -> str:
    """The facts of a chunk, as JSON."""
    user = next(text_of(m) for m in request["messages"] if "Extract facts from" in text_of(m))
    content = user.partition("\nContent:\n")[2]
    groups = _label_groups(text_of(request["messages"][0]))
    facts = []
    for statement in statements(content):
        fact: Json = {
            "what": statement.text,
            "when": "N/A",
            "where": "N/A",
            "who": "N/A",
            "why": "N/A",
            "fact_kind": "conversation",
            "fact_type": "world",
            "entities": statement.entities,
        }
        if groups:
            fact["labels"] = classified(statement.text, groups)
        facts.append(fact)
    return json.dumps({"facts": facts}, ensure_ascii=False)


def _label_groups(system: str) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    key = ""
    for line in system.partition("ENTITY LABELS - CLASSIFICATION ATTRIBUTES")[2].splitlines():
        if group := _GROUP.match(line):
            key = group[1]
            groups[key] = []
        elif key and (value := _VALUE.match(line)):
            groups[key].append(value[1])
    return groups


@dataclass
class _Belief:
    """An observation while a batch of facts is worked into it; `id` None if it is new."""

    id: str | None
    text: str
    mentioned_at: str
    sources: list[str] = field(default_factory=list)


def consolidate(request: Json) -> str:
    """Creates and updates for new facts: one observation per subject, the newest fact wins; as JSON."""
    user = last_user_text(request)
    if "You reconcile long-term memory" in user:
        return _reconcile(user)
    facts_text, _, observations_text = user.partition("### New facts")[2].partition(
        "### Existing observations"
    )
    beliefs = [
        _Belief(o["id"], o["text"], _moment(o.get("mentioned_at") or ""))
        for o in json.loads(observations_text.strip() or "[]")
    ]
    found = [match for line in facts_text.splitlines() if (match := _FACT_LINE.match(line.strip()))]
    facts = [
        (m[1], m[2].partition(" | ")[0], _moment((_MENTIONED.search(m[3] or "") or ["", ""])[1]))
        for m in found
    ]
    for fact_id, text, mentioned_at in sorted(facts, key=lambda fact: fact[2]):
        _learn(beliefs, fact_id, text, mentioned_at)
    touched = [belief for belief in beliefs if belief.sources]
    creates = [
        {"text": b.text, "source_fact_ids": b.sources, "reason": "Nothing known is about this."}
        for b in touched
        if b.id is None
    ]
    updates = [
        {
            "observation_id": b.id,
            "text": b.text,
            "source_fact_ids": b.sources,
            "reason": "The newest statement about this subject.",
        }
        for b in touched
        if b.id is not None
    ]
    return json.dumps({"creates": creates, "updates": updates, "deletes": []}, ensure_ascii=False)


def _moment(text: str) -> str:
    """A time that compares as text: facts come with a blank before the hour, observations with a T."""
    return text.strip().replace(" ", "T")


def _learn(beliefs: list[_Belief], fact_id: str, text: str, mentioned_at: str) -> None:
    subjects = subjects_of(text)
    for belief in beliefs:
        if belief.text == text or subjects & subjects_of(belief.text) or ends(text, belief.text):
            belief.sources.append(fact_id)
            # An older statement that arrives late is evidence, not news.
            if mentioned_at >= belief.mentioned_at:
                belief.text = text if belief.text == text else updated(belief.text, text)
                belief.mentioned_at = mentioned_at
            return
    beliefs.append(_Belief(None, text, mentioned_at, [fact_id]))


def _reconcile(prompt: str) -> str:
    new = re.search(r"^\[NEW\] (.*)$", prompt, re.MULTILINE)
    existing = re.search(r"^\[EXISTING\] (.*)$", prompt, re.MULTILINE)
    is_same = new is not None and existing is not None and new[1].strip() == existing[1].strip()
    action = {"action": "merge", "text": new[1]} if new and is_same else {"action": "keep", "text": ""}
    return json.dumps({**action, "reason": "Compared word by word."}, ensure_ascii=False)


@dataclass(frozen=True)
class ToolCall:
    """A call the model wants made."""

    name: str
    arguments: Json


def reflect(request: Json) -> str | ToolCall:
    """The next step of a reflect: a search, the end of searching, or the answer from what was found."""
    system = text_of(request["messages"][0])
    if "precise data extraction assistant" in system:
        return _structured(last_user_text(request))
    tools = {tool["function"]["name"]: tool["function"] for tool in request.get("tools") or []}
    question, found = _question(request), _found(request)
    if not tools:
        texts = re.findall(r'"text": "((?:[^"\\]|\\.)*)"', last_user_text(request))
        return _answer(question, [json.loads(f'"{text}"') for text in texts])
    choice = request.get("tool_choice")
    forced = choice["function"]["name"] if isinstance(choice, dict) else None
    if forced is None and len(tools) == 1:
        # How Hindsight forces a step on providers that know no named tool choice.
        (forced,) = tools
    if forced is None and "answer_ready" in tools:
        return ToolCall("answer_ready", {"answer_found": bool(found)})
    name = forced or "done"
    if name != "done":
        return ToolCall(name, {"reason": "The question may be answered there.", "query": question})
    answer = _answer(question, [item["text"] for item in found])
    arguments: Json = {"answer": answer, "answer_found": bool(found)}
    wanted = tools["done"]["parameters"]["properties"]
    if "document" in wanted:
        del arguments["answer"]
        arguments["document"] = {"sections": [{"heading": "", "level": 2, "blocks": [answer]}]}
    if "directive_compliance" in wanted:
        arguments["directive_compliance"] = "Every directive is followed."
    ids = {key: [item["id"] for item in found if item["list"] == key] for key in ("memories", "observations")}
    arguments |= {"memory_ids": ids["memories"], "observation_ids": ids["observations"]}
    return ToolCall("done", arguments)


def _question(request: Json) -> str:
    texts = [text_of(m) for m in request["messages"] if m["role"] == "user"]
    marked = [re.search(r"^#* ?Question:?\s*\n?(.+)$", text, re.MULTILINE) for text in texts]
    return next((match[1].strip() for match in marked if match), texts[0].strip())


def _found(request: Json) -> list[Json]:
    """What the searches have returned: observations, or facts where there are none."""
    found: dict[str, list[Json]] = {"observations": [], "memories": []}
    for message in request["messages"]:
        if message["role"] != "tool":
            continue
        try:
            result = json.loads(text_of(message))
        except ValueError:
            continue
        for key, items in found.items():
            items += [{**item, "list": key} for item in result.get(key) or [] if item.get("text")]
    return (found["observations"] or found["memories"])[:5]


def _answer(question: str, texts: list[str]) -> str:
    is_chinese = any(is_cjk(char) for char in question)
    if not texts:
        return "我没有关于这件事的记忆。" if is_chinese else "I remember nothing about that."
    bare = list(dict.fromkeys(text.partition(" | ")[0].rstrip("。.") for text in texts))
    return f"据我所知：{'；'.join(bare)}。" if is_chinese else f"As far as I know: {'; '.join(bare)}."


def _structured(prompt: str) -> str:
    answer = prompt.partition('"""')[2].partition('"""')[0].strip()
    schema = json.loads(prompt.partition("```json")[2].partition("```")[0])
    blanks: Json = {"array": [answer], "number": 1, "integer": 1, "boolean": True, "object": {}}
    filled = {key: blanks.get(spec.get("type"), answer) for key, spec in schema.get("properties", {}).items()}
    return json.dumps(filled, ensure_ascii=False)
