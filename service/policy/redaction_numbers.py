"""Numbers that identify: cards, identity numbers, IBANs, passports, telephones.

One pass finds chains of digit groups ("138-0013-8000", "4111 1111 1111 1111"); most are too short to be
anything. In the others every run of neighbouring groups is asked, longest first, whether it is such a number.
A run has at most 19 digits, so the time is linear in the text.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from service.policy import redaction_ids as ids
from service.policy import redaction_phones as phones
from service.policy.redaction_fold import Folded
from service.policy.redaction_labels import Label, label_before
from service.policy.redaction_types import Kind, Span

_CHAIN = re.compile(r"[0-9]++(?:[ .·_()-]{1,3}+[0-9]++)*+")
_GROUP = re.compile(r"[0-9]+")
_MIN_DIGITS: Final = 7
_MAX_DIGITS: Final = 19
_MAX_GROUPS: Final = 7
_MAX_LETTERS: Final = 7
_MIN_TOKEN: Final = 6
_TOKEN_TAIL = re.compile(r"[A-Za-z0-9]{0,34}+")
_LETTERS_BEFORE = re.compile(r"[A-Za-z]*+")
_IBAN_HEAD = re.compile(r"[A-Za-z]{2}[0-9]{2}")
_CHECK_X = re.compile(r"[ -]?[xX](?![A-Za-z0-9])")
_HK_CHECK = re.compile(r"[ (]?\(([0-9Aa])\)")
_LETTER_PAIR = re.compile(r"(?<![A-Za-z])([A-Za-z]{2}) ?$")
_LETTER_AFTER = re.compile(r" ?[A-Da-d](?![A-Za-z0-9])")
_CN_PASSPORT = re.compile(r"[Ee](?:[0-9]{8}|[A-HJ-NP-Za-hj-np-z][0-9]{7})")
_PASSPORT = re.compile(r"(?=(?:[A-Za-z]*[0-9]){4})[A-Za-z0-9]{6,10}")
_ID_TOKEN = re.compile(r"(?=(?:[A-Za-z]{0,6}[0-9]){5})[A-Za-z0-9]{6,18}")
_UNIT = re.compile(r" ?(?:元|块|円|美元|万|亿|人|次|个|rmb|usd|km|kg|ms\b|mah|bytes|%)")
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_PHONE_WORDS: Final = frozenset(
    {"tel", "phone", "mobile", "cell", "fax", "qq", "vx", "wx", "wechat", "whatsapp", "ph", "call", "no"}
)


@dataclass(frozen=True, slots=True)
class _Chain:
    """Digit groups that stand next to each other, and what separates them."""

    starts: list[int]
    ends: list[int]
    seps: list[str]
    digits: str
    offsets: list[int]

    def is_single(self, group: int) -> bool:
        """Whether there is such a group and it is one digit."""
        return 0 <= group < len(self.starts) and self.ends[group] - self.starts[group] == 1

    def may_be_number(self, first: int) -> bool:
        """Whether the next groups are more than small numbers in a row: one is long, or all are one digit."""
        if self.is_single(first) and self.is_single(first + 1):
            return True
        groups = range(first, min(first + _MAX_GROUPS, len(self.starts)))
        return any(self.ends[group] - self.starts[group] >= 3 for group in groups)

    def sizes(self, first: int, last: int) -> tuple[int, ...]:
        return tuple(
            end - start
            for start, end in zip(self.starts[first : last + 1], self.ends[first : last + 1], strict=True)
        )


def find_numbers(folded: Folded) -> list[Span]:
    """Every number of the text that identifies somebody, in order, without overlaps."""
    found: list[Span] = []
    done = previous = 0
    text = folded.text
    reached = 0
    for start, number_end in folded.numbers:
        if start < reached:
            continue
        match = _CHAIN.match(text, start)
        end = reached = match.end() if match else number_end
        # A single digit behind letters may still be the start of a token: C01X00T47.
        is_token = (
            start > 0 and _is_letter(text, start - 1) and not (previous and text[previous:start].isalpha())
        )
        previous = end
        if end <= done or (end - start < _MIN_DIGITS and not is_token):
            continue
        for span in _in_chain(folded, _chain(folded.text, start, end), done):
            found.append(span)
            done = span.end
    return found


def _chain(text: str, start: int, end: int) -> _Chain:
    groups = [match.span() for match in _GROUP.finditer(text, start, end)]
    starts = [group[0] for group in groups]
    ends = [group[1] for group in groups]
    seps = [text[left:right] for left, right in zip(ends, starts[1:], strict=False)]
    digits = "".join(text[left:right] for left, right in groups)
    offsets = [0, *accumulate(right - left for left, right in groups)]
    return _Chain(starts, ends, seps, digits, offsets)


def _in_chain(folded: Folded, chain: _Chain, done: int) -> Iterator[Span]:
    text = folded.text
    first, count = 0, len(chain.starts)
    while first < count:
        start = chain.starts[first]
        if start < done:
            first += 1
            continue
        label: Label | None = None
        is_free = True
        if first == 0 or chain.starts[first - 1] < done:
            label = label_before(folded.lower, start)
        if first == 0 and (letters := _letters_before(text, start)):
            span = _token(folded, start, letters, done)
            if span is not None:
                yield span
                done = span.end
                continue
            word = text[start - letters : start].lower()
            is_free = word in _PHONE_WORDS
            label = "phone" if is_free else label
        elif first == 0 and label == "national_id" and (span := _insurance(text, chain)) is not None:
            yield span
            return
        kind_end = _longest(folded, chain, first, label) if is_free else None
        if kind_end is None:
            first += 1
            continue
        kind, end, begin = kind_end
        yield Span(begin, end, kind)
        done = end
        first += 1


def _longest(folded: Folded, chain: _Chain, first: int, label: Label | None) -> tuple[Kind, int, int] | None:
    """Kind, end and start of the longest number that begins with this group."""
    if first and chain.seps[first - 1] == ".":
        return None  # the decimals of a number
    start = chain.starts[first]
    offset = chain.offsets[first]
    if label is None and folded.text[start - 1 : start] != "+" and not chain.may_be_number(first):
        return None
    for last in _lasts(chain, first):
        digits = chain.digits[offset : chain.offsets[last + 1]]
        end = chain.ends[last]
        if last == len(chain.starts) - 1 and _goes_on(folded.text, end):
            tail_end = _with_tail(folded.text, digits, end, label)
            if tail_end:
                return "national_id", tail_end, start
            continue
        if last + 1 < len(chain.starts) and chain.seps[last] == ".":
            continue
        sizes = chain.sizes(first, last)
        kind = _kind(folded, digits, sizes, "".join(chain.seps[first:last]), label, start, end)
        if kind is not None:
            return kind, end, _with_head(folded.text, start, end)
    return None


def _lasts(chain: _Chain, first: int) -> range:
    """The groups with which a number that begins at `first` may end, the last one first.

    A number has at most seven groups, or all its digits stand alone; then they are the whole run of such.
    """
    count = len(chain.starts)
    offset = chain.offsets[first]
    if chain.is_single(first) and chain.is_single(first + 1) and chain.is_single(first + 2):
        if chain.is_single(first - 1):
            return range(0)
        last = first
        while chain.is_single(last + 1) and last - first <= _MAX_DIGITS:
            last += 1
        return range(last, last - 1, -1) if _MIN_DIGITS <= last - first + 1 <= _MAX_DIGITS else range(0)
    last = first - 1
    while last + 1 < min(count, first + _MAX_GROUPS) and chain.offsets[last + 2] - offset <= _MAX_DIGITS:
        last += 1
    least = first
    while least <= last and chain.offsets[least + 1] - offset < _MIN_DIGITS:
        least += 1
    return range(last, least - 1, -1)


def _with_tail(text: str, digits: str, end: int, label: Label | None) -> int:
    """Where a number ends that goes on with a letter: X of a Chinese id, a check letter; or 0."""
    tail = _CHECK_X.match(text, end)
    if tail and len(digits) == 17 and (ids.is_chinese_id(f"{digits}X") or label == "national_id"):
        return tail.end()
    tail = _TOKEN_TAIL.match(text, end)
    return tail.end() if tail and label == "national_id" and len(tail[0]) == 1 else 0


def _with_head(text: str, start: int, end: int) -> int:
    """Where a number begins, with its "+" and the bracket that closes inside it."""
    if start and text[start - 1] == "+":
        start -= 1
    if start and text[start - 1] == "(" and ")" in text[start:end]:
        start -= 1
    return start


def _insurance(text: str, chain: _Chain) -> Span | None:
    """A British number written apart: AB 12 34 56 C."""
    start, end = chain.starts[0], chain.ends[-1]
    pair = _LETTER_PAIR.search(text, max(0, start - 4), start)
    last = _LETTER_AFTER.match(text, end)
    if len(chain.digits) != 6 or pair is None or last is None:
        return None
    return Span(pair.start(1), last.end(), "national_id")


def _kind(
    folded: Folded, digits: str, sizes: tuple[int, ...], seps: str, label: Label | None, start: int, end: int
) -> Kind | None:
    size = len(digits)
    if size == 18 and ids.is_chinese_id(digits):
        return "national_id"
    if label == "other":
        return None
    if ids.is_card(digits, sizes) and not _in_uuid(folded.lower, start, end):
        return "card"
    if label == "card" and 15 <= size <= 19 and (len(sizes) == 1 or min(sizes[:-1]) >= 3):
        return "card"
    if label == "passport" and len(sizes) == 1 and 7 <= size <= 10:
        return "passport"
    if label == "national_id" and 8 <= size <= 18:
        return "national_id"
    if label is None and ids.is_foreign_id(digits, sizes, seps):
        return "national_id"
    return "phone" if _is_phone(folded, digits, sizes, seps, label, start, end) else None


def _is_phone(
    folded: Folded, digits: str, sizes: tuple[int, ...], seps: str, label: Label | None, start: int, end: int
) -> bool:
    size = len(digits)
    if not 7 <= size <= 17 or phones.is_public(digits):
        return False
    text = folded.text
    before = text[start - 1] if start else ""
    if (before and before in "$¥€£₹￥,") or _UNIT.match(folded.lower, end):
        return before == "," and phones.is_chinese(digits, sizes, seps, is_labelled=False)
    is_labelled = label == "phone"
    if before == "+":
        return phones.is_international(digits, is_labelled)
    if digits.startswith("86") and size == 13 and phones.is_international(digits, is_labelled=False):
        return True
    if digits.startswith("00") and size >= 11 and phones.is_international(digits[2:], is_labelled):
        return True
    if phones.is_chinese(digits, sizes, seps, is_labelled):
        return True
    if phones.is_north_american(digits, sizes, seps, is_labelled):
        return True
    # Tél. 01 99 00 55 00
    return is_labelled and size <= 15 and (max(sizes) >= 3 or (sizes == (2, 2, 2, 2, 2) and digits[0] == "0"))


def _token(folded: Folded, start: int, letters: int, done: int) -> Span | None:
    """Letters and digits in one: IBAN, passport, identity numbers. `letters` stand before the digits."""
    text = folded.text
    begin = start - letters
    if (
        begin < done
        or letters > _MAX_LETTERS
        or (begin and text[begin - 1].isascii() and text[begin - 1].isalnum())
    ):
        return None
    tail = _TOKEN_TAIL.match(text, start)
    end = tail.end() if tail else start
    token = text[begin:end]
    if len(token) < _MIN_TOKEN and not (letters == 2 and _IBAN_HEAD.match(token)):
        return None
    label = label_before(folded.lower, begin)
    if letters == 2 and _IBAN_HEAD.match(token):
        iban_end = _iban_end(text, begin, is_labelled=label == "iban")
        if iban_end:
            return Span(begin, iban_end, "iban")
    if letters == 6 and ids.is_codice_fiscale(token):
        return Span(begin, end, "national_id")
    hong_kong = _HK_CHECK.match(text, end)
    if hong_kong and letters <= 2 and len(token) == letters + 6 and token[letters:].isdigit():
        is_right = ids.is_hong_kong_id(token[:letters], token[letters:], hong_kong[1])
        if is_right or label == "national_id":
            return Span(begin, hong_kong.end(), "national_id")
    kind = _token_kind(token, label)
    return Span(begin, end, kind) if kind else None


def _token_kind(token: str, label: Label | None) -> Kind | None:
    if label == "passport" and _PASSPORT.fullmatch(token):
        return "passport"
    if label == "national_id" and _ID_TOKEN.fullmatch(token):
        return "national_id"
    # The present Chinese passport; other countries' forms say too little without a label.
    return "passport" if label != "other" and _CN_PASSPORT.fullmatch(token) else None


def _iban_end(text: str, begin: int, *, is_labelled: bool) -> int:
    """Where the IBAN that begins here ends, or 0."""
    wanted = ids.IBAN_CHARS.get(text[begin : begin + 2].upper())
    if wanted is None:
        return 0
    number = ""
    at = begin
    for at in range(begin, min(len(text), begin + 2 * wanted)):
        char = text[at]
        if char.isascii() and char.isalnum():
            number += char
            if len(number) == wanted:
                break
        elif char not in " -" or text[at - 1] in " -":
            return 0
    if len(number) < wanted or _goes_on(text, at + 1):
        return 0
    return at + 1 if is_labelled or ids.is_iban(number) else 0


def _letters_before(text: str, start: int) -> int:
    """How many ASCII letters stand right before; more than `_MAX_LETTERS` count as one more than that."""
    count = 0
    while count <= _MAX_LETTERS and start - count > 0 and _is_letter(text, start - count - 1):
        count += 1
    return count


def _is_letter(text: str, at: int) -> bool:
    return text[at].isascii() and text[at].isalpha()


def _goes_on(text: str, end: int) -> bool:
    """Whether a letter or digit follows directly."""
    return end < len(text) and text[end].isascii() and text[end].isalnum()


def _in_uuid(lower: str, start: int, end: int) -> bool:
    return any(
        match.start() + max(0, start - 36) < end
        for match in _UUID.finditer(lower[max(0, start - 36) : end + 36])
    )
