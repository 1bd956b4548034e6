"""Several tenants on the real Hindsight: banks tell whose they are, and each goes by its own retention."""

import asyncio
import json
import sys
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from service.adapters.hindsight import HindsightAdapter
from service.adapters.hindsight_review import HindsightReview, StoredBank
from service.scope import bank_of, tenant_mark

from tests.e2e.conftest import Stack, clean_environment
from tests.support import wait_until

pytestmark = [pytest.mark.anyio, pytest.mark.hindsight]

# Everybody else's memories on this stack stay as they are.
POLICY = """\
version: 1
default: {retention_days: 0}
tenants:
  t-keeps: {retention_days: 0}
  t-forgets:
    retention_days: 20
    kinds:
      - name: preference
      - {name: task_state, retention_days: 5}
"""
# What is said, of which kind, how many days ago.
SAID = (
    ("I like tea.", "preference", 1),
    ("I write a book.", "task_state", 1),
    ("I like coffee.", "preference", 10),
    ("I learn Thai.", "task_state", 10),
    ("I like milk.", "preference", 30),
)


async def command(stack: Stack, *words: str, **env: str) -> str:
    """What a command says that works on the stack."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "service.cli.main", *words,
        env={**clean_environment(), "MEMORY_DATA_DIR": str(stack.data_dir), **env},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    output, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, output.decode()
    return output.decode()


async def client_of(stack: Stack, tenant: str, opened: AsyncExitStack) -> httpx.AsyncClient:
    """A client with a key of a tenant."""
    key = (await command(stack, "keys", "create", "k", "--scopes", "add,review", "--tenant", tenant)).split()[
        -1
    ]
    client = httpx.AsyncClient(
        base_url=stack.connection.url, headers={"Authorization": f"Bearer {key}"}, timeout=60
    )
    await opened.enter_async_context(client)

    async def is_known() -> bool:
        return (await client.post("/memory/list", json={"user_id": "nobody"})).status_code == 200

    await wait_until(is_known, "the key is known")
    return client


async def texts(client: httpx.AsyncClient, user: str) -> set[str]:
    """What is stored of a user; empty while something waits."""
    reply = (await client.post("/memory/list", json={"user_id": user})).json()
    return set() if reply["pending"] else {memory["text"] for memory in reply["memories"]}


async def test_each_tenants_memories_go_by_its_own_policy(stack: Stack, user: str, tmp_path: Path) -> None:
    lines = [
        {
            "type": "memory",
            "text": text,
            "kind": kind,
            "said_at": (datetime.now(UTC) - timedelta(days=days)).isoformat(),
        }
        for text, kind, days in SAID
    ]
    everything = {text for text, _, _ in SAID}
    async with AsyncExitStack() as opened:
        clients = {tenant: await client_of(stack, tenant, opened) for tenant in ("t-keeps", "t-forgets")}
        for client in clients.values():
            reply = await client.post(
                "/memory/import",
                params={"user_id": user},
                content="\n".join(map(json.dumps, lines)).encode(),
            )
            assert reply.json()["accepted"] == len(SAID)

        async def are_stored() -> bool:
            return all([await texts(client, user) == everything for client in clients.values()])

        await wait_until(are_stored, "all is stored", timeout_s=60)
        assert await bank_with(stack, bank_of("t-forgets", user)) == tenant_mark("t-forgets")
        assert await bank_with(stack, bank_of("t-keeps", user)) == tenant_mark("t-keeps")

        policy = tmp_path / "policy.yaml"
        await asyncio.to_thread(policy.write_text, POLICY, "utf-8")
        dry = await command(stack, "retention", "--dry-run", MEMORY_POLICY_FILE=str(policy))
        told = "t-forgets, after 20 days, task_state after 5: 2 documents with 2 memories, of 1 users"
        assert told in dry
        assert "t-keeps, never: 0 documents" in dry
        assert await texts(clients["t-forgets"], user) == everything

        done = await command(stack, "retention", MEMORY_POLICY_FILE=str(policy))
        assert told in done
        assert await texts(clients["t-keeps"], user) == everything
        assert await texts(clients["t-forgets"], user) == {"I like tea.", "I write a book.", "I like coffee."}


async def bank_with(stack: Stack, bank_id: str) -> str:
    """The mark in the bank's own record in Hindsight."""
    async with HindsightAdapter(
        stack.hindsight_url, None, recall_timeout_s=10, retain_timeout_s=15
    ) as hindsight:
        found, _ = await HindsightReview(hindsight).banks(limit=1000, offset=0, prefix=bank_id)
    [bank] = found
    assert isinstance(bank, StoredBank)
    return bank.mark
