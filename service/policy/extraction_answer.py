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
from service.policy.kinds import KeepPolicy, as_importance
from service.policy.lexicon import IS_HAN, RUN, tokens_of
from service.policy.takeover import is_instruction_like

Reason = Literal[
    "ignored", "shape", "kind", "importance", "source", "ungrounded", "subject", "instruction", "repeated",
    "too_many",
]  # fmt: skip
_MOST_ANSWER_CHARS: Final = 200_000
_MOST_TEXT_CHARS: Final = 500
_FACTS_PER_TURN: Final = 6
_LEAST_FACTS: Final = 10
_MOST_REPLACED_BY_ONE: Final = 3
_MOST_REPLACED: Final = 10
_LIST: Final = regex.compile(r'"(?:facts|memories)"\s*:\s*\[')
_SILENT: Final = regex.compile(r"[^\p{L}\p{N}]++")
_NUMBER: Final = regex.compile(r"\d{1,3}")
_FIRST_PERSON: Final = regex.compile(r"[我俺咱]|\b(?:i|i['’]\p{L}+|me|myself|we|our)\b", regex.IGNORECASE)
_RELATIONS: Final = (
    "妈|爸|父|母|姐|妹|哥|弟|爷|奶|姥|外婆|外公|叔|姨|舅|姑|老婆|妻|老公|丈夫|女儿|儿子|孩子|同事|朋友|老板|邻居"
    "|室友|同学|mother|father|mom|mum|dad|sister|brother|aunt|uncle|wife|husband|daughter|son|child|friend|boss"
    "|colleague|coworker|neighbou?r|roommate|cousin|grandmother|grandfather|partner|girlfriend|boyfriend"
)
# "my sister …", "我姐姐…": a statement that begins with somebody else is about them.
_ABOUT_OTHERS: Final = regex.compile(
    r"^\W*(?:(?:but|and|so|well|但是?|不过|其实)\W*)?(?:my\s+(?:\w+\s+)?|我[的大小二三老亲表堂前好]{0,3}+)"
    rf"(?P<who>{_RELATIONS})",
    regex.IGNORECASE,
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
    said = [_spelled(turn.user) for turn in turns]
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


def _fact(item: object, said: Sequence[str], known: Sequence[Known], policy: KeepPolicy) -> Fact | Dropped:
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
    grounded = _grounded(item, text, said)
    if not isinstance(grounded, tuple):
        return Dropped(grounded, text)
    turn, text, subject = grounded
    replaces = _replaced(item.get("replaces"), subject, known) if action == "supersede" else ()
    return Fact(turn, text, names[kind], importance or 0.0, subject, replaces)


def _grounded(
    item: Mapping[str, object], text: str, said: Sequence[str]
) -> tuple[int, str, Subject] | Reason:
    """The turn a fact comes from, its text and whom it is about, if the user has said so."""
    source = item.get("source")
    turn = _turn_of(source, item.get("turn"), said)
    if turn is None or not isinstance(source, str):
        return "source"
    if is_instruction_like(text) or is_instruction_like(source):
        return "instruction"
    subject: Subject = "other" if _word(item.get("subject")) in ("other", "others") else "user"
    is_translated = _differs_in_script(text, source)
    about = _ABOUT_OTHERS.match(source)
    if about and not _FIRST_PERSON.search(source, about.end()):
        if about["who"].casefold() not in text.casefold() and not is_translated:
            return "subject"
        subject = "other"
    if is_translated:
        # Another language than the user's: their own words are remembered instead.
        text = " ".join(source.split())[:_MOST_TEXT_CHARS]
    elif not _shares_words(text, source):
        return "ungrounded"
    return turn, text, subject


def _spelled(text: str) -> str:
    """Letters and digits only, so that punctuation, width and case do not make a quotation a false one."""
    return _SILENT.sub("", unicodedata.normalize("NFKC", text).casefold())


def _word(value: object) -> str:
    return value.strip().casefold()[:100] if isinstance(value, str) else ""


def _turn_of(source: object, number: object, said: Sequence[str]) -> int | None:
    """The turn whose user said `source`: the one that the model names, else the last that holds the words."""
    if not isinstance(source, str):
        return None
    words = _spelled(source)
    if len(words) < 2:
        return None
    named = number - 1 if isinstance(number, int) and not isinstance(number, bool) else -1
    if 0 <= named < len(said) and words in said[named]:
        return named
    return next((i for i in reversed(range(len(said))) if words in said[i]), None)


def _differs_in_script(text: str, source: str) -> bool:
    return (IS_HAN.search(text) is None) != (IS_HAN.search(source) is None)


def _shares_words(text: str, source: str) -> bool:
    """Whether the memory says something of what its source says. Han characters count one by one."""
    return bool(_matter(text) & _matter(source))


_FORM_CHARS: Final = frozenset("我用户的了是在他她它们这那有不和")


def _matter(text: str) -> set[str]:
    pieces = RUN.findall(unicodedata.normalize("NFKC", text).casefold())
    words = {token for token in tokens_of(pieces) if not IS_HAN.match(token)}
    return words | {char for piece in pieces for char in piece if IS_HAN.match(char)} - _FORM_CHARS


def _replaced(value: object, subject: Subject, known: Sequence[Known]) -> tuple[int, ...]:
    """Positions of the known memories that a fact may outdate: shown ones, about the same subject, a few."""
    values = value if isinstance(value, list) else [value]
    numbers: list[int] = []
    for one in values[:100]:
        if isinstance(one, str):
            match = _NUMBER.search(one)
            one = int(match[0]) if match else None  # noqa: PLW2901
        if isinstance(one, float) and one.is_integer():
            one = int(one)  # noqa: PLW2901
        if isinstance(one, int) and not isinstance(one, bool) and 1 <= one <= len(known):
            numbers.append(one - 1)
    fitting = [one for one in dict.fromkeys(numbers) if known[one].subject == subject]
    return tuple(fitting[:_MOST_REPLACED_BY_ONE])
