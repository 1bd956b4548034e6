"""Whether a memory turns what was said into its opposite: "I don't smoke" made "the user smokes"."""

from collections.abc import Callable
from typing import Final

import regex

from service.policy.extraction_subject import clauses_of

# Words that deny for sure, as far as they stand in no idiom that does not.
_DENIES: Final = regex.compile(
    r"(?<![差忍离了得])不(?!错|过|仅|但|久|得不|好意思|少|同|断|停|如|管|只|光)|没(?!错|问题|事)|未(?!来|婚妻|婚夫)|讨厌|厌恶"
    r"|\bnot\b(?! only| just)|\bnever\b(?! miss)|\bno longer\b|\bdislikes?\b|\bhates?\b"
    r"|n['’]t\b(?! wait)(?!.*\bwithout\b)",
    regex.IGNORECASE,
)
# All that may be put as a denial.
_MAY_DENY: Final = regex.compile(
    r"[不没无非别未莫勿否戒忌停拒避辞离退免素烦怕厌恨完止腻单]|取消|放弃|讨厌|结束|过敏"
    r"|\b(?:no|not|non|never|none|nothing|nobody|neither|nor|without|cannot|quit\w*|stop\w*|hat(?:e|es|ed|ing)"
    r"|dislik\w+|avoid\w*|allerg\w+|finish\w*|ended|g[ai]ve up|giving up|refus\w+|left|leav\w+|lost|lack\w*"
    r"|former\w*|ex|instead|intoleran\w+|afraid|fear\w*|fail\w*|less|rather|sick|tired|vegan\w*|vegetarian\w*|sober|single|terrible|bad|awful"
    r"|detest\w*|loath\w*|despis\w*)\b|n['’]t\b",
    regex.IGNORECASE,
)


def is_turned(text: str, sentence: str, around: str, is_said: Callable[[str], bool]) -> bool:
    """Whether `text` denies what nobody has denied, or says what was only denied.

    `sentence` is what it comes from, `around` that with all else that it may rest on; `is_said` tells whether
    a clause says something of the text.
    """
    if _DENIES.search(text):
        return _MAY_DENY.search(around) is None
    if _MAY_DENY.search(text):
        return False
    saying = [clause for clause in clauses_of(sentence) if is_said(clause)]
    return bool(saying) and all(_DENIES.search(clause) for clause in saying)
