"""What the turns log holds, read straight from Redis, and what must be true of it after every single step."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

from redis.asyncio import Redis
from service import keyspace
from service.adapters.turns import NewTurn, TurnsLog
from service.scope import BankId, ConversationId, DocumentId, JobId, conversation_of, document_of

# Accepted work and the dead letters are kept until they are dealt with; everything else must expire.
KEPT = ("mem:due", "mem:claims", "mem:claim-number", "mem:waiting", "mem:dead", "mem:data-version")
KEPT_BY_BANK = ("mem:turns:", "mem:conversations:", "mem:batch:", "mem:dead-of:")


@dataclass
class Held:
    """Everything in the log, by bank."""

    waiting: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    batches: dict[str, list[str]] = field(default_factory=dict)
    turns: dict[str, set[str]] = field(default_factory=dict)
    dead: set[str] = field(default_factory=set)
    due: dict[str, float] = field(default_factory=dict)
    claims: dict[str, str] = field(default_factory=dict)
    counted: int = 0
    dead_of: dict[str, set[str]] = field(default_factory=dict)

    @property
    def documents(self) -> set[str]:
        """Turns that are neither stored nor dead."""
        return set().union(*self.turns.values())

    def faults(self) -> list[str]:
        """Which of the log's rules do not hold; empty when all is well."""
        found: list[str] = []
        for bank in self.turns.keys() | self.waiting.keys() | self.batches.keys():
            waiting = [d for documents in self.waiting.get(bank, {}).values() for d in documents]
            listed = waiting + self.batches.get(bank, [])
            if len(listed) != len(set(listed)):
                found.append(f"a turn of {bank} is in two places")
            if set(listed) != self.turns.get(bank, set()):
                found.append(f"listed and kept turns of {bank} differ")
            if bank not in self.due:
                found.append(f"{bank} has turns and nobody will ever look at it")
        found += [f"the claim of {bank} has no end" for bank in self.claims.keys() - self.due.keys()]
        found += [f"{document} is dead and alive" for document in self.dead & self.documents]
        waiting_turns = sum(map(len, self.turns.values()))
        if self.counted != waiting_turns:
            found.append(f"{waiting_turns} turns wait and {self.counted} are counted")
        if set().union(*self.dead_of.values()) != self.dead:
            found.append("the dead letters and those of the banks differ")
        return found


async def look(redis: Redis) -> Held:
    """Everything the log holds now; `redis` decodes its replies."""
    held = Held()
    async for key in redis.scan_iter(match="mem:*", count=500):
        kind, _, bank = key.removeprefix("mem:").partition(":")
        if kind == "turns":
            held.turns[bank] = set(await redis.hkeys(key))  # type: ignore[misc]
        elif kind == "conversations":
            fields = await redis.hgetall(key)  # type: ignore[misc]
            held.waiting[bank] = {name: text.split(" ")[3:] for name, text in fields.items()}
        elif kind == "batch":
            held.batches[bank] = (await redis.hget(key, "documents") or "").split(" ")  # type: ignore[misc]
        elif kind == "dead-of":
            held.dead_of[bank] = set(await redis.hkeys(key))  # type: ignore[misc]
    held.counted = int(await redis.get(keyspace.WAITING) or 0)
    held.dead = set(await redis.hkeys(keyspace.DEAD))  # type: ignore[misc]
    held.due = dict(await redis.zrange(keyspace.DUE, 0, -1, withscores=True))
    held.claims = await redis.hgetall(keyspace.CLAIMS)  # type: ignore[misc]
    return held


async def without_ttl(redis: Redis) -> set[str]:
    """Keys that would stay for ever although they are no accepted work."""
    found: set[str] = set()
    async for key in redis.scan_iter(match="*", count=500):
        if key in KEPT or key.startswith(KEPT_BY_BANK):
            continue
        if await redis.pttl(key) == -1:
            found.add(key)
    return found


async def everything(redis: Redis) -> dict[str, object]:
    """All keys with their values, to compare before and after."""
    values: dict[str, object] = {}
    async for key in redis.scan_iter(match="*", count=500):
        values[key] = await redis.dump(key)
    return values


async def add_turn(
    log: TurnsLog,
    bank: BankId,
    *,
    conversation: str = "main",
    texts: Sequence[str] = ("hello",),
    turn_id: str = "",
    job_id: str = "",
) -> tuple[str, JobId, list[DocumentId]]:
    """Accept one request of one or more documents; status, job and document ids."""
    turn_id = turn_id or secrets.token_hex(8)
    digest: ConversationId = conversation_of(bank, conversation)
    documents = [document_of(bank, digest, turn_id, part) for part in range(len(texts))]
    status, job = await log.accept(
        job_id=JobId(job_id or secrets.token_hex(16)),
        seen=f"{digest}{turn_id}",
        seen_ttl_s=600,
        tenant="default",
        bank=bank,
        conversation=digest,
        turns=[NewTurn(document, text) for document, text in zip(documents, texts, strict=True)],
    )
    return status, job, documents


async def pass_time(redis: Redis, *banks: str) -> None:
    """Let the time of these banks come (all, if none is named): claims end, and what was put off is due."""
    for bank in banks or [name for name, _ in await redis.zrange(keyspace.DUE, 0, -1, withscores=True)]:
        await redis.zadd(keyspace.DUE, {bank: 1}, xx=True)


async def grow_old(redis: Redis, bank: BankId, by_ms: int) -> None:
    """Make what waits in a bank as old as if it had been accepted that long ago."""
    for key, separator, places in (
        (keyspace.turns(bank), "\n", (1,)),
        (keyspace.conversations(bank), " ", (0, 1)),
    ):
        fields: dict[str, str] = await redis.hgetall(key)  # type: ignore[misc]
        for name, value in fields.items():
            parts = value.split(separator)
            for place in places:
                parts[place] = str(int(parts[place]) - by_ms)
            await redis.hset(key, name, separator.join(parts))  # type: ignore[misc]
    await redis.zincrby(keyspace.DUE, -by_ms, bank)
