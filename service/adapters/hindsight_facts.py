"""What a Hindsight says of itself: its version, and what it keeps besides memories."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
from hindsight_client import Hindsight
from hindsight_client_api.exceptions import OpenApiException

from service.errors import HindsightUnavailable


@dataclass(frozen=True, slots=True)
class HindsightFacts:
    """`features` are the switches it reports, such as `llm_trace` (prompts with what users said are kept)."""

    version: str
    features: Mapping[str, bool]


async def read_hindsight_facts(url: str, api_key: str | None, timeout_s: float) -> HindsightFacts:
    """Ask the Hindsight at `url`, with a client of its own; raises `HindsightUnavailable`."""
    client = Hindsight(url, api_key, timeout=timeout_s, user_agent="dify-memory", max_attempts=1)
    try:
        async with asyncio.timeout(timeout_s):
            # Unparsed: the client's model refuses versions with other switches than its own.
            response: Any = await client.monitoring.get_version_without_preload_content(
                _request_timeout=timeout_s
            )
            told = json.loads(await response.read())
    except (aiohttp.ClientError, OpenApiException, OSError, TimeoutError, ValueError) as exc:
        raise HindsightUnavailable("Hindsight does not answer; try again soon.", retry_after_s=5) from exc
    finally:
        await client.aclose()
    told = told if isinstance(told, dict) else {}
    if response.status != 200 or not isinstance(told.get("api_version"), str):
        raise HindsightUnavailable("Hindsight answers something else than its version.", retry_after_s=30)
    features = told.get("features")
    return HindsightFacts(
        version=told["api_version"],
        features={str(name): value for name, value in features.items() if isinstance(value, bool)}
        if isinstance(features, dict)
        else {},
    )
