"""Whether a memory says only what was said: its numbers, names and most of its other words must occur.

A language model may put things in other words ("I've moved to Shanghai", "The user lives in Shanghai"), so
that words of a memory's form ("the user", "lives in", "用户", "喜欢") and words for the sort of a thing ("a
vegan diet", "职业") are free. What is left must be found: every number, whether in digits or in words, every
name in Latin letters, more than half of the other Latin words, and Han characters but for single ones: two in
a row that nobody has said are a word that nobody has said.
"""

import unicodedata
from collections.abc import Callable
from typing import Final

import regex

from service.policy.lexicon import IS_HAN

_FORM_EN_WORDS: Final = """
a an the user users they them their theirs he she his her him it its this that these those is am are was
were be been being do does did done doing have has had having will would shall should can could may might
must of in on at to for from by with about as into than then so and or but if not no nor who whom whose
which what when where why how there here any some all just ever never s t re ve ll d m i me my mine we our
us you your live lives living lived reside resides based located moved moves moving relocated work works
working worked like likes liked love loves loved enjoy enjoys prefer prefers preferred favorite favourite
favor favors dislike dislikes hate hates avoid avoids want wants wanted wish wishes need needs needed plan
plans planned planning intend intends going go goes went use uses used using own owns owned get gets got
become became becomes currently now recently usually often always sometimes regularly typically still
already also too very really longer anymore more again new newly old current former previous previously past
name named called job career profession occupation role position employed employee company diet food dish
drink city town country place area home house hometown originally native language hobby hobbies interest
interests interested person people goal goals aim aims project task age aged year years month months week
weeks day days time times every each per around approximately family member members relationship pet pets
owner kind type person's since until after before during because while both one another other least most
less fan follow follows following keep keeps kept make makes made take takes took taking try tries trying
prepare prepares preparing look looks looking search searching seek seeks finish finished complete completed
stop stopped start started begin began speak speaks study studies studying learn learns learning certain
specific eat eats eating drinks drinking within via etc without
"""
_FORM_EN: Final = frozenset(_FORM_EN_WORDS.split())
_FORM_ZH: Final = regex.compile(
    "用户|本人|自己|居住在?|住在|现居|定居|生活|工作|从事|担任|任职|就职|上班|职业|行业|岗位|喜欢|喜爱|热爱|偏好|偏爱|爱好"
    "|兴趣|讨厌|厌恶|不爱|避免|想要|希望|需要|要求|计划|打算|准备|正在|目前|现在|当前|最近|已经|曾经|经常|通常|总是|一直"
    "|每次|名字|姓名|名为|名叫|称呼|叫做|来自|出生于?|籍贯|老家|家乡|搬到|搬去|搬家|迁居|移居|搬|位于|城市|地方|地区|公司"
    "|家庭|家人|家里|宠物|饮食|食物|口味|习惯|每天|每周|每月|每年|大约|左右|大概|年龄|岁|拥有|购买|养了|饲养|使用|学习"
    "|参加|完成|结束|停止|开始|不再|不是|没有|无法|不能|可以|能够|因为|所以|而且|并且|但是|以及|关于|对于|目标|任务|项目"
    "|工程师|开发|程序员|软件|人员|专业|一名|一位|一个|一只|一条|一家|一辆|一种|一些|之前|以前|以后|之后|期间|时候|方面"
    "|方式|相关|其他|孩子|应该|必须"
    "|[我你您他她它们的了是在有和与及或也都就还又再不没很最会能要想做当到去来从给对把被让用为以着吗呢吧啊呀这那叫姓吃喝住]"
    "|[个位名只条者等]"
)
# A new character here makes another town of the one that was named.
_PLACE: Final = frozenset("州京海江河湖南北东西安阳山都津沙圳汉")
_RUN_HAN: Final = regex.compile(rf"{IS_HAN.pattern}+")
_WORD: Final = regex.compile(r"[\p{Latin}\p{M}][\p{Latin}\p{M}\p{N}'’]*+")
_DIGITS: Final = regex.compile(
    r"(?<![\p{N}.])(\d[\d,]*+(?:\.\d+)?+)\s*(万|千|百|亿|k\b|w\b|m\b)?", regex.IGNORECASE
)
_HAN_NUMBER: Final = regex.compile("[零〇一二两三四五六七八九十百千万亿]+")
# Numerals that count nothing.
_NO_NUMBERS: Final = regex.compile(
    "十分|万一|千万|百分|一[\u4e00-\u9fff]|三明治|四川|五金|八卦|百度|千问|万科|九寨|三亚|六安"
)
_HAN_DIGITS: Final = {c: n for n, c in enumerate("零一二三四五六七八九")} | {"〇": 0, "两": 2}
_HAN_UNITS: Final = {"十": 10, "百": 100, "千": 1000}
_UNITS: Final = {"k": 1e3, "w": 1e4, "m": 1e6, "百": 1e2, "千": 1e3, "万": 1e4, "亿": 1e8}
_ONES: Final = """
zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen
seventeen eighteen nineteen
"""
_TENS: Final = "twenty thirty forty fifty sixty seventy eighty ninety"
_ENGLISH_NUMBERS: Final = {
    **{word: float(number) for number, word in enumerate(_ONES.split())},
    **{word: 10.0 * tens for tens, word in enumerate(_TENS.split(" "), 2)},
}
_SCALES: Final = {"hundred": 100.0, "thousand": 1000.0, "million": 1e6}
_SAME_STEM: Final = 4


def is_grounded(text: str, said: str) -> bool:
    """Whether all that a memory says in its own right occurs in what was `said`."""
    text, source = _folded(text), _folded(said)
    return (
        _numbers(text) <= _numbers(source)
        and _has_latin(text, source)
        and _has_han(text, source)
        and not _is_empty_form(text, source)
    )


def matter_of(text: str) -> Callable[[str], bool]:
    """Tells of a clause whether it says something of what a memory says, form words aside."""
    text = _folded(text)
    words = {word.casefold() for word in _latin_matter(text)}
    han, numbers = set("".join(_han_matter(text))), _numbers(text)

    def is_said(clause: str) -> bool:
        clause = _folded(clause)
        if not han.isdisjoint(clause):
            return True
        said = _words(clause) if words else set()
        return any(_is_in(word, said) for word in words) or bool(numbers and numbers & _numbers(clause))

    return is_said


def _folded(text: str) -> str:
    return unicodedata.normalize("NFKC", text).replace("’", "'")


def _is_empty_form(text: str, source: str) -> bool:
    """Whether a memory of form words only shares none of them with what was said."""
    if _latin_matter(text) or "".join(_han_matter(text)) or _numbers(text):
        return False
    own = {word.casefold() for word in _WORD.findall(text)} - {"the", "user", "a", "an", "is", "i", "of"}
    han = set(regex.sub("用户|我", "", "".join(_RUN_HAN.findall(text))))
    return not (any(_is_in(word, _words(source)) for word in own) or han & set(source))


# --- Numbers --------------------------------------------------------------------------------------------
def _numbers(text: str) -> set[float]:
    """Values of the numbers in a text; "one" and "一" count as words."""
    found: set[float] = set()
    for match in _DIGITS.finditer(text):
        value = float(match[1].replace(",", ""))
        unit = _UNITS.get((match[2] or "").casefold(), 1.0)
        found |= {value * unit} if match[2] and IS_HAN.match(match[2]) else {value, value * unit}
    bare = _NO_NUMBERS.sub(lambda one: "一" if one[0] == "一" else "", text)
    found |= {_han_value(match[0]) for match in _HAN_NUMBER.finditer(bare) if match[0] != "一"}
    words = [word.casefold() for word in _WORD.findall(text)]
    value = 0.0
    for word in [*words, ""]:
        if word in _SCALES and value:
            value *= _SCALES[word]
        elif word in _ENGLISH_NUMBERS:
            value += _ENGLISH_NUMBERS[word]
        elif value:
            found.add(value)
            value = 0.0
    return found - {0.0, 1.0}


def _han_value(numeral: str) -> float:
    if not any(char in "十百千万亿" for char in numeral):
        return float("".join(str(_HAN_DIGITS[char]) for char in numeral))
    whole, part, digit = 0, 0, 0
    last_unit = 1
    for char in numeral:
        if char in _HAN_DIGITS:
            digit = _HAN_DIGITS[char]
            last_unit = 1 if digit == 0 else last_unit
        elif char in _HAN_UNITS:
            part += (digit or 1) * _HAN_UNITS[char]
            digit, last_unit = 0, _HAN_UNITS[char]
        else:
            unit = 10_000 if char == "万" else 100_000_000
            whole += (part + digit or 1) * unit
            part, digit, last_unit = 0, 0, unit
    # "三千五" is 3500.
    return float(whole + part + digit * (last_unit // 10 if last_unit > 10 else 1))


# --- Latin words ----------------------------------------------------------------------------------------
def _words(text: str) -> set[str]:
    return {word.casefold().removesuffix("'s") for word in _WORD.findall(text)}


def _latin_matter(text: str) -> list[str]:
    words = [word.removesuffix("'s") for word in _WORD.findall(text)]
    return [
        word
        for word in words
        if (key := word.casefold()) not in _FORM_EN
        and key not in _ENGLISH_NUMBERS
        and key not in _SCALES
        and "'" not in key
        and len(key) > 1
    ]


def _has_latin(text: str, source: str) -> bool:
    matter = _latin_matter(text)
    said = _words(source)
    known = [_is_in(word.casefold(), said) for word in matter]
    if any(word != word.casefold() and not is_known for word, is_known in zip(matter, known, strict=True)):
        return False
    return not matter or 2 * sum(known) > len(matter)


def _is_in(word: str, said: set[str]) -> bool:
    """Whether the word was said, in whatever form: "run" and "running", "German" and "Germany"."""
    if word in said:
        return True
    stem = max(_SAME_STEM, (2 * len(word) + 2) // 3)
    if len(word) < _SAME_STEM:
        return any(
            one.startswith(word) and len(one) <= len(word) + _SAME_STEM for one in said if len(word) > 2
        )
    return any(
        one[:stem] == word[:stem]
        or (len(one) > 2 and word.startswith(one) and len(word) <= len(one) + _SAME_STEM)
        for one in said
    )


# --- Han characters -------------------------------------------------------------------------------------
def _han_matter(text: str) -> list[str]:
    """The runs of Han characters without words of form and numerals."""
    runs = (_HAN_NUMBER.sub(" ", _FORM_ZH.sub(" ", run)) for run in _RUN_HAN.findall(text))
    return [piece for run in runs for piece in run.split()]


def _has_han(text: str, source: str) -> bool:
    pieces = _han_matter(text)
    said = set(source)
    if any(_is_new_word(piece, said) for piece in pieces):
        return False
    matter = "".join(pieces)
    return not matter or 2 * sum(char in said for char in matter) >= len(matter)


def _is_new_word(piece: str, said: set[str]) -> bool:
    """Whether two characters in a row were not said, or one that belongs to the name of a place."""
    news = [char not in said for char in piece]
    return any(
        is_new and (char in _PLACE or after in _PLACE or is_after_new)
        for char, is_new, after, is_after_new in zip(
            piece, news, [*piece[1:], ""], [*news[1:], False], strict=True
        )
    )
