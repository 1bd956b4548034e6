"""Whom a statement is about: the user who made it, or somebody else.

Rules for Chinese and English, clause by clause: what a clause begins with is whom it is about ("他", "小王",
"我姐姐", "my sister's husband", "John lives"), a first person in it makes it the user's, and a clause without
a subject goes on with the one before. They know no grammar: a name of an uncommon form is not recognised.
"""

from collections.abc import Callable
from typing import Final

import regex

_MOST_CHARS_OF_ONE_THING: Final = 80
_SEVERAL: Final = regex.compile(
    r"[\n,，、;；:：。.!！?？…]|[和还也但]|并且|而且|\b(?:and|but|also|or|so|because|while)\b",
    regex.IGNORECASE,
)
_FIRST: Final = regex.compile(r"[我俺咱]|\b(?:i|i['’]\p{L}+|me|myself|we|our)\b", regex.IGNORECASE)
_THIRD: Final = regex.compile(r"[他她]|\b(?:he|she|they)\b", regex.IGNORECASE)
_RELATIONS_EN: Final = (
    "mother|father|mom|mum|dad|parents?|sister|brother|siblings?|aunt|uncle|wife|husband|daughter|son|child"
    "|children|kids?|friends?|boss|colleagues?|coworkers?|neighbou?rs?|roommates?|cousin|nephew|niece"
    "|grandmother|grandfather|grandma|grandpa|partner|girlfriend|boyfriend|fianc[eé]e?|team|manager|landlord"
)
_RELATIONS_ZH: Final = (
    "妈|爸|父|母(?![语校胎乳])|姐|妹|哥|弟|爷|奶|姥|外婆|外公|叔|姨|舅|姑|老婆|妻|老公|丈夫|女儿|儿子|孩子|同事|朋友"
    "|老板|邻居|室友|同学|男友|女友|领导|房东|表哥|堂哥|侄|岳父|岳母|婆婆|公公"
)
# Without "我" only words that are nothing else.
_PLAIN_RELATIONS_ZH: Final = (
    "妈妈|爸爸|老妈|老爸|父亲|母亲|父母|爸妈|姐姐|妹妹|哥哥|弟弟|爷爷|奶奶|姥姥|姥爷|外婆|外公|叔叔|阿姨|舅舅|姑姑"
    "|老婆|妻子|老公|丈夫|女儿|儿子|女朋友|男朋友|同事|邻居|室友|同学|老板|领导|房东|岳父|岳母|婆婆|公公"
)
# Surnames with which no common word begins that could stand before a verb.
_SURNAMES: Final = (
    "王李张刘陈杨赵吴徐孙朱郭梁郑谢韩冯董萧袁邓傅沈彭吕卢蒋蔡贾丁魏薛阎潘杜汪姚谭邹陆郝崔邱秦侯邵孟"
)
# These only after "小" and "老", as are given names.
_OTHER_SURNAMES: Final = "周黄高林马胡何罗宋唐许于曾程曹苏叶余任姜范方石钟夏田金明芳红丽强军伟"
_TITLES: Final = "先生|女士|小姐|太太|老师|医生|总|哥|姐|阿姨|叔叔|经理|主任"
_VERBS_ZH: Final = (
    r"(?:[也都就还常]|现在|目前|已经|刚刚?|一直|最近|最|很|不|没|去年|今年|昨天|说|告诉|跟|和|对)*"
    r"(?:住|在|是|有|喜欢|爱|讨厌|搬|去|来|想|要|会|能|说|养|买|卖|当|做|叫|姓|吃|喝|学|教|开|结|离|得|怀|患|工作|上班"
    r"|毕业|出生|生了|退休|过敏|打算|计划|准备|负责|从事|擅长|怕|用|跑|的|跟|和|给|让|陪|带)"
)
_VERBS_EN: Final = (
    r"(?:also |now |really |just |still |always |never |only |currently )*"
    r"(?:is|was|are|were|has|have|had|lives?|lived|works?|worked|likes?|liked|loves?|loved|hates?|hated|prefers?"
    r"|preferred|moved|moves|wants?|wanted|owns?|owned|bought|buys?|drives?|drove|speaks?|spoke|plays?|played"
    r"|studies|studied|teaches|taught|eats?|ate|drinks?|drank|does|did|doesn['’]t|didn['’]t|isn['’]t|can|can['’]t"
    r"|will|would|got|gets|went|goes|said|says|told|tells|thinks?|thought|plans?|planned|runs?|ran|uses?|used"
    r"|married|retired|quit|joined|became|enjoys?|needs?|just)\b"
)
# Words a sentence may begin with in capitals that are nobody's name.
_NO_NAMES: Final = (
    r"I|I['’]\p{L}+|We|You|It|This|That|These|Those|There|Here|What|Which|When|Where|Why|How|If|My|Our|Your|The|A"
    r"|An|Some|All|Nothing|Everything|Yes|No|Not|And|But|So|Also|Please|Work|Life|Home|Coffee|Tea|Food|Today"
    r"|Tomorrow|Yesterday|Never|Always|Really|Just|Currently|Recently|Actually|Still|Now"
)
_LEAD: Final = r"^\W*+(?:(?:but|and|so|well|also|because|that|但是?|不过|其实|因为|所以|而且|听说|据说)\W*+)?"
_OTHERS: Final = regex.compile(
    _LEAD
    + r"(?:"
    + rf"(?i:(?:my|our)\s+(?:\w+\s+)?(?P<who>{_RELATIONS_EN})\b)"
    + rf"|(?i:(?:the|a|his|her|their)?\s*\b(?P<who>{_RELATIONS_EN})\b(?=['’]s|\s+{_VERBS_EN}))"
    + rf"|[我俺咱](?:们)?[的大小二三老亲表堂前好]{{0,3}}+(?P<who>{_RELATIONS_ZH})"
    + rf"|(?P<who>{_PLAIN_RELATIONS_ZH})(?!很?多|少)"
    + r"|(?P<who>[他她它]们?)"
    + r"|(?i:(?P<who>he|she|they|his|her|their)\b(?:['’]\w+)?)"
    + rf"|(?P<who>(?:[小老阿][{_SURNAMES}{_OTHER_SURNAMES}]|[{_SURNAMES}](?:{_TITLES}|\p{{Han}}{{1,2}}?)))"
    + rf"(?={_VERBS_ZH})"
    + rf"|(?!(?:{_NO_NAMES})\b)(?P<who>\p{{Lu}}[\p{{L}}'’-]*+(?:\s\p{{Lu}}[\p{{L}}'’-]*+){{0,2}})"
    + rf"(?=\s+{_VERBS_EN})"
    + r")"
)
_IS_MINE: Final = regex.compile(r"是\s*我|\b(?:is|are|was|were)\s+my\b", regex.IGNORECASE)
_WHO_CLAUSE: Final = regex.compile(r"^\s*(?:who|whose)\b", regex.IGNORECASE)
_RELATION: Final = regex.compile(rf"\b(?:{_RELATIONS_EN})\b|{_RELATIONS_ZH}", regex.IGNORECASE)
_INTRODUCES: Final = regex.compile(rf"有[一二两三几]?[个位名].{{0,6}}?(?:{_RELATIONS_ZH})[^\p{{Han}}]*$")
_CLAUSE: Final = regex.compile(
    r"[,，、;；:：。.!！?？…\n]+|\s(?=(?:and|but|while|who|whose|that|because)\s)", regex.IGNORECASE
)
_ABOUT_THE_USER: Final = regex.compile(
    r"^\W*(?:用户|我|本人|(?:the\s+)?user\b|i\b)(?!\s*的|['’]s)", regex.IGNORECASE
)


def says_one_thing(text: str) -> bool:
    """Whether a text is one short statement, so that nothing else goes when it is outdated."""
    bare = text.strip().rstrip("。.!！~～ ")
    return 0 < len(bare) <= _MOST_CHARS_OF_ONE_THING and _SEVERAL.search(bare) is None


def is_about_another(statement: str) -> bool:
    """Whether a statement begins with somebody else, and the user has no part in it."""
    return _other(statement) is not None


def clauses_of(passage: str) -> list[str]:
    """The parts of a passage that may each have a subject of their own."""
    return [part for part in _CLAUSE.split(passage) if part.strip()]


def others_in(passage: str, is_said: Callable[[str], bool]) -> str | None:
    """Whom else a passage is about, in the user's words, where it says what a memory says; None: the user.

    `is_said` tells of one clause whether it says something of the memory. It is the user if any such clause
    is about the user, or if there is none.
    """
    before: str | None = None
    last = ""
    found: str | None = None
    for clause in clauses_of(passage):
        who = _other(clause)
        relation = _RELATION.search(last)
        if who is None and _WHO_CLAUSE.match(clause):
            who = relation[0] if relation else "who"
        elif who is None and not _FIRST.search(clause):
            who = before
            if who is None and _INTRODUCES.search(last):
                who = relation[0] if relation else None
        if is_said(clause):
            if who is None:
                return None
            # "Max is my dog" is a fact about the user, too; what comes next is about Max.
            found = found if _IS_MINE.search(clause) else who
        before, last = who, clause
    return found


def is_told_of(who: str, text: str) -> bool:
    """Whether a memory is about `who` and not about the user, however it is put."""
    if who.casefold() in text.casefold() and not (_THIRD.fullmatch(who) and _ABOUT_THE_USER.match(text)):
        return True
    is_pronoun = regex.fullmatch(r"[他她它]们?|he|she|they|his|her|their", who, regex.IGNORECASE)
    return bool(is_pronoun and not _ABOUT_THE_USER.match(text) and _RELATION.search(text))


def _other(clause: str) -> str | None:
    head = _OTHERS.match(clause)
    if head is None:
        return None
    mentions = list(_FIRST.finditer(clause, head.end()))
    # "My sister persuaded me to move", but not "he told me that she has moved".
    if mentions and not _THIRD.search(clause, mentions[-1].end()) and not _IS_MINE.search(clause):
        return None
    return head["who"]
