"""Epochs: whatever Redis loses, evicts or restores, no old answer comes back to life."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from redis.asyncio import Redis
from service import keyspace
from service.adapters.cache import NOT_FOUND, Epochs, RecallCache, token
from service.errors import CacheUnavailable
from service.scope import BankId

from tests.support import RedisServer, valkey, wait_until
from tests.turns_log import without_ttl

pytestmark = pytest.mark.anyio
Q = "question"


def a_bank() -> BankId:
    """A bank that no other test has."""
    return BankId(f"u-{secrets.token_hex(8)}")


def soon() -> float:
    """Late enough."""
    return asyncio.get_running_loop().time() + 5


@asynccontextmanager
async def opened(url: str, patience_s: float = 1) -> AsyncIterator[RecallCache]:
    """A cache of one process; patient, for a machine that is busy."""
    async with RecallCache(url, patience_s=patience_s, stale_ttl_s=3600) as cache:
        yield cache


@pytest.fixture
async def cache(redis_server: RedisServer) -> AsyncIterator[RecallCache]:
    async with opened(redis_server.url) as one:
        yield one


@pytest.fixture
async def other(redis_server: RedisServer) -> AsyncIterator[RecallCache]:
    """The cache of another process."""
    async with opened(redis_server.url) as one:
        yield one


@pytest.fixture
async def redis(redis_server: RedisServer) -> AsyncIterator[Redis]:
    async with Redis.from_url(redis_server.url, decode_responses=True) as client:
        yield client


async def filled(cache: RecallCache, bank: BankId, body: bytes = b"old") -> Epochs:
    """Publish an answer under the bank's epochs."""
    epochs = await cache.epochs(bank, soon())
    assert await cache.publish(bank, Q, epochs, body, 300, soon())
    assert (await cache.find(bank, Q, soon())).current == body
    return epochs


async def test_epochs_are_made_once_and_random(cache: RecallCache, other: RecallCache) -> None:
    bank = a_bank()
    assert await cache.find(bank, Q, soon()) == NOT_FOUND
    made = await asyncio.gather(*(one.epochs(bank, soon()) for one in (cache, other) * 20))
    assert len(set(made)) == 1
    tokens = {made[0].write, made[0].purge}
    for _ in range(50):
        epochs = await cache.epochs(a_bank(), soon())
        tokens |= {epochs.write, epochs.purge}
    assert len(tokens) == 102
    assert all(len(token) >= 16 for token in tokens)


async def test_a_write_makes_old_and_a_purge_ends(cache: RecallCache, other: RecallCache) -> None:
    bank = a_bank()
    first = await filled(cache, bank)
    await other.note_write(bank)
    found = await cache.find(bank, Q, soon())
    assert (found.current, found.stale) == (None, b"old")
    assert found.epochs is not None
    assert found.epochs.purge == first.purge
    await other.note_purge(bank)
    found = await cache.find(bank, Q, soon())
    assert (found.current, found.stale) == (None, None)
    assert found.epochs is not None
    assert found.epochs.purge != first.purge
    assert found.epochs.write != first.write


async def test_a_purge_ends_current_answers_at_once_and_makes_the_write_epoch_new(cache: RecallCache) -> None:
    bank = a_bank()
    first = await filled(cache, bank)
    await cache.note_purge(bank)
    second = await cache.epochs(bank, soon())
    assert first.purge != second.purge
    assert first.write != second.write
    assert await cache.find(bank, Q, soon()) == (type(NOT_FOUND)(second, None, None))


async def test_what_was_computed_before_a_purge_is_not_even_stored(cache: RecallCache, redis: Redis) -> None:
    bank = a_bank()
    epochs = await cache.epochs(bank, soon())
    await cache.note_purge(bank)
    assert not await cache.publish(bank, Q, epochs, b"forgotten", 300, soon())
    assert await redis.get(keyspace.recall(bank, Q)) is None
    # Nor when the purge epoch was lost meanwhile: nobody can tell then.
    epochs = await cache.epochs(bank, soon())
    await redis.delete(keyspace.purge_epoch(bank))
    assert not await cache.publish(bank, Q, epochs, b"forgotten", 300, soon())
    assert await redis.get(keyspace.recall(bank, Q)) is None


async def test_what_was_computed_before_a_write_is_a_last_resort_and_replaces_nothing_newer(
    cache: RecallCache,
) -> None:
    bank = a_bank()
    slow = await cache.epochs(bank, soon())
    await cache.note_write(bank)
    assert await cache.publish(bank, Q, slow, b"old", 300, soon())
    found = await cache.find(bank, Q, soon())
    assert (found.current, found.stale) == (None, b"old")
    await filled(cache, bank, b"new")
    assert await cache.publish(bank, Q, slow, b"old", 300, soon())
    assert (await cache.find(bank, Q, soon())).current == b"new"


@pytest.mark.parametrize("lost", ["write", "purge", "both"])
async def test_a_lost_epoch_revives_nothing(cache: RecallCache, redis: Redis, lost: str) -> None:
    bank = a_bank()
    await filled(cache, bank)
    names = {"write": keyspace.write_epoch(bank), "purge": keyspace.purge_epoch(bank)}
    await redis.delete(*(names.values() if lost == "both" else [names[lost]]))
    assert await cache.find(bank, Q, soon()) == NOT_FOUND
    await cache.epochs(bank, soon())
    found = await cache.find(bank, Q, soon())
    assert found.current is None
    assert found.stale == (b"old" if lost == "write" else None)


async def test_evicted_epochs_revive_nothing(tmp_path: Path) -> None:
    extra = ("--maxmemory", "4mb", "--maxmemory-policy", "allkeys-random")
    evicting = valkey(tmp_path / "data", aof=False, extra=extra)
    async with evicting as server, opened(server.url) as cache:
        banks = [a_bank() for _ in range(200)]
        for bank in banks:
            await filled(cache, bank)
            await cache.note_write(bank)
        async with Redis.from_url(server.url) as redis:
            filler = 0
            while len([1 for bank in banks if not await redis.exists(keyspace.write_epoch(bank))]) < 20:
                for _ in range(50):
                    filler += 1
                    await redis.set(f"filler:{filler}", secrets.token_bytes(20_000))
        for bank in banks:
            await cache.epochs(bank, soon())
            assert (await cache.find(bank, Q, soon())).current is None


@pytest.mark.parametrize("how", ["empty", "from the file", "from an old file"])
async def test_a_restarted_server_revives_nothing(tmp_path: Path, how: str) -> None:
    # Without an append-only file: a snapshot is all there is, and may be older than the last purge.
    async with valkey(tmp_path / "data", aof=False) as server, opened(server.url) as cache:
        bank = a_bank()
        await filled(cache, bank, b"forgotten")
        async with Redis.from_url(server.url) as redis:
            if how == "from an old file":
                await redis.save()
            await cache.note_purge(bank)
            if how == "from the file":
                await redis.save()
        await server.kill()
        if how == "empty":
            await server.restart_empty()
        else:
            await server.start()
        await wait_until(lambda: cache.epochs(bank, soon()), "it is back", not_yet=(CacheUnavailable,))
        async with opened(server.url) as other:
            for one in (cache, other):
                found = await one.find(bank, Q, soon())
                assert (found.current, found.stale) == (None, None)
        await filled(cache, bank, b"new")


async def test_full_memory_does_not_keep_an_old_answer_current(tmp_path: Path) -> None:
    extra = ("--maxmemory-policy", "noeviction")
    async with valkey(tmp_path / "data", aof=False, extra=extra) as server, opened(server.url) as cache:
        noted: list[Callable[[BankId], Awaitable[object]]] = [cache.note_write, cache.note_purge]
        for note in noted:
            bank = a_bank()
            await server.command("CONFIG", "SET", "maxmemory", "0")
            await filled(cache, bank)
            await server.command("CONFIG", "SET", "maxmemory", "1")
            await note(bank)
            assert (await cache.find(bank, Q, soon())).current is None
            with pytest.raises(CacheUnavailable):
                await cache.epochs(bank, soon())
            await server.command("CONFIG", "SET", "maxmemory", "0")
            await cache.epochs(bank, soon())
            found = await cache.find(bank, Q, soon())
            assert found.current is None
            assert found.stale == (b"old" if note == cache.note_write else None)


async def test_every_key_has_an_end(cache: RecallCache, redis: Redis) -> None:
    bank = a_bank()
    await filled(cache, bank)
    await cache.lease(bank, Q, token())
    await cache.note_write(bank)
    await cache.note_purge(bank)
    assert await without_ttl(redis) == set()


async def test_the_lease_is_one_processes_and_ends_by_itself(
    cache: RecallCache, other: RecallCache, redis: Redis
) -> None:
    bank = a_bank()
    ours, theirs = token(), token()
    assert await cache.lease(bank, Q, ours)
    assert not await other.lease(bank, Q, theirs)
    other.release_lease(bank, Q, theirs)
    other.renew_lease(bank, Q, theirs)
    assert not await other.lease(bank, Q, theirs)
    assert await other.lease(a_bank(), Q, theirs)
    assert 0 < await redis.pttl(keyspace.lease(bank, Q)) <= 1000
    cache.release_lease(bank, Q, ours)
    assert await other.lease(bank, Q, theirs)
    cache.release_lease(bank, Q, ours)
    assert not await cache.lease(bank, Q, ours)
    # Nobody renews it.
    await wait_until(lambda: cache.lease(bank, Q, ours), "the lease has ended", 3)


async def test_a_silent_server_is_given_up_on_in_time(redis_server: RedisServer) -> None:
    bank = a_bank()
    async with opened(redis_server.url, patience_s=0.05) as cache:
        epochs = await cache.epochs(bank, soon())
        loop = asyncio.get_running_loop()
        redis_server.pause()
        try:
            for call in (
                cache.find(bank, Q, soon()),
                cache.epochs(bank, soon()),
                cache.publish(bank, Q, epochs, b"", 1, soon()),
                cache.note_write(bank),
                cache.lease(bank, Q, token()),
            ):
                started = loop.time()
                with pytest.raises(CacheUnavailable):
                    await call
                assert loop.time() - started < 0.5
            started = loop.time()
            with pytest.raises(CacheUnavailable):
                await cache.find(bank, Q, started + 0.01)
            assert loop.time() - started < 0.3
        finally:
            redis_server.resume()


async def test_a_purge_deletes_answers_of_every_age(redis_server: RedisServer) -> None:
    """One that lives shorter must not take the list of the longer ones along."""
    bank = a_bank()
    async with (
        RecallCache(redis_server.url, patience_s=5, stale_ttl_s=1) as cache,
        Redis.from_url(redis_server.url) as redis,
    ):
        epochs = await cache.epochs(bank, soon())
        assert await cache.publish(bank, "long", epochs, b"marigold", 600, soon())
        assert await cache.publish(bank, "short", epochs, b"marigold", 1, soon())
        name = keyspace.recall(bank, "short")

        async def has_ended() -> bool:
            return not await redis.exists(name)

        await wait_until(has_ended, "the short one has ended", 10)
        assert await redis.ttl(keyspace.answers(bank)) > 500
        assert await cache.note_purge(bank) == 1
        assert not await redis.exists(keyspace.recall(bank, "long"), keyspace.answers(bank))


async def test_the_list_of_answers_does_not_grow_for_ever(redis_server: RedisServer) -> None:
    bank = a_bank()
    async with (
        RecallCache(redis_server.url, patience_s=5, stale_ttl_s=1) as cache,
        Redis.from_url(redis_server.url) as redis,
    ):
        epochs = await cache.epochs(bank, soon())
        for number in range(20):
            assert await cache.publish(bank, f"q{number}", epochs, b"x", 1, soon())

        async def have_ended() -> bool:
            return not await redis.exists(*(keyspace.recall(bank, f"q{number}") for number in range(20)))

        await wait_until(have_ended, "they have ended", 10)
        await cache.publish(bank, "next", epochs, b"x", 60, soon())
        assert await redis.zcard(keyspace.answers(bank)) < 20
