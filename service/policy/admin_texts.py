"""What the page `/admin` says, in English and Chinese."""

from service.policy.admin_texts_en import EN
from service.policy.admin_texts_zh import ZH
from service.policy.admin_words import AdminTexts
from service.policy.me_texts import Language

__all__ = ["EN", "ZH", "AdminTexts", "texts_in"]


def texts_in(language: Language) -> AdminTexts:
    """The words of one language."""
    return ZH if language == "zh" else EN
