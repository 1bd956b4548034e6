"""Words of Chinese and English text, and how much two texts share: the fakes' idea of meaning."""

import math
import re
import unicodedata

_CJK = r"\u3400-\u4dbf\u4e00-\u9fff\u3040-\u30ff\uac00-\ud7af"
_WORD = re.compile(rf"[{_CJK}]+|[^\W{_CJK}]+")


def is_cjk(text: str) -> bool:
    """Whether a text begins with a CJK character."""
    return re.match(rf"[{_CJK}]", text) is not None


def words(text: str) -> set[str]:
    """The units two texts are compared by."""
    found: set[str] = set()
    for run in _WORD.findall(unicodedata.normalize("NFKC", text).lower()):
        if is_cjk(run) and len(run) > 1:
            found.update(run[i : i + 2] for i in range(len(run) - 1))
        else:
            found.add(run)
    return found


def similarity(query: str, text: str) -> float:
    """From 0 (nothing shared) to 1 (the same words)."""
    left, right = words(query), words(text)
    return len(left & right) / math.sqrt(len(left) * len(right)) if left and right else 0.0
