"""What stands in Redis beside good keys: it is no key, and never keeps a key from being ended."""

import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping
from typing import Any, cast

import pytest
from redis.asyncio import Redis
from service import keyspace
from service.adapters.keys import Grant, KeyRecord, KeyStore, digest_of, new_key
from service.auth import KeyRing
from service.errors import KeyRefused
from service.memory.keys import KeyWatch
from service.scope import bank_of

from tests.support import RedisServer, wait_until

pytestmark = pytest.mark.anyio
BOUND = {"identity": "bound", "bank": bank_of("acme", "ana")}
GRANT: dict[str, Any] = {
    "tenant": "acme",
    "scopes": ["recall"],
    "identity": "trusted",
    "bank": None,
    "user_prefix": "",
}
NO_GRANTS: tuple[Any, ...] = (None, 5, "x", [], {})
RECORD: dict[str, Any] = {"name": "a", "rate_per_minute": 0, "created_s": 1, "digest": "0" * 64}


@pytest.fixture
async def redis(redis_server: RedisServer) -> AsyncIterator[Redis]:
    async with Redis.from_url(redis_server.url, decode_responses=True) as client:
        await client.flushall()
        yield client


@pytest.fixture
async def store(redis: Redis, redis_server: RedisServer) -> AsyncIterator[KeyStore]:
    async with KeyStore(redis_server.url) as opened:
        yield opened


def text_of(grant: Mapping[str, Any], record: Mapping[str, Any] = RECORD) -> str:
    """A record as it stands in Redis, with changes."""
    return json.dumps({**RECORD, **record, "grant": {**GRANT, **grant}})


async def put(redis: Redis, **fields: str) -> None:
    """Write past the store, as another program could."""
    await cast("Awaitable[int]", redis.hset(keyspace.KEYS, mapping=fields))


def fresh() -> tuple[str, KeyRecord]:
    """A key that is good, and its record."""
    key, key_id = new_key()
    grant = Grant("acme", ("recall",))
    return key, KeyRecord(key_id, "n", grant, 0, int(time.time()), digest_of(key, grant, b""))


def is_good(ring: KeyRing, key: str) -> bool:
    try:
        ring.authenticate({"headers": [(b"authorization", key.encode())], "query_string": b""})
    except KeyRefused:
        return False
    return True


WRONG_FIELDS: dict[str, tuple[Any, ...]] = {
    "name": (None, 5, ["a"], {}, "\ud800"),
    "rate_per_minute": (None, "5", 1.5, True, -1, 10**400),
    "created_s": (None, "yesterday", "1", 1.5, float("nan"), False, -1, 10**30),
    "digest": (None, 5, "", "é" * 64, "0" * 63, ["0" * 64]),
    "unknown": (1,),
    "key_id": ("another",),
    "revoked_s": (None,),
}
WRONG_GRANTS: dict[str, tuple[Any, ...]] = {
    "tenant": (None, 5, ["acme"], "\ud800"),
    "scopes": (None, "recall", 5, [5], [None], [["recall"]], {"recall": 1}),
    "identity": (None, 5, "", "Trusted", "bound", ["trusted"], {}),
    "bank": (5, [], "u-1", True),
    "user_prefix": (None, 5, [], False),
    "unknown": (1,),
}
WRONG = {
    **{
        f"{field}={ascii(value)[:20]}": text_of({}, {field: value})
        for field, values in WRONG_FIELDS.items()
        for value in values
    },
    **{
        f"grant.{field}={value!a}": text_of({field: value})
        for field, values in WRONG_GRANTS.items()
        for value in values
    },
    "a bound bank that is no text": text_of({**BOUND, "bank": 5}),
    **{
        f"without grant.{field}": json.dumps(
            {**RECORD, "grant": {name: value for name, value in GRANT.items() if name != field}}
        )
        for field in GRANT
    },
    **{
        f"without {field}": json.dumps(
            {name: value for name, value in {**RECORD, "grant": GRANT}.items() if name != field}
        )
        for field in (*RECORD, "grant")
    },
    **{f"grant {grant!r}": json.dumps({**RECORD, "grant": grant}) for grant in NO_GRANTS},
    **{text: text for text in ("", "null", "5", '"x"', "[]", "{", '{"grant": ')},
    "deep": "[" * 200_000,
}


@pytest.mark.parametrize("text", WRONG.values(), ids=list(WRONG))
async def test_a_record_of_wrong_types_is_no_key_and_hides_none(
    store: KeyStore, redis: Redis, text: str
) -> None:
    _, good = fresh()
    await store.add(good)
    await put(redis, strange=text)
    assert (await store.load())[1] == [good]


@pytest.mark.parametrize("end", ["", "soon", "1.5", "-1", "9" * 30, "9" * 5000, "null"])
@pytest.mark.parametrize("which", ["expires", "revoked"])
async def test_an_end_that_cannot_be_read_is_no_longer_life(
    store: KeyStore, redis: Redis, which: str, end: str
) -> None:
    (_, good), (_, strange) = fresh(), fresh()
    await store.add(good)
    await store.add(strange)
    await put(redis, **{f"{strange.key_id}:{which}": end})
    assert (await store.load())[1] == [good]


@pytest.mark.parametrize("grant", [{}, BOUND, {"user_prefix": "app-"}, {"scopes": []}])
async def test_the_records_these_are_made_from_are_keys(
    store: KeyStore, redis: Redis, grant: dict[str, Any]
) -> None:
    await put(redis, plain=text_of(grant))
    assert [record.key_id for record in (await store.load())[1]] == ["plain"]


async def test_a_key_is_ended_although_a_strange_record_came(store: KeyStore, redis: Redis) -> None:
    key, record = fresh()
    await store.add(record)
    ring = KeyRing({})
    async with KeyWatch(store, ring, every_s=0.02):
        assert is_good(ring, key)
        await put(redis, strange=text_of({}, {"created_s": "yesterday"}), version="another")
        await store.revoke(record.key_id, int(time.time()))
        await wait_until(lambda: not is_good(ring, key), "the key has ended")


class FailingRing:
    """A ring that fails a few times after the first, and is a good one otherwise."""

    def __init__(self, ring: KeyRing, errors: Iterable[Exception]) -> None:
        self._ring = ring
        self._errors = iter(errors)
        self.calls = 0

    def put(self, records: Iterable[KeyRecord], now_s: float) -> None:
        """Fail while there are errors left, but not at once."""
        self.calls += 1
        if self.calls > 1 and (error := next(self._errors, None)) is not None:
            raise error
        self._ring.put(records, now_s)


async def test_the_watch_survives_and_logs_whatever_goes_wrong(
    store: KeyStore, caplog: pytest.LogCaptureFixture
) -> None:
    key, record = fresh()
    await store.add(record)
    ring = KeyRing({})
    failing = FailingRing(ring, [TypeError("x"), TimeoutError(), RuntimeError("y")])
    with caplog.at_level(logging.ERROR, "service.memory.keys"):
        async with KeyWatch(store, failing, every_s=0.01):
            await wait_until(lambda: failing.calls > 4, "it looks again after each failure")
            assert is_good(ring, key)
            await store.revoke(record.key_id, int(time.time()))
            await wait_until(lambda: not is_good(ring, key), "the key has ended")
    assert [entry.message for entry in caplog.records] == ["key_look_failed"] * 3
