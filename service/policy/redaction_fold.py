"""Text made plain for the detectors: full-width and styled letters, foreign digits, invisible characters.

People and systems write one number in many ways: full-width, with zero-width marks inside, as keycap emoji,
一三八零零. The detectors see one way only, and every position they find leads back to the original text.
Linear time.
"""

import re
import unicodedata
from bisect import bisect_right
from dataclasses import dataclass
from typing import Final

# Nothing a reader sees: zero-width marks, joiners, bidi controls, variation selectors, the keycap's frame.
_INVISIBLE_BMP: Final = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u20e3"
    "\u3164\ufe00-\ufe0f\ufeff\uffa0"
)
# A class over both planes is a list that is walked for every character, up to 80 times slower than one plane.
_HAS_INVISIBLE = re.compile(f"[{_INVISIBLE_BMP}]")
_HAS_ASTRAL = re.compile("[\U0001d400-\U0001d7ff\U000e0000-\U000e0fff]")
_INVISIBLE = re.compile(f"[{_INVISIBLE_BMP}\U000e0000-\U000e0fff]+")
# Blocks whose characters can stand for one ASCII letter or digit (their NFKC, or a decimal digit's value).
_STYLED: Final = (
    range(0x00B2, 0x00BA),
    range(0x0660, 0x066A),
    range(0x06F0, 0x06FA),
    range(0x0966, 0x0970),
    range(0x2070, 0x208F),
    range(0x2100, 0x2140),
    range(0x2460, 0x2469),
    range(0x24B6, 0x24EB),
    range(0xFF10, 0xFF1A),
    range(0xFF21, 0xFF3B),
    range(0xFF41, 0xFF5B),
    range(0x1D400, 0x1D800),
)
_MARKS: Final = {
    **dict.fromkeys("\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a", " "),
    **dict.fromkeys("\u202f\u205f\u3000", " "),
    **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212\u00ad\ufe58\ufe63\uff0d\u30fc", "-"),
    **dict.fromkeys("\u2024\ufe52\uff0e\uff61", "."),
    **dict.fromkeys("\u00b7\u2022\u2027\u22c5\u30fb\uff65", "\u00b7"),
    **dict.fromkeys("\uff20\ufe6b", "@"),
    **dict.fromkeys("\uff08\ufe59", "("),
    **dict.fromkeys("\uff09\ufe5a", ")"),
    **dict.fromkeys("\uff1a\ufe55\u2236", ":"),
    "\uff0b": "+",
    "\uff0f": "/",
    "\uff1d": "=",
    "\uff3f": "_",
    "\uff03": "#",
    "\uff05": "%",
    # The one letter whose lower case is two characters.
    "\u0130": "I",
}
# Numerals that people dictate; only long runs of them are digits ("三三两两" is not).
_HAN_DIGITS: Final = "零〇○一幺壹二贰貳三叁參四肆五伍六陆陸七柒八捌九玖"
_HAN_VALUES: Final = "0001112223334455666778899"
_NUMBER = re.compile(r"[0-9]+")
_HAN_RUN = re.compile(f"[0-9{_HAN_DIGITS}](?:[ -]?+[0-9{_HAN_DIGITS}]){{10,}}+")


def _styled() -> dict[str, str]:
    found: dict[str, str] = {}
    for block in _STYLED:
        for char in map(chr, block):
            digit = unicodedata.decimal(char, None)
            plain = str(digit) if digit is not None else unicodedata.normalize("NFKC", char)
            if len(plain) == 1 and plain.isascii() and plain.isalnum():
                found[char] = plain
    return found


_PLAIN: Final = _styled() | _MARKS
_LAST_BMP: Final = "\uffff"
_FOLDABLE = re.compile("[" + re.escape("".join(char for char in _PLAIN if char <= _LAST_BMP)) + "]")
_FOLDABLE_ASTRAL = re.compile("[\U0001d400-\U0001d7ff]")
_HAN_TO_DIGIT: Final = str.maketrans(_HAN_DIGITS, _HAN_VALUES)


@dataclass(frozen=True, slots=True)
class Folded:
    """The plain text and the way back.

    text: as the detectors read it, case kept. lower: the same in lower case, of the same length.
    numbers: where each run of digits begins and ends. gaps: the positions of `text` before which characters
    were left out; missing: how many were left out before the first, second, … gap and behind the last.
    """

    text: str
    lower: str
    numbers: list[tuple[int, int]]
    gaps: list[int]
    missing: list[int]

    def original(self, start: int, end: int) -> tuple[int, int]:
        """The span of the original text behind `text[start:end]` (end > start)."""
        if not self.gaps:
            return start, end
        first, last = bisect_right(self.gaps, start), bisect_right(self.gaps, end - 1)
        return start + self.missing[first], end + self.missing[last]


def _plain(match: re.Match[str]) -> str:
    return _PLAIN.get(match[0], match[0])


def fold(text: str) -> Folded:
    """The text with every character plain; characters nobody sees are left out."""
    gaps: list[int] = []
    missing = [0]
    if not text.isascii():
        has_astral = _HAS_ASTRAL.search(text) is not None
        if has_astral or _HAS_INVISIBLE.search(text):
            for match in _INVISIBLE.finditer(text):
                gaps.append(match.start() - missing[-1])
                missing.append(missing[-1] + match.end() - match.start())
            text = _INVISIBLE.sub("", text)
        text = _FOLDABLE.sub(_plain, text)
        if has_astral:
            text = _FOLDABLE_ASTRAL.sub(_plain, text)
        text = _HAN_RUN.sub(lambda match: match[0].translate(_HAN_TO_DIGIT), text)
    numbers = [match.span() for match in _NUMBER.finditer(text)]
    return Folded(text, text.lower(), numbers, gaps, missing)
