"""Postal addresses that lead to a door: Chinese 路…号…室, English "123 Main Street", some European forms.

A city, a district or a road without a number is no address: where somebody lives in general may be
remembered. Only what stands at a road's suffix next to a number is looked at, and then at most 50 characters
around it.
"""

import re
from typing import Final

from service.policy.redaction_fold import Folded
from service.policy.redaction_types import Span

_HAN: Final = "\u4e00-\u9fff"
_COUNT: Final = "一二三四五六七八九十百〇零"
_DOOR: Final = r"号楼|号院|號樓|号|號|弄|栋|棟|幢|座|组|組|单元|單元|室|层|層|楼|樓|户|房"
_CN_ANCHOR = re.compile(
    # One class first, so that the search is fast, then what of a longer suffix has to stand before it.
    r"[路街道巷同弄村屯镇鎮乡鄉区區园園苑寓厦馆邸居场](?<![^胡]同)(?<![^大街]道)(?<![^小社园]区)(?<![^小]區)(?<![^公]寓)"
    r"(?<![^大]厦)(?<![^公]馆)(?<![^名]邸)(?<![^雅]居)(?<![^广]场)"
    rf"(?:[东西南北中]?[{_COUNT}]{{0,2}}[段期区])? ?"
    rf"(?:[A-Za-z甲乙丙丁]?[0-9]{{1,5}}(?:-[0-9]{{1,4}})?|[{_COUNT}]{{1,5}})"
    rf" ?(?:{_DOOR})(?![线線码碼])"
)
_CN_TAIL = re.compile(
    rf"(?:[ ,]?(?:[{_HAN}]{{2,10}}?(?:大厦|广场|中心|大楼|公寓|小区|花园|院|苑))?"
    rf"[ ,]?(?:[A-Za-z]?[0-9]{{1,5}}|[A-Za-z]|[{_COUNT}]{{1,3}}) ?(?:{_DOOR})){{0,6}}"
    rf"(?:[{_HAN}]{{2,10}}?(?:大厦|广场|中心|大楼|公寓|小区|花园))?"
    r"(?:[ -]?[0-9]{2,5}(?![0-9年月日天个元点]))?"
)
_CN_HEAD_BACKWARDS = re.compile(rf"[{_HAN}A-Za-z0-9-]{{0,40}}")
_CN_LEAD = re.compile(
    r"住在|家住|[我他她你]住|住|[我他她你]家在?|家在|位于|地址[是为]?|住址[是为]?|寄到|寄往|寄给|寄|送到|送往|送|"
    r"搬到了?|搬去了?|搬|老家[是在]?|就在|快递|[是在到至去]了?|请"
)
_PROVINCE = re.compile(
    r"北京|上海|天津|重庆|河北|山西|辽宁|吉林|黑龙江|江苏|浙江|安徽|福建|江西|山东|河南|湖北|湖南|广东|海南|四川|贵州|"
    r"云南|陕西|甘肃|青海|台湾|内蒙古|广西|西藏|宁夏|新疆|香港|澳门|台北|高雄|新北"
)
_CN_LABEL = re.compile(r"(?:地址|住址)[ ]?[:是为]?[ ]?[\"“]?([^。；;，,\n\"”！？!?]{5,60})")
_CN_NOT_POSTAL = re.compile(
    r"(?:ip|mac|url|email|网|邮箱|邮件|内存|合约|钱包|服务器|网络|物理|接口|链接|下载|回调|仓库)的?[ ]?$"
)
_CN_PARTS = re.compile(r"[路街道巷村镇区园苑楼栋幢座室号弄]")
_HAN_CHAR = re.compile(rf"[{_HAN}]")

_STREET: Final = (
    "street|st|avenue|ave|road|rd|boulevard|blvd|lane|ln|drive|dr|court|ct|place|pl|terrace|parkway|pkwy|highway|hwy|"
    "square|sq|circle|cir|close|crescent|way"
)
_EN_STREET = re.compile(rf"[0-9]{{1,6}}[a-z]?,? ((?:[a-z0-9][\w'’.-]{{0,20}} ){{1,4}}?)({_STREET})\b\.?")
_EN_NO_NAME_WORDS: Final = """
    a an and another at away blocks build by days down for from hours in is km kilometers lanes long
    meters metres miles million minute minutes more my of off on or people per persons points seconds
    steps than that the this times to too up was way ways weeks with years am pm percent stars
"""
_EN_NO_NAME: Final = frozenset(_EN_NO_NAME_WORDS.split())
_EN_SPELT_WORDS: Final = """
    street avenue road boulevard lane drive court terrace parkway highway square crescent
"""
_EN_SPELT: Final = frozenset(_EN_SPELT_WORDS.split())
_EN_AFTER_SPELT = re.compile(r" ?(?:$|[,.;:!?)\n\"'，。；！？]|apt|unit|suite|#|[0-9])")
_EN_TAIL = re.compile(
    r"(?:,? (?:[Aa]pt|[Aa]partment|[Ss]uite|[Ss]te|[Uu]nit|[Ff]lat|[Ff]loor|[Ff]l|[Rr]oom|[Rr]m|#)\.?"
    r" ?#?[\w-]{1,6})?"
    r"(?:, ?[A-Z][A-Za-z.'’-]{1,20}(?: [A-Z][a-z.'’-]{1,20}){0,2})?"
    r"(?:,? [A-Z]{2}(?![A-Za-z0-9]))?"
    r"(?:,? [0-9]{5}(?:-[0-9]{4})?(?![0-9])|,? [A-Z]{1,2}[0-9][A-Z0-9]? [0-9][A-Z]{2}(?![A-Za-z0-9]))?"
)
_EN_FLAT_BEFORE = re.compile(r"(?:flat|apt\.?|apartment|unit|suite) (?:[0-9a-z]{1,5},? )?$")
_PO_BOX = re.compile(r"(?<![a-z])p\.? ?o\.? ?box:? ?[0-9]{1,6}")
_GERMAN = re.compile(r"(?:straße|strasse|str\.|weg|platz|allee|gasse) [0-9]{1,4} ?[a-z]?(?![a-z0-9])")
_GERMAN_NAME_BACKWARDS = re.compile(r"[a-zäöüß-]{2,30}")
_FRENCH = re.compile(
    r"(?<![\w.])[0-9]{1,4}(?: bis| ter)?,? (?:rue|boulevard|impasse|chemin|quai) "
    r"(?:[\w'’-]{1,20} ){0,3}?[\w'’-]{3,20}(?:,? [0-9]{5} [\w-]{2,20})?(?![\w'’-])"
)


def find_addresses(folded: Folded) -> list[Span]:
    """Every postal address; they may overlap."""
    found = [*_chinese(folded), *_labelled(folded), *_english(folded)]
    lower = folded.lower
    if "box" in lower:
        found += [Span(*match.span(), "address") for match in _PO_BOX.finditer(lower)]
    if any(word in lower for word in ("straße", "strasse", "str.", "weg ", "platz ", "allee ", "gasse ")):
        for match in _GERMAN.finditer(lower):
            name = _GERMAN_NAME_BACKWARDS.match(lower[max(0, match.start() - 30) : match.start()][::-1])
            if name:
                found.append(Span(match.start() - len(name[0]), match.end(), "address"))
    if any(word in lower for word in (" rue ", "boulevard ", "impasse ", "chemin ", "quai ")):
        found += [Span(*match.span(), "address") for match in _FRENCH.finditer(lower)]
    return found


def _chinese(folded: Folded) -> list[Span]:
    text = folded.text
    found: list[Span] = []
    done = 0
    for match in _CN_ANCHOR.finditer(text):
        if match.start() < done:
            continue
        head = _CN_HEAD_BACKWARDS.match(text[max(done, match.start() - 40) : match.start()][::-1])
        begin = match.start() - (len(head[0]) if head else 0)
        begin = _without_lead(text, begin, match.start())
        if match.start() - begin < 1 or not _HAN_CHAR.search(text, begin, match.start()):
            continue
        tail = _CN_TAIL.match(text, match.end())
        done = tail.end() if tail else match.end()
        found.append(Span(begin, done, "address"))
    return found


def _without_lead(text: str, begin: int, end: int) -> int:
    """Where the address itself begins: behind "我家住在", or at the first province named."""
    provinces = [match.start() for match in _PROVINCE.finditer(text, begin, end)]
    # 南京东路, 四川北路: a province's name right before the road is the road's.
    provinces = [at for at in provinces if end - at > 3]
    if provinces:
        return provinces[0]
    leads = [match.end() for match in _CN_LEAD.finditer(text, begin, end) if end - match.end() >= 1]
    return leads[-1] if leads else begin


def _labelled(folded: Folded) -> list[Span]:
    if "址" not in folded.text:
        return []
    found: list[Span] = []
    for match in _CN_LABEL.finditer(folded.text):
        value = match[1].rstrip()
        before = folded.lower[max(0, match.start() - 8) : match.start()]
        if (
            len(_HAN_CHAR.findall(value)) >= 4
            and any(char.isdigit() for char in value)
            and len(_CN_PARTS.findall(value)) >= 2
            and not _CN_NOT_POSTAL.search(before)
        ):
            start = match.start(1)
            found.append(Span(start, start + len(value), "address"))
    return found


def _english(folded: Folded) -> list[Span]:
    found: list[Span] = []
    text, lower = folded.text, folded.lower
    for number, _ in folded.numbers:
        before = lower[max(0, number - 1) : number]
        if before and before.isascii() and (before.isalnum() or before in ".$-_#"):
            continue
        match = _EN_STREET.match(lower, number)
        if match is None:
            continue
        names = match[1].split()
        if _EN_NO_NAME.intersection(names) or all(name.isdigit() for name in names):
            continue
        start, end = match.span()
        name = text[match.start(1)]
        is_proper = text[match.start(2)].isupper() and (name.isupper() or name.isdigit())
        if not is_proper and not (match[2] in _EN_SPELT and _EN_AFTER_SPELT.match(lower, end)):
            continue
        tail = _EN_TAIL.match(text, end)
        flat = _EN_FLAT_BEFORE.search(lower[max(0, start - 18) : start])
        begin = start - len(flat[0]) if flat else start
        found.append(Span(begin, tail.end() if tail else end, "address"))
    return found
