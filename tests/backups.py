"""`deploy/backup.sh` and `deploy/restore.sh` on the parts of the local stack."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from service.embedded import packages, postgres
from service.embedded.data_dir import DataDir

from tests.deployment import DEPLOY
from tests.support import ServerProcess, free_port

_TIMEOUT_S = 90


@dataclass(frozen=True)
class Site:
    """Where PostgreSQL and Redis are, and the folder in which Redis has its files."""

    database_url: str
    redis_url: str
    redis_data: Path

    @property
    def environment(self) -> dict[str, str]:
        """All that the scripts read, and PostgreSQL's own tools on the path."""
        url = urlsplit(self.database_url)
        return {
            "PATH": f"{packages.postgres_bin()}:{os.environ['PATH']}",
            "MEMORY_REDIS_URL": self.redis_url,
            "REDIS_DATA": str(self.redis_data),
            "PGHOST": url.hostname or parse_qs(url.query)["host"][0],
            "PGPORT": str(url.port or 5432),
            "PGUSER": url.username or "",
            "PGPASSWORD": url.password or "",
            "PGDATABASE": url.path.removeprefix("/"),
        }

    async def backup(self, folder: Path, **env: str) -> Path:
        """Make a backup; where it is."""
        return Path(await self._done("sh", str(DEPLOY / "backup.sh"), str(folder), **env))

    async def restore(self, backup: Path) -> None:
        """Bring a backup back."""
        await self._done("sh", str(DEPLOY / "restore.sh"), str(backup))

    async def refusal(self, backup: Path) -> str:
        """Why it is not restored now."""
        code, _, told = await self._run("sh", str(DEPLOY / "restore.sh"), str(backup))
        assert code == 1, told
        return told

    async def sql(self, statement: str) -> str:
        """What a statement returns, unaligned."""
        return await self._done("psql", "--no-psqlrc", "-qtAc", statement)

    async def _done(self, *words: str, **env: str) -> str:
        code, said, told = await self._run(*words, **env)
        assert code == 0, told
        return said

    async def _run(self, *words: str, **env: str) -> tuple[int | None, str, str]:
        process = await asyncio.create_subprocess_exec(
            *words,
            env={**self.environment, **env},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        said, told = await asyncio.wait_for(process.communicate(), _TIMEOUT_S)
        return process.returncode, said.decode().strip(), told.decode()


@asynccontextmanager
async def running_postgres(data: DataDir) -> AsyncIterator[str]:
    """The local stack's PostgreSQL alone, in a data directory that is held; its URL."""
    server = postgres.postgres_server(data, free_port())
    child = postgres.spec(server, await postgres.identity(), os.environ)
    assert child.prepare is not None
    await child.prepare()
    process = ServerProcess(
        child.command,
        log_path=data.logs / "postgres.log",
        is_ready=lambda: child.is_ready(0),
        env=child.env,
        cwd=child.cwd,
    )
    await process.start()
    try:
        yield server.url()
    finally:
        await process.stop()
