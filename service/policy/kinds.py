"""Which memories are kept: their kinds, how much they matter, and how both are written on a memory.

A memory's kind is a tag, so that Hindsight can filter by it; its importance is metadata, or a tag where
Hindsight's own extraction has classified it. Both may come from outside, so that reading them never fails.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

KIND_TAG: Final = "memory_type:"
IMPORTANCE_TAG: Final = "importance:"
IMPORTANCE: Final = "importance"
SUBJECT: Final = "subject"
# Of a turn whose answer was cut off.
PARTIAL: Final = "partial"


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of memory; the descriptions tell a language model what belongs to it.

    `keep` False: recognised, so that it is not taken for another kind, and dropped.
    `retention_days`: not recalled any more after that many days, and deleted in the night after (see
    `memory/retention`); None: no limit of its own, only that of all that was said.
    """

    name: str
    description: str = ""
    description_zh: str = ""
    keep: bool = True
    retention_days: int | None = None


DEFAULT_KINDS: Final = (
    Kind(
        "user_profile",
        "Lasting facts about the user: name, home, work, family, health, means, skills.",
        "关于用户的长期事实：姓名、住处、工作、家庭、健康、经济状况、技能。",
    ),
    Kind(
        "preference",
        "What the user likes, dislikes, avoids or wants done in a certain way.",
        "用户喜欢、讨厌、回避的事物，或希望以某种方式处理的事情。",
    ),
    Kind(
        "task_state",
        "Goals, plans, constraints, decisions and progress of what the user is working on.",
        "用户正在进行的事情的目标、计划、限制、决定和进展。",
    ),
)
DEFAULT_THRESHOLD: Final = 0.5


@dataclass(frozen=True, slots=True)
class KeepPolicy:
    """What one tenant keeps: the kinds, and from which importance (0 to 1) on."""

    kinds: tuple[Kind, ...] = DEFAULT_KINDS
    threshold: float = DEFAULT_THRESHOLD

    @property
    def kept(self) -> frozenset[str]:
        """Names of the kinds that are kept and recalled."""
        return frozenset(kind.name for kind in self.kinds if kind.keep)

    def why_dropped(self, kind: str | None, importance: float | None) -> str:
        """Why such a memory is not kept; empty when it is. None: nobody has classified it."""
        if kind not in self.kept:
            return "kind"
        if importance is None or importance < self.threshold:
            return "importance"
        return ""

    def is_recalled(self, kind: str | None, said_at: datetime | None, now: datetime) -> bool:
        """Whether a stored memory may be part of an answer.

        Memories without a kind (turns kept word for word) are; the kind of the others must be kept and not
        be past its retention.
        """
        if kind is None:
            return True
        known = next((one for one in self.kinds if one.name == kind and one.keep), None)
        if known is None:
            return False
        if known.retention_days is None or said_at is None:
            return True
        return now - said_at <= timedelta(days=known.retention_days)


def kinds_named(names: Iterable[str]) -> tuple[Kind, ...]:
    """The kinds of these names: the default ones where they are known, else kinds described by their name."""
    known = {kind.name: kind for kind in DEFAULT_KINDS}
    return tuple(known.get(name) or Kind(name) for name in dict.fromkeys(names))


def kind_of(tags: Sequence[str]) -> str | None:
    """The kind a memory's tags name, if any."""
    return next((tag.removeprefix(KIND_TAG) for tag in tags if tag.startswith(KIND_TAG)), None)


def importance_of(metadata: Mapping[str, str], tags: Sequence[str] = ()) -> float | None:
    """The importance written on a memory, 0 to 1; None when there is none that can be read."""
    written = metadata.get(IMPORTANCE) or next(
        (tag.removeprefix(IMPORTANCE_TAG) for tag in tags if tag.startswith(IMPORTANCE_TAG)), ""
    )
    return as_importance(written)


def importance_of_sources(tags: Iterable[Sequence[str]]) -> float | None:
    """The highest importance among the tags of facts from which a memory was made; None without any."""
    found = (importance_of({}, of_one) for of_one in tags)
    return max((value for value in found if value is not None), default=None)


_WORDS: Final = {
    "critical": 0.9, "very high": 0.9, "high": 0.8, "medium": 0.5, "moderate": 0.5, "mid": 0.5,
    "normal": 0.5, "low": 0.2, "none": 0.0, "很高": 0.9, "高": 0.8, "中": 0.5, "低": 0.2,
}  # fmt: skip


def as_importance(value: object) -> float | None:
    """A number from 0 to 1 for what a model calls importance, or None for what means nothing.

    Words become numbers; a score out of 10 or 100 is not guessed at: more than 1 is refused, as are
    negative numbers, NaN and infinities.
    """
    if isinstance(value, str):
        text = value.strip().casefold()
        if text in _WORDS:
            return _WORDS[text]
        try:
            value = float(text)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return float(value) if 0 <= value <= 1 else None
