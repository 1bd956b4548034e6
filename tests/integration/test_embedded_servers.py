"""The real servers of the local stack, each run by its own recipe: Valkey, PostgreSQL, embeddings."""

import asyncio
import base64
import os
import shutil
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import asyncpg  # type: ignore[import-untyped]
import httpx
import numpy as np
import pytest
import redis.asyncio
from service.embedded import embeddings, postgres, redis_server
from service.embedded.data_dir import DataDir
from service.embedded.errors import LocalStackError
from service.embedded.postgres import PostgresServer
from service.embedded.processes import processes_in
from service.embedded.supervisor import ChildSpec, Pace, Supervisor

from tests.support import free_port, wait_until

pytestmark = pytest.mark.anyio

IN_NAMESPACE = ["unshare", "--user", "--map-user=65534", "--"]


@asynccontextmanager
async def running(*specs: ChildSpec) -> AsyncIterator[Supervisor]:
    """The children, ready, and gone afterwards."""
    said: list[str] = []
    stop, ready = asyncio.Event(), asyncio.Event()
    supervisor = Supervisor(specs, say=said.append, on_pids=lambda _: None, pace=Pace(first_delay_s=0.05))
    task = asyncio.create_task(supervisor.run(stop, ready.set))
    try:
        await wait_until(lambda: ready.is_set() or task.done(), "the servers are ready", timeout_s=60)
        if task.done():
            await task
        yield supervisor
    finally:
        stop.set()
        await asyncio.gather(task, return_exceptions=True)
    assert not any("killed" in line for line in said), said


@asynccontextmanager
async def taken_before_the_start(spec: ChildSpec) -> AsyncIterator[None]:
    """Another program takes the port of `spec` after it was chosen, and says yes to everything there."""
    assert spec.listener is not None

    async def agree(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1024)
        writer.write(b"R" if spec.name == postgres.NAME else b"+OK\r\n+PONG\r\n")
        writer.close()

    async with await asyncio.start_server(agree, "127.0.0.1", spec.listener.port):
        yield


def deep(folder: Path) -> Path:
    """A folder that no unix socket fits in, with a name that needs quoting everywhere."""
    return folder / "a folder with 中文 and 'quotes', $signs & 100% \"more\"" / ("d" * 100)


def command_line(pid: int) -> bytes:
    """What every local user can read about a process."""
    return Path(f"/proc/{pid}/cmdline").read_bytes()


# Redis


@pytest.mark.parametrize("is_deep", [False, True], ids=["socket", "password"])
async def test_redis_is_durable_private_and_survives_kill_9(tmp_path: Path, is_deep: bool) -> None:
    with DataDir((deep(tmp_path) if is_deep else tmp_path) / "data") as data:
        server = redis_server.redis_server(data, free_port())
        assert (server.address.socket is None) is is_deep
        async with running(redis_server.spec(data, server, os.environ)) as supervisor:
            async with redis.asyncio.Redis.from_url(server.url) as client:
                assert (await client.config_get("append*"))["appendonly"] == "yes"
                assert (await client.config_get("appendfsync"))["appendfsync"] == "always"
                assert (await client.config_get("maxmemory-policy"))["maxmemory-policy"] == "noeviction"
                await client.set("turn", "kept")
            killed = supervisor.pids["redis"]
            os.kill(killed, signal.SIGKILL)
            await wait_until(lambda: supervisor.pids["redis"] != killed, "Redis was started again")

            async def kept() -> bool:
                async with redis.asyncio.Redis.from_url(server.url) as client:
                    return bool(await client.get("turn") == b"kept")

            await wait_until(kept, "the write is back")
            if is_deep:
                async with redis.asyncio.Redis.from_url(f"redis://127.0.0.1:{server.address.port}") as client:
                    with pytest.raises(redis.exceptions.AuthenticationError):
                        await client.get("turn")
                assert str(server.password).encode() not in command_line(supervisor.pids["redis"])
        async with running(redis_server.spec(data, server, os.environ)):
            await wait_until(kept, "the write is there after an ordinary restart")


async def test_redis_gets_another_port_when_its_own_is_taken_before_it_listens(tmp_path: Path) -> None:
    with DataDir(deep(tmp_path) / "data") as data:
        server = redis_server.redis_server(data, free_port())
        chosen = server.port
        spec = redis_server.spec(data, server, os.environ)
        async with AsyncExitStack() as other:

            async def prepare() -> None:
                await spec.prepare()
                if server.port == chosen:  # the last moment: the program is started next
                    await other.enter_async_context(taken_before_the_start(spec))

            async with running(replace(spec, prepare=prepare)):
                assert server.port != chosen
                async with redis.asyncio.Redis.from_url(server.url) as client:
                    assert await client.config_get("port") == {"port": str(server.port)}
                    with pytest.raises(redis.exceptions.ConnectionError):
                        await redis.asyncio.Redis(port=chosen, password="none").config_get("port")


@pytest.mark.parametrize("is_deep", [False, True], ids=["socket", "password"])
async def test_the_cache_leaves_nothing_on_the_disk(tmp_path: Path, is_deep: bool) -> None:
    with DataDir((deep(tmp_path) if is_deep else tmp_path) / "data") as data:
        server = redis_server.redis_server(data, free_port(), redis_server.CACHE_NAME)
        async with running(redis_server.spec(data, server, os.environ)) as supervisor:
            async with redis.asyncio.Redis.from_url(server.url) as client:
                assert (await client.config_get("appendonly"))["appendonly"] == "no"
                assert (await client.config_get("maxmemory-policy"))["maxmemory-policy"] == "allkeys-lru"
                assert int((await client.config_get("maxmemory"))["maxmemory"]) > 0
                await client.set("answer", "marigold")
            assert str(server.password).encode() not in command_line(supervisor.pids["cache"])
        files = [path for path in data.root.rglob("*") if path.is_file()]
        assert files
        assert not any(b"marigold" in path.read_bytes() for path in files)
        async with (
            running(redis_server.spec(data, server, os.environ)),
            redis.asyncio.Redis.from_url(server.url) as client,
        ):
            assert await client.get("answer") is None


# PostgreSQL


async def query(server: PostgresServer, sql: str) -> object:
    """The first value of the answer."""
    connection = await asyncpg.connect(server.url())
    try:
        return await connection.fetchval(sql)
    finally:
        await connection.close()


def identities() -> list[Sequence[str]]:
    """The ways in which this user can run PostgreSQL: both of root's, or directly."""
    return [IN_NAMESPACE, postgres._AS_NOBODY] if os.geteuid() == 0 else [[]]


@pytest.mark.parametrize("prefix", identities(), ids=lambda prefix: prefix[0] if prefix else "direct")
async def test_postgres_keeps_data_through_kill_9_and_changes_of_identity(
    tmp_path: Path, prefix: list[str]
) -> None:
    with DataDir(tmp_path / "data") as data:
        server = postgres.postgres_server(data, 0)
        assert server.address.socket is not None
        # Left by a start that was cut off; it must be made anew, not used.
        (data.root / "postgres.unfinished" / "base").mkdir(parents=True)
        async with running(postgres.spec(server, prefix, os.environ)) as supervisor:
            pid = supervisor.pids["postgres"]
            assert pid in processes_in(server.folder, "postgres"), "the id is not the server's own"
            await query(server, "CREATE TABLE memory AS SELECT '杭州'::text AS city, '[1,2,3]'::vector AS v")
            assert await query(server, "SELECT similarity('杭州西湖', '杭州西') > 0.4")
            assert await query(server, "SELECT current_setting('fsync')") == "on"
            os.kill(pid, signal.SIGKILL)
            await wait_until(lambda: supervisor.pids["postgres"] != pid, "PostgreSQL was started again")

            async def is_there() -> bool:
                return await query(server, "SELECT city FROM memory") == "杭州"

            late = (asyncpg.PostgresError, OSError)
            await wait_until(is_there, "the table is back", timeout_s=30, not_yet=late)
        assert not (data.root / "postgres.unfinished").exists()
        # A pid file that names a process which has got the number since.
        (server.folder / "postmaster.pid").write_text(f"{os.getpid()}\n{server.folder}\n1\n5432\n\n\n\n")
        other = postgres._AS_NOBODY if prefix == IN_NAMESPACE else prefix
        async with running(postgres.spec(server, other, os.environ)):
            assert await is_there()


async def test_postgres_listens_with_a_password_where_no_socket_fits(tmp_path: Path) -> None:
    with DataDir(deep(tmp_path)) as data:
        server = postgres.postgres_server(data, free_port())
        assert server.address.socket is None
        chosen = server.port
        spec = postgres.spec(server, await postgres.identity(), os.environ)
        async with taken_before_the_start(spec), running(spec):
            assert server.port != chosen
            assert await query(server, "SELECT 1") == 1
            with pytest.raises(asyncpg.InvalidPasswordError):
                await asyncpg.connect(
                    host="127.0.0.1", port=server.address.port, user="hindsight", password="guess"
                )


async def test_a_cluster_of_another_version_is_named_and_not_touched(tmp_path: Path) -> None:
    with DataDir(tmp_path / "data") as data:
        server = PostgresServer(data, None, free_port())
        server.folder.mkdir()
        with pytest.raises(LocalStackError, match="not a PostgreSQL data folder"):
            await postgres.spec(server, [], os.environ).prepare()
        (server.folder / "PG_VERSION").write_text("9.6\n")
        with pytest.raises(LocalStackError, match=r"made by PostgreSQL 9\.6"):
            await postgres.spec(server, [], os.environ).prepare()
        assert [path.name for path in server.folder.iterdir()] == ["PG_VERSION"]


async def test_without_a_way_to_leave_root_the_error_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    if os.geteuid() != 0:
        assert await postgres.identity() == []
        return
    with pytest.raises(LocalStackError, match="does not run as root"):
        await postgres.identity()
    (tmp_path / "setpriv").symlink_to(str(shutil.which("setpriv", path="/usr/bin:/bin")))
    (tmp_path / "true").symlink_to("/bin/true")
    assert (await postgres.identity())[0] == "setpriv"
    (tmp_path / "unshare").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "unshare").chmod(0o755)
    assert (await postgres.identity())[0] == "setpriv", "a forbidden namespace was not noticed"


# Embeddings


@pytest.fixture(scope="module")
async def embedder(
    anyio_backend: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the running embeddings server, with its key."""
    with DataDir(tmp_path_factory.mktemp("embeddings") / "data") as data:
        server = embeddings.EmbeddingsServer(free_port(), data.secret("embeddings_key"))
        async with (
            running(embeddings.spec(data, server, os.environ)),
            httpx.AsyncClient(
                base_url=server.url, headers={"Authorization": f"Bearer {server.key}"}, timeout=60
            ) as client,
        ):
            yield client


async def vectors(
    client: httpx.AsyncClient, texts: list[str] | str, **fields: str
) -> np.ndarray[tuple[int, int]]:
    """The embeddings of texts, one row each."""
    reply = await client.post("/v1/embeddings", json={"model": "any", "input": texts, **fields})
    assert reply.status_code == 200, reply.text
    rows = sorted(reply.json()["data"], key=lambda item: int(item["index"]))
    return np.array([row["embedding"] for row in rows], dtype=np.float32)


async def test_embeddings_know_what_belongs_together_in_both_languages(embedder: httpx.AsyncClient) -> None:
    facts = ["passage: 我对花生过敏", "passage: My cat is called Biscuit", "passage: 上海的房价又涨了"]
    rows = await vectors(embedder, facts)
    assert rows.shape == (3, 384)
    assert np.allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-3)
    for question, best in [
        ("query: 我有什么食物不能吃？", 0),
        ("query: which food must I avoid?", 0),
        ("query: 我的猫叫什么名字？", 1),
        ("query: what is the name of my pet?", 1),
        ("query: housing prices in China", 2),
    ]:
        assert int(np.argmax(rows @ (await vectors(embedder, question))[0])) == best, question


async def test_the_prefix_decides_the_role_and_is_not_part_of_the_text(embedder: httpx.AsyncClient) -> None:
    query_row, passage_row, bare_row = await vectors(embedder, ["query: tea", "passage: tea", "tea"])
    assert np.allclose(passage_row, bare_row)
    assert not np.allclose(query_row, passage_row)


async def test_both_encodings_and_every_batch_size_give_the_same(embedder: httpx.AsyncClient) -> None:
    texts = [f"{'query' if number % 3 else 'passage'}: 第 {number} sentence" for number in range(21)]
    plain = await vectors(embedder, texts)
    for place in (0, 7, 8, 20):
        assert np.allclose((await vectors(embedder, [texts[place]]))[0], plain[place], atol=1e-5)
    reply = await embedder.post(
        "/v1/embeddings", json={"model": "any", "input": texts, "encoding_format": "base64"}
    )
    packed = [np.frombuffer(base64.b64decode(row["embedding"]), dtype="<f4") for row in reply.json()["data"]]
    assert np.array_equal(np.array(packed), plain)


@pytest.mark.parametrize("text", ["", "   ", "a\0b", "🙂" * 3, "a" * 200_000])
async def test_odd_texts_are_embedded_too(embedder: httpx.AsyncClient, text: str) -> None:
    assert np.isfinite(await vectors(embedder, [text, "plain"])).all()


@pytest.mark.parametrize(
    "body",
    [
        "",
        "[]",
        "{",
        "{}",
        '{"input": []}',
        '{"input": [1, 2]}',
        '{"input": [["a"]]}',
        '{"input": null}',
        '{"input": "\\ud83d"}',
        '{"input": "a", "encoding_format": "hex"}',
    ],
)
async def test_what_is_not_a_request_is_refused(embedder: httpx.AsyncClient, body: str) -> None:
    reply = await embedder.post("/v1/embeddings", content=body)
    assert reply.status_code == 400
    assert reply.json()["error"]["message"]


async def test_a_stranger_gets_no_embeddings(embedder: httpx.AsyncClient) -> None:
    for key in ("", "Bearer", "Bearer guess"):
        reply = await embedder.post("/v1/embeddings", json={"input": "a"}, headers={"Authorization": key})
        assert reply.status_code == 401
    assert (await embedder.get("/health")).status_code == 200
