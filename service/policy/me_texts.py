"""What the page `/me` says, in English and Chinese."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Final, Literal

Language = Literal["en", "zh"]


@dataclass(frozen=True, slots=True)
class Texts:
    """All words of the page in one language; names in braces are filled in."""

    lang: str
    title: str
    skip: str
    language: str
    intro: str
    kept_for: str
    kept_always: str
    kind_kept_for: str
    look: str
    query: str
    query_hint: str
    kind: str
    any_kind: str
    until: str
    superseded: str
    show: str
    show_all: str
    waiting: str
    waiting_intro: str
    waiting_more: str
    remembered: str
    nothing: str
    nothing_found: str
    older: str
    newest: str
    from_turn: str
    from_unknown: str
    from_observation: str
    from_one: str
    no_kind: str
    kind_is: str
    importance: str
    tags: str
    correct: str
    correct_hint: str
    new_words: str
    save: str
    delete: str
    delete_one_warning: str
    delete_now: str
    more: str
    download: str
    download_hint: str
    delete_all: str
    delete_all_hint: str
    delete_all_title: str
    delete_all_warning: str
    delete_all_what: tuple[str, ...]
    delete_all_first: str
    delete_all_sure: str
    delete_all_now: str
    delete_all_unsure: str
    go_back: str
    end: str
    end_hint: str
    end_now: str
    valid_until: str
    corrected: str
    deleted_one: str
    deleted_nothing: str
    deleted_all: str
    receipt: str
    receipt_number: str
    receipt_at: str
    receipt_memories: str
    receipt_documents: str
    receipt_pending: str
    receipt_jobs: str
    receipt_cache: str
    receipt_verified: str
    verified: str
    not_verified: str
    opening: str
    go_on: str
    problem: str
    problems: Mapping[str, str]
    problem_otherwise: str
    kinds: Mapping[str, str]

    def day(self, moment: datetime) -> str:
        """The date of a moment."""
        if self.lang != "en":
            return f"{moment.year}年{moment.month}月{moment.day}日"
        return f"{moment.day} {_MONTHS[moment.month - 1]} {moment.year}"


_MONTHS: Final = (
    "January", "February", "March", "April", "May", "June", "July",
    "August", "September", "October", "November", "December",
)  # fmt: skip

EN: Final = Texts(
    lang="en",
    title="What is remembered about you",
    skip="Skip to the content",
    language="Language",
    intro="This is your own page: only who has your personal link can see it. You can correct what is wrong "
    "and delete what should not be kept.",
    kept_for="What you said is deleted by itself after {days} days.",
    kept_always="What you said is kept until you delete it.",
    kind_kept_for="{kind}: not used any more after {days} days.",
    look="Look for something",
    query="Words",
    query_hint="Up to 100 characters.",
    kind="Kind",
    any_kind="All kinds",
    until="Said on or before",
    superseded="Also show earlier statements that a newer memory sums up or replaces",
    show="Show",
    show_all="Show everything",
    waiting="Not processed yet ({count})",
    waiting_intro="You said this just now. It becomes memories in a minute or so.",
    waiting_more="Only the newest {shown} are shown.",
    remembered="Memories",
    nothing="Nothing is remembered about you.",
    nothing_found="Nothing here matches what you are looking for.",
    older="Older memories",
    newest="Back to the newest",
    from_turn="From conversation {name} at {time}",
    from_unknown="Noted at {time}; from no particular conversation",
    from_observation="Summed up from {count} of your statements, the latest at {time}",
    from_one="Summed up from a statement of yours at {time}",
    no_kind="As you said it",
    kind_is="Kind: {kind}",
    importance="Importance: {value} of 1",
    tags="Labels: {tags}",
    correct="Correct",
    correct_hint="From then on only the new words are used.",
    new_words="What it should say",
    save="Save",
    delete="Delete",
    delete_one_warning="It is removed for good, with the statements that nothing else comes from. "
    "This cannot be undone.",
    delete_now="Delete for good",
    more="Your data",
    download="Download everything",
    download_hint="A text file with one memory a line (JSON).",
    delete_all="Delete everything …",
    delete_all_hint="You are asked once more.",
    delete_all_title="Delete everything?",
    delete_all_warning="This cannot be undone.",
    delete_all_what=(
        "All memories about you are deleted, with the conversations they come from.",
        "What is not processed yet is deleted, too.",
        "From then on the assistant knows nothing of your earlier conversations.",
    ),
    delete_all_first="Download everything first",
    delete_all_sure="I understand that everything is deleted for good.",
    delete_all_now="Delete everything for good",
    delete_all_unsure="Nothing was deleted: tick the box first.",
    go_back="Go back, delete nothing",
    end="Close this page on every device",
    end_hint="Your links and all pages opened with them stop working at once. Nothing is deleted.",
    end_now="Close now",
    valid_until="This page works until {moment}.",
    corrected="Your correction is saved.",
    deleted_one="It is deleted.",
    deleted_nothing="It was deleted already.",
    deleted_all="Everything is deleted.",
    receipt="Receipt",
    receipt_number="Number",
    receipt_at="When",
    receipt_memories="Memories deleted",
    receipt_documents="Stored statements deleted",
    receipt_pending="Unprocessed statements deleted",
    receipt_jobs="Pending jobs cancelled",
    receipt_cache="Prepared answers deleted",
    receipt_verified="Checked afterwards",
    verified="yes, nothing of it is left",
    not_verified="no, something may be left: please delete once more",
    opening="Opening your page …",
    go_on="Go on to your page",
    problem="That did not work",
    problems=MappingProxyType(
        {
            "link_refused": "This page opens by a personal link. It was not found, has ended or was closed. "
            "Ask for a new link where you got the last one.",
            "form_refused": "This form is not up to date. Go back to your page and try again.",
            "not_found": "This is not there any more.",
            "not_stored_yet": "You said this just now, so that it cannot be corrected yet. Try again in a "
            "minute, or delete it.",
            "invalid_request": "Something in the form is missing, too long or not allowed.",
            "too_large": "That is too long.",
            "malformed_body": "The form did not arrive whole. Try again.",
            "too_many_requests": "That was too much at once. Wait a minute and try again.",
            "unavailable": "It may not be done yet: a part does not answer. Try the same again in a few "
            "seconds.",
        }
    ),
    problem_otherwise="The memory cannot be reached now, and it may not be done yet. Try the same again in a "
    "few seconds.",
    kinds=MappingProxyType(
        {"user_profile": "About you", "preference": "Likes and wishes", "task_state": "Plans and tasks"}
    ),
)

ZH: Final = Texts(
    lang="zh-CN",
    title="关于您的记忆",
    skip="跳到正文",
    language="语言",
    intro="这是您自己的页面：只有持有您个人链接的人才能看到。您可以更正有误的内容，删除不想保留的内容。",
    kept_for="您说过的内容会在 {days} 天后自动删除。",
    kept_always="您说过的内容会一直保留，直到您删除为止。",
    kind_kept_for="{kind}：{days} 天后不再使用。",
    look="查找",
    query="关键词",
    query_hint="最多 100 个字符。",
    kind="类别",
    any_kind="全部类别",
    until="截止日期（含当天）",
    superseded="同时显示已被较新记忆概括或取代的原话",
    show="查找",
    show_all="显示全部",
    waiting="尚未处理（{count}）",
    waiting_intro="这些是您刚刚说的，大约一分钟后会成为记忆。",
    waiting_more="仅显示最新的 {shown} 条。",
    remembered="记忆",
    nothing="没有关于您的记忆。",
    nothing_found="没有符合条件的内容。",
    older="更早的记忆",
    newest="回到最新",
    from_turn="来自对话 {name}，{time}",
    from_unknown="记录于 {time}，不属于某个对话",
    from_observation="由您的 {count} 条原话概括而成，最近一条说于 {time}",
    from_one="由您说于 {time} 的一条原话概括而成",
    no_kind="原话",
    kind_is="类别：{kind}",
    importance="重要程度：{value}（满分 1）",
    tags="标签：{tags}",
    correct="更正",
    correct_hint="保存后只使用新的内容。",
    new_words="应改为",
    save="保存",
    delete="删除",
    delete_one_warning="这条记忆以及仅由它而来的原话将被永久删除，无法恢复。",
    delete_now="永久删除",
    more="您的数据",
    download="下载全部",
    download_hint="一个文本文件，每行一条记忆（JSON）。",
    delete_all="删除全部……",
    delete_all_hint="删除前会再次询问。",
    delete_all_title="要删除全部吗？",
    delete_all_warning="此操作无法撤销。",
    delete_all_what=(
        "关于您的所有记忆以及它们所来自的对话都会被删除。",
        "尚未处理的内容也会被删除。",
        "此后，助手将不再了解您以前的对话。",
    ),
    delete_all_first="先下载全部",
    delete_all_sure="我明白全部内容将被永久删除。",
    delete_all_now="永久删除全部",
    delete_all_unsure="没有删除任何内容：请先勾选确认框。",
    go_back="返回，不删除",
    end="在所有设备上关闭此页面",
    end_hint="您的链接以及用它们打开的所有页面会立即失效。不会删除任何内容。",
    end_now="立即关闭",
    valid_until="此页面有效至 {moment}。",
    corrected="更正已保存。",
    deleted_one="已删除。",
    deleted_nothing="此前已经删除。",
    deleted_all="全部已删除。",
    receipt="回执",
    receipt_number="编号",
    receipt_at="时间",
    receipt_memories="已删除的记忆",
    receipt_documents="已删除的原话",
    receipt_pending="已删除的未处理内容",
    receipt_jobs="已取消的待办任务",
    receipt_cache="已删除的预备回答",
    receipt_verified="事后核查",
    verified="已核查，没有残留",
    not_verified="未能确认，可能仍有残留：请再删除一次",
    opening="正在打开您的页面……",
    go_on="前往您的页面",
    problem="操作未成功",
    problems=MappingProxyType(
        {
            "link_refused": "此页面需要通过个人链接打开。没有找到有效的链接，或链接已到期、已关闭。"
            "请在您获得链接的地方重新获取。",
            "form_refused": "此表单已过时。请返回您的页面后重试。",
            "not_found": "这条内容已经不存在。",
            "not_stored_yet": "这是您刚刚说的，暂时无法更正。请一分钟后再试，或直接删除。",
            "invalid_request": "表单中有内容缺失、过长或不被允许。",
            "too_large": "内容过长。",
            "malformed_body": "表单没有完整送达，请重试。",
            "too_many_requests": "操作过于频繁，请一分钟后再试。",
            "unavailable": "可能尚未完成：有一个部件没有响应。请几秒钟后重试同样的操作。",
        }
    ),
    problem_otherwise="目前无法访问记忆，操作可能尚未完成。请几秒钟后重试同样的操作。",
    kinds=MappingProxyType(
        {"user_profile": "个人情况", "preference": "喜好与要求", "task_state": "计划与任务"}
    ),
)

_RANGE = re.compile(r"\s*([A-Za-z]{1,8}|\*)(?:-[A-Za-z0-9-]*)?\s*(?:;\s*q\s*=\s*([01](?:\.\d{0,3})?)\s*)?")


def texts_in(language: Language) -> Texts:
    """The words of one language."""
    return ZH if language == "zh" else EN


def language_for(accept_language: str) -> Language:
    """The one of the two that a browser would rather have; English if it does not say."""
    wishes: dict[str, float] = {}
    for part in accept_language[:500].split(","):
        found = _RANGE.fullmatch(part)
        if found is not None:
            name = found[1].lower()
            wishes[name] = max(wishes.get(name, 0.0), float(found[2] or 1))
    return "zh" if wishes.get("zh", 0.0) > wishes.get("en", 0.0) else "en"
