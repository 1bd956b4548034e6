"""What an answer of a model behind `/v1` has cost in tokens, as far as the model says."""

from collections.abc import Mapping
from typing import Final, NamedTuple

# No answer costs as much; a number beyond would only spoil the sums.
_MOST: Final = 100_000_000


class ChatTokens(NamedTuple):
    """How many tokens a model was sent and has said (what it thinks is said); 0 where it does not tell."""

    sent: int = 0
    said: int = 0


def tokens_of(usage: object) -> ChatTokens | None:
    """The tokens in OpenAI's `usage` of an answer or a chunk; None if it says nothing of them."""
    if not isinstance(usage, Mapping):
        return None
    sent, said, total = (
        _count(usage.get(name)) for name in ("prompt_tokens", "completion_tokens", "total_tokens")
    )
    # Some count what a model thinks in the sum alone, and some give nothing but the sum.
    found = ChatTokens(sent, max(said, total - sent))
    return found if any(found) else None


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        return 0
    return value if 0 <= value <= _MOST else 0
