"""The scripts over what is there already: a restore may be repeated, and nothing newer stays."""

from pathlib import Path

import pytest
from service.embedded.data_dir import DataDir

from tests.backups import Site, running_postgres
from tests.support import free_port, valkey

pytestmark = pytest.mark.anyio


async def test_a_restore_over_newer_data_is_the_backup_however_often_it_is_run(tmp_path: Path) -> None:
    folder, port = tmp_path / "redis", free_port()
    with DataDir(tmp_path / "local") as data:
        async with running_postgres(data) as database_url:
            site = Site(database_url, f"redis://:a%3Ab%2Fc%40d@127.0.0.1:{port}/0", folder)
            await site.sql("CREATE TABLE memories (id int PRIMARY KEY, text text, embedding vector(3))")
            await site.sql("CREATE INDEX ON memories USING hnsw (embedding vector_cosine_ops)")
            await site.sql("INSERT INTO memories VALUES (1, '杭州', '[1,2,3]')")
            async with valkey(folder, port=port) as server:
                await server.command("HSET", "mem:turns:b", "document", "turn")
                await server.command("SET", "mem:job:j", "queued", "EX", "1000")
                # By default it waits five seconds for more replicas to come.
                await server.command("CONFIG", "SET", "repl-diskless-sync-delay", "0")
                # A URL cannot hold this password as it is.
                await server.command("CONFIG", "SET", "requirepass", "a:b/c@d")
                backup = await site.backup(tmp_path / "backups")
                assert "Redis is running" in await site.refusal(backup)
            async with valkey(folder, port=port) as server:
                await server.command("FLUSHALL")
                await server.command("SET", "mem:newer", "1")
            await site.sql("DELETE FROM memories; INSERT INTO memories VALUES (2, 'newer', NULL)")

            for _ in range(2):
                await site.restore(backup)

            assert await site.sql("SELECT * FROM memories") == "1|杭州|[1,2,3]"
            assert await site.sql("SELECT count(*) FROM pg_indexes WHERE tablename = 'memories'") == "2"
    for _ in range(2):  # and what is written from then on survives as well
        async with valkey(folder, port=port) as server:
            assert await server.command("HLEN", "mem:turns:b") == b":1\r\n"
            assert await server.command("EXISTS", "mem:job:j") == b":1\r\n"
            assert await server.command("TTL", "mem:job:j") not in {b":-1\r\n", b":-2\r\n"}
            assert await server.command("EXISTS", "mem:newer") == b":0\r\n"
            await server.command("SET", "mem:later", "1")
    async with valkey(folder, port=port) as server:
        assert await server.command("EXISTS", "mem:later") == b":1\r\n"


async def test_a_client_that_is_named_goes_before_the_url(tmp_path: Path) -> None:
    snapshot = b"REDIS0011\xff12345678"
    (tmp_path / "client.sh").write_text(f"printf '{snapshot[:-9].decode()}\\377{snapshot[-8:].decode()}'\n")
    site = Site("postgresql://u:p@127.0.0.1/d", f"redis://127.0.0.1:{free_port()}/0", tmp_path)
    tools = {"PG_DUMP": "printf PGDMP", "PG_RESTORE": "true"}
    named = await site.backup(tmp_path / "a", REDIS_CLI=f"sh {tmp_path / 'client.sh'}", **tools)
    assert (named / "redis.rdb").read_bytes() == snapshot
    with pytest.raises(AssertionError, match="No Redis listens"):
        await site.backup(tmp_path / "b", **tools)
    assert list((tmp_path / "b").iterdir()) == []
