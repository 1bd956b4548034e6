"""Errors: a status and a code each, nothing of the input in them, and no vendor's exception gets by."""

import inspect
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import ModuleType
from unittest.mock import Mock

import aiohttp
import aiohttp.client_exceptions
import hindsight_client_api.exceptions
import hiredis
import pydantic
import pytest
import redis.exceptions
from aiohttp.client_reqrep import ConnectionKey
from hindsight_client_api.exceptions import ApiException
from service import errors
from service.adapters import hindsight_errors
from service.adapters.cache import RecallCache
from service.adapters.turns_redis import TurnsRedis
from service.errors import (
    CacheUnavailable,
    HindsightRejected,
    HindsightUnavailable,
    InvalidRequest,
    ServiceError,
    TurnsLogUnavailable,
)
from service.settings import Settings

pytestmark = pytest.mark.anyio

OURS: list[type[ServiceError]] = [
    kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, ServiceError)
]
# Dify shows its users the bodies of these; it hides those of 429 and 5xx and reports 401 and 403 as a
# network block.
SHOWN = {400, 404, 405, 409, 413, 422}
HIDDEN = {401, 403, 429, 500, 502, 503}


@pytest.mark.parametrize("kind", OURS)
def test_every_error_has_a_status_a_code_and_a_promise(kind: type[ServiceError]) -> None:
    assert issubclass(kind, ServiceError)
    assert kind.status in SHOWN | HIDDEN
    assert kind.code.replace("_", "").islower()
    assert kind.__doc__
    error = kind("Do this.", retry_after_s=3)
    assert (error.detail, error.retry_after_s, str(error)) == ("Do this.", 3, "Do this.")


def test_codes_are_stable_identifiers() -> None:
    assert len({kind.code for kind in OURS}) == len(OURS)
    assert all(kind.status < 500 for kind in OURS if issubclass(kind, InvalidRequest))


def test_the_errors_know_no_http_library() -> None:
    libraries = ("fastapi", "starlette", "aiohttp", "redis")
    code = f"import sys, service.errors; print([name for name in {libraries} if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


# --- Vendors' exceptions --------------------------------------------------------------------------------
# What cannot come out of the calls that the adapters make, and why.
NEVER_RAISED = {
    "ChildDeadlockedError": "the blocking client's pool, after a fork",
    "RedisClusterException": "the cluster client's own; a plain client gets MovedError and the like",
    "SlotNotCoveredError": "the cluster client",
    "WSMessageTypeError": "web sockets",
}
SECRET = "upstream-text"


def classes_of(module: ModuleType) -> list[type[Exception]]:
    return [
        kind
        for _, kind in inspect.getmembers(module, inspect.isclass)
        if issubclass(kind, Exception)
        and not issubclass(kind, Warning)
        and kind.__module__.split(".")[0] == module.__name__.split(".")[0]
        and kind.__name__ not in NEVER_RAISED
    ]


def instances_of(kind: type[Exception]) -> Iterator[Exception]:
    """An exception of that class (of some classes one for each status), with a text that must not get out."""
    if issubclass(kind, aiohttp.ClientResponseError):
        for status in (400, 404, 408, 429, 500, 503):
            yield kind(Mock(), (), status=status, message=SECRET)
    elif (
        issubclass(kind, aiohttp.ClientConnectorError)
        and kind.__init__ is aiohttp.ClientConnectorError.__init__
    ):
        key = ConnectionKey("host", 1, False, False, None, None, None)
        yield kind(key, OSError(SECRET))
    elif issubclass(kind, ApiException):
        for number in (None, 0, 302, 400, 401, 403, 404, 409, 413, 422, 429, 499, 500, 503):
            yield kind(status=number, reason=SECRET, body=SECRET)
    else:
        error = kind.__new__(kind, SECRET)
        error.args = (SECRET,)
        yield error


async def raised_by(guard: AbstractAsyncContextManager[None], error: Exception) -> ServiceError:
    with pytest.raises(ServiceError) as caught:
        async with guard:
            raise error
    return caught.value


SETTINGS = Settings.model_validate({"redis_url": "redis://127.0.0.1:1/0"})


@asynccontextmanager
async def turns_guard() -> AsyncIterator[None]:
    async with TurnsRedis(SETTINGS.redis_url, timeout_s=2.0) as opened, opened.errors():
        yield


@asynccontextmanager
async def cache_guard() -> AsyncIterator[None]:
    async with RecallCache.from_settings(SETTINGS) as cache, cache._errors():
        yield


def hindsight_guard() -> AbstractAsyncContextManager[None]:
    return hindsight_errors.vendor_errors(1)


REDIS_KINDS = [
    *classes_of(redis.exceptions),
    ConnectionRefusedError,
    ConnectionResetError,
    OSError,
    TimeoutError,
]


@pytest.mark.parametrize("kind", REDIS_KINDS)
@pytest.mark.parametrize(
    ("guard", "becomes"), [(turns_guard, TurnsLogUnavailable), (cache_guard, CacheUnavailable)]
)
async def test_every_exception_of_redis_is_mapped(
    guard: Callable[[], AbstractAsyncContextManager[None]], becomes: type[ServiceError], kind: type[Exception]
) -> None:
    for error in instances_of(kind):
        mapped = await raised_by(guard(), error)
        assert type(mapped) is becomes
        assert mapped.__cause__ is error
        assert SECRET not in str(mapped)


@pytest.mark.parametrize("kind", [hiredis.ReplyError, hiredis.ProtocolError])
async def test_every_exception_of_hiredis_is_mapped_by_the_cache(kind: type[Exception]) -> None:
    assert type(await raised_by(cache_guard(), kind(SECRET))) is CacheUnavailable


def validation_error() -> Exception:
    try:
        pydantic.TypeAdapter(int).validate_python(SECRET)
    except pydantic.ValidationError as exc:
        return exc
    raise AssertionError("a text is no number")


HINDSIGHT_KINDS = [
    *classes_of(aiohttp.client_exceptions),
    *classes_of(hindsight_client_api.exceptions),
    ConnectionRefusedError,
    OSError,
    TimeoutError,
    ValueError,
    KeyError,
    TypeError,
]


@pytest.mark.parametrize("kind", HINDSIGHT_KINDS)
async def test_every_exception_of_the_hindsight_client_is_mapped(kind: type[Exception]) -> None:
    for error in instances_of(kind):
        mapped = await raised_by(hindsight_guard(), error)
        assert type(mapped) in (HindsightUnavailable, HindsightRejected)
        assert mapped.__cause__ is error
        assert SECRET not in str(mapped)


async def test_an_answer_of_another_shape_is_mapped() -> None:
    mapped = await raised_by(hindsight_guard(), validation_error())
    assert type(mapped) is HindsightUnavailable
    assert SECRET not in str(mapped)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 413, 422])
async def test_what_hindsight_will_never_accept_is_told_from_what_can_pass(status: int) -> None:
    rejected = await raised_by(hindsight_guard(), ApiException(status=status))
    assert type(rejected) is HindsightRejected


@pytest.mark.parametrize("status", [408, 429, 499, 500, 502, 503, 504])
async def test_what_can_pass_is_told_from_what_hindsight_will_never_accept(status: int) -> None:
    mapped = await raised_by(hindsight_guard(), ApiException(status=status))
    assert isinstance(mapped, HindsightUnavailable)
    # Only a 500 can be what the request itself brought about; the others are "not now".
    assert mapped.reached is (status == 500)
    assert mapped.retry_after_s


async def test_no_answer_at_all_is_told_from_a_bad_one() -> None:
    for error in (TimeoutError(), ConnectionRefusedError(), aiohttp.ServerDisconnectedError()):
        mapped = await raised_by(hindsight_guard(), error)
        assert isinstance(mapped, HindsightUnavailable)
        assert not mapped.reached


def test_what_is_never_raised_is_known_by_name() -> None:
    names = {name for m in (redis.exceptions, aiohttp.client_exceptions) for name in vars(m)}
    assert set(NEVER_RAISED) <= names
