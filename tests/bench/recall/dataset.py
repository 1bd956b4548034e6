"""The benchmark's conversations and questions, read from `corpus/*.yaml`.

A user has one or more files. A turn is one exchange: what the user wrote, what the assistant answered. Its id
is `<session>.<number>`, counted from 1. A question names the turns of which any one answers it; none means
that the user never said it.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import yaml

CORPUS: Final = Path(__file__).parent / "corpus"
QUESTION_TYPES: Final = ("literal", "paraphrase", "temporal", "updated", "cross-lingual", "unanswerable")
SPLITS: Final = ("dev", "held-out")
LANGUAGES: Final = ("zh", "en")


@dataclass(frozen=True, slots=True)
class Turn:
    """One exchange; `at` is when it was said."""

    id: str
    session: str
    user_text: str
    assistant_text: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Question:
    """A question of `user`; an excerpt that answers it holds at least one of `words`."""

    id: str
    user: str
    split: str
    language: str
    type: str
    text: str
    turns: tuple[str, ...]
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Person:
    """One user: the language of the conversations, the split, all turns in order, all questions."""

    user: str
    language: str
    split: str
    turns: tuple[Turn, ...]
    questions: tuple[Question, ...]

    @property
    def asked_at(self) -> datetime:
        """When the questions are asked: a week after the last session."""
        return self.turns[-1].at + timedelta(days=7)


def load(folder: Path = CORPUS) -> tuple[Person, ...]:
    """All users by name; a user's files are joined, the turns in the order of their dates.

    Raises KeyError or ValueError on a file that does not have the shape described above.
    """
    people: dict[str, Person] = {}
    for path in sorted(folder.glob("*.yaml")):
        part = _person(yaml.safe_load(path.read_text(encoding="utf-8")), path.stem)
        people[part.user] = _joined(people[part.user], part) if part.user in people else part
    return tuple(people.values())


def _joined(first: Person, second: Person) -> Person:
    if (first.language, first.split) != (second.language, second.split):
        raise ValueError(f"the files of {first.user} name different languages or splits")
    turns = tuple(sorted(first.turns + second.turns, key=lambda turn: turn.at))
    return replace(first, turns=turns, questions=first.questions + second.questions)


def _person(raw: dict[str, Any], path_stem: str) -> Person:
    turns: list[Turn] = []
    for session in raw["sessions"]:
        started: datetime = session["date"]
        for number, turn in enumerate(session["turns"], start=1):
            at = started + timedelta(minutes=2 * (number - 1))
            turns.append(Turn(f"{session['id']}.{number}", session["id"], turn["u"], turn["a"], at))
    questions = tuple(
        Question(
            id=f"{path_stem}-q{number:02d}",
            user=raw["user"],
            split=raw["split"],
            language=question.get("language", raw["language"]),
            type=question["type"],
            text=question["q"],
            turns=tuple(question["turns"]),
            words=tuple(word for entry in question.get("words", []) for word in entry.split("|")),
        )
        for number, question in enumerate(raw["questions"], start=1)
    )
    return Person(raw["user"], raw["language"], raw["split"], tuple(turns), questions)
