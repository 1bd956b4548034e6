"""Email addresses, also with a full-width or encoded at sign, spaces around it, or spelt out.

Every at sign is looked at once, with at most 64 characters before it and a domain behind it: linear time.
"""

import re
from typing import Final

from service.policy.redaction_fold import Folded
from service.policy.redaction_types import Span

_AT = re.compile(r"[@%](?:(?<=@)|40)")
_SPELT_AT = re.compile(r"[\[({< 艾](?:(?<=艾)特|(?<! ) ?(?:at|@|艾特) ?[\])}>]|(?<= )at )")
_LOCAL_CHARS: Final = 64
_USER_INFO = re.compile(r"(?<!mailto)://[^\s/@]{0,64}$")
# Read from right to left; the last character of a local part is none of the marks.
_LOCAL_BACKWARDS = re.compile(r"[A-Za-z0-9_À-ɏ+](?:[A-Za-z0-9_À-ɏ.+%'’-]{0,63})")
_SPELT_LOCAL_BACKWARDS = re.compile(r"[a-z0-9_+-](?:[a-z0-9._+-]{0,63})(?: tod [a-z0-9._+-]{1,64}){0,3}")
_DOMAIN = re.compile(
    r"(?:[A-Za-z0-9À-ɏ][A-Za-z0-9À-ɏ-]{0,62}\.){1,8}([A-Za-z]{2,24})(?![A-Za-z0-9-])"
    r"|[\w-]{1,30}\.(中国|公司|网络|集团|中國)"
)
_SPELT_DOMAIN = re.compile(
    r"[a-z0-9-]{1,63}(?:(?:\.| ?[\[({] ?(?:dot|点) ?[\])}] ?| dot | ?点 ?)[a-z0-9-]{2,63}){0,3}?"
    r"(\.| ?[\[({] ?(?:dot|点) ?[\])}] ?| dot | ?点 ?)"
    r"(?:com|org|net|edu|gov|cn|io|co|uk|de|fr|jp|hk|tw|me|dev|ai|app|info|eu|us)(?![a-z0-9-])"
)
# logo@2x.png is a picture.
_FILES_WORDS: Final = """
    png jpg jpeg gif svg webp bmp ico pdf json html css js ts jsx tsx min exe txt md yaml yml
"""
_FILES: Final = frozenset(_FILES_WORDS.split())


def find_emails(folded: Folded) -> list[Span]:
    """Every email address, in order, without overlaps."""
    text = folded.text
    found: list[Span] = []
    done = 0
    for match in _AT.finditer(text):
        at, end = match.span()
        # zhang @ example.com
        at -= text[max(0, at - 1) : at] == " "
        end += text[end : end + 1] == " "
        domain = _DOMAIN.match(text, end)
        if domain is None or (domain[1] or "").lower() in _FILES:
            continue
        begin = _local_begin(text, at, done, _LOCAL_BACKWARDS)
        if begin is None:
            continue
        # user:password@host of a URL: the password is a secret of its own, the host stays.
        if _USER_INFO.search(text, max(0, begin - _LOCAL_CHARS - 4), begin):
            continue
        local = text[begin:at]
        # git@host:path is how a repository is named.
        if local == "git" and text[domain.end() : domain.end() + 1] in (":", "/"):
            continue
        done = domain.end()
        found.append(Span(begin, done, "email"))
    lower = folded.lower
    is_spelt = any(mark in lower for mark in ("at]", "at)", "at}", "at>", "at ]", "at )", "@]", "@)", "艾特"))
    if is_spelt or (" dot " in lower and " at " in lower):
        found.extend(_spelt(lower))
    return found


def _spelt(lower: str) -> list[Span]:
    found: list[Span] = []
    done = 0
    for match in _SPELT_AT.finditer(lower):
        at, end = match.span()
        if match[0] != " at ":
            at -= lower[max(0, at - 1) : at] == " "
            end += lower[end : end + 1] == " "
        domain = _SPELT_DOMAIN.match(lower, end)
        if domain is None or (match[0] == " at " and domain[1] == "."):
            continue
        begin = _local_begin(lower, at, done, _SPELT_LOCAL_BACKWARDS)
        if begin is not None:
            done = domain.end()
            found.append(Span(begin, done, "email"))
    return found


def _local_begin(text: str, at: int, done: int, backwards: re.Pattern[str]) -> int | None:
    """Where the part before the at sign begins; None when there is none."""
    before = text[max(done, at - _LOCAL_CHARS - 20) : at][::-1]
    match = backwards.match(before)
    if match is None:
        return None
    local = match[0].rstrip(".'’%-+" if backwards is _LOCAL_BACKWARDS else ".-+ ")
    return at - len(local) if local else None
