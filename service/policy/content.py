"""What a caller sent becomes clean turns, and turns become the text that is stored and searched.

Texts are kept byte for byte apart from what no store can hold; prompts, pictures and our own injected block
are not memories and are dropped. Everything here takes time linear in its input.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import regex

from service.policy.block import LABELS, Role, language_of, strip_blocks
from service.policy.sentences import split_long

__all__ = [
    "Message",
    "Role",
    "Turn",
    "UnreadableMessages",
    "clean",
    "parse_rendered",
    "read_messages",
    "render",
    "render_parts",
    "split_turns",
    "strip_blocks",
]


class UnreadableMessages(ValueError):
    """`messages` has no shape we know; the text says what to send and never what was sent."""


@dataclass(frozen=True, slots=True)
class Message:
    """What one speaker said. `tool` stands for tools, functions and speakers nobody knows."""

    role: Role
    text: str


@dataclass(frozen=True, slots=True)
class Turn:
    """What the user said, in one or more messages, and what answered it."""

    messages: tuple[Message, ...]


# --- Clean text -----------------------------------------------------------------------------------------
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_PAIR = re.compile(r"[\ud800-\udbff][\udc00-\udfff]")
_LINE_END = re.compile(r"\r\n?")
_CONTROLS: Final = dict.fromkeys(c for c in range(0x20) if chr(c) not in "\n\t")
_BOM: Final = "\ufeff"


def _joined(pair: re.Match[str]) -> str:
    return pair[0].encode("utf-16-le", "surrogatepass").decode("utf-16-le")


def clean(text: str) -> str:
    """The text as every store can hold it, otherwise unchanged.

    Removed: NUL and the other C0 controls except tab and line feed, lone surrogates, a leading byte order
    mark, white space at the very end. CR and CRLF become LF; two code units that make one character are
    joined. Quotes, backslashes, emoji, RTL and the Unicode form (NFC, NFD) stay. Idempotent.
    """
    if _SURROGATE.search(text):
        text = _SURROGATE.sub("", _PAIR.sub(_joined, text))
    return _LINE_END.sub("\n", text).translate(_CONTROLS).lstrip(_BOM).rstrip()


# --- Messages in every shape Dify sends them ------------------------------------------------------------
_MAX_DEPTH = 64
_SHAPE = "messages must be a JSON array of objects with role and content."
_TOO_DEEP = "messages is nested too deeply."
_STRING = r"""(?s:"(?:[^"\\]|\\.)*+"?+|'(?:[^'\\]|\\.)*+'?+)"""
_JSON_STRUCTURE = re.compile(r"""(?s:"(?:[^"\\]|\\.)*+"?+)|[\[\]{}]""")
_PYTHON_TOKEN = re.compile(rf"({_STRING})|([\[\]{{}}(),:])|(\s++)|(None|True|False|nan|-?[0-9][0-9.eE+-]*+)")
_PYTHON_WORDS: Final = {"None": "null", "True": "true", "False": "false", "nan": "NaN"}
_PYTHON_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[\\'\"nrt])")
_SIMPLE_ESCAPES: Final = {"n": "\n", "r": "\r", "t": "\t"}
_NOTHING: Final = frozenset({"", "null", "None"})
_ROLES: Final[dict[str, Role]] = {
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "ai": "assistant",
    "bot": "assistant",
    "model": "assistant",
}
_PROMPT_ROLES: Final = frozenset({"system", "developer"})
_TEXT_PARTS: Final = frozenset({"text", "input_text", "output_text", "refusal"})
_ONLY_INVISIBLE = regex.compile(r"[\s\p{Default_Ignorable_Code_Point}\p{Cc}]*+")


def read_messages(raw: object) -> tuple[list[Message], int]:
    """The messages worth keeping, in order, and how many things were dropped.

    raw: a list of `{role, content}` objects, one such object, or a string that holds either, as JSON or as
    Python writes it (Dify's agents do that). None, "", "null" and "None" are an empty list.

    * Content is a text, a list of parts (their texts are joined by line breaks), a number or true/false
      (kept as JSON writes it), or null.
    * user, human → `user`; assistant, ai, bot, model → `assistant`; tool, function and any role nobody
      knows → `tool`: those words are kept but never taken for the user's.
    * Dropped and counted, one each: prompts (system, developer), messages without text (null, blank, "null",
      "None", tool calls, pictures only), elements that are no object; of a message that is kept, each part
      that is no text. Our own memory block is removed from texts without being counted.

    Raises `UnreadableMessages` when raw is none of that.
    """
    items = _items(raw)
    if items and not any(isinstance(item, Mapping) or item is None for item in items):
        raise UnreadableMessages(_SHAPE)
    kept: list[Message] = []
    skipped = 0
    for item in items:
        if not isinstance(item, Mapping) or (role := _role(item)) is None:
            skipped += 1
            continue
        text, dropped = _content(item.get("content", item.get("text")))
        text = strip_blocks(clean(text))
        if text in _NOTHING or _ONLY_INVISIBLE.fullmatch(text):
            skipped += 1
            continue
        kept.append(Message(role, text))
        skipped += dropped
    return kept, skipped


def _items(raw: object) -> Sequence[object]:
    for _ in range(3):  # a string that holds JSON may itself be JSON in a string
        if not isinstance(raw, str):
            break
        raw = raw.strip().lstrip(_BOM)
        if raw in _NOTHING:
            return ()
        raw = _parsed(raw)
    if raw is None:
        return ()
    if isinstance(raw, Mapping):
        return (raw,)
    if isinstance(raw, list | tuple):
        return raw
    raise UnreadableMessages(_SHAPE)


def _parsed(text: str) -> object:
    try:
        return _json(text)
    except UnreadableMessages:
        if not text.startswith(("[", "{", "(")):
            raise
    return _json(_json_of_python(text))


def _json(text: str) -> object:
    depth = 0
    for token in _JSON_STRUCTURE.finditer(text):
        depth += 1 if token[0] in "[{" else -1 if token[0] in "]}" else 0
        if depth > _MAX_DEPTH:
            raise UnreadableMessages(_TOO_DEEP)
    try:
        return json.loads(text, strict=False)
    except ValueError:
        raise UnreadableMessages(_SHAPE) from None


def _json_of_python(text: str) -> str:
    """JSON for what `repr` wrote: lists, tuples, dictionaries, strings, numbers, None, True, False.

    Translated token by token: `ast.literal_eval` takes a hundred times the memory of its input, recurses
    with the nesting and warns about unknown escapes.
    """
    tokens: list[str] = []
    at = 0
    while at < len(text):
        match = _PYTHON_TOKEN.match(text, at)
        if match is None:
            raise UnreadableMessages(_SHAPE)
        at = match.end()
        string, mark, _space, word = match.groups()
        if string is not None:
            tokens.append(json.dumps(_PYTHON_ESCAPE.sub(_unescaped, string[1:-1])))
        elif mark is not None:
            mark = {"(": "[", ")": "]"}.get(mark, mark)
            if mark in "]}" and tokens and tokens[-1] == ",":
                tokens.pop()
            tokens.append(mark)
        elif word is not None:
            tokens.append(_PYTHON_WORDS.get(word, word))
    return "".join(tokens)


def _unescaped(match: re.Match[str]) -> str:
    escape = match[1]
    if escape[0] in "xuU":
        code = int(escape[1:], 16)
        return chr(code) if code <= 0x10FFFF else ""
    return _SIMPLE_ESCAPES.get(escape, escape)


def _role(item: Mapping[str, object]) -> Role | None:
    name = item.get("role")
    name = name.strip().casefold() if isinstance(name, str) else ""
    return None if name in _PROMPT_ROLES else _ROLES.get(name, "tool")


def _content(content: object) -> tuple[str, int]:
    """The text of a message's content and how many of its parts are no text."""
    if isinstance(content, Mapping):
        content = [content]
    if not isinstance(content, list | tuple):
        return _scalar(content) or "", 0
    texts = [_part(part) for part in content]
    said = [text for text in texts if text]
    return "\n".join(said), len(texts) - len(said)


def _part(part: object) -> str | None:
    if not isinstance(part, Mapping):
        return _scalar(part)
    kind = part.get("type", "text")
    if not isinstance(kind, str) or kind not in _TEXT_PARTS:
        return None
    text = part.get("refusal" if kind == "refusal" else "text")
    if isinstance(text, Mapping):  # {"type": "text", "text": {"value": "…", "annotations": []}}
        text = text.get("value")
    return text if isinstance(text, str) else None


def _scalar(value: object) -> str | None:
    if isinstance(value, str):
        return value
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, bool | float) or (isinstance(value, int) and value.bit_length() <= 256):
        return json.dumps(value)
    return None


# --- Turns and their text -------------------------------------------------------------------------------
_INDENT = "  "
_OUTDENTED = regex.compile(r"\n(?=[^\n])|[\u2028\u2029\x85]")
_INDENTED = regex.compile(r"(\n|[\u2028\u2029\x85]) {2}")
_LABELS: Final[dict[str, Role]] = {
    label.strip(): role for labels in LABELS.values() for role, label in labels.items()
}
_LABEL = regex.compile(r"(?m)^(?:(User:|Assistant:|Tool:)(?: |$)|(用户：|助手：|工具：))")


def split_turns(messages: Sequence[Message]) -> list[Turn]:
    """The messages as turns: one begins at each user message that follows a message of somebody else."""
    turns: list[list[Message]] = []
    for before, message in zip((None, *messages), messages, strict=False):
        if before is None or (message.role == "user" and before.role != "user"):
            turns.append([])
        turns[-1].append(message)
    return [Turn(tuple(turn)) for turn in turns]


def render(turn: Turn) -> str:
    """The turn as it is stored and searched: "User: …", "Assistant: …", each message on lines of its own; in
    a turn that is mainly Chinese "用户：…", "助手：…".

    Only labels stand at the beginning of a line: the further lines of a message are indented by two spaces,
    so no text can put words into another's mouth. `parse_rendered` gives the messages back unchanged.
    """
    labels = LABELS[language_of(" ".join(message.text[:1000] for message in turn.messages))]
    return "\n".join(labels[m.role] + _OUTDENTED.sub(rf"\g<0>{_INDENT}", m.text) for m in turn.messages)


def parse_rendered(text: str) -> list[Message]:
    """Who said what in a text made by `render`; [] for a text that does not begin with a speaker."""
    labels = list(_LABEL.finditer(text))
    if not labels or labels[0].start() != 0:
        return []
    ends = [label.start() - 1 for label in labels[1:]] + [len(text)]
    return [
        Message(_LABELS[label[1] or label[2]], _INDENTED.sub(r"\1", text[label.end() : end]))
        for label, end in zip(labels, ends, strict=True)
    ]


def render_parts(turn: Turn, max_chars: int) -> list[str]:
    """`render`, as several texts of at most `max_chars` (>= 100) characters if one is too long.

    Each part names its speakers; the texts of the parsed parts, put together, are the turn's.
    """
    if max_chars < 100:
        raise ValueError("a part needs at least 100 characters")
    whole = render(turn)
    if len(whole) <= max_chars:
        return [whole]
    parts: list[str] = []
    for piece in (
        piece for message in turn.messages for piece in _pieces(message, max_chars, max_chars - 20)
    ):
        if parts and len(parts[-1]) + 1 + len(piece) <= max_chars:
            parts[-1] += "\n" + piece
        else:
            parts.append(piece)
    return parts


def _pieces(message: Message, max_chars: int, text_chars: int) -> Iterator[str]:
    for text in split_long(message.text, text_chars):
        piece = Message(message.role, text)
        rendered = render(Turn((piece,)))
        if len(rendered) <= max_chars:
            yield rendered
        else:  # indentation: at most three times the text
            yield from _pieces(piece, max_chars, max(1, text_chars // 2))
