"""What was promised to whom, and whether it is kept. Every turn says whose it is and which."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from service.scope import bank_of

from tests.fakes.hindsight_store import Bank

# sent: no answer came, it may be there or not. kept: acknowledged. doubtful: a forget that was never
# confirmed may have taken it. forgotten: a forget was confirmed.
State = Literal["sent", "kept", "doubtful", "forgotten"]

_MARK = re.compile(r"u(\d+)t(\d+)\b")


def marked(user: int, turn: int, words: str) -> str:
    """What a user says in a turn."""
    return f"u{user}t{turn} {words}."


@dataclass
class Turn:
    """One turn of a user."""

    conversation: int
    state: State = "sent"


@dataclass
class Ledger:
    """All turns of all users; breaches are sentences without end: the kind, then what was seen."""

    turns: dict[int, list[Turn]] = field(default_factory=dict)
    breaches: list[tuple[str, str]] = field(default_factory=list)

    def add(self, user: int, conversation: int) -> int:
        """A new turn's number."""
        turns = self.turns.setdefault(user, [])
        turns.append(Turn(conversation))
        return len(turns) - 1

    def acknowledge(self, user: int, turn: int) -> None:
        """It was accepted."""
        self.turns[user][turn].state = "kept"

    def meant(self, user: int, conversation: int | None) -> list[Turn]:
        """What a forget of one conversation, or of everything, is about."""
        return [turn for turn in self.turns.get(user, []) if conversation in (None, turn.conversation)]

    def check_recall(self, user: int, texts: Iterable[str]) -> None:
        """Nobody else's, nothing forgotten, nothing that was never said."""
        for text in texts:
            for found in _MARK.finditer(text):
                whose, number = int(found[1]), int(found[2])
                turns = self.turns.get(user, [])
                if whose != user:
                    self.breaches.append(("another's memory", f"u{user} was told {found[0]}"))
                elif number >= len(turns):
                    self.breaches.append(("never said", f"{found[0]}"))
                elif turns[number].state == "forgotten":
                    self.breaches.append(("forgotten and recalled", f"{found[0]}"))

    def check_stored(self, banks: Mapping[str, Bank]) -> Counter[str]:
        """Each acknowledged turn once, no forgotten one, nothing else; how many of each kind there were."""
        counts: Counter[str] = Counter()
        for user, turns in self.turns.items():
            bank = banks.get(bank_of("default", f"user-{user}"))
            documents = bank.documents.values() if bank is not None else ()
            marks: Counter[tuple[int, int]] = Counter()
            for document in documents:
                marks.update((int(who), int(number)) for who, number in _MARK.findall(document.text))
            for number, turn in enumerate(turns):
                times = marks.pop((user, number), 0)
                counts[turn.state] += 1
                name = f"u{user}t{number} is there {times} times"
                if turn.state == "kept" and times != 1:
                    self.breaches.append(("lost" if not times else "stored twice", name))
                elif turn.state == "forgotten" and times:
                    self.breaches.append(("forgotten and stored", name))
                elif times > 1:
                    self.breaches.append(("stored twice", name))
            self.breaches += [("another's memory", f"u{user} has {mark}") for mark in marks]
        return counts
