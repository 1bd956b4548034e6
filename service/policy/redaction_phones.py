"""Whether a group of digits is a telephone number.

Chinese numbers are told by their own rules; for the rest phonenumbers validates what already looks like a
number (validating takes 50 µs, so it is asked last). Numbers everybody may call (400/800, 955xx, 110, 12345)
are nobody's data and stay.
"""

import re
from typing import Final

import phonenumbers

_CN_MOBILE_SIZES: Final = frozenset({(11,), (3, 4, 4), (4, 3, 4), (4, 4, 3), (3, 3, 5), (1,) * 11})
_CN_MOBILE_DASHED: Final = frozenset({(3, 8), (7, 4)})
_CN_MOBILE = re.compile(r"1[3-9][0-9]{9}")
_CN_AREA = re.compile(r"0(?:10|2[0-9]|[3-9][0-9]{2})")
_CN_LANDLINE_TAILS: Final = frozenset({(8,), (7,), (4, 4), (3, 4), (4, 3)})
_NOBODYS = re.compile(r"(?:400|800)[0-9]{7}|955[0-9]{2}|1[0-9]{2}|1[0-9]{4}")


def is_chinese(digits: str, sizes: tuple[int, ...], seps: str, is_labelled: bool) -> bool:
    """Whether digits, without country code, are a Chinese mobile or landline number (or look like one
    elsewhere: 090-1234-5678)."""
    if _CN_MOBILE.fullmatch(digits):
        if len(sizes) == 3 and "." in seps and set(seps) != {"."}:
            return False
        return is_labelled or sizes in _CN_MOBILE_SIZES or ("-" in seps and sizes in _CN_MOBILE_DASHED)
    if digits[0] != "0" or not 9 <= len(digits) <= 12 or "." in seps:
        return False
    if len(sizes) == 1:
        return False
    if _CN_AREA.fullmatch(digits[: sizes[0]]):
        return sizes[1:] in _CN_LANDLINE_TAILS
    # 03-1234-5678
    return sizes == (2, 4, 4) and set(seps) == {"-"}


def is_north_american(digits: str, sizes: tuple[int, ...], seps: str, is_labelled: bool) -> bool:
    """Whether digits written 415-555-0132, (415) 555-0132 or 415.555.0132, 1 before it or not, are one."""
    if sizes[:1] == (1,) and digits[0] == "1":
        digits, sizes, seps = digits[1:], sizes[1:], seps[1:]
    if sizes != (3, 3, 4) or digits[0] in "01" or digits[3] in "01":
        return False
    is_written_so = set(seps) in ({"-"}, {"."}) or ")" in seps or is_labelled
    return is_written_so and _is_valid(f"+1{digits}")


def is_international(digits: str, is_labelled: bool) -> bool:
    """Whether digits behind a "+" or "00" are a number that exists, or may exist if called one."""
    if digits.startswith("86") and _CN_MOBILE.fullmatch(digits[2:]):
        return True
    return 7 <= len(digits) <= 15 and _is_valid(f"+{digits}", only_possible=is_labelled)


def is_public(digits: str) -> bool:
    """Whether the number is a service anybody may call."""
    return bool(_NOBODYS.fullmatch(digits))


def _is_valid(number: str, *, only_possible: bool = False) -> bool:
    try:
        parsed = phonenumbers.parse(number)
    except phonenumbers.NumberParseException:
        return False
    if only_possible:
        return phonenumbers.is_possible_number(parsed)
    return phonenumbers.is_valid_number(parsed)
