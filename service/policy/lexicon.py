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


_COUNT: Final = r"(?:\p{N}|[一二两三四五六七八九十百千万半])"
_NUMBER_WORDS: Final = (
    "one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|\\w+teen|twenty|thirty|forty|fifty|sixty"
    "|seventy|eighty|ninety|hundred|thousand|half|once|twice|dozen"
)
_CALENDAR: Final = (
    r"(?:\p{N}|[一二两三四五六七八九十])+\s?[月号日年点周天岁]|周[一二三四五六日末]|星期|[今明昨后前]天|[上下]周|[上下]个月"
    r"|[今明去]年|早上|晚上|除夕|国庆|春节|\p{N}"
    r"|\b(?:jan|feb|mar|apr|may|june?|july?|aug|sep|oct|nov|dec)\w*\b"
    r"|\b(?:mon|tues|wednes|thurs|fri|satur|sun)days?\b"
    r"|\b(?:today|tomorrow|yesterday|tonight|weeks?|months?|years?|morning|evening|night|weekend|spring|summer"
    r"|autumn|fall|winter|christmas|easter|since|ago|last|next)\b"
)
_MID_SENTENCE_NAME: Final = r"(?<=[\p{Ll},;] )\p{Lu}\p{Ll}{2,}"


def _kind(asks: str, holds: str) -> tuple[regex.Pattern[str], regex.Pattern[str]]:
    return regex.compile(asks), regex.compile(holds)


# What a question asks for, and what a text that answers it holds: the first that a question asks counts.
_KINDS: Final = (
    _kind(  # money
        r"多少钱|工资|价格|租金|房租|多贵|\bhow much\b.*\b(?:pay|cost|rent|earn|price|paid|spend|spent)\b"
        r"|\b(?:salary|price|cost|rent)\b",
        rf"{_COUNT}+\s?[块元万千百欧刀]|[$£€¥]\s?\p{{N}}|\p{{N}}\s?(?:k\b|a month|thousand)"
        r"|\b(?:pounds|quid|euros?|dollars|shillings)\b",
    ),
    _kind(  # age
        r"几岁|多大(?!面积|的)|年纪|岁数|\bhow old\b|\bage\b",
        r"岁|\p{N}{2}|[三四五六七八九]十|\b(?:years? old|turn(?:s|ed|ing)?|birthday|aged?)\b|生日",
    ),
    _kind(  # a number that names
        r"电话|号码|手机号|车牌|\b(?:phone|registration|number plate)\b", r"\p{N}{4,}|\b[A-Z]{2}\p{N}{2}\b"
    ),
    _kind(  # time
        r"什么时候|哪天|哪一天|几号|几月|几点|哪年|哪一年|日期|生日|星期几|\bwhen\b|birthday"
        r"|\bwhat (?:date|day|time|year|month)\b|\bwhich (?:day|month|year|date)\b",
        _CALENDAR,
    ),
    _kind(  # amount
        r"多少|几|多大|多久|多长|多高|多重|\bnumber\b"
        r"|\bhow (?:many|much|long|tall|fast|big|far|wide|often|heavy|cold)\b",
        rf"{_COUNT}|\b(?:{_NUMBER_WORDS})\b",
    ),
    _kind(  # name
        r"叫什么|名字|姓什么|贵姓|\bname\b|\bcalled\b",
        rf"叫(?![我你他她人做什])|姓|名字|[「“《]|\bcalled\b|\bnamed?\b|{_MID_SENTENCE_NAME}",
    ),
    _kind(  # person
        r"谁|\bwho(?:se|m)?\b",
        r"[妈爸爷奶姐妹哥弟姨叔舅姑婆公]|老师|师傅|同事|朋友|经理|医生|邻居|[老小]\p{Han}"
        rf"|[张王李刘陈杨赵黄周吴徐孙段]\p{{Han}}|{_MID_SENTENCE_NAME}"
        r"|\b(?:mum|mom|dad|sister|brother|aunt|uncle|wife|husband|friend|neighbour|boss|manager|doctor)\b"
        r"|(?:^|[.!?] )\p{Lu}\p{Ll}+(?:'s| has| is| was| said| wants)\b",
    ),
    _kind(  # place
        r"哪里|哪儿|哪个城市|哪个县|哪座城|什么地方|哪家|\bwhere\b"
        r"|\bwhich (?:city|town|country|school|university|hospital|street)\b",
        r"[市县省区路街镇村岛山湖河湾桥楼]|[在去到来]\p{Han}{2}"
        r"|\b(?:in|at|near|from) (?:the |my |our )?\p{L}{3,}|\bto (?:the )?\p{Lu}\p{Ll}{2,}",
    ),
)


def fits(query: str, text: str) -> int:
    """1 if the text holds the kind of thing the query asks for, -1 if not, 0 if the query asks for none.

    Kinds are amounts of money, ages, times, numbers, names, persons and places, told apart by their form.
    """
    lowered = query.lower()
    for asks, holds in _KINDS:
        if asks.search(lowered):
            return 1 if holds.search(text) or holds.search(text.lower()) else -1
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
