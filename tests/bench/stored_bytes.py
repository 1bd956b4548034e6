"""How much PostgreSQL grows by a turn: a row with its vector, its text twice, entities and their indexes."""

import asyncio
import json
import sys

import asyncpg  # type: ignore[import-untyped]
import httpx

from tests.bench.recall.stack import database_url, product

_TIMEOUT_S = 60
_AT_ONCE = 50


async def run(*, turns: int) -> dict[str, float]:
    """Start a stack, store that many turns of one user and ask the database; names → bytes."""
    async with product(None) as local:
        url = await database_url(local)
        headers = {"Authorization": f"Bearer {local.api_key}"}
        async with httpx.AsyncClient(
            base_url=local.url, headers=headers, timeout=_TIMEOUT_S, trust_env=False
        ) as api:
            # Tables, indexes and the bank itself are there before anything is counted.
            await _store(api, range(_AT_ONCE))
            before = await _bytes(url)
            for start in range(_AT_ONCE, _AT_ONCE + turns, _AT_ONCE):
                await _store(api, range(start, start + _AT_ONCE))
            return {"postgres_bytes_per_turn": round((await _bytes(url) - before) / turns)}


async def _store(api: httpx.AsyncClient, numbers: range) -> None:
    messages = [
        {"role": role, "content": text}
        for number in numbers
        for role, text in (
            ("user", f"For trip number {number} I would rather take the train, at most {number * 7} euros."),
            ("assistant", f"Then I look for connections of up to {number * 7} euros for trip {number}."),
        )
    ]
    added = await api.post("/memory/add", json={"user_id": "bench", "messages": messages})
    assert added.status_code == 202, added.text
    for _ in range(10):
        job = await api.get(f"/memory/jobs/{added.json()['job_id']}", params={"wait_s": 30})
        if job.json()["status"] == "done":
            return
    raise AssertionError(job.text)


async def _bytes(url: str) -> int:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute("VACUUM")
        return int(await connection.fetchval("SELECT pg_database_size(current_database())"))
    finally:
        await connection.close()


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(run(turns=1000)), indent=2) + "\n")
