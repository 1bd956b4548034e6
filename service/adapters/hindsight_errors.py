"""What Hindsight's client raises, as our errors: whose fault it is, and whether to try again.

No answer, 408, 429, 499, 5xx and answers of another shape → `HindsightUnavailable`; other statuses →
`HindsightRejected`. `str()` of a vendor error holds the response body, so that it is never logged or
passed on.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
from hindsight_client_api.exceptions import ApiException, OpenApiException
from pydantic import ValidationError

from service.errors import HindsightRejected, HindsightUnavailable


@asynccontextmanager
async def vendor_errors(timeout_s: float) -> AsyncIterator[None]:
    """Cut the block off after `timeout_s` and map what the vendor's client raises to our errors."""
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except ApiException as exc:
        status = int(exc.status or 0)
        if status in (408, 429, 499) or status >= 500:
            raise HindsightUnavailable(
                f"Hindsight answers {status}; try again soon.", retry_after_s=5, reached=status == 500
            ) from exc
        raise HindsightRejected(f"Hindsight refuses this with {status}.") from exc
    except aiohttp.ClientResponseError as exc:  # bank create and config
        if exc.status in (408, 429, 499) or exc.status >= 500:
            raise HindsightUnavailable(
                f"Hindsight answers {exc.status}; try again soon.", retry_after_s=5, reached=exc.status == 500
            ) from exc
        raise HindsightRejected(f"Hindsight refuses this with {exc.status}.") from exc
    except (aiohttp.ClientError, OSError, TimeoutError) as exc:
        raise HindsightUnavailable("Hindsight does not answer; try again soon.", retry_after_s=5) from exc
    except (ValidationError, OpenApiException, ValueError, LookupError, TypeError) as exc:
        # A 200 that is no JSON or of another shape: a proxy's page, another version, a broken server.
        raise HindsightUnavailable(
            "Hindsight answers something that cannot be read; check its URL and version.",
            retry_after_s=30,
            reached=True,
        ) from exc
