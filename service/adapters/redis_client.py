"""What the small stores in Redis have in common: a client that is opened and closed, and errors of ours."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import ClassVar, Self

from redis.asyncio import Redis
from redis.exceptions import RedisError

from service.adapters.redis_urls import open_client
from service.errors import ServiceError, Unavailable
from service.settings import Settings


class RedisStore:
    """Base of a store; open it as an async context manager.

    Whatever goes wrong inside `_errors` becomes `_ERROR`, with `_SENTENCE` and an advice to try again
    after `_RETRY_AFTER_S` seconds (None: no advice).
    """

    _ERROR: ClassVar[type[ServiceError]] = Unavailable
    _SENTENCE: ClassVar[str] = "Redis does not answer; try again soon."
    _RETRY_AFTER_S: ClassVar[int | None] = 5

    def __init__(self, redis_url: str, *, timeout_s: float = 2.0) -> None:
        self._url = redis_url
        self._timeout_s = timeout_s

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """In the Redis of accepted turns: nothing there is evicted, and every process reaches it."""
        return cls(settings.redis_url)

    async def __aenter__(self) -> Self:
        """Make a client; it connects when it is first used."""
        self._redis: Redis = open_client(
            self._url,
            decode_responses=True,
            socket_timeout=self._timeout_s,
            socket_connect_timeout=self._timeout_s,
            health_check_interval=15,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close its connections."""
        await self._redis.aclose()

    @asynccontextmanager
    async def _errors(self) -> AsyncIterator[None]:
        try:
            yield
        # What is no UTF-8 was not written by us.
        except (RedisError, OSError, TimeoutError, UnicodeDecodeError) as exc:
            raise self._ERROR(self._SENTENCE, retry_after_s=self._RETRY_AFTER_S) from exc
