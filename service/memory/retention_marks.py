"""Whose banks are, asked of Hindsight shortly before that is gone by.

Its records by id are cached there, so that the exact question is a search of banks, which costs as much as
there are banks and documents, however few it finds (half a second at 50,000 banks with ten documents each).
One search therefore answers for all banks whose ids begin alike, and whoever works on many goes by their ids.
An answer holds for ten seconds, one that took more than five to find for twice that time: where a search is
slow, it would else be over as soon as it is there, and each bank be searched anew.
"""

from collections.abc import Callable, Mapping
from time import monotonic

from service.adapters.hindsight_review import HindsightReview
from service.scope import BANK_PREFIX, BankId

# How many banks an answer is about at most, and how many seconds it holds at least, from before it was asked.
_PAGE = 500
HOLDS_S = 10.0


class Marks:
    """What banks tell about whose they are (see `hindsight_review.StoredBank`)."""

    def __init__(
        self, review: HindsightReview, *, banks: int = 0, clock: Callable[[], float] = monotonic
    ) -> None:
        """`banks`: about how many there are, so that the first answer is not too long; it may be less."""
        self._review = review
        self._clock = clock
        self._digits = 1
        while banks > _PAGE * 16**self._digits:
            self._digits += 1
        self._prefix = ""
        self._holds_until = 0.0
        self._marks: Mapping[BankId, str] = {}

    async def of(self, bank: BankId) -> str | None:
        """The bank's mark; None: there is no such bank.

        At most `HOLDS_S` seconds old, or twice as old as the search for it took, if that is more.
        """
        is_fresh = self._clock() < self._holds_until
        if not (self._prefix and bank.startswith(self._prefix) and is_fresh):
            await self._ask(bank)
        return self._marks.get(bank)

    async def _ask(self, bank: BankId) -> None:
        while True:
            prefix = bank[: len(BANK_PREFIX) + self._digits]
            # What was true when the search began may not be when it ends.
            asked_at = self._clock()
            found, seen = await self._review.banks(limit=_PAGE, offset=0, prefix=prefix)
            if seen < _PAGE or prefix == bank:
                break
            self._digits += 1
        self._prefix = prefix
        self._holds_until = asked_at + max(HOLDS_S, 2 * (self._clock() - asked_at))
        self._marks = {one.id: one.mark for one in found}
