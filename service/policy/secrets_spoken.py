"""Secrets that are called so: `password: …`, "my password is …", 密码是…, `api_key=…`, 验证码384756.

A stem is looked for first; around each only a bounded number of characters is read, so the time is linear.
What merely talks about passwords ("the password is required", 密码忘了, `password: str`) stays.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from service.policy.redaction_fold import Folded
from service.policy.redaction_types import KINDS, Span

_Sort = Literal["password", "code", "token", "phrase"]
# How what is after the label is bound to it: `:` or `=`; "is", 是; nothing but space.
_Bond = Literal["assigned", "spoken", "beside"]


@dataclass(frozen=True, slots=True)
class _Label:
    """stem: found by plain search. pattern: the rest of the label, from the stem on. sort: what its values
    look like."""

    stem: str
    pattern: re.Pattern[str]
    sort: _Sort
    whole_word: bool = True


def _label(stem: str, pattern: str, sort: _Sort, *, whole_word: bool = True) -> _Label:
    return _Label(stem, re.compile(pattern), sort, whole_word)


_ZH_FILL: Final = r"(?:号|号码|一|内容)?"
_LABELS: Final = (
    _label("密码", r"密码", "password"),
    _label("密碼", r"密碼", "password"),
    _label("密 码", r"密 码", "password"),
    _label("mima", r"mima(?![a-z])", "password"),
    _label("口令", r"口令", "password"),
    _label("暗号", r"暗号", "password"),
    _label("暗號", r"暗號", "password"),
    _label("验证码", r"验证码", "code"),
    _label("驗證碼", r"驗證碼", "code"),
    _label("校验码", r"校验码", "code"),
    _label("动态码", r"动态码", "code"),
    _label("安全码", r"安全码", "code"),
    _label("密钥", r"密钥", "token"),
    _label("密鑰", r"密鑰", "token"),
    _label("秘钥", r"秘钥", "token"),
    _label("私钥", r"私钥", "token"),
    _label("助记词", r"助记词", "phrase"),
    _label("pass", r"pass(?:[ _-]?word|wd|[ _-]?phrase)?(?:[0-9])?(?![a-z])", "password", whole_word=False),
    _label("pass", r"pass[ _-]?code(?![a-z])", "code"),
    _label("pwd", r"pwd(?![a-z])", "password", whole_word=False),
    _label("pw", r"pw(?![a-z])", "password"),
    _label("pin", r"pin(?:[ _-]?(?:code|number|no)|码)?(?![a-z])", "code"),
    _label("otp", r"otp(?:[ _-]?code)?(?![a-z])", "code"),
    _label("cvv", r"cvv2?(?![a-z0-9])", "code"),
    _label("cvc", r"cvc2?(?![a-z0-9])", "code"),
    _label(
        " code", r" code(?![a-z])", "code", whole_word=False
    ),
    _label("secret", r"secret(?:[ _-]?(?:access)?[ _-]?key)?(?![a-z])", "token", whole_word=False),
    _label("key", r"key(?![a-z])", "token", whole_word=False),
    _label("token", r"token(?![a-z])", "token", whole_word=False),
    _label("bearer ", r"bearer", "token"),
    _label("basic ", r"basic", "token"),
    _label("session", r"session(?:[ _-]?id)?(?![a-z])", "token", whole_word=False),
    _label("phrase", r"phrase(?![a-z])", "phrase", whole_word=False),
    _label("mnemonic", r"mnemonic(?![a-z])", "phrase"),
)  # fmt: skip
_KEY_BEFORE = re.compile(
    r"(?:api|access|secret|private|account|signing|encryption|auth|master|license|app|shared|client)"
    r"[ _-]?(?:access[ _-]?)?$"
)
_CODE_BEFORE = re.compile(
    r"(?:verification|security|login|log-in|one[ -]time|auth|authentication|2fa|access|door|unlock|otp)$"
)
_PHRASE_BEFORE = re.compile(r"(?:seed|recovery|mnemonic|backup) $")
_BASIC_BEFORE = re.compile(r"authorization[\"']? ?[:=]? ?[\"']?$")

_ASSIGNED = re.compile(
    r"\\?[\"'”」`]?(?: ?\([^()\n]{1,16}\))?[ \t]{0,3}(?:=>|:=|={1,2}|:)[ \t]{0,3}|>(?=[^<\s])"
)
_SPOKEN = re.compile(
    r"(?: (?:for|of|to|on)(?: [\w.'’-]{1,20}){1,4}?)?[ ]{1,2}"
    r"(?:is|was|are|will be|has been changed to|was changed to|changed to|=)(?:[ ]{1,2}|:[ ]{0,2})"
    r"(?:now |still |set to |changed to |just |simply )?"
    r"|[ ]?[\u4e00-\u9fff]{0,3}?"
    r"(?:改成|改为|换成|换为|设成|设置成|设置为|设为|改到|等于|是|为|叫)(?:了|:)?[ ]?"
    r"(?:[\u4e00-\u9fff]{0,6}(?=[\x21-\x7e]{4}))?"
)
# 密码从 abc123 改成 def456: the old one may still be used elsewhere.
_OLD_AND_NEW = re.compile(
    r"[ ]?从[ ]?((?!\[)[\x21-\x7e]{3,64})[ ]?[改换变][成为到]了?[ ]?((?!\[)[\x21-\x7e]{3,64})"
)
_BESIDE = re.compile(r"[ ]{0,2}")
_OPENING = re.compile(r"\\?[\"'`“「《‘(]?")
_CLOSING: Final = {'"': '"', "'": "'", "`": "`", "“": "”", "「": "」", "《": "》", "‘": "’", "(": ")"}
_MAX_VALUE_CHARS: Final = 200
_ASCII_VALUE = re.compile(r"[!#-(*-\x5c^-|~][\x21-\x7e]{0,199}")
_TOKEN_VALUE = re.compile(r"[A-Za-z0-9_.+/=~%:-]{1,200}+(?![(\]])")
_HAN_VALUE = re.compile(r"[\u4e00-\u9fff]{2,20}")
_FURTHER_WORD = re.compile(r" ([a-z]{2,20})(?![a-z0-9_])")
_PHRASE_VALUE = re.compile(r"[\"'“]?((?:[a-z]{3,8}[ ,]{1,2}){11,23}[a-z]{3,8})(?![a-z])")
_DIGIT = re.compile(r"[0-9]")
_LETTER = re.compile(r"[A-Za-z]")
_AMOUNT_AFTER = re.compile(
    r"[ ]?(?:位|个|次|天|分钟|秒|小时|年|月|字符|元|块|条|万|毫秒|-|到|至|以上|"
    r"digits?|char|min|sec|hour|day|bit)"
)
# Masks, variables, calls, types, and words that stand where a value would.
_NO_VALUE = re.compile(
    r"""
    [*x•.…_\-]+$ | [<${%\[|] | (?:https?|ftp)://
    | (?:os|process|env|self|this|config|settings|request|req|props|state|data|user|args|options|params)\.
    | (?:get|read|load|input|prompt|cast|[a-z_]+\.)[a-z_.]*\( | (?:optional|annotated|union|list|dict)\[
    | (?=[a-z]*[_.])[a-z_.]*(?:password|passwd|token|secret)[a-z_.]*$
    | (?:str|string|text|none|null|nil|undefined|true|false|optional|required|bytes|int|integer|number|
        boolean|bool|yes|no|n/a|varchar.*|secretstr|hidden|redacted|removed|masked|password|passwd|secret|token|field|
        input|type|name|value|label|error|reset|forgotten|policy|change|hash|hashed)$
    | .{0,20}(?:your[ _-]|my[_-]|change_?me|placeholder|example\.com|xxxx|\*\*\*)
    """,
    re.VERBOSE,
)
# Words that never are a password after "is", and those that only are not when nothing follows them.
_TALK_WORDS: Final = """
    deprecated supported available disabled enabled rotated generated created deleted
    a an the not no now wrong incorrect required invalid expired too very my your his her their our what
    why how where when missing blank being used needed already always never also only lost forgotten
    leaked compromised in on at for to of set reset changed updated working broken unknown sent shown
    displayed protected there really so that this it if case case-sensitive case-insensitive stored
    saved hashed encrypted empty visible hidden different as by from with without about still just
    either optional mandatory limited valid over under more less almost all one two and or but
"""
_TALK: Final = frozenset(_TALK_WORDS.split())
_JUDGEMENT_WORDS: Final = """
    correct right safe secure weak strong short long important same good fine bad ok okay ready easy
    hard simple complex unique common public private here gone old new next
"""
_JUDGEMENT: Final = frozenset(_JUDGEMENT_WORDS.split())
_ENDS_PHRASE_WORDS: Final = """
    and but so please can could which or because you don for in on at now then with that it thanks is to
    as i enough again too anyway though if when while who
"""
_ENDS_PHRASE: Final = frozenset(_ENDS_PHRASE_WORDS.split())
_REVERSED_EN = re.compile(
    r"(?<![^\s\"'(:,，。])([\x21-\x7e]{4,64}) is (?:my|the|your|our|his|her) "
    r"(?:[\w-]{1,20} ){0,2}(?:[\w-]{1,20})?$"
)
_REVERSED_ZH = re.compile(r"(?<![\x21-\x7e])([\x21-\x7e]{4,64}) ?(?:就)?(?:是|为)[\u4e00-\u9fff]{0,8}$")
_WATCHWORDS: Final = ("暗号", "暗號", "口令")
_HAN_TALK: Final = ("什么", "多少", "错", "不", "对", "啥", "谁", "怎", "哪")
_MASKS: Final = tuple(f"[{kind}]" for kind in KINDS)


def find_spoken(folded: Folded) -> Iterator[Span]:
    """Every value that its label calls a secret; they may overlap."""
    lower = folded.lower
    for label in _LABELS:
        # Two characters are looked for faster than a word.
        if label.stem[0] not in lower or label.stem[-1] not in lower:
            continue
        at = lower.find(label.stem)
        while at >= 0:
            match = label.pattern.match(lower, at)
            if match and _is_label(folded, at, label):
                yield from _values(folded, label.sort, at, match.end())
            at = lower.find(label.stem, at + len(label.stem))


def _is_label(folded: Folded, at: int, label: _Label) -> bool:
    before = folded.lower[max(0, at - 24) : at]
    if label.stem == "key":
        return bool(_KEY_BEFORE.search(before))
    if label.stem == " code":
        return bool(_CODE_BEFORE.search(before))
    if label.stem == "phrase":
        return bool(_PHRASE_BEFORE.search(before))
    if label.stem == "basic ":
        return bool(_BASIC_BEFORE.search(before))
    if label.whole_word and before and before[-1].isascii() and before[-1].isalnum():
        return not label.stem.isascii()
    # bypass, compass, trespass are words; dbpassword, user_pass and dbPass are fields.
    follows = folded.lower[at + 4 : at + 6]
    is_inside = label.stem == "pass" and before[-1:].isalpha() and follows not in ("wo", "wd")
    return not is_inside or folded.text[at] == "P"


def _values(folded: Folded, sort: _Sort, at: int, end: int) -> Iterator[Span]:
    lower = folded.lower
    if sort == "phrase":
        sep = _ASSIGNED.match(lower, end) or _SPOKEN.match(lower, end) or _BESIDE.match(lower, end)
        words = _PHRASE_VALUE.match(lower, sep.end() if sep else end)
        if words:
            yield Span(*words.span(1), "secret")
        return
    if both := _OLD_AND_NEW.match(lower, end):
        yield Span(*both.span(1), "secret")
        yield Span(*both.span(2), "secret")
        return
    bond, start = _bond(lower, at, end)
    span = _quoted(folded, sort, bond, start) or _bare(folded, sort, bond, at, end, start)
    if span is not None:
        yield span
    else:
        yield from _reversed(lower, sort, at)


def _bond(lower: str, at: int, end: int) -> tuple[_Bond, int]:
    """How the label that ends here is bound to what follows, and where that begins."""
    if sep := _ASSIGNED.match(lower, end):
        return "assigned", sep.end()
    if sep := _SPOKEN.match(lower, end):
        return "spoken", sep.end()
    sep = _BESIDE.match(lower, end)
    start = sep.end() if sep else end
    is_option = at >= 2 and lower.startswith("--", at - 2) and start > end
    return "assigned" if is_option else "beside", start


def _quoted(folded: Folded, sort: _Sort, bond: _Bond, start: int) -> Span | None:
    """The value when it stands in quotes."""
    text = folded.text
    opening = _OPENING.match(text, start)
    if opening is None or bond == "beside" or not opening[0] or opening[0][-1] == "\\":
        return None
    begin = opening.end()
    quote = opening[0][-1]
    end = text.find(_CLOSING[quote], begin, begin + _MAX_VALUE_CHARS)
    if quote == "(" or end <= begin or "\n" in text[begin:end]:
        return None
    if text[end - 1] == "\\":
        end -= 1
    value = text[begin:end]
    if not _is_secret(value, sort, bond, "") or (bond == "spoken" and _is_talk(value.lower().split())):
        return None
    return Span(begin, end, "secret")


def _bare(folded: Folded, sort: _Sort, bond: _Bond, at: int, label_end: int, start: int) -> Span | None:
    """The value when nothing encloses it: as far as ASCII goes; for a watchword also Chinese."""
    text = folded.text
    opening = _OPENING.match(text, start)
    begin = opening.end() if opening else start
    raw = (_TOKEN_VALUE if sort == "token" else _ASCII_VALUE).match(text, begin)
    if raw is None:
        return _watchword(text, bond, at, begin) if sort == "password" else None
    value = _trimmed(raw[0], text[begin - 1] if begin > start else "", text[max(0, at - 1) : at], bond)
    end = begin + len(value)
    is_zh = not text[label_end - 1].isascii()
    if bond == "beside" and not _may_stand_beside(value, sort, is_zh=is_zh, gap=begin - label_end):
        return None
    if not _is_secret(value, sort, bond, folded.lower[end : end + 10]):
        return None
    if bond == "spoken" and sort == "password" and not is_zh:
        return _passphrase(folded.lower, begin, end)
    return Span(begin, end, "secret")


def _watchword(text: str, bond: _Bond, at: int, begin: int) -> Span | None:
    han = _HAN_VALUE.match(text, begin)
    if (
        han is None
        or bond == "beside"
        or text[at : at + 2] not in _WATCHWORDS
        or han[0].startswith(_HAN_TALK)
    ):
        return None
    return Span(*han.span(), "secret")


def _trimmed(value: str, quote: str, before: str, bond: _Bond) -> str:
    """The value without what closes it: quotes, list marks, the rest of a query or connection string."""
    for stop in "\"'`,;<>":
        value = value.split(stop, 1)[0]
    if bond == "assigned" and before in ("?", "&", "_"):
        value = value.split("&", 1)[0]
    if quote == "(" and ")" in value:
        value = value[: value.index(")")]
    stripped = value.rstrip(".:?|\\")
    while (
        stripped
        and stripped[-1] in ")]}"
        and stripped.count(stripped[-1]) > stripped.count({")": "(", "]": "[", "}": "{"}[stripped[-1]])
    ):
        stripped = stripped[:-1].rstrip(".:?|\\")
    return stripped


def _may_stand_beside(value: str, sort: _Sort, *, is_zh: bool, gap: int) -> bool:
    has_digit = bool(_DIGIT.search(value))
    if sort == "token":
        return gap > 0 and has_digit
    if sort == "code":
        return 3 <= len(value) <= 8 and (value.isdigit() or (is_zh and has_digit and value.isalnum()))
    if not has_digit or len(value) < 4:
        return False
    return is_zh or (gap > 0 and len(value) >= 6 and bool(_LETTER.search(value)))


def _is_secret(value: str, sort: _Sort, bond: _Bond, after: str) -> bool:
    lower = value.lower()
    if len(value) < 3 or _NO_VALUE.match(lower):
        return False
    if sort == "code":
        is_amount = bool(_AMOUNT_AFTER.match(after))
        return (
            len(value) <= 12
            and value.replace("-", "").isalnum()
            and bool(_DIGIT.search(value))
            and not is_amount
        )
    if sort == "password":
        if value[0].isdigit() and _AMOUNT_AFTER.match(after) and not _LETTER.search(value):
            return False
        return bond != "spoken" or not _is_talk([lower])
    has_both = bool(_DIGIT.search(value)) and bool(_LETTER.search(value))
    least = {"assigned": 8, "spoken": 12, "beside": 16}[bond]
    return len(value) >= least and has_both and value.isascii() and " " not in value


def _is_talk(words: list[str]) -> bool:
    return not words or words[0] in _TALK


def _passphrase(lower: str, begin: int, end: int) -> Span | None:
    """The value of "my password is …": one token, or some plain words."""
    first = lower[begin:end]
    if not first.isalpha():
        return Span(begin, end, "secret")
    words = 1
    while words < 8 and (further := _FURTHER_WORD.match(lower, end)) and further[1] not in _ENDS_PHRASE:
        end = further.end()
        words += 1
    if words == 1 and first in _JUDGEMENT:
        return None
    return Span(begin, end, "secret")


def _reversed(lower: str, sort: _Sort, at: int) -> Iterator[Span]:
    """`hunter2 is my password`, abc123是我的密码."""
    begin = max(0, at - 100)
    before = lower[begin:at]
    match = _REVERSED_EN.search(before) or _REVERSED_ZH.search(before)
    if match is None or sort == "token":
        return
    value = match[1]
    if value.startswith(_MASKS) or not _DIGIT.search(value) or _NO_VALUE.match(value) or "://" in value:
        return
    if sort == "code" and not value.replace("-", "").isalnum():
        return
    yield Span(begin + match.start(1), begin + match.end(1), "secret")
