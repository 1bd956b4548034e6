"""What a language model said about turns becomes facts that may be stored; nothing of it is believed.

A fact must be about words the user has said, of a kind and importance the tenant keeps, and no instruction.
It may outdate only memories that were shown, about the same person, and only a few.
"""

import json
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import regex

from service.policy.block import strip_blocks
from service.policy.content import clean
from service.policy.extraction import Known, Spoken, Subject
from service.policy.extraction_grounds import is_grounded, matter_of
from service.policy.extraction_polarity import is_turned
from service.policy.extraction_subject import is_told_of, others_in
from service.policy.kinds import KeepPolicy, as_importance
from service.policy.lexicon import IS_HAN
from service.policy.sentences import sentence_ends
from service.policy.takeover import is_instruction_like

Reason = Literal[
    "ignored", "shape", "kind", "importance", "source", "ungrounded", "subject", "instruction", "repeated",
    "too_many",
]  # fmt: skip
_MOST_ANSWER_CHARS: Final = 200_000
_MOST_TEXT_CHARS: Final = 500
_FACTS_PER_TURN: Final = 6
_LEAST_FACTS: Final = 10
# Characters of a turn that a fact is compared with, around its source.
_MOST_READ: Final = 2000
_NEAR: Final = 5
_MOST_REPLACED_BY_ONE: Final = 3
_MOST_REPLACED: Final = 10
_LIST: Final = regex.compile(r'"(?:facts|memories)"\s*:\s*\[')
_SILENT: Final = regex.compile(r"[^\p{L}\p{N}]++")
# "2", "[2]", "#2", "memory 2": a number on its own. One out of an id that was made up is nobody's.
_NUMBER: Final = regex.compile(
    r"\W*(?:(?:memory|known|no|number|id|记忆|第)\W*)?(\d{1,3})\W*", regex.IGNORECASE
)


class UnusableAnswer(ValueError):
    """The answer holds no list of facts; the text says why and never what was answered."""


@dataclass(frozen=True, slots=True)
class Fact:
    """One memory to store: `turn` and `replaces` are positions, from 0, in what the model was shown."""

    turn: int
    text: str
    kind: str
    importance: float
    subject: Subject
    replaces: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Dropped:
    """A fact that is not stored, and why; `text` is for people who try a policy out, never for a log."""

    reason: Reason
    text: str


@dataclass(frozen=True, slots=True)
class Vetted:
    """What is left of an answer."""

    facts: tuple[Fact, ...]
    dropped: tuple[Dropped, ...]


@dataclass(frozen=True, slots=True)
class _Said:
    """What the user said in one turn, its letters and digits only, and its sentences in both forms."""

    text: str
    spelled: str
    sentences: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, text: str) -> "_Said":
        ends = sentence_ends(text)
        pieces = [text[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
        return cls(text, _spelled(text), tuple((_spelled(piece), piece) for piece in pieces))

    def around(self, source: str) -> tuple[str, str]:
        """The sentence that holds `source` (a quotation may leave its subject out), and all around it."""
        words = _spelled(source)
        at = next((n for n, (spelled, _) in enumerate(self.sentences) if words in spelled), None)
        sentence = source if at is None or len(self.sentences[at][1]) > _MOST_READ else self.sentences[at][1]
        if len(self.text) <= _MOST_READ:
            return sentence, self.text
        near = () if at is None else self.sentences[max(0, at - _NEAR) : at + _NEAR]
        return sentence[:_MOST_READ], "".join([source, "\n", *(piece for _, piece in near)])[:_MOST_READ]


def read_answer(text: str) -> list[object]:
    """The facts an answer lists, whatever they are.

    Understood are the object that was asked for, a bare array, one fact alone, each also between prose or in
    a code fence, and lists that were cut off: what is complete of them counts. Raises `UnusableAnswer`.
    """
    text = text[:_MOST_ANSWER_CHARS].strip().lstrip("\ufeff")
    if not text:
        raise UnusableAnswer("The LLM's answer is empty.")
    starts = [at for at in (text.find("{"), text.find("[")) if at >= 0]
    if not starts:
        raise UnusableAnswer("The LLM's answer is not JSON.")
    if listed := _LIST.search(text):
        found = _decoded(text, listed.end() - 1)
        return list(found) if isinstance(found, list) else _complete_ones(text, listed.end())
    found = _decoded(text, min(starts))
    if isinstance(found, list):
        return list(found)
    if isinstance(found, dict) and "text" in found:
        return [found]
    if found is None and text[min(starts)] == "[":
        return _complete_ones(text, min(starts) + 1)
    raise UnusableAnswer("The LLM's answer holds no facts.")


def _decoded(text: str, at: int) -> Any:
    try:
        return json.JSONDecoder(strict=False).raw_decode(text, at)[0]
    except (ValueError, RecursionError):
        return None


def _complete_ones(text: str, at: int) -> list[object]:
    decoder = json.JSONDecoder(strict=False)
    found: list[object] = []
    while (begin := text.find("{", at)) >= 0:
        try:
            one, at = decoder.raw_decode(text, begin)
        except (ValueError, RecursionError):
            break
        found.append(one)
    if not found:
        raise UnusableAnswer("The LLM's answer is cut off or not JSON.")
    return found


def vet(
    items: Sequence[object], turns: Sequence[Spoken], known: Sequence[Known], policy: KeepPolicy
) -> Vetted:
    """The facts that may be stored, in the order of their turns, and the others."""
    said = [_Said.of(turn.user) for turn in turns]
    seen = {_spelled(one.text) for one in known}
    facts: list[Fact] = []
    dropped: list[Dropped] = []
    for item in items:
        fact = _fact(item, said, known, policy)
        if isinstance(fact, Fact) and _spelled(fact.text) in seen:
            fact = Dropped("repeated", fact.text)
        if isinstance(fact, Fact):
            seen.add(_spelled(fact.text))
            facts.append(fact)
        else:
            dropped.append(fact)
    most = max(_LEAST_FACTS, _FACTS_PER_TURN * len(turns))
    by_importance = sorted(facts, key=lambda fact: -fact.importance)
    dropped += [Dropped("too_many", fact.text) for fact in by_importance[most:]]
    kept = sorted(by_importance[:most], key=lambda fact: fact.turn)
    return Vetted(tuple(_with_few_replaced(kept)), tuple(dropped))


def _with_few_replaced(facts: Sequence[Fact]) -> list[Fact]:
    """No memory is replaced twice, and no flood of facts replaces a whole bank."""
    left: list[Fact] = []
    replaced: set[int] = set()
    for fact in facts:
        new = [one for one in fact.replaces if one not in replaced][: _MOST_REPLACED - len(replaced)]
        replaced.update(new)
        left.append(Fact(fact.turn, fact.text, fact.kind, fact.importance, fact.subject, tuple(new)))
    return left


def _fact(item: object, said: Sequence[_Said], known: Sequence[Known], policy: KeepPolicy) -> Fact | Dropped:
    if not isinstance(item, Mapping) or not isinstance(item.get("text"), str):
        return Dropped("shape", "")
    text = " ".join(strip_blocks(clean(item["text"])).split())
    if not _spelled(text) or len(text) > _MOST_TEXT_CHARS:
        return Dropped("shape", text[:_MOST_TEXT_CHARS])
    action = _word(item.get("action")) or "add"
    if action == "ignore":
        return Dropped("ignored", text)
    if action not in ("add", "supersede"):
        return Dropped("shape", text)
    kind = _word(item.get("kind")).replace(" ", "_")
    names = {one.name.casefold(): one.name for one in policy.kinds}
    importance = as_importance(item.get("importance"))
    if reason := policy.why_dropped(names.get(kind), importance):
        return Dropped("kind" if reason == "kind" else "importance", text)
    placed = _placed(item, text, said)
    if not isinstance(placed, tuple):
        return Dropped(placed, text)
    turn, source, subject = placed
    replaces = _replaced(item.get("replaces"), subject, known) if action == "supersede" else ()
    if _differs_in_script(text, source):
        # Another language than the user's: their own words are remembered instead.
        text = source[:_MOST_TEXT_CHARS]
    else:
        sentence, around = said[turn].around(source)
        around = "\n".join([around, *(known[one].text for one in replaces)])
        if not is_grounded(text, around) or is_turned(text, sentence, around, matter_of(text)):
            return Dropped("ungrounded", text)
    return Fact(turn, text, names[kind], importance or 0.0, subject, replaces)


def _placed(
    item: Mapping[str, object], text: str, said: Sequence[_Said]
) -> tuple[int, str, Subject] | Reason:
    """The turn a fact comes from, the words it comes from and whom it is about, if the user has said so."""
    source = item.get("source")
    turn = _turn_of(source, item.get("turn"), said)
    if turn is None or not isinstance(source, str):
        return "source"
    if is_instruction_like(text) or is_instruction_like(source):
        return "instruction"
    subject: Subject = "other" if _word(item.get("subject")) in ("other", "others") else "user"
    is_translated = _differs_in_script(text, source)
    who = others_in(said[turn].around(source)[0], matter_of(source if is_translated else text))
    if who is not None:
        if not is_translated and not is_told_of(who, text):
            return "subject"
        subject = "other"
    return turn, " ".join(source.split()), subject


def _spelled(text: str) -> str:
    """Letters and digits only, so that punctuation, width and case do not make a quotation a false one."""
    return _SILENT.sub("", unicodedata.normalize("NFKC", text).casefold())


def _word(value: object) -> str:
    return value.strip().casefold()[:100] if isinstance(value, str) else ""


def _turn_of(source: object, number: object, said: Sequence[_Said]) -> int | None:
    """The turn whose user said `source`: the one that the model names, else the last that holds the words."""
    if not isinstance(source, str):
        return None
    words = _spelled(source)
    if len(words) < 2:
        return None
    named = number - 1 if isinstance(number, int) and not isinstance(number, bool) else -1
    if 0 <= named < len(said) and words in said[named].spelled:
        return named
    return next((i for i in reversed(range(len(said))) if words in said[i].spelled), None)


def _differs_in_script(text: str, source: str) -> bool:
    return (IS_HAN.search(text) is None) != (IS_HAN.search(source) is None)


def _replaced(value: object, subject: Subject, known: Sequence[Known]) -> tuple[int, ...]:
    """Positions of the known memories that a fact may outdate: shown ones, about the same subject, a few."""
    values = value if isinstance(value, list) else [value]
    numbers: list[int] = []
    for one in values[:100]:
        if isinstance(one, str):
            match = _NUMBER.fullmatch(one[:40])
            one = int(match[1]) if match else None  # noqa: PLW2901
        if isinstance(one, float) and one.is_integer():
            one = int(one)  # noqa: PLW2901
        if isinstance(one, int) and not isinstance(one, bool) and 1 <= one <= len(known):
            numbers.append(one - 1)
    fitting = [one for one in dict.fromkeys(numbers) if known[one].subject == subject]
    return tuple(fitting[:_MOST_REPLACED_BY_ONE])
