"""Adds, workers and forgets at random, with a Hindsight that misbehaves: nothing forgotten ever comes back.

Each history is made from a seed. What was accepted before a forget was sent, and is meant by it, must
not be seen in any recall that begins after the forget was answered, nor be there in the end. What was
accepted after the answer must be there in the end, once. What came in between may be either.
"""

import asyncio
import contextlib
import random
from dataclasses import dataclass, field

import pytest
from redis.asyncio import Redis
from service.scope import bank_of

from tests.fakes.hindsight import HindsightStandIn
from tests.integration.conftest import Api, Workshop, open_workshop, run_api, settings_for
from tests.support import RedisServer, wait_until
from tests.turns_log import look, pass_time, without_ttl

pytestmark = pytest.mark.anyio

USERS = ("ann", "ben")
CONVERSATIONS = ("c1", "c2")
STEPS = 60
_SLOW_S = (0.05, 0.2, 0.5)


@dataclass
class Said:
    """One turn; `gone` and `kept` tell what must become of it, if one of them is sure."""

    text: str
    user: str
    conversation: str
    job: str = ""
    is_accepted: bool = False
    may_go: bool = False
    is_gone: bool = False


@dataclass
class History:
    """One run; times are steps of one loop, so that before and after are certain."""

    rng: random.Random
    apis: tuple[Api, Api]
    workshops: tuple[Workshop, Workshop]
    stand_in: HindsightStandIn
    redis: Redis
    said: list[Said] = field(default_factory=list)
    seen_too_late: list[str] = field(default_factory=list)
    forgets: int = 0

    async def add(self) -> None:
        number = len(self.said)
        turn = Said(f"marigold {number}", self.rng.choice(USERS), self.rng.choice(CONVERSATIONS))
        self.said.append(turn)
        api = self.rng.choice(self.apis)
        reply = await api.add(turn.user, turn.text, conversation_id=turn.conversation)
        assert reply.status_code == 202, reply.text
        turn.job = reply.json()["job_id"]
        turn.is_accepted = True

    async def forget(self) -> None:
        user, conversation = self.rng.choice(USERS), self.rng.choice((*CONVERSATIONS, ""))
        for _ in range(3):  # a repetition finishes what was refused
            if await self._forget(user, conversation):
                self.forgets += 1
                return

    async def _forget(self, user: str, conversation: str) -> bool:
        def is_meant(turn: Said) -> bool:
            return turn.user == user and conversation in ("", turn.conversation)

        before = [turn for turn in self.said if is_meant(turn) and turn.is_accepted]
        scope = {"conversation_id": conversation} if conversation else {"all": "true"}
        reply = await self.rng.choice(self.apis).client.post(
            "/memory/forget", data={"user_id": user, **scope}
        )
        for turn in filter(is_meant, self.said):
            turn.may_go = True
        assert reply.status_code in (200, 503), reply.text
        if reply.status_code != 200:
            return False
        assert reply.json()["verified"] is True
        for turn in before:
            turn.is_gone = True
        return True

    async def recall(self) -> None:
        user, api = self.rng.choice(USERS), self.rng.choice(self.apis)
        gone = {turn.text for turn in self.said if turn.is_gone}
        reply = await api.recall(user, "marigold", top_k="50", conversation_id="x")
        assert reply.status_code == 200, reply.text
        self.seen_too_late += [m["text"] for m in reply.json()["memories"] if m["text"] in gone]

    async def work(self) -> None:
        if self.rng.random() < 0.3:
            await pass_time(self.redis, bank_of("default", self.rng.choice(USERS)))
        workshop = self.rng.choice(self.workshops)
        for claim in await workshop.claims():
            task = asyncio.create_task(workshop.storer.drain(claim))
            if self.rng.random() < 0.15:
                await asyncio.sleep(self.rng.choice(_SLOW_S))
                task.cancel()  # killed in the middle
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def trouble(self) -> None:
        kind = self.rng.choice(["slow", "commit_then_close", "close", "hold", "ends"])
        if kind == "hold":
            self.stand_in.hold_operations(self.rng.choice(["pending", "processing"]))
            await asyncio.sleep(self.rng.choice(_SLOW_S))
            self.stand_in.release_operations()
        elif kind == "ends":
            self.stand_in.end_operations(self.rng.choice(["failed", "cancelled"]))
        else:
            self.stand_in.fail("retain", kind, seconds=self.rng.choice(_SLOW_S), times=1)  # type: ignore[arg-type]

    async def run(self) -> None:
        """All steps, each a moment after the one before, most of them at the same time as others."""
        steps = [self.add, self.add, self.add, self.work, self.work, self.forget, self.recall, self.trouble]
        tasks = []
        for number in range(STEPS):
            step = self.forget if number % 20 == 10 else self.rng.choice(steps)
            tasks.append(asyncio.create_task(step()))
            await asyncio.sleep(self.rng.choice((0, 0.005, 0.02, 0.05)))
        await asyncio.gather(*tasks)

    async def finish(self) -> None:
        """Let everything that was begun come to its end."""
        self.stand_in.heal()
        self.stand_in.release_operations()

        async def is_quiet() -> bool:
            await pass_time(self.redis)
            await self.workshops[0].work()
            held = await look(self.redis)
            running = [
                op for op in self.stand_in.operations.values() if op.status in ("pending", "processing")
            ]
            return not held.documents and not held.claims and not running

        await wait_until(is_quiet, "everything has ended", timeout_s=30)

    def stored(self) -> list[str]:
        texts: list[str] = []
        for user in USERS:
            bank = self.stand_in.banks.get(bank_of("default", user))
            texts += [text.removeprefix("User: ") for text in bank.texts] if bank else []
        return texts


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(6))
async def test_nothing_old_comes_back_and_nothing_new_is_lost(redis_server: RedisServer, seed: int) -> None:
    await redis_server.command("FLUSHALL")
    async with (
        HindsightStandIn() as stand_in,
        Redis.from_url(redis_server.url, decode_responses=True) as redis,
    ):
        stand_in.is_stubborn = bool(seed % 2)
        settings = settings_for(redis_server.url, stand_in.url, max_attempts=50)
        async with (
            run_api(settings) as first,
            run_api(settings) as second,
            open_workshop(settings) as one,
            open_workshop(settings) as two,
        ):
            history = History(random.Random(seed), (first, second), (one, two), stand_in, redis)
            await history.run()
            await history.finish()
            stored = history.stored()
            assert history.forgets >= 2
            assert history.seen_too_late == []
            assert len(stored) == len(set(stored)), "a turn was stored twice"
            gone = {turn.text for turn in history.said if turn.is_gone}
            assert gone & set(stored) == set()
            kept = {turn.text for turn in history.said if not turn.may_go}
            assert kept - set(stored) == set()
            for turn in history.said:
                status = (await first.job(turn.job))["status"]
                assert status in (("done", "cancelled") if turn.may_go else ("done",))
            assert (await look(redis)).faults() == []
            assert await without_ttl(redis) == set()
