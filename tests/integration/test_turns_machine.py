"""The turns log under every interleaving: accepts, workers that crash, come back late or repeat themselves.

What holds after every step, whatever came before:
* an accepted turn is in exactly one of waiting, batch, dead, stored;
* a bank with turns is on the list of those that are looked at, claims end, nothing is left behind;
* a worker whose claim is not the newest changes nothing;
and in the end each turn was stored by exactly one operation, in order within its conversation, or is
dead with a reason, and each job has ended.
"""

import asyncio
import secrets
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from redis.asyncio import Redis
from service import keyspace
from service.adapters.dead_letters import DeadLetters
from service.adapters.turns import Batch, Claim, Debounce, TurnsLog
from service.errors import ClaimLost
from service.scope import BankId, DocumentId, JobId, operation_of

from tests.support import RedisServer
from tests.turns_log import add_turn, everything, look, pass_time, without_ttl

BANKS = (BankId("u-a"), BankId("u-b"))
CONVERSATIONS = ("one", "two")
MOST_TURNS = 3


@dataclass
class Worker:
    """A worker between two of its steps."""

    claim: Claim
    batch: Batch | None = None


class Operations:
    """Hindsight's side: the first use of an id counts, and stores all or nothing."""

    def __init__(self) -> None:
        self.ended: dict[str, str] = {}
        self.written: list[str] = []

    def run(self, operation: str, documents: list[str], outcome: str) -> str:
        """How the operation has ended."""
        if operation not in self.ended:
            self.ended[operation] = outcome
            if outcome == "completed":
                self.written += documents
        return self.ended[operation]


def group_of(batch: Batch) -> tuple[str, list[str]]:
    """The operation that is to be run next for a batch, and its documents."""
    turns = batch.turns[:1] if batch.is_solo else batch.turns
    parts = [str(batch.round)] + ([turns[0].document_id] if batch.is_solo else [])
    return operation_of(batch.id, *parts), [turn.document_id for turn in turns]


class LogMachine(RuleBasedStateMachine):
    """Random steps against the real server; `url` is set by the test."""

    url: ClassVar[str]

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.workers: list[Worker] = []
        self.newest: dict[str, str] = {}
        self.accepted: dict[tuple[str, str], list[str]] = {}
        self.jobs: dict[str, tuple[str, JobId, str, BankId, tuple[str, ...]]] = {}
        self.dead: set[str] = set()
        self.revived: set[str] = set()
        self.dropped: set[str] = set()
        self.stored: set[str] = set()
        self.hindsight = Operations()
        self.run(self.open())

    def run(self, step: Any) -> Any:
        return self.runner.run(step)

    async def open(self) -> None:
        self.redis = Redis.from_url(self.url, decode_responses=True)
        self.raw = Redis.from_url(self.url)
        self.log = TurnsLog(self.url, Debounce(0, 0, MOST_TURNS))
        await self.log.__aenter__()
        await self.redis.flushall()

    def teardown(self) -> None:
        try:
            self.run(self.finish())
        finally:
            self.run(self.close())
            self.runner.close()

    async def close(self) -> None:
        await self.log.__aexit__(None, None, None)
        await self.redis.aclose()
        await self.raw.aclose()

    def is_current(self, worker: Worker) -> bool:
        return self.newest.get(worker.claim.bank) == worker.claim.token

    async def held(self, worker: Worker, step: Any) -> Any:
        """Do a step of a worker; one that has lost its claim must be told so and change nothing."""
        if self.is_current(worker):
            return await step
        before = await everything(self.raw)
        try:
            await step
        except ClaimLost:
            assert await everything(self.raw) == before
            return None
        raise AssertionError("a worker without a claim was let through")

    # What callers do

    @rule(bank=st.sampled_from(BANKS), conversation=st.sampled_from(CONVERSATIONS), parts=st.integers(1, 4))
    def accept(self, bank: BankId, conversation: str, parts: int) -> None:
        turn_id, job_id = secrets.token_hex(8), secrets.token_hex(16)
        texts = tuple(f"text {part}" for part in range(parts))
        status, job, documents = self.run(
            add_turn(self.log, bank, conversation=conversation, texts=texts, turn_id=turn_id, job_id=job_id)
        )
        assert (status, job) == ("queued", job_id)
        self.accepted.setdefault((bank, conversation), []).extend(documents)
        self.jobs[job_id] = (turn_id, job, conversation, bank, texts)

    @precondition(lambda self: self.jobs)
    @rule(data=st.data(), is_same_request=st.booleans())
    def accept_again(self, data: st.DataObject, is_same_request: bool) -> None:
        turn_id, job, conversation, bank, texts = data.draw(st.sampled_from(list(self.jobs.values())))
        before = self.run(everything(self.raw))
        status, known, _ = self.run(
            add_turn(
                self.log,
                bank,
                conversation=conversation,
                texts=texts,
                turn_id=turn_id,
                job_id=job if is_same_request else "",
            )
        )
        assert (status, known) == ("queued" if is_same_request else "duplicate", job)
        assert self.run(everything(self.raw)) == before

    # What workers do

    @rule(most=st.integers(1, 3))
    def claim(self, most: int) -> None:
        free = {bank for bank, due in self.run(look(self.redis)).due.items() if due < 1e12}
        for claim in self.run(self.log.claim(most)):
            if self.newest.get(claim.bank) is not None:
                assert claim.bank in free, "two workers hold one bank"
            self.newest[claim.bank] = claim.token
            self.workers.append(Worker(claim))

    @precondition(lambda self: self.workers)
    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from(self.workers))
        batch = self.run(self.held(worker, self.log.take(worker.claim, secrets.token_hex(8))))
        if self.is_current(worker):
            worker.batch = batch
            assert batch is None or 1 <= len(batch.turns) <= MOST_TURNS

    @precondition(lambda self: any(w.batch for w in self.workers))
    @rule(data=st.data(), outcome=st.sampled_from(["completed", "completed", "failed"]), dies=st.booleans())
    def store(self, data: st.DataObject, outcome: str, dies: bool) -> None:
        worker = data.draw(st.sampled_from([w for w in self.workers if w.batch]))
        self.run(self.store_batch(worker, outcome, dies))

    async def store_batch(self, worker: Worker, outcome: str, dies: bool = False) -> None:
        assert worker.batch is not None
        batch = worker.batch
        operation, documents = group_of(batch)
        ended = self.hindsight.run(operation, documents, outcome)
        if dies:
            return
        kept = {turn.document_id: 1 for turn in batch.turns if turn.document_id in documents}
        was_current = self.is_current(worker)
        if ended == "completed":
            step = self.log.settle(worker.claim, batch, kept, outcome="done", reason="", job_ttl_s=600)
        elif len(documents) == 1:
            step = self.log.settle(worker.claim, batch, kept, outcome="failed", reason="bad", job_ttl_s=600)
        else:
            alone = replace(batch, is_solo=True, round=batch.round + 1)
            step = self.log.postpone(worker.claim, alone, job_status="waiting", reason="bad")
        await self.held(worker, step)
        worker.batch = None
        if was_current and ended == "completed":
            self.stored.update(documents)
        elif was_current and len(documents) == 1:
            self.dead.update(documents)

    @precondition(lambda self: self.workers)
    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from(self.workers))
        self.run(self.held(worker, self.log.renew(worker.claim)))

    @precondition(lambda self: self.workers)
    @rule(data=st.data(), retry_in_s=st.sampled_from([0, 60]))
    def release(self, data: st.DataObject, retry_in_s: float) -> None:
        worker = data.draw(st.sampled_from(self.workers))
        before = self.run(everything(self.raw))
        self.run(self.log.release(worker.claim, retry_in_s=retry_in_s))
        if self.is_current(worker):
            del self.newest[worker.claim.bank]
        else:
            assert self.run(everything(self.raw)) == before
        # It stays among the workers: one that goes on after it has let go must be refused too.

    @precondition(lambda self: self.workers)
    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        self.workers.remove(data.draw(st.sampled_from(self.workers)))

    # What whoever runs the service decides

    @precondition(lambda self: self.dead)
    @rule(data=st.data(), is_replay=st.booleans())
    def decide(self, data: st.DataObject, is_replay: bool) -> None:
        document = data.draw(st.sampled_from(sorted(self.dead)))
        letters = DeadLetters(self.log)
        found = self.run(letters.find([DocumentId(document)]))
        act = letters.replay if is_replay else letters.drop
        assert self.run(act(found)) == 1
        before = self.run(everything(self.raw))
        assert self.run(letters.replay(found)) == self.run(letters.drop(found)) == 0
        assert self.run(everything(self.raw)) == before
        self.dead.discard(document)
        (self.revived if is_replay else self.dropped).add(document)

    # What happens to them

    @rule(bank=st.sampled_from(BANKS))
    def time_passes(self, bank: BankId) -> None:
        self.run(pass_time(self.redis, bank))

    @rule()
    def sweep_finds_nothing(self) -> None:
        is_broken = not (self.run(self.redis.get(keyspace.CLAIM_NUMBER)) or "0").isdigit()
        before = self.run(everything(self.raw))
        assert self.run(self.log.sweep()) == 0
        after = self.run(everything(self.raw))
        for values in (before, after):
            if is_broken:
                values.pop(keyspace.CLAIM_NUMBER.encode(), None)
            # What it notes for the health check, which expires.
            values.pop(keyspace.OLDEST_BATCH.encode(), None)
            values.pop(keyspace.OLDEST_TURN.encode(), None)
        assert after == before

    @rule(bank=st.sampled_from(BANKS), loses_lists=st.booleans())
    def sweep_mends(self, bank: BankId, loses_lists: bool) -> None:
        async def lose() -> int:
            await self.redis.zrem(keyspace.DUE, bank)
            if loses_lists:
                await self.redis.delete(keyspace.conversations(bank))
            return await self.log.sweep()

        has_work = bank in self.run(look(self.redis)).turns
        assert self.run(lose()) == int(has_work)
        self.newest.pop(bank, None)

    @rule(value=st.sampled_from(["x", "-7", "0"]))
    def number_breaks(self, value: str) -> None:
        self.run(self.redis.set(keyspace.CLAIM_NUMBER, value))

    @rule(value=st.sampled_from(["x", "-7", "0", "9", str(2**63 - 1)]))
    def count_breaks(self, value: str) -> None:
        self.run(self.redis.set(keyspace.WAITING, value))
        assert self.run(self.log.sweep()) == 0

    # What must hold

    @invariant()
    def the_rules_hold(self) -> None:
        held = self.run(look(self.redis))
        assert held.faults() == []
        accepted = {d for documents in self.accepted.values() for d in documents} - self.dropped
        assert held.dead == self.dead
        assert held.documents | self.dead | self.stored == accepted
        assert not held.documents & self.stored
        assert self.run(without_ttl(self.redis)) == set()

    async def finish(self) -> None:
        """One patient worker ends all that is left; then everything must be accounted for."""
        await pass_time(self.redis)
        while claims := await self.log.claim(10):
            for claim in claims:
                worker = Worker(claim)
                self.newest[claim.bank] = claim.token
                while batch := await self.log.take(claim, secrets.token_hex(8)):
                    worker.batch = batch
                    await self.store_batch(worker, "completed")
                await self.log.release(claim)
        accepted = [d for documents in self.accepted.values() for d in documents if d not in self.dropped]
        written = self.hindsight.written
        assert len(written) == len(set(written)), "a turn was stored twice"
        assert set(written) | self.dead == set(accepted)
        for documents in self.accepted.values():
            # The others of a dead one have gone on without it.
            mine = set(documents) - self.revived
            assert [d for d in written if d in mine] == [d for d in documents if d in mine & set(written)]
        for job_id, (_, _, _, _, texts) in self.jobs.items():
            job = await self.log.job(JobId(job_id))
            assert job is not None
            assert job.status in ("done", "failed")
            assert job.memories_kept is not None
            assert job.memories_kept <= len(texts) or job.status == "failed"
        keys = {key async for key in self.redis.scan_iter(match="*")}
        expiring = ("mem:job:", "mem:seen:", keyspace.OLDEST_BATCH, keyspace.OLDEST_TURN)
        left = {key for key in keys if not key.startswith(expiring)}
        assert left <= {"mem:claim-number", "mem:dead"} | set(map(keyspace.dead_of, BANKS))


def run_machine(url: str, *, examples: int, steps: int, is_random: bool) -> None:
    """Run `examples` random histories of `steps` steps each; the same ones each time unless `is_random`."""

    class Machine(LogMachine):
        pass

    Machine.url = url
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            derandomize=not is_random,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_every_interleaving_keeps_every_turn(redis_server: RedisServer) -> None:
    run_machine(redis_server.url, examples=20, steps=30, is_random=False)
