"""The messages of a chat: what is asked, where memory goes in, and what of it is one turn. Pure functions.

Nothing here changes what it is given: the caller's messages are stored as they were said.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, TypeGuard

Chat = Sequence[Mapping[str, Any]]

_PROMPTS: Final = frozenset({"system", "developer"})
_MAX_DEPTH: Final = 64
# What a tool said is context for the turn, not the turn.
_MOST_TOOL_CHARS: Final = 4000


def is_chat(messages: object) -> TypeGuard[list[dict[str, Any]]]:
    """Whether it is a list of messages as a model takes it."""
    return (
        isinstance(messages, list)
        and bool(messages)
        and all(isinstance(message, Mapping) and isinstance(message.get("role"), str) for message in messages)
    )


def sound(value: Any, depth: int = 0) -> Any:
    """A request without lone surrogates, which JSON can carry and no model can be sent.

    Raises `ValueError` for what is nested deeper than any request.
    """
    if depth > _MAX_DEPTH:
        raise ValueError("nested too deeply")
    if isinstance(value, str):
        if value.isascii():
            return value
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "ignore")
    if isinstance(value, list):
        return [sound(item, depth + 1) for item in value]
    if isinstance(value, dict):
        return {sound(name, depth + 1): sound(item, depth + 1) for name, item in value.items()}
    return value


def text_of(content: object) -> str:
    """The words of a message's content: a text, or parts of which only the texts count."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    texts = (part.get("text") for part in content if isinstance(part, Mapping))
    return "\n".join(text for text in texts if isinstance(text, str))


def is_check(messages: Chat) -> bool:
    """Whether it is the question by which Dify checks a model and its key: `ping`, and nothing else."""
    said = [message for message in messages if message["role"] not in _PROMPTS]
    return len(said) == 1 and text_of(said[0].get("content")).strip().lower() == "ping"


def query_of(messages: Chat) -> str:
    """The words of the last user message; empty if there are none."""
    last = _last_user(messages)
    return "" if last is None else text_of(messages[last].get("content")).strip()


def _last_user(messages: Chat) -> int | None:
    return next((at for at in reversed(range(len(messages))) if messages[at]["role"] == "user"), None)


def with_block(messages: Chat, block: str, where: Literal["system", "user"]) -> list[dict[str, Any]]:
    """The messages with a memory block: at the end of the system message or before the user's last words.

    The system message that is there is used, since many models take one only, and only as the first.
    """
    new = [dict(message) for message in messages]
    if not block:
        return new
    last = _last_user(messages)
    if where == "user" and last is not None:
        new[last]["content"] = _joined(block, new[last].get("content"), is_first=True)
    elif new and new[0]["role"] in _PROMPTS:
        new[0]["content"] = _joined(block, new[0].get("content"), is_first=False)
    else:
        new.insert(0, {"role": "system", "content": block})
    return new


def _joined(block: str, content: object, *, is_first: bool) -> object:
    if isinstance(content, list):
        part = {"type": "text", "text": block}
        return [part, *content] if is_first else [*content, part]
    text = text_of(content)
    if not text:
        return block
    return f"{block}\n\n{text}" if is_first else f"{text}\n\n{block}"


def turn_of(messages: Chat, answer: Mapping[str, Any]) -> list[dict[str, str]]:
    """What was said last, what tools were asked and said about it, and the answer, as texts.

    Only that: all before it was stored when it was said. User messages that follow one another belong
    together. Empty without a user message.
    """
    last = _last_user(messages)
    if last is None:
        return []
    while last and messages[last - 1]["role"] == "user":
        last -= 1
    said = []
    for message in (*messages[last:], {**answer, "role": "assistant"}):
        text = text_of(message.get("content"))
        if message["role"] in ("tool", "function"):
            text = text[:_MOST_TOOL_CHARS]
        calls = _calls_of(message)
        said.append({"role": str(message["role"]), "content": "\n".join(filter(None, (text, *calls)))})
    return [message for message in said if message["content"].strip() and message["role"] not in _PROMPTS]


def _calls_of(message: Mapping[str, Any]) -> list[str]:
    """Each call of a tool as one line."""
    functions = [call.get("function") for call in mappings(message.get("tool_calls"))]
    functions.append(message.get("function_call"))
    return [
        f"[{function.get('name', 'tool')}({str(function.get('arguments') or '')[:_MOST_TOOL_CHARS]})]"
        for function in functions
        if isinstance(function, Mapping)
    ]


def is_forced(tool_choice: object) -> bool:
    """Whether the call of a tool is itself the answer: nobody will come back with its result for sure."""
    return tool_choice == "required" or isinstance(tool_choice, Mapping)


class AnswerSoFar:
    """The first choice of a streamed answer, put together again.

    Models send chunks of all shapes; what cannot be read in one is passed over.
    """

    def __init__(self) -> None:
        self._text: list[str] = []
        self._calls: dict[int, _Call] = {}
        self._function = _Call()
        self.finish_reason: str | None = None

    def take(self, chunk: Mapping[str, Any]) -> None:
        """One chunk more."""
        for choice in mappings(chunk.get("choices")):
            if choice.get("index") not in (0, None):
                continue
            if isinstance(reason := choice.get("finish_reason"), str) and reason:
                self.finish_reason = reason
            delta = choice.get("delta")
            if not isinstance(delta, Mapping):
                continue
            if text := text_of(delta.get("content")):
                self._text.append(text)
            for call in mappings(delta.get("tool_calls")):
                index = call.get("index")
                known = self._calls.setdefault(index if isinstance(index, int) else 0, _Call())
                known.take(call.get("function"))
            # As it was before there were tools.
            self._function.take(delta.get("function_call"))

    @property
    def message(self) -> dict[str, Any]:
        """What was said so far."""
        # Half a character may have come with one chunk and the other half with the next.
        said: dict[str, Any] = {"content": sound("".join(self._text))}
        if self._calls:
            said["tool_calls"] = [{"function": call.function} for call in self._calls.values()]
        if self._function.is_begun:
            said["function_call"] = self._function.function
        return said


class _Call:
    """The call of a function, put together again."""

    def __init__(self) -> None:
        self.function = {"name": "", "arguments": ""}
        self.is_begun = False

    def take(self, part: object) -> None:
        """One part more."""
        if isinstance(part, Mapping):
            self.is_begun = True
            for name, known in self.function.items():
                more = part.get(name)
                self.function[name] = known + more if isinstance(more, str) else known


def mappings(value: object) -> Iterator[Any]:
    """The objects in what should be a list of them."""
    return (item for item in value if isinstance(item, Mapping)) if isinstance(value, list) else iter(())
