"""Texts that try to take over the model that reads them."""

import unicodedata
from typing import Final

import regex

_SCOPE_EN = (
    r"(?:all|any|every|your|previous|prior|preceding|above|earlier|existing|original|system|the|these|those)"
)
_RULES_EN = (
    r"(?:instruct\w*|rules?|prompts?|guidelines?|polic(?:y|ies)|directives?|directions?|commands?|orders|"
    r"restrictions?|constraints?|safety|training|programming|system messages?|context)\b"
)
_MODES_EN = r"(?:developer|debug|god|dan|jailbreak|admin|sudo|root|unrestricted) mode"
_SCOPE_ZH = (
    r"(?:以上|上述|上面|之前|以前|前面|先前|此前|所有|全部|一切|任何|你的|你们|系[统統]|原有|原来|原來|原本|现有|現有|既定|"
    r"这些|這些|那些|前述|安全|开发者|開發者)"
)
_RULES_ZH = (
    r"(?:指令|规则|規則|提示|设定|設定|设置|限制|要求|约束|約束|命令|指示|原则|原則|准则|準則|规定|規定|内容|內容|"
    r"对话|對話|话|話|政策|策略)"
)
_NOW_ZH = r"(?:现在|現在|从现在起|從現在起|从现在开始|從現在開始|从今以后)"
# Words of which one has to be there, then the pattern: looking for the words first spares nearly every text.
_TAKEOVERS: Final = {
    "ignore|disregard|overrid|overrul|bypass|circumvent": r"\b(?:ignore|disregard|override|overrule|bypass|"
    rf"circumvent)\b(?: \w+){{0,3}}? {_SCOPE_EN}\b[^.!?]{{0,30}}?\b{_RULES_EN}",
    "forget": r"\b(?<!\b(?:i|we|you|they|always|never|often|sometimes|to|will|would|might) )forget\b"
    rf"(?: \w+){{0,2}}? {_SCOPE_EN}\b[^.!?]{{0,30}}?\b{_RULES_EN}",
    "above|before this|told|you know": r"\b(?<!\bi )(?:ignore|disregard|forget) (?:everything|all|"
    r"anything)?"
    r"(?: of)? ?(?:that (?:was|is|came)|the|said|written)? ?(?:above|before this|you (?:were|"
    r"have been) told|"
    r"you know so far)\b",
    "obey|follow|comply|adhere": r"\b(?:do not|don't|never|stop|no longer have to|need not) (?:obey|follow|"
    r"comply "
    rf"with|adhere to)(?:ing)? (?:\w+ ){{0,2}}?{_SCOPE_EN} (?:\w+ ){{0,2}}?{_RULES_EN}",
    "you are no": r"\byou are (?:now|no longer) (?!\d)(?:an?|the|my|called|named|free|bound|in|un\w+|dan|"
    r"\w*gpt|evil|"
    r"claude|going to)\b",
    "from now on|starting now|henceforth": r"\b(?:from now on|starting now|henceforth),? you (?:are|"
    r"will be|will act|"
    r"act|must act|must obey|obey)\b",
    "act as|pretend|play as|behave as": r"\b(?:act as|pretend (?:to be|(?:that )?you (?:are|have))|"
    r"role-?play as|"
    r"behave as)\b[^.!?]{0,40}\b(?:dan|jailbro\w+|un(?:restrict|filter|censor)ed|(?:without(?: any)?|"
    r"no) (?:rules|"
    r"restrictions|limits|filters)|system|developer|administrator|root|admin)\b",
    " as ": r"(?<!\b(?:i|we|he|she|they) (?:\w+ )?)\b(?:always|must|shall|will|henceforth|now on),?"
    r"(?: \w+){0,2}? (?:answer|respond|reply|act|speak|behave)\b[^!?。！？\n]{0,30}?\bas (?:an? |the )?"
    r"(?:system|root|admin\w*|developer|dan)\b",
    "obey": r"\byou (?:must|shall|will|have to)(?: now| always| only)* obey (?:me|my|every|all|whatever)\b",
    "your ": r"\b(?:reveal|leak|dump|expose|recite|disclose)(?: \w+){0,3}? your (?:\w+ )?(?:prompts?|"
    r"instructions?|rules)\b|"
    r"\byour (?:new|real|true|only) (?:rules?|instructions?|directives?|system prompt) (?:is|are)\b",
    "assistant|ai |model|chatbot": r"\b(?:assistant|ai|model|chatbot) (?:must|should|shall|will|has to)"
    r"(?: now| always)* (?:ignore|disregard|bypass|obey)\b",
    "whatever|no matter|anything|whenever|everyone": r"\b(?:whatever|no matter what|anything|whenever|"
    r"everyone who)(?: the)? ?(?:users?|anyone|anybody|somebody|someone|people|they|asks)\b[^.!?]{0,20}?,? "
    r"(?:always |only |just )?(?:answer|reply|respond|output)\b",
    "system|developer": r"\b(?:system|developer)[ _-]{0,2}(?:prompt|message|instruction|override|"
    r"note)s? ?[:=]|"
    r"(?:^|[.!?。！？:\]>]) ?[#*\"'( ]{0,6}(?:system|developer)\*{0,2} ?:|</?system>",
    "prompt|message|instruction": r"\b(?:reveal|print|show|repeat|leak|output|display|expose|dump|recite|"
    r"tell me|"
    r"give me|what (?:is|are))\b[^.!?]{0,30}?\b(?:prompt above|(?:system|hidden|initial|secret) (?:prompt|"
    r"message|"
    r"instruction)s?)\b",
    "instruction|rules|directive|prompt": r"\b(?:new|updated|revised|important|real|"
    r"additional) (?:system )?"
    r"(?:instructions?|rules|directives?|prompts?) ?(?:for (?:you|the (?:assistant|model|ai)) ?)?[:=]",
    " mode": rf"\b{_MODES_EN}\b(?: is| has been| now)* ?(?:enabled|activated|unlocked|engaged|on\b)|"
    rf"\b(?:enable|enter|activate|switch to|unlock)(?: \w+){{0,2}}? {_MODES_EN}\b",
    "jailbreak": r"\bjailbreak(?:ed|ing)? (?:prompt|mode|yourself|the (?:model|assistant|ai))\b",
    "the user": r"\bwithout (?:telling|informing|notifying|alerting) the user\b",
    "<|": r"<\|[\w ]{1,40}\|>",
    "inst]|sys>|##": r"\[/?inst\]|<</?sys>>|#{2,6} ?(?:system|instructions?)\b",
    "忽|无视|無視|忘|绕过|繞過|抛弃|拋棄|推翻|跳过|跳過|覆|屏蔽": r"(?<!我|我总|我常|老是|总是|"
    r"经常)(?:忽略|无视|無視|"
    r"忽视|忽視|忘记|忘記|忘掉|忘了|绕过|繞過|抛弃|拋棄|推翻|跳过|跳過|覆盖|覆蓋|屏蔽)(?:掉|"
    r"你)?[^。！？!?]{0,6}?"
    rf"{_SCOPE_ZH}[^。！？!?]{{0,8}}?{_RULES_ZH}",
    "遵|从|從|理|执行|執行": r"(?:不要|不用|不必|不得|无需|無需|停止|别|別)再?(?:遵守|遵循|遵从|服从|服從|"
    r"理会|理會|执行|"
    rf"執行|听从)[^。！？!?]{{0,4}}?{_SCOPE_ZH}[^。！？!?]{{0,8}}?{_RULES_ZH}",
    "你现|你現|你从|你從": rf"(?<![和跟与給给])你{_NOW_ZH}(?:就是|是|扮演|变成|變成|成为|成為|将扮演)"
    r"(?!在|不|否|吗|什么|多|几|怎|谁|哪|想|要|我的?朋友|我男|我女)",
    "现在|現在|从今|接下来": rf"(?:{_NOW_ZH}|接下来)[，, ]?你(?:就是|是|扮演|将扮演|必须扮演|不再是|不再受|"
    rf"必须服从|要服从)",
    "身份|名义|名義|角色": r"(?<!我[^。！？!?]{0,4})以(?:系[统統]|管理[员員]|[开開][发發]者|root|"
    r"无限制|無限制)[^。！？!?，,]{0,4}的?(?:身份|名[义義]|角色)(?:来|來|去)?(?:回答|回复|回復|说话|說話|行事|执行|執行|答复|发言)",
    "规则|規則|指令|提示|准则|设定|設定": r"你的?(?:新|真正|唯一)的?(?:规则|規則|指令|"
    r"系[统統]提示|准则|设定|設定)(?:是|为|為|改为|:)",
    "无论|無論|不管": r"(?:无论|無論|不管)(?:用[户戶]|谁|誰|任何人|别人|他们|她们)(?:问|問|说|說|"
    r"输入)[^。！？!?]{0,6}?(?:都|一律)(?:要|只|必须|能|得)*(?:回答|回复|回復|输出|说|說)",
    "系统|系統|开发者|開發者": r"系[统統](?:提示词?|提示詞?|消息|指令|命令|管理员|通知|设定) ?:|"
    r"(?:^|[.。！？:!?\]>]) ?[#*\"'“【\[( ]{0,6}(?:系[统統]|开发者|開發者)[】\])*]{0,3} ?:",
    "提示|指令": r"(?:新的?|最新|真正的|更新后的)(?:系[统統])?(?:指令|提示词|提示詞|系统提示) ?:|"
    r"(?:输出|輸出|显示|顯示|泄露|洩露|告诉我|告訴我|重复|重複|打印|公布|透露|展示|复述|说出|"
    r"背诵)[^。！？!?]{0,10}?"
    r"(?:系[统統]提示|系[统統]指令|初始指令|初始提示|隐藏指令|隱藏指令|提示词|提示詞|开发者指令)",
    "模式": r"(?:进入|進入|开启|開啟|启用|啟用|打开|打開|切换到|激活|解锁)了?[“\"「]?(?:开发者|開發者|上帝|"
    r"越狱|越獄|"
    r"管理员|管理員|调试|无限制|無限制|dan) ?模式",
    "用户|用戶": r"(?:不要|别|別|无需)(?:告诉|告訴|通知|让)用[户戶]",
}  # fmt: skip
_INSTRUCTIONS: Final = [
    (needles.split("|"), regex.compile(pattern)) for needles, pattern in _TAKEOVERS.items()
]
_INVISIBLE = regex.compile(r"[\p{Default_Ignorable_Code_Point}\p{Bidi_Control}\uFFF9-\uFFFB]+")
_SPACES = regex.compile(r"[\s\x1c-\x1f]+")


def is_instruction_like(text: str) -> bool:
    """Whether the text tries to take over the model that reads it: "ignore your rules", "忽略以上所有指令",
    "you are now …", a system prompt, chat-template tokens.

    Meant for both ends: what is to be stored (refuse it) and what goes into a prompt (`render_block` quotes
    it). Wishes about how to be answered are not instructions in this sense. Full-width letters, invisible
    characters, case and line breaks make no difference.
    """
    folded = _SPACES.sub(" ", _INVISIBLE.sub("", unicodedata.normalize("NFKC", text)).casefold())
    return any(
        pattern.search(folded)
        for needles, pattern in _INSTRUCTIONS
        if any(needle in folded for needle in needles)
    )
