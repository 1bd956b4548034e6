"""Backup, wipe, restore with a real Redis-compatible server and a real PostgreSQL: everything is back."""

import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from service.embedded import packages, postgres
from service.embedded.data_dir import DataDir

from tests.deployment import DEPLOY
from tests.support import ServerProcess, free_port, valkey

pytestmark = pytest.mark.anyio

# `valkey-cli --rdb -` as far as backup.sh sees it: the snapshot, then the mark that the client leaves on.
_CLI = """#!/bin/sh
cat "{rdb}" && printf 0123456789abcdef0123456789abcdef01234567
"""


class Site:
    """A database that runs, a folder for Redis, and the scripts with the tools that reach both."""

    def __init__(self, folder: Path, database_url: str) -> None:
        self.redis_data = folder / "redis"
        self._tools = folder / "tools"
        self._tools.mkdir()
        self.redis_client(_CLI.format(rdb=self.redis_data / "dump.rdb"))
        url = urlsplit(database_url)
        host = url.hostname or parse_qs(url.query)["host"][0]
        self._env = {
            "PATH": f"{self._tools}:{packages.postgres_bin()}:{os.environ['PATH']}",
            "REDIS_DATA": str(self.redis_data),
            "PGHOST": host,
            "PGPORT": str(url.port or 5432),
            "PGUSER": url.username or "",
            "PGPASSWORD": url.password or "",
            "PGDATABASE": url.path.removeprefix("/"),
        }

    def redis_client(self, text: str) -> None:
        """Put a `valkey-cli` there."""
        (self._tools / "valkey-cli").write_text(text, "utf-8")
        (self._tools / "valkey-cli").chmod(0o700)

    def run(self, *command: str) -> str:
        """What a command prints; it must succeed."""
        done = subprocess.run(command, env=self._env, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def sql(self, statement: str) -> str:
        """What a statement returns, unaligned."""
        return self.run("psql", "--no-psqlrc", "-qtAc", statement)


@asynccontextmanager
async def _postgres(folder: Path) -> AsyncIterator[str]:
    data = DataDir(folder)
    data.logs.mkdir(parents=True, exist_ok=True)
    data.sockets.mkdir(parents=True, exist_ok=True)
    server = postgres.postgres_server(data, free_port())
    child = postgres.spec(server, await postgres.identity(), os.environ)
    assert child.prepare is not None
    await child.prepare()
    process = ServerProcess(
        child.command,
        log_path=folder / "postgres.log",
        is_ready=lambda: child.is_ready(0),
        env=child.env,
        cwd=child.cwd,
    )
    await process.start()
    try:
        yield server.url()
    finally:
        await process.stop()


async def test_accepted_turns_and_memories_come_back(tmp_path: Path) -> None:
    async with _postgres(tmp_path / "local") as database_url:
        site = Site(tmp_path, database_url)
        site.sql("CREATE TABLE memories (id int PRIMARY KEY, text text, embedding vector(3))")
        site.sql("CREATE INDEX ON memories USING hnsw (embedding vector_cosine_ops)")
        site.sql("INSERT INTO memories VALUES (1, '杭州', '[1,2,3]')")
        async with valkey(site.redis_data, port=free_port()) as server:
            await server.command("HSET", "mem:turns:b", "document", "turn")
            await server.command("SET", "mem:job:j", "queued", "EX", "1000")
            await server.command("SAVE")
            backup = site.run("sh", str(DEPLOY / "backup.sh"), str(tmp_path / "backups"))
            await server.command("FLUSHALL")
        site.sql("DELETE FROM memories; INSERT INTO memories VALUES (2, 'later', NULL)")

        site.redis_client("#!/bin/sh\nexit 1\n")  # Redis is stopped
        for _ in range(2):
            site.run("sh", str(DEPLOY / "restore.sh"), backup)

        assert site.sql("SELECT * FROM memories") == "1|杭州|[1,2,3]"
        assert site.sql("SELECT count(*) FROM pg_indexes WHERE tablename = 'memories'") == "2"
    for _ in range(2):  # and what is written from then on survives as well
        async with valkey(site.redis_data, port=free_port()) as server:
            assert await server.command("HLEN", "mem:turns:b") == b":1\r\n"
            assert await server.command("EXISTS", "mem:job:j") == b":1\r\n"
            assert await server.command("TTL", "mem:job:j") not in {b":-1\r\n", b":-2\r\n"}
            await server.command("SET", "mem:later", "1")
    async with valkey(site.redis_data, port=free_port()) as server:
        assert await server.command("EXISTS", "mem:later") == b":1\r\n"
