"""Where sentences end, and where a long text may be cut. Everything here takes time linear in its input."""

from typing import Final

import regex

_JOINS_LEFT = regex.compile(r"[\p{GCB=Extend}\p{GCB=ZWJ}\p{GCB=SpacingMark}]")
# Flags are taken pair by pair: for each, \X looks back over all flags before it (quadratic).
GRAPHEME = regex.compile(r"[\U0001F1E6-\U0001F1FF]{2}[\p{GCB=Extend}\p{GCB=ZWJ}\p{GCB=SpacingMark}]*+|\X")
_CLOSERS = r"[\"'”’」』）】》〉)\]]*+"
_FOLLOWS = r"(?:\s|$|[\p{Han}\p{Hiragana}\p{Katakana}「『《“])"
_SENTENCE_END = regex.compile(
    rf"(?:[。！？；…｡]|(?<![!?])[!?]++(?={_CLOSERS}{_FOLLOWS}))++{_CLOSERS}[^\S\n]*+\n*+"
    rf"|(?<!\.)\.++{_CLOSERS}(?={_FOLLOWS})[^\S\n]*+\n*+|\n++"
)
_WORD_BEFORE = regex.compile(r"(?r)[\p{L}\p{N}.]{1,12}")
_ABBREVIATIONS: Final = frozenset(
    (
        "mr",
        "mrs",
        "ms",
        "dr",
        "prof",
        "st",
        "vs",
        "e.g",
        "i.e",
        "fig",
        "no",
        "vol",
        "al",
        "approx",
        "dept",
        "cf",
    )
)
# These may end a sentence: they do when a capital follows.
_MAYBE_LAST: Final = frozenset(("etc", "inc", "ltd", "co", "corp", "jr", "sr", "a.m", "p.m", "u.s", "u.k"))


def sentence_ends(text: str) -> list[int]:
    """Where sentences end, in order, the white space behind them included; the last one is ``len(text)``.

    Chinese and Latin marks and line breaks end a sentence; the points of "Dr. Li", "3.5", "e.g. this", "J. R.
    Smith" and a list's "1. first" do not.
    """
    ends: list[int] = []
    begin = 0
    for match in _SENTENCE_END.finditer(text):
        end = match.end()
        if match[0][0] == "." and "\n" not in match[0] and _is_inner_point(text, begin, match.start(), end):
            continue
        if end < len(text) and _JOINS_LEFT.match(text, end):
            continue
        ends.append(end)
        begin = end
    if begin < len(text):
        ends.append(len(text))
    return ends


def _is_inner_point(text: str, begin: int, point: int, end: int) -> bool:
    before = _WORD_BEFORE.match(text, begin, point)
    word = before[0].casefold() if before else ""
    if word.isdecimal():
        return len(word) <= 2 and point - begin <= 8 and text[begin:point].strip() == word
    is_initial = len(word) == 1 and word.isalpha() and word != "i"
    if word in _MAYBE_LAST:
        return not text[end : end + 1].isupper()
    return is_initial or word in _ABBREVIATIONS


def split_long(text: str, max_chars: int) -> list[str]:
    """The text in pieces of at most `max_chars` (>= 1) characters; put together they are the text.

    Cut behind a paragraph, else a line, a sentence, a word, as long as a piece is at least half full; else
    between two visible characters; inside one only if it alone is longer than `max_chars`.
    """
    if max_chars < 1:
        raise ValueError("a piece needs at least one character")
    pieces: list[str] = []
    at = 0
    while len(text) - at > max_chars:
        cut = _cut(text[at : at + max_chars + 1], max_chars)
        pieces.append(text[at : at + cut])
        at += cut
    if at < len(text) or not pieces:
        pieces.append(text[at:])
    return [piece for piece in pieces if piece]


_BOUNDARIES = (regex.compile(r"\n{2,}"), regex.compile(r"\n"), None, regex.compile(r"\s+|(?<=[，、,;:：])"))


def _cut(window: str, max_chars: int) -> int:
    """Where to cut a window that holds one character more than may be taken."""
    for boundary in _BOUNDARIES:
        ends = sentence_ends(window) if boundary is None else [m.end() for m in boundary.finditer(window)]
        fitting = [
            end for end in ends if max_chars / 2 <= end <= max_chars and not _JOINS_LEFT.match(window, end)
        ]
        if fitting:
            return fitting[-1]
    clusters = [m.end() for m in GRAPHEME.finditer(window) if m.end() <= max_chars]
    return clusters[-1] if clusters else max_chars
