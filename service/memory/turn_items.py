"""A turn as Hindsight stores it.

The worker and the way past the log (see `fallback`) both write it like this, so that a turn which comes both
ways is one document with one text.
"""

from collections.abc import Sequence

from service.adapters.hindsight import Item
from service.adapters.turns import NewTurn, Turn
from service.scope import ConversationId

# Context helps extraction to resolve "it" and "there"; two short turns do.
_CONTEXT_TURNS = 2
_CONTEXT_CHARS = 600


def turn_item(
    turns: Sequence[NewTurn] | Sequence[Turn], place: int, conversation: ConversationId, accepted_at: str
) -> Item:
    """The document of `turns[place]`; the few turns before it travel along as context.

    `accepted_at` (ISO 8601) stands in for when it was said, where nobody told.
    """
    turn = turns[place]
    before = turns[max(0, place - _CONTEXT_TURNS) : place]
    return Item(
        document_id=turn.document_id,
        text=turn.text,
        said_at=turn.said_at or accepted_at,
        context="\n".join(earlier.text[:_CONTEXT_CHARS] for earlier in before),
        tags=(*turn.tags, conversation),
        metadata=turn.metadata or {},
    )
