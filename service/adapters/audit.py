"""The audit trail: a Redis stream that is only ever added to, and cut off at its old end."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import time
from types import TracebackType
from typing import Self

from redis.asyncio import Redis
from redis.exceptions import RedisError

from service import keyspace
from service.errors import KeysUnavailable
from service.settings import Settings

_PAGE = 1000


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """Key `key_id` of `tenant` did `action` to `subject`, `count` times within a second, with that status.

    `subject` is a bank or a key's id, or "" for what concerns nobody in particular; `at_ms` is Unix time.
    """

    at_ms: int
    tenant: str
    key_id: str
    action: str
    subject: str
    status: int
    count: int


class AuditTrail:
    """Open it as an async context manager; every method raises `KeysUnavailable` without Redis."""

    def __init__(self, redis_url: str, *, days: int, most: int, timeout_s: float = 2.0) -> None:
        self._url = redis_url
        self._ttl_s = days * 86_400
        self._most = most
        self._timeout_s = timeout_s

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """Kept where accepted turns are: it must not be evicted."""
        return cls(settings.redis_url, days=settings.audit_days, most=settings.audit_max_events)

    async def __aenter__(self) -> Self:
        self._redis: Redis = Redis.from_url(
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
        await self._redis.aclose()

    async def append(self, events: Iterable[AuditEvent]) -> None:
        """Add events, in one round trip, and cut off what is too old or too much."""
        async with self._errors():
            pipe = self._redis.pipeline(transaction=False)
            for event in events:
                pipe.xadd(
                    keyspace.AUDIT,
                    {
                        "at": event.at_ms,
                        "tenant": event.tenant,
                        "key": event.key_id,
                        "action": event.action,
                        "subject": event.subject,
                        "status": event.status,
                        "count": event.count,
                    },
                    maxlen=self._most,
                    approximate=True,
                )
            pipe.xtrim(
                keyspace.AUDIT, minid=f"{int((time() - self._ttl_s) * 1000)}-0", approximate=True, limit=1000
            )
            pipe.expire(keyspace.AUDIT, self._ttl_s)
            await pipe.execute()

    async def read(self, since_ms: int = 0) -> AsyncIterator[AuditEvent]:
        """All events that were written at `since_ms` or later, oldest first."""
        start = f"{since_ms}-0"
        while True:
            async with self._errors():
                page = await self._redis.xrange(keyspace.AUDIT, min=start, count=_PAGE)
            for _, fields in page:
                yield AuditEvent(
                    at_ms=int(fields["at"]),
                    tenant=fields["tenant"],
                    key_id=fields["key"],
                    action=fields["action"],
                    subject=fields["subject"],
                    status=int(fields["status"]),
                    count=int(fields["count"]),
                )
            if len(page) < _PAGE:
                return
            start = f"({page[-1][0]}"

    @asynccontextmanager
    async def _errors(self) -> AsyncIterator[None]:
        try:
            yield
        except (RedisError, OSError, TimeoutError) as exc:
            raise KeysUnavailable(
                "The audit trail cannot be reached; try again soon.", retry_after_s=5
            ) from exc
