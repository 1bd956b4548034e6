"""The log of accepted turns, in Redis: the durable half of `add`.

A turn is in exactly one place: waiting in its conversation's list, listed in the bank's frozen
batch, or among the dead letters; what is in none of them is stored. Every step between them is one
Lua script, so that a crash leaves either the state before or the state after, and each script may
be run again when its reply was lost. Times are the Redis server's clock, in Unix milliseconds.

Work is handed out by *claims*: `claim` gives due banks away, each under a new token, and moves their
due time to the claim's end. A worker that dies simply lets the claim run out; one that comes back
late holds an old token, and each writing script refuses it (`ClaimLost`).
"""

import json
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from time import monotonic
from types import TracebackType
from typing import Any, Final, Literal, Self, cast

from redis.exceptions import OutOfMemoryError, ResponseError

from service import keyspace
from service.adapters import turns_sweep
from service.adapters.counters import value_of
from service.adapters.resting import note_resting
from service.adapters.turns_redis import TurnsRedis
from service.adapters.turns_types import (
    Batch,
    Claim,
    Debounce,
    Job,
    JobStatus,
    LogState,
    MostWaiting,
    NewTurn,
    Turn,
    batch_of,
    job_of,
    payload_of,
    turn_of,
)
from service.errors import ClaimLost, TooManyWaiting
from service.scope import BankId, ConversationId, DocumentId, JobId
from service.settings import Settings

__all__ = ["Batch", "Claim", "Debounce", "Job", "JobStatus", "LogState", "NewTurn", "Turn", "TurnsLog"]

# A job that never ends is forgotten after this, long after its turns were seen to.
UNFINISHED_JOB_TTL_S = 90 * 86_400
_BANK_MADE_TTL_S = 30 * 86_400
_HOOK_TTL_S = 86_400
# Longer than anybody repeats what was answered with "try again".
_MEANT_TTL_S = 86_400
_FULL_RETRY_S = 30
# What is put off for longer than this, a debounce and a claim was so by a clock that was ahead.
LONGEST_RETRY_S: Final = 300.0


class TurnsLog:
    """Accepted turns and their jobs; open it as an async context manager.

    Every method raises `TurnsLogUnavailable` when Redis does not answer within `timeout_s`, after
    which the effect may or may not have happened; those that take a claim raise `ClaimLost` when
    it is no longer the newest, and have done nothing then.
    """

    def __init__(
        self,
        redis_url: str,
        debounce: Debounce,
        *,
        timeout_s: float = 2.0,
        claim_s: float = 10.0,
        most_waiting: MostWaiting | None = None,
        has_epochs: bool = False,
    ) -> None:
        self._redis = TurnsRedis(redis_url, timeout_s)
        self._debounce = debounce
        self._most_waiting = most_waiting or MostWaiting()
        self._claim_ms = int(claim_s * 1000)
        self.claim_s = claim_s
        self.has_epochs = has_epochs

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """The log that API and worker share; they have to agree on the debounce."""
        return cls(
            settings.redis_url,
            Debounce(settings.quiet_s, settings.max_wait_s, settings.batch_turns),
            most_waiting=MostWaiting(settings.max_waiting_per_user, settings.max_waiting),
            has_epochs=settings.effective_cache_redis_url == settings.redis_url,
        )

    @property
    def debounce(self) -> Debounce:
        """When conversations are due."""
        return self._debounce

    async def __aenter__(self) -> Self:
        await self._redis.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._redis.__aexit__(kind, error, trace)

    async def accept(
        self,
        *,
        job_id: JobId,
        seen: str,
        seen_ttl_s: int,
        tenant: str,
        bank: BankId,
        conversation: ConversationId,
        turns: Sequence[NewTurn],
    ) -> tuple[Literal["queued", "duplicate"], JobId]:
        """Write the turns of one request, or find the job of which they are a repetition.

        With `has_epochs` (the cache is in the same Redis) it also makes what is cached of the bank old.
        `seen` is the digest that identifies the request for `seen_ttl_s` seconds. When this
        returns, the turns are in the append-only file (as durable as its fsync setting). Raises
        `TooManyWaiting` when the turns would be over the limit of their bank or of all, and
        `TurnsLogUnavailable` when it is not certain that they are written: they are then, or never will be.
        """
        keys = [
            keyspace.seen(seen),
            keyspace.job(job_id),
            keyspace.turns(bank),
            keyspace.conversations(bank),
            keyspace.batch(bank),
            keyspace.DUE,
            keyspace.CLAIMS,
            keyspace.CLAIM_NUMBER,
            keyspace.DEAD,
            keyspace.dead_of(bank),
            keyspace.WAITING,
            keyspace.forgotten(bank),
            *([keyspace.write_epoch(bank)] if self.has_epochs else []),
        ]
        before = (
            job_id,
            seen_ttl_s,
            UNFINISHED_JOB_TTL_S,
            tenant,
            bank,
            conversation,
            *self._debounce.arguments,
            self._most_waiting.of_bank,
            self._most_waiting.of_all,
        )
        after = [value for turn in turns for value in (turn.document_id, payload_of(turn))]
        status, known = await self._redis.run_in_time(
            "accept", keys, lambda ends_ms: (*before, ends_ms, *after)
        )
        if status == "full":
            whose = "of this user's turns" if known == "bank" else "turns"
            raise TooManyWaiting(
                f"So many {whose} wait to be stored that no more are taken now; try again soon.",
                retry_after_s=_FULL_RETRY_S,
            )
        return "duplicate" if status == "duplicate" else "queued", JobId(known)

    async def count_due(self) -> int:
        """How many banks are due and not claimed."""
        return int(await self._redis.run("count_due", [keyspace.DUE], []))

    async def claim(self, most: int) -> list[Claim]:
        """Up to `most` due banks, oldest first, each claimed for `claim_s` seconds."""
        asked_at = monotonic()
        flat = await self._redis.run(
            "claim",
            [keyspace.DUE, keyspace.CLAIMS, keyspace.CLAIM_NUMBER],
            [most, self._claim_ms, secrets.token_hex(4)],
        )
        return [
            Claim(BankId(bank), token, asked_at) for bank, token in zip(flat[::2], flat[1::2], strict=True)
        ]

    async def renew(self, claim: Claim) -> None:
        """Start the claim's time anew."""
        await self._redis.run_held(
            "renew", [keyspace.CLAIMS, keyspace.DUE], [claim.bank, claim.token, self._claim_ms]
        )

    async def take(self, claim: Claim, new_batch_id: str) -> Batch | None:
        """The bank's frozen batch, else due turns frozen under `new_batch_id`; None: nothing is due."""
        reply = await self._redis.run_held(
            "take",
            [
                keyspace.CLAIMS,
                keyspace.turns(claim.bank),
                keyspace.conversations(claim.bank),
                keyspace.batch(claim.bank),
            ],
            [claim.bank, claim.token, new_batch_id, keyspace.job(JobId("")), *self._debounce.arguments],
        )
        return batch_of(*reply) if reply else None

    async def postpone(
        self, claim: Claim, batch: Batch, *, job_status: Literal["waiting", "retaining"], reason: str
    ) -> None:
        """Keep how far `batch` has got and tell its jobs why (`reason` holds no content)."""
        await self._redis.run_held(
            "postpone",
            [keyspace.CLAIMS, keyspace.batch(claim.bank), *(keyspace.job(t.job_id) for t in batch.turns)],
            [
                claim.bank,
                claim.token,
                batch.id,
                batch.attempts,
                batch.tries,
                batch.looks,
                batch.round,
                int(batch.is_solo),
                batch.processing_ms,
                job_status,
                reason,
            ],
        )

    async def settle(
        self,
        claim: Claim,
        batch: Batch,
        kept: Mapping[DocumentId, int | None],
        *,
        outcome: Literal["done", "failed"],
        reason: str,
        job_ttl_s: int,
    ) -> None:
        """End the turns in `kept` (document → memories kept): forgotten, or moved to the dead letters.

        None: how many memories were kept is not known; then the job's count is not known either.
        """
        ended = [turn for turn in batch.turns if turn.document_id in kept]
        told = {document: "" if count is None else count for document, count in kept.items()}
        await self._redis.run_held(
            "settle",
            [
                keyspace.CLAIMS,
                keyspace.turns(claim.bank),
                keyspace.batch(claim.bank),
                keyspace.DEAD,
                keyspace.dead_of(claim.bank),
                keyspace.WAITING,
                *(keyspace.job(turn.job_id) for turn in ended),
            ],
            [
                claim.bank,
                claim.token,
                batch.id,
                outcome,
                reason,
                job_ttl_s,
                *(value for turn in ended for value in (turn.document_id, told[turn.document_id])),
            ],
        )

    async def release(self, claim: Claim, *, retry_in_s: float = 0) -> None:
        """Give the bank back; a frozen batch is looked at again in `retry_in_s`, at most `LONGEST_RETRY_S`.

        Never raises `ClaimLost`.
        """
        retry_in_s = min(retry_in_s, LONGEST_RETRY_S)
        await self._redis.run(
            "release",
            [keyspace.CLAIMS, keyspace.DUE, keyspace.conversations(claim.bank), keyspace.batch(claim.bank)],
            [claim.bank, claim.token, int(retry_in_s * 1000), *self._debounce.arguments],
        )

    async def wake(self, bank: BankId, event_digest: str) -> bool:
        """Look at `bank` now if its batch waits for an operation to end; False: the event was known.

        `event_digest` stands for the event that tells so, which is known for a day.
        """
        reply = await self._redis.run(
            "wake",
            [keyspace.hook(event_digest), keyspace.DUE, keyspace.CLAIMS, keyspace.batch(bank)],
            [bank, _HOOK_TTL_S],
        )
        return bool(reply == "new")

    async def knows_event(self, event_digest: str) -> bool:
        """Whether `wake` has been told of that event within the last day."""
        async with self._redis.errors():
            return bool(await self._redis.client.exists(keyspace.hook(event_digest)))

    async def sweep(self) -> int:
        """Have banks with work looked at that nobody would ever look at, or hours late; how many there were.

        Also counts the waiting turns and puts their counter right. Walks through all keys page by page,
        and never holds Redis up for longer than one page.
        """
        quiet_ms, max_wait_ms, _ = self._debounce.arguments
        furthest_ms = max(quiet_ms, max_wait_ms, int(LONGEST_RETRY_S * 1000), self._claim_ms)
        return await turns_sweep.sweep(
            self._redis.client, self._redis.errors, self._redis.run, furthest_ms, self._claim_ms
        )

    async def keep_meant(self, bank: BankId, what: str, meant: Mapping[str, Sequence[str]]) -> None:
        """Keep, for a day, the ids that a change of several steps is to change; `what` names it.

        Hindsight cannot tell any more once the first step is done: an observation goes with its sources.
        """
        async with self._redis.errors():
            pipe = self._redis.client.pipeline()
            pipe.hset(
                keyspace.meant(bank), what, json.dumps({kind: list(ids) for kind, ids in meant.items()})
            )
            pipe.expire(keyspace.meant(bank), _MEANT_TTL_S)
            await pipe.execute()

    async def meant(self, bank: BankId, what: str) -> dict[str, list[str]]:
        """What `keep_meant` has kept; empty: nothing."""
        async with self._redis.errors():
            kept = await cast("Any", self._redis.client.hget(keyspace.meant(bank), what))
        found: dict[str, list[str]] = json.loads(kept or "{}")
        return found

    async def drop_meant(self, bank: BankId, what: str) -> None:
        """The change has come to its end."""
        async with self._redis.errors():
            await cast("Any", self._redis.client.hdel(keyspace.meant(bank), what))

    async def pending(self, bank: BankId) -> list[Turn]:
        """Accepted turns that Hindsight may not know yet, in order of acceptance."""
        async with self._redis.errors():
            fields = await cast("Any", self._redis.client.hgetall(keyspace.turns(bank)))
        return sorted((turn_of(d, value) for d, value in fields.items()), key=lambda turn: turn.number)

    async def job(self, job_id: JobId) -> Job | None:
        """The job, or None when there is none or it is long over."""
        async with self._redis.errors():
            fields: dict[str, str] = await cast("Any", self._redis.client.hgetall(keyspace.job(job_id)))
        return job_of(job_id, fields)

    async def is_bank_made(self, bank: BankId, config_id: str = "1") -> bool:
        """Whether Hindsight is known to have this bank with the configuration that `config_id` stands for."""
        async with self._redis.errors():
            return bool(await self._redis.client.get(keyspace.bank_made(bank)) == config_id)

    async def note_bank_made(self, bank: BankId, config_id: str = "1") -> None:
        """Remember that Hindsight has this bank with this configuration, if there is memory for that."""
        async with self._redis.errors():
            # What is not remembered is asked for again; turns must not wait for that.
            with suppress(OutOfMemoryError):
                await self._redis.client.set(keyspace.bank_made(bank), config_id, ex=_BANK_MADE_TTL_S)

    async def note_bank_gone(self, bank: BankId) -> None:
        """Remember no longer that Hindsight has this bank."""
        async with self._redis.errors():
            await self._redis.client.delete(keyspace.bank_made(bank))

    async def note_prepared(self, claim: Claim, batch: Batch, prepared: str) -> None:
        """Keep what was made of the frozen batch's turns with it, until it is settled (see `Batch`)."""
        reply = await self._redis.run_held(
            "prepared",
            [keyspace.CLAIMS, keyspace.batch(claim.bank)],
            [claim.bank, claim.token, batch.id, prepared],
        )
        if reply == "gone":
            raise ClaimLost("The batch is gone.")

    async def note_resting(self, bank: BankId, code: str, wait_s: int) -> None:
        """The language model is not asked for this bank's turns for `wait_s` seconds, because of `code`."""
        async with self._redis.errors():
            await note_resting(self._redis.client, bank, code, wait_s)

    async def is_full(self) -> bool:
        """Whether Redis has no memory for more."""
        async with self._redis.errors():
            try:
                # It needs memory like any write, and changes nothing.
                await self._redis.client.setrange(keyspace.CLAIM_NUMBER, 0, "")
            except OutOfMemoryError:
                return True
            except ResponseError as exc:
                # Somebody's hand; whoever gives out the next number mends it.
                if "WRONGTYPE" not in str(exc):
                    raise
        return False

    async def check(self) -> LogState:
        """How the log stands; also proves that it can be written to."""
        await self._redis.run("number", [keyspace.CLAIM_NUMBER], [])
        async with self._redis.errors():
            pipe = self._redis.client.pipeline(transaction=False)
            pipe.time()
            pipe.zrange(keyspace.DUE, 0, 0, withscores=True)
            pipe.zcard(keyspace.DUE)
            pipe.hlen(keyspace.DEAD)
            pipe.exists(keyspace.ARQ_HEALTH)
            pipe.mget(keyspace.OLDEST_BATCH, keyspace.OLDEST_TURN)
            (seconds, micros), oldest, banks, dead, worker, stamps = await pipe.execute()
        now_ms = int(seconds) * 1000 + int(micros) // 1000
        overdue_s = max(0.0, (now_ms - oldest[0][1]) / 1000) if oldest else 0.0
        # What is no number was not written by us, and no reason to call the log away.
        batch_s, turn_s = (max(0.0, (now_ms - (value_of(at_ms) or now_ms)) / 1000) for at_ms in stamps)
        return LogState(
            overdue_s=overdue_s,
            oldest_batch_s=batch_s,
            oldest_turn_s=turn_s,
            waiting_banks=banks,
            dead_letters=dead,
            is_worker_alive=bool(worker),
        )

    async def run(self, script: str, keys: Sequence[str], args: Sequence[str | int | float]) -> Any:
        """The answer of one of the log's scripts, for the modules that add to what the log can do."""
        return await self._redis.run(script, keys, args)
