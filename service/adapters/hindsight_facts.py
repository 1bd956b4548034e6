"""What a Hindsight says of itself: its version, what it keeps besides memories, whether it has an LLM."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
from hindsight_client import Hindsight
from hindsight_client_api.exceptions import OpenApiException

from service.errors import HindsightUnavailable

# Stands for a bank and for something in it that do not exist.
_NOTHING: Final = "dify-memory-asks"
# Hindsight's words for "there is no model" and "there is no such thing", and those of a server that does not
# know a path at all.
_NO_MODEL: Final = re.compile(r"requires an LLM provider", re.IGNORECASE)
_NO_SUCH_THING: Final = re.compile(rf"\b(?:mental model|bank) '?{_NOTHING}\b.*\bnot found\b", re.IGNORECASE)
_NO_SUCH_PATH: Final = "Not Found"
# Of something before a Hindsight that answers a path nobody knows in its own words, often as a page.
_NO_PATH: Final = frozenset({404, 405, 501})
_VERSION: Final = re.compile(r"v?(\d{1,4})\.(\d{1,4})\b")
_FIRST_TO_TELL: Final = (1, 1)


@dataclass(frozen=True, slots=True)
class HindsightFacts:
    """`features` are the switches it reports, such as `llm_trace` (prompts with what users said are kept)."""

    version: str
    features: Mapping[str, bool]


async def read_hindsight_facts(url: str, api_key: str | None, timeout_s: float) -> HindsightFacts:
    """Ask the Hindsight at `url`, with a client of its own; raises `HindsightUnavailable`."""
    status, told = await _asked(
        url,
        api_key,
        timeout_s,
        lambda client: client.monitoring.get_version_without_preload_content(_request_timeout=timeout_s),
    )
    if status != 200 or not isinstance(told.get("api_version"), str):
        raise HindsightUnavailable("Hindsight answers something else than its version.", retry_after_s=30)
    features = told.get("features")
    return HindsightFacts(
        version=told["api_version"],
        features={str(name): value for name, value in features.items() if isinstance(value, bool)}
        if isinstance(features, dict)
        else {},
    )


async def has_language_model(url: str, api_key: str | None, timeout_s: float) -> bool | None:
    """Whether the Hindsight at `url` extracts with a language model; None: it does not tell.

    It is asked for work on something that does not exist: Hindsight 1.1 refuses that with 400 when it has no
    model, before it looks, else with 404. Nothing is made, and no model is called (its own probe of the
    model calls it, and is switched off by default). Its own words count, not the status alone, which a
    gateway may have given; a Hindsight before 1.1 need not know the question and does not tell.

    Raises `HindsightUnavailable`, also for an answer that Hindsight does not give.
    """
    status, told = await _asked(
        url,
        api_key,
        timeout_s,
        lambda client: client.mental_models.refresh_mental_model_without_preload_content(
            _NOTHING, _NOTHING, _request_timeout=timeout_s
        ),
    )
    detail = told.get("detail")
    if isinstance(detail, str):
        if status == 400 and _NO_MODEL.search(detail):
            return False
        if status == 404 and _NO_SUCH_THING.search(detail):
            return True
        if status == 404 and detail == _NO_SUCH_PATH and await _is_old(url, api_key, timeout_s):
            return None
    elif not told and status in _NO_PATH and await _is_old(url, api_key, timeout_s):
        return None
    # Also a key that is refused now: it is one that somebody will put right.
    raise HindsightUnavailable(
        f"Hindsight, or a gateway before it, answers {status} when it is asked whether it has a language "
        "model; set MEMORY_EXTRACTION if this lasts.",
        retry_after_s=5,
    )


async def _is_old(url: str, api_key: str | None, timeout_s: float) -> bool:
    """Whether this is a Hindsight of a version that need not know the question."""
    found = _VERSION.match((await read_hindsight_facts(url, api_key, timeout_s)).version)
    return found is not None and (int(found[1]), int(found[2])) < _FIRST_TO_TELL


async def _asked(
    url: str, api_key: str | None, timeout_s: float, ask: Callable[[Hindsight], Awaitable[Any]]
) -> tuple[int, Mapping[str, Any]]:
    """The status and the object of an answer, by a client of its own.

    Unparsed: the client's models refuse versions that differ a little from its own.
    """
    client = Hindsight(url, api_key, timeout=timeout_s, user_agent="dify-memory", max_attempts=1)
    try:
        async with asyncio.timeout(timeout_s):
            response = await ask(client)
            body = await response.read()
            told = json.loads(body) if response.status < 400 or body[:1] == b"{" else None
    except (aiohttp.ClientError, OpenApiException, OSError, TimeoutError, ValueError) as exc:
        raise HindsightUnavailable("Hindsight does not answer; try again soon.", retry_after_s=5) from exc
    finally:
        await client.aclose()
    return response.status, told if isinstance(told, dict) else {}
