"""The audit trail: a Redis stream that is only ever added to, and cut off at its old end."""

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from time import time
from typing import Self

from service import keyspace
from service.adapters.redis_client import RedisStore
from service.errors import KeysUnavailable
from service.settings import Settings

_PAGE = 1000


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """Key `key_id` of `tenant` did `action` to `subject`, `count` times within a second, with that status.

    `key_id` is `cli` for a command, `worker` for what gets too old; `tenant` is the memory's then, and
    `status` is 0. `subject` is a bank or a key's id, or "" for what concerns nobody in particular; `at_ms`
    is Unix time.
    """

    at_ms: int
    tenant: str
    key_id: str
    action: str
    subject: str
    status: int
    count: int


class AuditTrail(RedisStore):
    """The stream in Redis; every method raises `KeysUnavailable` without it."""

    _ERROR = KeysUnavailable
    _SENTENCE = "The audit trail cannot be reached; try again soon."

    def __init__(self, redis_url: str, *, days: int, most: int, timeout_s: float = 2.0) -> None:
        super().__init__(redis_url, timeout_s=timeout_s)
        self._ttl_s = days * 86_400
        self._most = most

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """Kept where accepted turns are: it must not be evicted."""
        return cls(settings.redis_url, days=settings.audit_days, most=settings.audit_max_events)

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
