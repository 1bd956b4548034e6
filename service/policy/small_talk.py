"""Turns that nobody needs to remember: "ok", "嗯嗯", "thanks", and the courtesies that answer them.

On the safe side: one word that is no courtesy, on either side, and the turn is kept.
"""

from typing import Final

import regex

from service.policy.content import parse_rendered
from service.policy.sentences import sentence_ends

_MOST_CHARS: Final = 400

_USER_EN: Final = (
    r"(?:ok(?:ay|ey)?|k|yes|yeah|yep|yup|no|nope|sure|fine|good|great|nice|cool|perfect|awesome|got it|i see"
    r"|right|alright|all right|understood|thanks?|thank you|thx|ty|many thanks|thanks a lot|cheers|hello|hi"
    r"|hey|hiya|bye|goodbye|see you|see ya|good (?:morning|afternoon|evening|night)|lol|haha(?:ha)*|hmm*|uh+"
    r"|mhm|wow|please|continue|go on|(?:very|so) much|there|then|a lot|again|and)"
)
_USER_ZH: Final = (
    r"(?:好+的*|行|可以|是的?|对的?|没错|不是|不用了?|没事了?|谢谢您?你?|多谢|感谢|辛苦了|你好|您好|哈喽|嗨|再见|拜拜"
    r"|早上好|早安|下午好|晚上好|晚安|在吗|嗯+|恩+|哦+|噢+|喔+|啊+|哈+|呵+|嘿+|收到|明白了?|知道了|了解了?|懂了|没问题|继续"
    r"|ok|okay|thx|thanks|[吧呀啦呢哦哈嘛的了])"
)
_COURTESY: Final = regex.compile(
    # The longest alternative counts, and none ends inside a Latin word.
    rf"(?p)(?:{_USER_EN}|{_USER_ZH}"
    r"|you(?:'|’)?re (?:very |most )?welcome|you are (?:very )?welcome|no problem|my pleasure|any ?time"
    r"|(?:glad|happy) (?:i could|to) help"
    r"|(?:is there|do you need) anything else(?: i can (?:help|do)(?: you)?(?: with)?(?: for you)?)?"
    r"|let me know if (?:you need|there(?:'|’)?s) anything(?: else)?|how can i help(?: you)?(?: today)?"
    r"|how may i help(?: you)?|have a (?:nice|good|great) (?:day|one|evening|night)|feel free to ask"
    r"|不客气|不用谢|不谢|没关系|很高兴(?:能)?(?:帮|为)(?:到|助)?[您你]?(?:服务)?"
    r"|(?:请问)?(?:还)?有(?:什么|其他|别的)?(?:其他|别的)?(?:问题|需要|事情?)?(?:我)?(?:可以|能)?(?:帮|为)(?:到|助)?[您你](?:做)?的?(?:服务)?吗?"
    r"|(?:还)?有(?:什么|其他)(?:可以|能)?帮(?:到|助)?[您你]的?吗?|随时(?:找我|告诉我|联系我)|祝[您你]?(?:一切顺利|愉快|生活愉快|有愉快的一天)"
    r"|我在|请(?:说|讲|继续)|记住了|我记住了|noted|of course|certainly)(?<![a-z0-9](?=[a-z0-9]))",
    regex.IGNORECASE,
)
# Quotation marks and brackets alone are no courtesy; a thumb is.
_SAYS_SOMETHING: Final = regex.compile(r"[\p{L}\p{N}\p{Extended_Pictographic}]")
_BETWEEN: Final = regex.compile(r"[^\p{L}\p{N}]++")


def is_small_talk(text: str) -> bool:
    """Whether a turn (see `content.render`) is courtesies only; text without speakers never is."""
    messages = parse_rendered(text)
    if not messages or sum(len(message.text) for message in messages) > _MOST_CHARS:
        return False
    return all(
        message.role != "tool" and _SAYS_SOMETHING.search(message.text) and _is_courtesy(message.text)
        for message in messages
    )


def _is_courtesy(text: str) -> bool:
    begin = 0
    for end in sentence_ends(text):
        if not _is_courtesy_sentence(text[begin:end]):
            return False
        begin = end
    return True


def _is_courtesy_sentence(sentence: str) -> bool:
    at = 0
    while at < len(sentence):
        found = _BETWEEN.match(sentence, at) or _COURTESY.match(sentence, at)
        if found is None:
            return False
        at = found.end()
    return True
