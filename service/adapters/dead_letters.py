"""Dead letters: accepted turns that could not be stored, kept in the turns log until somebody decides."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from service import keyspace
from service.adapters.turns import UNFINISHED_JOB_TTL_S, Turn, TurnsLog
from service.adapters.turns_types import turn_of
from service.scope import BankId, DocumentId, JobId

# One script call holds Redis up for no more than this many.
_CHUNK = 200


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A turn that could not be stored; `tenant` is empty when its job was no longer known."""

    turn: Turn
    bank: BankId
    tenant: str
    reason: str


class DeadLetters:
    """The dead letters of a turns log. Every method raises `TurnsLogUnavailable` like the log's own.

    A letter whose words were forgotten since is none: whoever comes across one drops it, and its job ends
    `cancelled`. A forget itself takes those that the bank lists, which a worker of an older version does not.
    """

    def __init__(self, log: TurnsLog) -> None:
        self._log = log

    async def page(
        self, *, cursor: str = "", limit: int = 100, bank: BankId | None = None
    ) -> tuple[list[DeadLetter], str]:
        """About `limit` letters from `cursor` on, and the next cursor, empty at the end.

        Every letter that is there all the while is on some page; one may be on two.
        """
        keys = [keyspace.DEAD, *([keyspace.dead_of(bank)] if bank else [])]
        next_cursor, flat = await self._log.run("letters_page", keys, [*_prefixes(), cursor or "0", limit])
        return list(_letters(flat)), "" if next_cursor == "0" else next_cursor

    async def find(self, documents: Iterable[DocumentId]) -> list[DeadLetter]:
        """Those of the documents that are dead letters."""
        found: list[DeadLetter] = []
        for chunk in _chunks(list(documents)):
            found += _letters(await self._log.run("letters_find", [keyspace.DEAD], [*_prefixes(), *chunk]))
        return found

    async def replay(self, letters: Iterable[DeadLetter]) -> int:
        """Put letters back into their conversations, in order, and revive their jobs; how many there were.

        Repeating it changes nothing: what is no longer a dead letter is left alone.
        """
        revived = 0
        for bank, documents in _by_bank(letters):
            for chunk in _chunks(documents):
                revived += await self._log.run(
                    "revive",
                    [
                        keyspace.DEAD,
                        keyspace.dead_of(bank),
                        keyspace.turns(bank),
                        keyspace.conversations(bank),
                        keyspace.batch(bank),
                        keyspace.DUE,
                        keyspace.CLAIMS,
                        keyspace.WAITING,
                        keyspace.forgotten(bank),
                    ],
                    [
                        bank,
                        keyspace.job(JobId("")),
                        UNFINISHED_JOB_TTL_S,
                        *self._log.debounce.arguments,
                        *chunk,
                    ],
                )
        return revived

    async def drop(self, letters: Iterable[DeadLetter]) -> int:
        """Drop letters for good; how many there were."""
        dropped = 0
        for bank, documents in _by_bank(letters):
            for chunk in _chunks(documents):
                dropped += await self._log.run(
                    "drop", [keyspace.DEAD, keyspace.dead_of(bank)], [bank, *chunk]
                )
        return dropped


def _prefixes() -> tuple[str, str, str]:
    """Of the keys that the scripts make of what a letter says: its bank's letters and marks, its job."""
    return keyspace.dead_of(BankId("")), keyspace.forgotten(BankId("")), keyspace.job(JobId(""))


def _letters(flat: Sequence[str]) -> Iterator[DeadLetter]:
    for document, tenant, letter in zip(flat[::3], flat[1::3], flat[2::3], strict=True):
        bank, reason, turn = letter.split("\n", 2)
        yield DeadLetter(turn_of(document, turn), BankId(bank), tenant, reason)


def _by_bank(letters: Iterable[DeadLetter]) -> Iterator[tuple[BankId, list[DocumentId]]]:
    ordered = sorted(letters, key=lambda letter: (letter.bank, letter.turn.number))
    for bank, group in groupby(ordered, key=lambda letter: letter.bank):
        yield bank, [letter.turn.document_id for letter in group]


def _chunks(documents: Sequence[DocumentId]) -> Iterator[Sequence[DocumentId]]:
    for start in range(0, len(documents), _CHUNK):
        yield documents[start : start + _CHUNK]
