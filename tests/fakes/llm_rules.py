"""What the fake LLM takes from text, by rules: sentences, facts, subjects, labels. No randomness anywhere."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

_CITIES = {
    "杭州": "Hangzhou",
    "上海": "Shanghai",
    "北京": "Beijing",
    "深圳": "Shenzhen",
    "广州": "Guangzhou",
    "成都": "Chengdu",
    "南京": "Nanjing",
    "苏州": "Suzhou",
    "武汉": "Wuhan",
    "西安": "Xi'an",
    "巴黎": "Paris",
    "柏林": "Berlin",
    "伦敦": "London",
    "东京": "Tokyo",
}
_CITY = re.compile("|".join([*_CITIES, *_CITIES.values()]))
_LIVES_ZH = re.compile(rf"(住在?|搬到|搬去|搬来|定居|在)(?:了)?({'|'.join(_CITIES)})")
_LIVES_EN = re.compile(
    r"\b(?:lives?|living|moved|relocated|am based|is based|settled|am|is)\b(?: back)? (?:in|to) "
    r"([A-Z][\w']+(?: [A-Z][\w']+)*)"
)
_JOB_ZH = re.compile(
    r"(?:做|当|从事|转行|是一?名?个?位?)(?:的|了|到)?(后端|前端|全栈|算法|测试|运维|产品经理|产品|设计师|程序员|工程师|"
    r"老师|教师|医生|护士|律师|会计|销售|司机|厨师|记者|学生)"
)
_JOB_EN = re.compile(
    r"\b(?:works? as|am|is|became|now) an? ([\w -]*?(?:engineer|developer|designer|teacher|nurse|doctor|"
    r"lawyer|accountant|manager|driver|chef|writer|student|programmer))\b"
)
_BUDGET = re.compile(r"预算|\bbudget\b", re.IGNORECASE)
_LIKES = re.compile(
    r"喜欢|偏好|最爱|讨厌|不吃|不喝|\b(?:like|love|prefer|hate|enjoy|favou?rite)s?\b", re.IGNORECASE
)
_HAPPENED = re.compile(
    r"昨天|上周|去年|刚刚|\b(?:yesterday|last (?:week|month|year)|moved|bought|met)\b", re.IGNORECASE
)

_PLANS = re.compile(r"预算|打算|计划|准备|\b(?:budget|plan|preparing|training)", re.IGNORECASE)
_DONE = re.compile(r"完成了|办完了|\bfinished\b", re.IGNORECASE)
_ENDS = re.compile(r"不再|完成了|办完了|改成|\b(?:no longer|finished|not any ?more)\b", re.IGNORECASE)
_OTHER = re.compile(r"^(?:我|用户|my |the user's )的?(姐姐|妹妹|朋友|sister|brother|friend)", re.IGNORECASE)
_FORM = set("我用户的了是在他她它们这那有不和再完成办改喝吃")

_ROLE = re.compile(
    r"^\s*[-*]?\s*(user|human|用户|assistant|ai|bot|助手|tool|system|工具|系统)\s*[:：]\s*", re.IGNORECASE
)
_USER_ROLES = {"user", "human", "用户"}
_SENTENCE = re.compile(r"[^。！？!?；;\n]+[。！？!?；;]*|\n")
_CHATTER = re.compile(
    r"(?:ok|okay|yes|no|yep|sure|fine|thanks?|thank you|hello|hi|hey|bye|good (?:morning|night)|lol|haha|"
    r"好的?|行|可以|是的?|对|不是|谢谢你?|多谢|你好|您好|再见|早上好|晚安|在吗|嗯+|哦+|啊+|哈+|收到|明白了?)"
    r"(?:[ ,，啊呀呢吧哦]*)",
    re.IGNORECASE,
)
_WEATHER = re.compile(
    r"今天(?:天气)?(?:真|好|太|有点|非常)?(?:热|冷|闷|凉快|下雨|晴朗?|不错)[了啊呀]?|"
    r"(?:it'?s|it is|what a) .*\b(?:hot|cold|warm|rainy|sunny|nice)\b.*\b(?:day|today)\b",
    re.IGNORECASE,
)
_ASKS = re.compile(
    r"[?？]\s*$|(?:吗|呢)$|^(?:who|what|when|where|why|which|how|can you|could you|do you|is there|please|"
    r"tell me|请|帮我|给我|怎么|什么|哪|谁|为什么|能不能|可以帮)",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Statement:
    """One thing a user has said about the world, and what it is about."""

    text: str
    subjects: frozenset[str]

    @property
    def entities(self) -> list[str]:
        """The cities and jobs it names."""
        return [name for name in (city_of(self.text), job_of(self.text)) if name]


def city_of(text: str) -> str | None:
    """The city somebody is said to live in."""
    chinese = _LIVES_ZH.search(text)
    english = _LIVES_EN.search(text)
    return chinese[2] if chinese else english[1] if english else None


def job_of(text: str) -> str | None:
    """The work somebody is said to do."""
    found = _JOB_ZH.search(text) or _JOB_EN.search(text)
    return found[1] if found else None


def subjects_of(text: str) -> frozenset[str]:
    """What a statement is about: city, job, budget, or nothing that could be overwritten.

    Somebody else's city is another subject than the user's.
    """
    found = {"city": city_of(text), "job": job_of(text), "budget": _BUDGET.search(text)}
    other = _OTHER.match(text)
    whose = f"{other[1].lower()}'s " if other else ""
    return frozenset(f"{whose}{name}" for name, value in found.items() if value)


def is_about_another(text: str) -> bool:
    """Whether a statement begins with somebody the user knows."""
    return _OTHER.match(text) is not None


def is_plan(text: str) -> bool:
    """Whether a statement is about what the user is up to."""
    return _PLANS.search(text) is not None


def is_end(text: str) -> bool:
    """Whether a statement says that something is over."""
    return _ENDS.search(text) is not None


def ends(text: str, old: str) -> bool:
    """Whether a statement says that what an older one is about is over."""
    return is_end(text) and bool(_matter(text) & _matter(old))


def _matter(text: str) -> set[str]:
    han = {char for char in text if "\u4e00" <= char <= "\u9fff"} - _FORM
    return han | set(re.findall(r"[a-z]{5,}", text.lower())) - {"longer"}


def said_by_user(content: str) -> list[str]:
    """The user's sentences of a transcript; a text without speakers is all the user's."""
    sentences: list[str] = []
    is_user = True
    for line in content.splitlines():
        role = _ROLE.match(line)
        if role:
            is_user = role[1].lower() in _USER_ROLES
            line = line[role.end() :]  # noqa: PLW2901
        if is_user:
            sentences += [part for found in _SENTENCE.findall(line) for part in _parts(found)]
    return sentences


def _parts(sentence: str) -> list[str]:
    return [part.strip() for part in re.split(r"(?<=[a-z]\.)\s+(?=[A-Z])", sentence) if part.strip()]


def statements(content: str) -> list[Statement]:
    """What is worth keeping of a transcript: not greetings, fillers, small talk, questions or requests."""
    found: list[Statement] = []
    for sentence in said_by_user(content):
        bare = sentence.strip(" \t。！!.，,~～…；;")
        if not bare or _CHATTER.fullmatch(bare) or _WEATHER.fullmatch(bare) or _ASKS.search(sentence):
            continue
        if not re.search(r"\w", bare):
            continue
        subjects = subjects_of(bare)
        statement = Statement(about_the_user(bare) if subjects else bare, subjects)
        if statement not in found:
            found.append(statement)
    return found


def about_the_user(text: str) -> str:
    """A first-person sentence in the third person; one without a first person stays as it is."""
    text = text.replace("我", "用户") if re.search(r"[\u4e00-\u9fff]", text) else text
    for pattern, replacement in (
        (r"\bI live\b", "The user lives"),
        (r"\bI work\b", "The user works"),
        (r"\bI(?:'m| am)\b", "The user is"),
        (r"\bI(?:'ve| have)\b", "The user has"),
        (r"\b[Mm]y\b", "the user's"),
        (r"\bI\b", "The user"),
    ):
        text = re.sub(pattern, replacement, text)
    return text[:1].upper() + text[1:]


def updated(old: str, new: str) -> str:
    """An observation after a newer fact about its subject: the new city or job in the old sentence."""
    shared = subjects_of(old) & subjects_of(new)
    text = old
    for name, of in (("city", city_of), ("job", job_of)):
        before, after = of(old), of(new)
        if not any(subject.endswith(name) for subject in shared) or before is None or after is None:
            continue
        is_same_language = before.isascii() == after.isascii()
        if not is_same_language:
            return new
        text = text.replace(before, after)
    return new if is_end(new) or "budget" in shared or not shared else text


def classified(text: str, groups: dict[str, list[str]]) -> dict[str, str]:
    """A value for each label group, out of those it offers."""
    subjects = subjects_of(text)
    if _LIKES.search(text):
        kinds, weight = ["preference", "like"], 1
    elif "budget" in subjects:
        kinds, weight = ["constraint", "budget", "preference"], 2
    elif is_plan(text) or _DONE.search(text):
        kinds, weight = ["plan", "task_state"], 2
    elif subjects:
        kinds, weight = ["profile", "user_profile", "identity", "attribute", "fact"], 2
    elif is_end(text):
        kinds, weight = ["preference", "like"], 1
    elif _HAPPENED.search(text):
        kinds, weight = ["event", "experience", "episode"], 1
    else:
        kinds, weight = ["fact", "other", "general"], 0
    found = {}
    for key, values in groups.items():
        if not values:
            found[key] = kinds[0]
        elif key == "importance":
            found[key] = _weighted(values, weight)
        else:
            found[key] = next((kind for kind in kinds if kind in values), values[0])
    return found


def _weighted(values: Sequence[str], weight: int) -> str:
    """Low, middle or high (0, 1, 2) of the values on offer, whether they are words or numbers."""
    names = {"low": 0, "minor": 0, "medium": 1, "mid": 1, "normal": 1, "high": 2, "major": 2, "critical": 2}
    if all(value.lower() in names for value in values):
        ranked = sorted(values, key=lambda value: names[value.lower()])
    elif all(re.fullmatch(r"\d+(?:\.\d+)?", value) for value in values):
        ranked = sorted(values, key=float)
    else:
        ranked = list(values)
    return ranked[round(weight * (len(ranked) - 1) / 2)]
