"""Words for ranking: Latin words by a light stem, Han characters alone and in pairs, what is asked for."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

import regex

_HAN: Final = r"\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\u3040-\u30ff"
RUN: Final = regex.compile(rf"[{_HAN}]+|[^\W_{_HAN}]+")
_WORD: Final = regex.compile(rf"[^\W_{_HAN}]+")
IS_HAN: Final = regex.compile(rf"[{_HAN}]")
# Words of a question's form, not of its matter. Longer ones first: an alternation takes the first that fits.
_HAN_FORM: Final = regex.compile(
    "叫什么名字|什么名字|什么时候|为什么|什么|怎么样|怎么|怎样|多少|多久|哪里|哪儿|哪个|哪些|哪天|哪年|哪家|哪位|哪"
    "|谁|请问|是不是|有没有|是否|告诉我|记得|几号|几点|[我你您他她它的了是吗呢吧啊呀这那几在]"
)
_LATIN_FORM_WORDS: Final = """
a an the i me my mine we our us you your he him his she her it its they them their this that these those is am
are was were be been being do does did done have has had having will would shall should can could may might
must of in on at to for from by with about as into than then so and or but if not no nor what which who whom
whose when where why how there here any some all just ever never get got s t re ve ll d m
"""
_LATIN_FORM: Final = frozenset(_LATIN_FORM_WORDS.split())
_SUFFIXES: Final = (("ies", "y"), ("sses", "ss"), ("ing", ""), ("ed", ""), ("ly", ""), ("es", ""), ("s", ""))


# What a question asks for, and what a text that answers it holds.
_ASKS_NUMBER: Final = regex.compile(
    r"多少|几|多大|多久|多长|哪天|哪一天|什么时候|日期|哪年"
    r"|\b(?:how (?:many|much|old|long|tall|fast|big|cold|wide|often)|number|rate|score|when)\b"
    r"|\b(?:what|which) date\b"
)
_ASKS_NAME: Final = regex.compile(r"叫什么|名字|姓什么|贵姓|谁|\b(?:who|whose|name|called)\b")
_NUMBER: Final = regex.compile(
    r"\p{N}|[一二两三四五六七八九十百千万]"
    r"|\b(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|\w+teen|\w+ty|hundred|thousand|half)\b"
)
_NAME: Final = regex.compile(r"叫|姓|\bcalled\b|\bnamed?\b|(?<=[\p{Ll},] )\p{Lu}\p{Ll}{2,}")


def fits(query: str, text: str) -> int:
    """1 if the query asks for a number or a name and the text has one, -1 if it has none, 0 if neither."""
    lowered = query.lower()
    if _ASKS_NUMBER.search(lowered):
        return 1 if _NUMBER.search(text.lower()) else -1
    if _ASKS_NAME.search(lowered):
        return 1 if _NAME.search(text) else -1
    return 0


def query_terms(query: str) -> dict[str, float]:
    """The query's words with their weights: stems of Latin words, Han characters and pairs of them."""
    terms: dict[str, float] = {}
    for run in RUN.findall(query.lower()):
        if not IS_HAN.match(run):
            if run not in _LATIN_FORM and (len(run) > 1 or run.isdigit()):
                terms.setdefault(_stem(run), 1.0)
            continue
        for piece in _HAN_FORM.split(run):
            for i, char in enumerate(piece):
                terms.setdefault(char, 0.35 if len(piece) > 1 else 0.6)
                if i + 1 < len(piece):
                    terms.setdefault(piece[i : i + 2], 1.0)
    return terms


def counts_of(lowered: str, terms: Mapping[str, float]) -> dict[str, int]:
    """How often each term stands in a text. Looks for the query's terms only, so the cost stays linear."""
    counts: dict[str, int] = {}
    stems: list[str] | None = None
    for term in terms:
        # A stem is a piece of its word, except where "y" replaced "ies".
        if (term[:-1] if term[-1] == "y" else term) not in lowered:
            continue
        if IS_HAN.match(term):
            counts[term] = lowered.count(term)
            continue
        if stems is None:
            stems = [_stem(word) for word in _WORD.findall(lowered)]
        if count := stems.count(term):
            counts[term] = count
    return counts


@lru_cache(maxsize=20_000)
def _stem(word: str) -> str:
    """A light stem: plurals, -ing, -ed, -ly and a final e go; nothing is looked up."""
    if len(word) == 4 and word.endswith("s") and word[-2] != "s":
        return word[:-1]
    if len(word) <= 4:
        return word
    for suffix, instead in _SUFFIXES:
        if word.endswith(suffix) and len(word) - len(suffix) >= 3 and not word.endswith(("ss", "us")):
            word = word[: -len(suffix)] + instead
            break
    if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "lsz":
        word = word[:-1]
    return word[:-1] if len(word) > 4 and word.endswith("e") else word


def tokens_of(pieces: Sequence[str]) -> list[str]:
    tokens: list[str] = []
    for piece in pieces:
        if not IS_HAN.match(piece):
            if piece not in _LATIN_FORM:
                tokens.append(_stem(piece))
        elif len(piece) == 1:
            tokens.append(piece)
        else:
            tokens.extend(piece[i : i + 2] for i in range(len(piece) - 1))
    return tokens
