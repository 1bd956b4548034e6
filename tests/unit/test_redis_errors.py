"""What keeps keys, the audit trail and counts: no exception of the Redis client gets by."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
from service.adapters.audit import AuditTrail
from service.adapters.keys import KeyStore
from service.adapters.rates import RateCounters
from service.errors import CacheUnavailable, KeysUnavailable, ServiceError

from tests.unit.test_errors import REDIS_KINDS, SECRET, instances_of, raised_by

pytestmark = pytest.mark.anyio
NOWHERE = "redis://127.0.0.1:1/0"


@asynccontextmanager
async def keys_guard() -> AsyncIterator[None]:
    async with KeyStore(NOWHERE) as store, store._errors():
        yield


@asynccontextmanager
async def audit_guard() -> AsyncIterator[None]:
    async with AuditTrail(NOWHERE, days=1, most=1000) as trail, trail._errors():
        yield


@asynccontextmanager
async def rates_guard() -> AsyncIterator[None]:
    async with RateCounters(NOWHERE) as counters, counters._errors():
        yield


@pytest.mark.parametrize("kind", REDIS_KINDS)
@pytest.mark.parametrize(
    ("guard", "becomes"),
    [(keys_guard, KeysUnavailable), (audit_guard, KeysUnavailable), (rates_guard, CacheUnavailable)],
)
async def test_every_exception_of_redis_is_mapped(
    guard: Callable[[], AbstractAsyncContextManager[None]], becomes: type[ServiceError], kind: type[Exception]
) -> None:
    for error in instances_of(kind):
        mapped = await raised_by(guard(), error)
        assert type(mapped) is becomes
        assert mapped.__cause__ is error
        assert SECRET not in str(mapped)


async def test_nothing_there_is_an_error_of_ours() -> None:
    async with KeyStore(NOWHERE) as store, AuditTrail(NOWHERE, days=1, most=1000) as trail:
        with pytest.raises(KeysUnavailable):
            await store.load()
        with pytest.raises(KeysUnavailable):
            await trail.append([])
