"""From answers to numbers: hit@5, reciprocal rank, characters, withheld answers, each with an interval."""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from tests.bench.recall.dataset import Question

TOP: Final = 5
EXCERPT_CHARS: Final = 100
_ROUNDS: Final = 1000


@dataclass(frozen=True, slots=True)
class Memory:
    """One returned memory: the turn it came from and the text the caller would see."""

    turn: str | None
    text: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """A question and the whole reply to it, in order. `characters` is the size of the whole reply."""

    question: Question
    memories: tuple[Memory, ...]
    characters: int
    took_ms: float

    @property
    def rank(self) -> int | None:
        """The place, from 1, of the first memory from a turn that answers; None if there is none."""
        wanted = self.question.turns
        return next((place for place, memory in enumerate(self.memories, 1) if memory.turn in wanted), None)

    @property
    def is_hit(self) -> bool:
        """Whether a turn that answers is among the first five."""
        return self.rank is not None and self.rank <= TOP

    @property
    def has_words(self) -> bool:
        """Whether one of the first five from a turn that answers shows it in its first 100 characters."""
        return any(
            memory.turn in self.question.turns
            and any(word.lower() in memory.text[:EXCERPT_CHARS].lower() for word in self.question.words)
            for memory in self.memories[:TOP]
        )


@dataclass(frozen=True, slots=True)
class Figure:
    """A mean, its bootstrap interval (95%) and how many questions stand behind it."""

    mean: float
    low: float
    high: float
    count: int


def measure(outcomes: Sequence[Outcome]) -> dict[str, Figure]:
    """The figures of one set of outcomes; those without a question behind them are left out."""
    answerable = [outcome for outcome in outcomes if outcome.question.turns]
    unanswerable = [outcome for outcome in outcomes if not outcome.question.turns]
    figures = {
        "hit_at_5": _figure(answerable, lambda o: float(o.is_hit)),
        "mrr": _figure(answerable, lambda o: 1 / o.rank if o.rank else 0.0),
        "words_at_5": _figure(answerable, lambda o: float(o.has_words)),
        "characters": _figure(answerable, lambda o: float(o.characters)),
        "withheld": _figure(unanswerable, lambda o: float(not o.memories)),
    }
    return {name: figure for name, figure in figures.items() if figure.count}


def groups(outcomes: Iterable[Outcome]) -> dict[str, list[Outcome]]:
    """The outcomes by what one wants to look at: all, split, language, language in the split, type."""
    found: dict[str, list[Outcome]] = {"all": []}
    for outcome in outcomes:
        question = outcome.question
        names = (
            "all",
            question.split,
            question.language,
            f"{question.split} {question.language}",
            question.type,
        )
        for name in names:
            found.setdefault(name, []).append(outcome)
    return found


def _figure(outcomes: Sequence[Outcome], value: Callable[[Outcome], float]) -> Figure:
    values = [value(outcome) for outcome in outcomes]
    if not values:
        return Figure(0.0, 0.0, 0.0, 0)
    mean = sum(values) / len(values)
    dice = random.Random(7)  # The same interval for the same answers.
    means = sorted(sum(dice.choices(values, k=len(values))) / len(values) for _ in range(_ROUNDS))
    return Figure(mean, means[int(0.025 * _ROUNDS)], means[int(0.975 * _ROUNDS) - 1], len(values))
