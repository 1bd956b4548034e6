"""The shared Redis connection: every caller gets the reply to its own command or an error, come what may."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from pathlib import Path

import hiredis
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from service.adapters.pipelined import PipelinedRedis

from tests.support import RedisServer, free_port, valkey, wait_until

pytestmark = pytest.mark.anyio
Talk = Callable[["Wire"], Awaitable[None]]
_GREETING = b"$20\r\n# Server\r\nrun_id:x\r\n\r\n"


class Wire:
    """One connection as the server sees it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, greeting: bytes) -> None:
        self._reader = reader
        self._greeting = greeting
        self._parser = hiredis.Reader()
        self.writer = writer

    async def command(self) -> list[bytes]:
        """The next command; the greeting is answered on the way. `EOFError` when the client is gone."""
        while True:
            command = self._parser.gets()
            if command is False:
                data = await self._reader.read(1 << 16)
                if not data:
                    raise EOFError
                self._parser.feed(data)
            elif command[0] == b"INFO":
                self.writer.write(self._greeting)
            else:
                words: list[bytes] = command
                return words

    async def in_pieces(self, data: bytes, cuts: Iterable[int]) -> None:
        """Write, with pauses at the cuts that let the other side read what is there."""
        edges = [0, *sorted({cut for cut in cuts if cut < len(data)}), len(data)]
        for start, end in pairwise(edges):
            self.writer.write(data[start:end])
            await self.writer.drain()
            for _ in range(3):
                await asyncio.sleep(0)


@asynccontextmanager
async def scripted(talk: Talk, greeting: bytes = _GREETING) -> AsyncIterator[str]:
    """A server that talks to each connection as the test says, then closes it; its URL."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(EOFError, OSError):
                await talk(Wire(reader, writer, greeting))
        finally:
            writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def bulk(data: bytes) -> bytes:
    """A RESP bulk string."""
    return b"$%d\r\n%b\r\n" % (len(data), data)


async def echoes(wire: Wire) -> None:
    """Answer each command with its last word."""
    while True:
        wire.writer.write(bulk((await wire.command())[-1]))


async def test_thousands_at_once_each_get_their_own_reply(redis_server: RedisServer) -> None:
    async with PipelinedRedis(redis_server.url) as redis:
        sent = [secrets.token_bytes(size % 50) for size in range(5000)]
        assert await asyncio.gather(*(redis.execute(b"ECHO", data) for data in sent)) == sent
        info = await redis.execute(b"INFO", b"clients")
    assert b"connected_clients:1\r" in info, "more than one connection was opened"


async def test_any_bytes_and_kinds_of_replies(redis_server: RedisServer) -> None:
    async with PipelinedRedis(redis_server.url) as redis:
        assert await redis.execute(b"SET", b"k\r\n\0", b"v\r\n$5\r\n\xff") == b"OK"
        assert await redis.execute(b"MGET", b"k\r\n\0", b"none") == [b"v\r\n$5\r\n\xff", None]
        assert await redis.execute(b"DEL", b"k\r\n\0") == 1
        large = secrets.token_bytes(3_000_000)
        assert await redis.execute(b"ECHO", large) == large


async def test_it_knows_which_server_answered(tmp_path: Path) -> None:
    async with valkey(tmp_path / "data", aof=False) as server, PipelinedRedis(server.url) as redis:
        assert redis.server == b"-"
        await redis.execute(b"PING")
        first = redis.server
        info: bytes = await redis.execute(b"INFO", b"server")
        assert b"run_id:" + first in info
        assert len(first) == 16
        await server.restart()
        await wait_until(lambda: redis.execute(b"PING"), "it is connected again")
        assert redis.server not in (first, b"-")


async def test_a_server_that_does_not_tell_its_name_is_served_all_the_same() -> None:
    async with scripted(echoes, greeting=b"-NOPERM no permissions\r\n") as url, PipelinedRedis(url) as redis:
        assert await redis.execute(b"ECHO", b"a") == b"a"
        assert redis.server == b"-"


async def test_password_user_and_database(tmp_path: Path) -> None:
    async with guarded(tmp_path / "data", "p-w:@/%") as server:
        base = f"127.0.0.1:{server.port}"
        default = ":p-w%3A%40%2F%25"
        async with PipelinedRedis(f"redis://{default}@{base}") as redis:
            words = b"reader on >secret ~* +@all".split()
            assert await redis.execute(b"ACL", b"SETUSER", *words) == b"OK"
        for credentials in (default, f"default{default}", "reader:secret"):
            async with PipelinedRedis(f"redis://{credentials}@{base}/3") as redis:
                assert await redis.execute(b"SET", b"where", b"three") == b"OK"
                assert b"db=3" in await redis.execute(b"CLIENT", b"INFO")
        for credentials in ("", "reader:wrong@"):
            async with PipelinedRedis(f"redis://{credentials}{base}/3") as redis:
                with pytest.raises((hiredis.ReplyError, ConnectionError)):
                    await redis.execute(b"GET", b"where")


@asynccontextmanager
async def guarded(folder: Path, password: str) -> AsyncIterator[RedisServer]:
    """A server that wants a password, for which the usual check for readiness has none."""
    server = Guarded(folder, port=free_port(), aof=False, extra=("--requirepass", password))
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


class Guarded(RedisServer):
    """Ready when it asks for the password."""

    async def _answers_ping(self) -> bool:
        return (await self.command("PING")).startswith(b"-NOAUTH")


async def test_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "s"
    extra = ("--unixsocket", str(path))
    url = f"unix://{path}?db=2"
    async with valkey(tmp_path / "data", aof=False, extra=extra), PipelinedRedis(url) as redis:
        assert await redis.execute(b"SET", b"a", b"b") == b"OK"
        assert b"db=2" in await redis.execute(b"CLIENT", b"INFO")


async def test_an_error_reply_is_the_callers_alone(redis_server: RedisServer) -> None:
    async with PipelinedRedis(redis_server.url) as redis:
        results = await asyncio.gather(
            redis.execute(b"ECHO", b"1"),
            redis.execute(b"NOSUCH"),
            redis.execute(b"ECHO", b"2"),
            return_exceptions=True,
        )
        assert results[0] == b"1"
        assert isinstance(results[1], hiredis.ReplyError)
        assert results[2] == b"2"


async def test_out_of_memory_is_an_error_of_writes_only(tmp_path: Path) -> None:
    extra = ("--maxmemory", "1mb", "--maxmemory-policy", "noeviction")
    server = valkey(tmp_path / "data", aof=False, extra=extra)
    async with server as opened, PipelinedRedis(opened.url) as redis:
        with pytest.raises(hiredis.ReplyError, match="OOM"):
            await redis.execute(b"SET", b"a", b"b")
        assert await redis.execute(b"GET", b"a") is None


async def test_refused_is_told_at_once_and_it_connects_when_the_server_is_there(tmp_path: Path) -> None:
    async with valkey(tmp_path / "data", aof=False) as server, PipelinedRedis(server.url) as redis:
        await redis.execute(b"PING")
        await server.kill()
        loop = asyncio.get_running_loop()
        started = loop.time()
        for _ in range(200):
            with pytest.raises(ConnectionError):
                await redis.execute(b"PING")
        assert loop.time() - started < 1
        await server.start()
        assert await wait_until(lambda: redis.execute(b"PING"), "it is connected again", 5) == b"PONG"


async def test_a_server_killed_in_flight_ends_all_that_wait(tmp_path: Path) -> None:
    async with valkey(tmp_path / "data", aof=False) as server, PipelinedRedis(server.url) as redis:
        await redis.execute(b"PING")
        server.pause()
        waiting = [asyncio.create_task(redis.execute(b"ECHO", b"%d" % n)) for n in range(1000)]
        await asyncio.sleep(0)
        await server.kill()
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert {type(result) for result in results} == {ConnectionError}


async def test_a_loading_server_is_an_error_that_passes(tmp_path: Path) -> None:
    loading = valkey(tmp_path / "data", extra=("--key-load-delay", "0"))
    async with loading as server, PipelinedRedis(server.url) as redis:
        await asyncio.gather(*(redis.execute(b"SET", b"k%d" % n, b"v") for n in range(5000)))
        server.argv[-1] = "150"  # microseconds a key
        await server.kill()
        starting = asyncio.create_task(server.start())
        refusals: list[str] = []

        async def answers() -> bool:
            try:
                return bool(await redis.execute(b"GET", b"k1"))
            except hiredis.ReplyError as exc:
                refusals.append(str(exc))
                return False

        await wait_until(answers, "the data is back", 30, poll_s=0.005)
        await starting
        assert refusals
        assert all(refusal.startswith("LOADING") for refusal in refusals)


async def test_a_silent_server_is_cut_off(redis_server: RedisServer) -> None:
    async with PipelinedRedis(redis_server.url) as redis:
        await redis.execute(b"PING")
        loop = asyncio.get_running_loop()
        redis_server.pause()
        started = loop.time()
        results = await asyncio.gather(*(redis.execute(b"PING") for _ in range(100)), return_exceptions=True)
        took_s = loop.time() - started
        redis_server.resume()
        assert {type(result) for result in results} == {ConnectionError}
        assert 0.9 < took_s < 2
        assert await wait_until(lambda: redis.execute(b"PING"), "it is connected again") == b"PONG"


async def test_who_waits_until_a_time_fails_then_and_replies_stay_matched(redis_server: RedisServer) -> None:
    async with PipelinedRedis(redis_server.url) as redis:
        await redis.execute(b"PING")
        ended: list[int] = []

        async def ask(wait_ms: int) -> None:
            with pytest.raises(TimeoutError):
                await redis.execute_by(began + wait_ms / 1000, b"ECHO", b"late")
            ended.append(wait_ms)

        began = asyncio.get_running_loop().time()
        redis_server.pause()
        try:
            patient = asyncio.ensure_future(redis.execute_by(began + 60, b"ECHO", b"patient"))
            await asyncio.gather(*map(ask, (200, 50, 120)))
        finally:
            redis_server.resume()
        assert ended == [50, 120, 200]
        assert await patient == b"patient"
        assert await redis.execute_by(began + 60, b"ECHO", b"next") == b"next"


async def test_silence_counts_only_while_something_is_awaited() -> None:
    released = asyncio.Event()

    async def talk(wire: Wire) -> None:
        while True:
            word = (await wire.command())[-1]
            if word == b"slow":
                await released.wait()
            wire.writer.write(bulk(word))

    async with scripted(talk) as url, PipelinedRedis(url) as redis:
        await redis.execute(b"ECHO", b"first")
        loop = asyncio.get_running_loop()
        # Shortly before the watch of the first command looks, after a long idle time.
        heard_at = loop.time()
        await wait_until(lambda: loop.time() > heard_at + 0.9, "the connection was idle", poll_s=0.005)
        slow = asyncio.create_task(redis.execute(b"ECHO", b"slow"))
        await wait_until(lambda: loop.time() > heard_at + 1.3, "the watch has looked", poll_s=0.005)
        assert not slow.done(), "it was cut off after a fraction of the time"
        released.set()
        assert await slow == b"slow"


@pytest.mark.parametrize("reply", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"+OK\r\n+UNASKED\r\n", b"$-9\r\n"])
async def test_what_is_not_redis_is_not_talked_to(reply: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def talk(wire: Wire) -> None:
        await wire.command()
        wire.writer.write(reply)
        while True:
            await wire.command()

    async with scripted(talk) as url, PipelinedRedis(url) as redis:
        results = await asyncio.gather(
            redis.execute(b"PING"), *(redis.execute(b"PING") for _ in range(5)), return_exceptions=True
        )
        assert any(isinstance(result, ConnectionError) for result in results) or results[0] == b"OK"
        more = await asyncio.gather(*(redis.execute(b"PING") for _ in range(20)), return_exceptions=True)
        assert all(isinstance(result, ConnectionError) or result in (b"OK", b"UNASKED") for result in more)
    assert not caplog.records


async def test_an_impatient_caller_does_not_end_the_connecting_of_others() -> None:
    may_greet = asyncio.Event()

    async def talk(wire: Wire) -> None:
        await may_greet.wait()
        await echoes(wire)

    async with scripted(talk) as url, PipelinedRedis(url) as redis:
        hasty = asyncio.create_task(redis.execute(b"ECHO", b"hasty"))
        patient = asyncio.create_task(redis.execute(b"ECHO", b"patient"))
        await asyncio.sleep(0)
        hasty.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hasty
        may_greet.set()
        assert await patient == b"patient"


async def test_closing_while_connecting_leaves_no_task() -> None:
    before = asyncio.all_tasks()

    async def talk(wire: Wire) -> None:
        await asyncio.Event().wait()

    async with scripted(talk) as url:
        async with PipelinedRedis(url) as redis:
            waiting = asyncio.create_task(redis.execute(b"PING"))
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await waiting
        # Only the server's own task for the connection is left.
        names = {task.get_coro().__qualname__ for task in asyncio.all_tasks() - before}  # type: ignore[union-attr]
        assert all("scripted" in name for name in names), names


CASE = st.fixed_dictionaries(
    {
        "cuts": st.sets(st.integers(1, 400), max_size=60),
        "cancelled": st.sets(st.integers(0, 19)),
        "sizes": st.lists(st.integers(0, 30), min_size=20, max_size=20),
        "lost_after": st.one_of(st.none(), st.integers(0, 19)),
    }
)


@settings(max_examples=60, deadline=None)
@given(case=CASE)
def test_splits_cancellations_and_losses_never_shift_replies(case: dict[str, object]) -> None:
    asyncio.run(_no_shift(**case))  # type: ignore[arg-type]


async def test_replies_split_at_every_byte() -> None:
    for cut in range(1, 60):
        await _no_shift({cut, cut + 1, 2 * cut}, set(), [7] * 20, None)


async def _no_shift(cuts: set[int], cancelled: set[int], sizes: list[int], lost_after: int | None) -> None:
    words = [b"%d:" % n + b"x" * size for n, size in enumerate(sizes)]
    may_answer = asyncio.Event()
    is_first = True

    async def talk(wire: Wire) -> None:
        nonlocal is_first
        if not is_first:
            await echoes(wire)
        is_first = False
        got = [(await wire.command())[-1] for _ in words]
        await may_answer.wait()
        whole = len(got) if lost_after is None else lost_after
        rest = b"" if lost_after is None else bulk(got[lost_after])[:-1]
        await wire.in_pieces(b"".join(map(bulk, got[:whole])) + rest, cuts)
        if lost_after is None:
            await echoes(wire)

    async with scripted(talk) as url, PipelinedRedis(url) as redis:
        tasks = [asyncio.create_task(redis.execute(b"ECHO", word)) for word in words]
        for _ in range(20):
            await asyncio.sleep(0)
        for number in cancelled:
            tasks[number].cancel()
        await asyncio.sleep(0)
        may_answer.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        for number, (word, result) in enumerate(zip(words, results, strict=True)):
            if isinstance(result, asyncio.CancelledError):
                assert number in cancelled
            elif isinstance(result, ConnectionError):
                assert lost_after is not None
                assert number >= lost_after
            else:
                assert result == word
        # Whatever happened, the next commands get their own replies.
        assert await wait_until(lambda: redis.execute(b"ECHO", b"after"), "it goes on") == b"after"
