"""Redaction of what a request brings, without holding up who is served at the same time."""

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

Result = TypeVar("Result")

# Redacting this much takes some milliseconds at most.
_INLINE_CHARS: Final = 2_000


async def off_loop(chars: int, work: Callable[[], Result]) -> Result:
    """What `work` makes of that many characters; in a thread where it may take long.

    A hostile text takes many times as long as an ordinary one, and recalls have deadlines.
    """
    return work() if chars <= _INLINE_CHARS else await asyncio.to_thread(work)
