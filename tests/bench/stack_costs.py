"""Recall beyond the cache, on the real local stack: a miss against Hindsight itself, and many banks."""

import contextlib
import secrets
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Final

import asyncpg  # type: ignore[import-untyped]
import httpx
from hindsight_client import Hindsight
from service.adapters.hindsight import HindsightAdapter
from service.scope import BankId, bank_of
from service.settings import Settings

from tests.bench.recall.stack import database_url, product

_TIMEOUT_S: Final = 60
# As our own recall asks: see `service.memory.answer`.
_BUDGET: Final = "mid"
_MAX_TOKENS: Final = 8192
_LAST: Final = 1000
_COPY_TIMEOUT_S: Final = 600
_COPY: Final = """
INSERT INTO banks SELECT copy.*
FROM banks AS made, generate_series(1, $2::int) AS number, LATERAL jsonb_populate_record(
  made, jsonb_build_object(
    'internal_id', gen_random_uuid(), 'bank_id', 'u-' || md5(number::text) || md5(made.bank_id)
  )
) AS copy WHERE made.bank_id = $1
"""
_TENANT: Final[str] = Settings.model_fields["tenant"].default
_FACTS: Final = (
    "I live in Lisbon and work as a backend engineer on payment systems.",
    "My daughter started school in September, so I meet after nine in the morning.",
    "I am allergic to peanuts.",
    "For the marathon in October I run four times a week.",
    "I read your messages on my phone on the train to work.",
)


async def run(
    tell: Callable[[str], None], *, questions: int, bank_counts: Sequence[int], copied: int = 0
) -> dict[str, float]:
    """Start a stack, measure, stop it: names → ms.

    Banks are made by Hindsight up to the last of `bank_counts`; beyond, up to `copied`, their rows are copied
    in its database, since making a hundred thousand would take half an hour.
    """
    prefix = f"bench-{secrets.token_hex(4)}-"
    async with contextlib.AsyncExitStack() as stack:
        local = await stack.enter_async_context(product(None))
        tell("the local stack is up")
        api = await stack.enter_async_context(
            httpx.AsyncClient(
                base_url=local.url,
                headers={"Authorization": f"Bearer {local.api_key}"},
                timeout=_TIMEOUT_S,
                trust_env=False,
            )
        )
        direct = Hindsight(local.hindsight_url, timeout=_TIMEOUT_S)
        stack.push_async_callback(direct.aclose)
        user = f"{prefix}0"
        await _remember(api, user)
        found = await _miss(api, direct, user, questions)
        tell(f"misses: {found}")
        settings = Settings(hindsight_url=local.hindsight_url)
        adapter = await stack.enter_async_context(HindsightAdapter.from_settings(settings))
        made = 1
        for count in bank_counts:
            found |= await _banks(adapter, prefix, made, count)
            made = count
            found |= await _recalls(direct, user, count)
            tell(f"{count} banks: {found[f'bank_creation_ms_p50_banks_{count}']} ms each")
        if copied:
            await _copy(await database_url(local), bank_of(_TENANT, f"{prefix}1"), copied - _LAST - made)
            found |= await _banks(adapter, prefix, made, made + _LAST, named=copied)
            found |= await _recalls(direct, user, copied)
            tell(f"{copied} banks: {found[f'bank_creation_ms_p50_banks_{copied}']} ms each")
    return found


async def _recalls(direct: Hindsight, user: str, count: int) -> dict[str, float]:
    times = [await _ask_direct(direct, user, f"banks {count} {number}") for number in range(20)]
    return {f"recall_direct_ms_p50_banks_{count}": round(statistics.median(times), 1)}


async def _copy(url: str, bank: str, count: int) -> None:
    """Add so many banks that are like this one."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(_COPY, bank, count, timeout=_COPY_TIMEOUT_S)
        await connection.execute("ANALYZE banks")
    finally:
        await connection.close()


async def _remember(api: httpx.AsyncClient, user: str) -> None:
    for number, fact in enumerate(_FACTS):
        added = await api.post(
            "/memory/add", json={"user_id": user, "user_message": fact, "turn_id": str(number)}
        )
        assert added.status_code == 202, added.text
        job = await api.get(f"/memory/jobs/{added.json()['job_id']}", params={"wait_s": 30})
        assert job.json()["status"] == "done", job.text


async def _miss(api: httpx.AsyncClient, direct: Hindsight, user: str, questions: int) -> dict[str, float]:
    """The same kind of question, in turn, each one new to both: through us and straight to Hindsight."""
    ours: list[float] = []
    theirs: list[float] = []

    async def ask_us(question: str) -> None:
        started = time.perf_counter()
        reply = await api.post("/memory/recall", json={"user_id": user, "query": question, "fresh": "false"})
        ours.append((time.perf_counter() - started) * 1000)
        answer = reply.json()
        assert not answer["cached"], reply.text
        assert not answer["degraded"], reply.text

    async def ask_them(question: str) -> None:
        theirs.append(await _ask_direct(direct, user, question))

    for number in range(questions + 5):
        # Neither is asked what the other one was, nor always after it: what is warm is warm for both.
        pair = (ask_us, ask_them) if number % 2 else (ask_them, ask_us)
        for place, ask in enumerate(pair):
            await ask(f"Where do I live and work, number {2 * number + place}?")
    # The first few open connections and warm both sides up.
    p50_ours, p50_theirs = statistics.median(ours[5:]), statistics.median(theirs[5:])
    return {
        "recall_miss_ms_p50": round(p50_ours, 2),
        "recall_direct_ms_p50": round(p50_theirs, 2),
        "recall_miss_added_ms_p50": round(p50_ours - p50_theirs, 2),
    }


async def _ask_direct(direct: Hindsight, user: str, question: str) -> float:
    started = time.perf_counter()
    await direct.arecall(
        bank_of(_TENANT, user),
        question,
        budget=_BUDGET,
        max_tokens=_MAX_TOKENS,
        types=["observation", "world", "experience"],
        prefer_observations=True,
    )
    return (time.perf_counter() - started) * 1000


async def _banks(
    adapter: HindsightAdapter, prefix: str, made: int, count: int, named: int = 0
) -> dict[str, float]:
    """Make empty banks until there are `count`, or `named` with those that were copied."""
    times: list[float] = []
    for number in range(made, count):
        started = time.perf_counter()
        await adapter.make_bank(BankId(bank_of(_TENANT, f"{prefix}{number}")), _TENANT)
        times.append((time.perf_counter() - started) * 1000)
    last = times[-max(1, count // 10) :]
    return {f"bank_creation_ms_p50_banks_{named or count}": round(statistics.median(last), 1)}
