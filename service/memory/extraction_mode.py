"""Who makes memories where nobody was chosen: the first of these that is configured.

Our own extraction if `MEMORY_LLM_MODEL` names a model, which the settings alone tell; else Hindsight's if it
has a language model, which only Hindsight can tell; else nobody, and turns are kept word for word.
"""

import asyncio
import logging
from time import monotonic

from service.adapters.hindsight_facts import has_language_model
from service.errors import HindsightUnavailable
from service.settings import Settings

_log = logging.getLogger(__name__)

_PATIENCE_S = 5.0
_TELL_EVERY_S = 60.0


async def settled(settings: Settings, *, pause_s: float = 1.0) -> Settings:
    """The settings with `auto` replaced by what it comes to; for whoever stores turns.

    Waits until Hindsight can tell: without it nothing could be stored anyway, and what it extracts must not
    be stored unvetted because it was late, or because something between answered in its place. `auto`
    remains where a Hindsight is too old to tell; turns are then left to it as they are.
    """
    if settings.extraction_mode != "auto":
        return settings
    key = settings.hindsight_api_key.get_secret_value() if settings.hindsight_api_key else None
    told, told_at = "", 0.0
    while True:
        try:
            has_model = await has_language_model(settings.hindsight_url, key, _PATIENCE_S)
        except HindsightUnavailable as exc:
            # Again and again: a worker that waits stores nothing, and somebody has to see to it.
            if exc.detail != told or monotonic() - told_at >= _TELL_EVERY_S:
                told_at = monotonic()
                _log.warning("worker_waits_for_hindsight", extra={"reason": exc.detail})
            told = exc.detail
            await asyncio.sleep(pause_s)
            continue
        mode = {True: "hindsight", False: "none", None: "auto"}[has_model]
        _log.info("extraction_mode", extra={"mode": mode})
        return settings.model_copy(update={"extraction": mode})
