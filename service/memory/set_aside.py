"""Memories that were taken out of what is recalled, and taking one back.

Set aside, not deleted, are memories that newer ones made outdated, and what Hindsight has extracted of a kind
or importance that is not kept; each with its reason, until the turn they come from is forgotten or too old.
A language model decides what is outdated, so that somebody must be able to say that it was wrong.
"""

from contextlib import suppress
from typing import Final

from service.adapters.cache import RecallCache
from service.adapters.hindsight_curate import HindsightCurate, SetAside
from service.errors import CacheUnavailable, NotFound
from service.scope import BankId

_PAGE: Final = 100
# What `HindsightEraser.blank` leaves: nobody gets that back.
_FORGOTTEN: Final = "forgotten"


async def all_set_aside(bank: BankId, curate: HindsightCurate, most: int) -> list[SetAside]:
    """The newest of them, what was forgotten left out. Raises `HindsightUnavailable`."""
    found: list[SetAside] = []
    offset = 0
    while len(found) < most:
        page = await curate.set_aside(bank, limit=_PAGE, offset=offset)
        found += [one for one in page if one.reason != _FORGOTTEN]
        offset += len(page)
        if len(page) < _PAGE:
            break
    return found[:most]


async def restore(bank: BankId, memory_id: str, curate: HindsightCurate, cache: RecallCache) -> None:
    """Let a memory be recalled again. What has replaced it stays; forget that if it is wrong.

    Raises `NotFound` for one that was not set aside (or was forgotten), `HindsightUnavailable`.
    """
    reason = await curate.why_set_aside(bank, memory_id)
    if reason is None or reason == _FORGOTTEN:
        raise NotFound("No such memory of this user was set aside.")
    await curate.restore(bank, memory_id)
    # Without the cache, answers that it holds show the memory when they expire.
    with suppress(CacheUnavailable):
        await cache.note_write(bank)
