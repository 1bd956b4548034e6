"""Back up, wipe, restore, all on the real parts: every memory is back, and what waited is stored once."""

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from service.adapters.turns import Debounce, TurnsLog
from service.embedded import postgres
from service.embedded.data_dir import DataDir
from service.memory.hold import Hold
from service.scope import bank_of

from tests.backups import Site, running_postgres
from tests.e2e.conftest import Stack, clean_environment, running_stack
from tests.support import wait_until

pytestmark = [pytest.mark.anyio, pytest.mark.hindsight]

QUIET_S = 0.3
# Between the snapshot of Redis and the dump of PostgreSQL, until somebody says `go`.
_HELD_DUMP = """\
: > "$HELD/snapshot-taken"
until [ -e "$HELD/go" ]; do sleep 0.05; done
exec pg_dump "$@"
"""


@dataclass(frozen=True)
class Said:
    """One turn: whose it is, what is asked about it later, and the word that the answer must have."""

    tenant: str
    user: str
    text: str
    question: str
    word: str

    @property
    def fields(self) -> dict[str, str]:
        """The request that adds it."""
        return {
            "user_id": self.user,
            "user_message": self.text,
            "assistant_message": "OK",
            "conversation_id": f"about {self.word}",
            "turn_id": self.word,
        }


STORED = (
    Said("acme", "ann", "My cat is called Biscuit.", "What is my cat called?", "Biscuit"),
    Said("acme", "ben", "I play the cello.", "What instrument do I play?", "cello"),
    Said("globex", "ann", "我对花生过敏，点餐的时候请避开。", "我有什么食物不能吃？", "花生"),
)
# Waits when Redis is backed up and is in Hindsight when PostgreSQL is: the backup has it twice.
STORED_MEANWHILE = Said("acme", "ann", "I drive a blue Volvo.", "Which car do I drive?", "Volvo")
WAITING = Said("globex", "ann", "My sister lives in Oslo.", "Where does my sister live?", "Oslo")
DEAD = Said("acme", "ben", "I collect postage stamps.", "What do I collect?", "stamps")
REASON = "It could not be stored."
PEOPLE = {(said.tenant, said.user) for said in STORED}

Clients = dict[str, httpx.AsyncClient]


async def command(stack: Stack, *words: str) -> tuple[str, str]:
    """What a command prints that works on the stack, and what it tells beside that."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "service.cli.main", *words,
        env={**clean_environment(), "MEMORY_DATA_DIR": str(stack.data_dir)},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    said, told = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, told.decode()
    return said.decode().strip(), told.decode()


async def make_key(stack: Stack, tenant: str) -> tuple[str, str]:
    """A key of a tenant, and the key's id."""
    made, told = await command(
        stack, "keys", "create", "k", "--scopes", "recall,add,review", "--tenant", tenant
    )
    return made.split()[-1], told.split()[0]


async def clients_of(stack: Stack, keys: dict[str, str], opened: AsyncExitStack) -> Clients:
    """A client for each key, once the API knows it."""
    clients = {
        name: await opened.enter_async_context(
            httpx.AsyncClient(
                base_url=stack.connection.url, headers={"Authorization": f"Bearer {key}"}, timeout=60
            )
        )
        for name, key in keys.items()
    }

    async def are_known() -> bool:
        statuses = [await status_of(client) for client in clients.values()]
        return statuses == [200] * len(statuses)

    await wait_until(are_known, "the keys are known")
    return clients


async def status_of(client: httpx.AsyncClient) -> int:
    """How a key is answered."""
    return (await client.post("/memory/list", data={"user_id": "nobody"})).status_code


async def add(clients: Clients, said: Said) -> tuple[str, str]:
    """Add a turn: the status of the reply, and its job."""
    reply = await clients[said.tenant].post("/memory/add", data=said.fields)
    assert reply.status_code == 202, reply.text
    return reply.json()["status"], reply.json()["job_id"]


async def follow(clients: Clients, said: Said, job: str) -> None:
    """Wait until a turn is stored."""

    async def is_done() -> bool:
        reply = await clients[said.tenant].get(f"/memory/jobs/{job}", params={"wait_s": 10})
        return bool(reply.json()["status"] == "done")

    await wait_until(is_done, f"{said.word} is stored", timeout_s=60)


async def stored(client: httpx.AsyncClient, user: str) -> list[str]:
    """The words of a user's memories, one for each of them; nothing while a turn waits."""
    reply = (await client.post("/memory/list", data={"user_id": user})).json()
    if reply["pending"]:
        return []
    words = [said.word for said in (*STORED, STORED_MEANWHILE, WAITING, DEAD)]
    return sorted(next(word for word in words if word in memory["text"]) for memory in reply["memories"])


def words_of(tenant: str, user: str, turns: Sequence[Said]) -> list[str]:
    """What `stored` is when exactly these turns are stored."""
    return sorted(said.word for said in turns if (said.tenant, said.user) == (tenant, user))


async def wait_for(clients: Clients, turns: Sequence[Said]) -> None:
    """Wait until everybody has exactly these of their turns stored, each once."""

    async def are_stored() -> bool:
        found = {person: await stored(clients[person[0]], person[1]) for person in PEOPLE}
        assert found == {person: words_of(*person, turns) for person in PEOPLE}
        return True

    await wait_until(are_stored, "all is stored", timeout_s=60, poll_s=0.2)


async def context(client: httpx.AsyncClient, user: str, question: str) -> str:
    """What is recalled."""
    reply = await client.post(
        "/memory/recall", data={"user_id": user, "query": question, "timeout_ms": "8000"}
    )
    assert reply.status_code == 200, reply.text
    assert reply.json()["degraded"] is False
    return str(reply.json()["context"])


async def back_up_at_work(stack: Stack, clients: Clients, site: Site, folder: Path) -> Path:
    """Make a backup while turns wait, one is being stored, and one has just died."""
    worker = stack.connection.pids["worker"]
    os.kill(worker, signal.SIGSTOP)
    jobs = {said: (await add(clients, said))[1] for said in (STORED_MEANWHILE, WAITING, DEAD)}
    async with TurnsLog(stack.connection.redis_url, Debounce(QUIET_S, 60, 20)) as log:

        async def are_due() -> bool:
            return await log.count_due() == len(jobs)

        await wait_until(are_due, "the turns are due")
        # Another worker, which gives up on one of them and has another in hand all the while.
        claims = {claim.bank: claim for claim in await log.claim(len(jobs))}
        claim = claims[bank_of(DEAD.tenant, DEAD.user)]
        batch = await log.take(claim, "batch")
        assert batch is not None
        kept = {turn.document_id: 0 for turn in batch.turns}
        await log.settle(claim, batch, kept, outcome="failed", reason=REASON, job_ttl_s=3600)
        await log.release(claim)
        await log.release(claims[bank_of(STORED_MEANWHILE.tenant, STORED_MEANWHILE.user)])

        async with Hold(log, claims[bank_of(WAITING.tenant, WAITING.user)]) as hold:
            making = asyncio.create_task(
                site.backup(folder / "backups", PG_DUMP=f"sh {folder / 'held-dump.sh'}", HELD=str(folder))
            )
            try:
                await wait_until((folder / "snapshot-taken").exists, "Redis is backed up", timeout_s=30)
                os.kill(worker, signal.SIGCONT)
                await follow(clients, STORED_MEANWHILE, jobs[STORED_MEANWHILE])
            finally:
                (folder / "go").touch()
                backup = await making
            hold.check()
    return backup


def site_of(data_dir: Path, redis_url: str) -> Site:
    """The servers of the stack that runs in a data directory."""
    data = DataDir(data_dir)
    database = postgres.postgres_server(data, data.remembered_ports().get(postgres.NAME, 0))
    return Site(database.url(), redis_url, data_dir / "redis")


# Two starts of the whole stack, the first of them with an empty database.
@pytest.mark.timeout(600)
async def test_after_a_wipe_everything_comes_back(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    (tmp_path / "held-dump.sh").write_text(_HELD_DUMP, "utf-8")
    async with running_stack(folder, MEMORY_QUIET_S=str(QUIET_S)) as stack, AsyncExitStack() as opened:
        (acme, _), (globex, _), (revoked, revoked_id) = await asyncio.gather(
            *(make_key(stack, tenant) for tenant in ("acme", "globex", "acme"))
        )
        keys = {"acme": acme, "globex": globex}
        clients = await clients_of(stack, {**keys, "revoked": revoked}, opened)
        await command(stack, "keys", "revoke", revoked_id)
        first_jobs = {said: (await add(clients, said))[1] for said in STORED}
        for said, job in first_jobs.items():
            await follow(clients, said, job)
        site = site_of(folder, stack.connection.redis_url)
        backup = await back_up_at_work(stack, clients, site, tmp_path)
        assert "Redis is running" in await site.refusal(backup)

    # Another machine: nothing of the first is left, the secrets neither.
    shutil.rmtree(folder)
    with DataDir(folder) as data:
        (folder / "redis").mkdir(mode=0o700)
        async with running_postgres(data) as database_url:
            await Site(database_url, site.redis_url, folder / "redis").restore(backup)

    async with running_stack(folder, MEMORY_QUIET_S=str(QUIET_S)) as stack, AsyncExitStack() as opened:
        clients = await clients_of(stack, keys, opened)
        bad = httpx.AsyncClient(
            base_url=stack.connection.url, headers={"Authorization": f"Bearer {revoked}"}, timeout=60
        )
        assert await status_of(await opened.enter_async_context(bad)) == 401

        alive = (*STORED, STORED_MEANWHILE, WAITING)
        await wait_for(clients, alive)
        # Dify repeats itself: what came before the wipe is known.
        assert await add(clients, STORED[0]) == ("duplicate", first_jobs[STORED[0]])

        listed, _ = await command(stack, "dead", "list", "--show")
        assert (listed.count(REASON), listed.count(DEAD.text)) == (1, 1), listed
        replayed, _ = await command(stack, "dead", "replay", "--all")
        assert replayed == "Replayed: 1"
        await wait_for(clients, (*alive, DEAD))

        for said in (*alive, DEAD):
            assert said.word in await context(clients[said.tenant], said.user, said.question)
            others = PEOPLE - {(said.tenant, said.user)} | {(said.tenant, "stranger")}
            for tenant, user in others:
                assert said.word not in await context(clients[tenant], user, said.question)
