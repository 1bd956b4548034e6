"""Whether digits are a card, an identity number or an IBAN: checksums, and how such numbers are grouped.

The checksums are python-stdnum's. Nothing is asked of a registry: a number that fits is treated as real.
"""

import re
from collections.abc import Sequence
from datetime import date
from typing import Final

from stdnum import iban, luhn
from stdnum.br import cpf
from stdnum.fr import nir
from stdnum.iso7064 import mod_11_2
from stdnum.it import codicefiscale
from stdnum.kr import rrn
from stdnum.us import ssn

# Issuer ranges: Mastercard 51-55 and 2221-2720, Visa 4, Amex 34/37, Diners 30/36/38, Discover 6011/64/65,
# JCB 3528-3589, UnionPay 62, Maestro 50/56-58/63/67, Mir 2200-2204, older cards of Chinese banks 9558/9559.
_ISSUER = re.compile(
    r"4|5[0-8]|6[023457]|3[47]|3[068]|35[2-8]|22[0-9]{2}|2[3-6][0-9]{2}|27[01][0-9]|2720|955[0-9]|980[0-9]"
)
_CODICE_FISCALE = re.compile(r"[A-Z]{6}[0-9]{2}[ABCDEHLMPRST][0-9]{2}[A-Z][0-9]{3}[A-Z]")
_HKID_VALUES: Final = {chr(ord("A") + i): 10 + i for i in range(26)} | {" ": 36}

# Length of an IBAN by country (SWIFT's registry, release 99).
IBAN_CHARS: Final[dict[str, int]] = {
    country: int(length)
    for length, countries in (
        ("15", "NO"),
        ("16", "BE"),
        ("18", "DK FI FO GL NL FK SD"),
        ("19", "MK SI"),
        ("20", "AT BA EE KZ LT LU XK MN"),
        ("21", "CH HR LI LV"),
        ("22", "BG BH CR DE GB GE IE ME RS VA"),
        ("23", "AE GI IL IQ TL OM SO"),
        ("24", "AD CZ ES MD PK RO SA SE SK TN VG"),
        ("25", "LY PT ST"),
        ("26", "IS TR"),
        ("27", "FR GR IT MC MR SM DJ"),
        ("28", "AL AZ BY CY DO GT HU LB NI PL SV"),
        ("29", "BR EG PS QA UA"),
        ("30", "JO KW MU YE"),
        ("31", "MT SC"),
        ("32", "LC"),
        ("33", "RU"),
    )
    for country in countries.split()
}


def is_card(digits: str, sizes: Sequence[int]) -> bool:
    """Whether 14 to 19 digits, written in groups of these sizes, are a payment card's number."""
    if not 14 <= len(digits) <= 19 or not _ISSUER.match(digits) or len(set(digits)) == 1:
        return False
    if len(digits) == 14 and digits[0] != "3":
        return False
    # A list of small numbers is no card; a card spelt digit by digit is one.
    if min(sizes[:-1], default=3) < 3 and max(sizes) > 1:
        return False
    return luhn.is_valid(digits)


def is_chinese_id(number: str) -> bool:
    """Whether 18 characters are a resident's number: a date of birth that exists and the check character."""
    return len(number) == 18 and has_birth_date(number) and mod_11_2.is_valid(number)


def has_birth_date(number: str) -> bool:
    """Whether a Chinese id number of 18 or 15 characters carries a date that exists."""
    digits = number[6:14] if len(number) == 18 else f"19{number[6:12]}"
    try:
        year = date(int(digits[:4]), int(digits[4:6]), int(digits[6:8])).year
    except ValueError:
        return False
    return 1850 <= year <= 2100 and number[0] in "123456789"


def is_foreign_id(digits: str, sizes: tuple[int, ...], seps: str) -> bool:
    """Whether digits are a national number by their usual way of writing and their checksum.

    sizes: of the groups. seps: what separates them, joined. US 123-45-6789, Korea 6-7, Brazil 3.3.3-2,
    France 1 2 2 2 3 3 2.
    """
    if sizes == (3, 2, 4):
        return seps == "--" and ssn.is_valid(digits)
    if sizes == (6, 7):
        return seps == "-" and rrn.is_valid(digits)
    if sizes == (3, 3, 3, 2):
        return seps == "..-" and cpf.is_valid(digits)
    return sizes == (1, 2, 2, 2, 3, 3, 2) and nir.is_valid(digits)


def is_hong_kong_id(letters: str, digits: str, check: str) -> bool:
    """Whether `A123456(3)` has the right check character."""
    total = 0
    for weight, char in zip(range(9, 1, -1), f"{letters.upper():>2}{digits}", strict=True):
        total += weight * (int(char) if char.isdigit() else _HKID_VALUES[char])
    return (11 - total % 11) % 11 == (10 if check.upper() == "A" else int(check))


def is_codice_fiscale(token: str) -> bool:
    """Whether a token is an Italian tax code."""
    token = token.upper()
    return bool(_CODICE_FISCALE.fullmatch(token)) and codicefiscale.is_valid(token)


def is_iban(number: str) -> bool:
    """Whether a number without separators is an IBAN; a country's own inner checks are not asked."""
    return iban.is_valid(number.upper(), check_country=False)
