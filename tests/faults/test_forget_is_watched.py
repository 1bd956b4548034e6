"""For a minute after a forget nothing of it is seen again, wherever one looks.

Users are brought into each of the moments in which a turn can be when a forget comes: stored and in
every cache, waiting, frozen, on its way to Hindsight, being stored there. Then all of it is forgotten,
or the conversation; for some of them while all workers are stopped (SIGSTOP), which go on only after
their claims have ended. From the answer on, recalls (cached and fresh) and lists of all API processes
and Hindsight itself are looked at for 60 seconds, while the users go on talking.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from time import monotonic

import pytest
from redis.asyncio import Redis
from service import keyspace
from service.scope import BankId, bank_of

from tests.faults.conftest import Sizes
from tests.faults.havoc import Stack, open_stack, pause
from tests.support import wait_until
from tests.turns_log import look

pytestmark = pytest.mark.anyio

WATCH_S = 60.0
EACH_S = 3.0
# As many as a full batch, which is due at once; fewer wait for longer than the test needs to forget them.
FULL = 3
QUIET_S = 10
# Longer than the way into all windows takes, shorter than the time limit of a retain.
SLOW_S = 16.0
CLAIM_S = 10.0
SCOPES = {"all": {"all": "true"}, "conversation": {"conversation_id": "c1"}}
IN_FLIGHT = ("frozen", "retaining", "settling")
NEW = "pangolin"


@dataclass
class Person:
    """One user in one window, with words that nobody else says."""

    window: str
    scope: str
    word: str
    user: str
    jobs: list[str] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)

    @property
    def bank(self) -> BankId:
        """The user's bank."""
        return bank_of("default", self.user)


class Theatre:
    """The stack, and what is done in it for one person after the other."""

    def __init__(self, stack: Stack, redis: Redis) -> None:
        self.stack = stack
        self.redis = redis
        self._turn = cycle(stack.clients)

    def people(self, *windows: str, suffix: str = "") -> list[Person]:
        """One for each scope in each window."""
        return [
            Person(window, scope, f"{window}{scope}{suffix}", f"user {window} {scope} {suffix}")
            for window in windows
            for scope in SCOPES
        ]

    async def add(self, person: Person, text: str) -> str:
        """Accept a turn; its job."""
        form = {"user_id": person.user, "conversation_id": "c1", "user_message": text}
        reply = await next(self._turn).post("/memory/add", data=form)
        assert reply.status_code == 202, reply.text
        job: str = reply.json()["job_id"]
        return job

    async def say(self, people: list[Person], turns: int) -> None:
        """Let each of them say something that will be forgotten."""
        for person in people:
            for number in range(turns):
                person.jobs.append(await self.add(person, f"marigold {person.word} {number}"))

    async def is_job(self, job_id: str, status: str) -> bool:
        """Whether that has become of a job."""
        reply = await next(self._turn).get(f"/memory/jobs/{job_id}")
        return bool(reply.json()["status"] == status)

    async def recalled(self, person: Person, process: int, *, fresh: bool) -> str:
        """Everything that one process of the API recalls."""
        wide = {"min_score": "0", "top_k": "50", "max_chars": "1000", "timeout_ms": "5000"}
        asked = {"user_id": person.user, "query": "marigold", "fresh": str(fresh).lower(), **wide}
        reply = await self.stack.clients[process].post("/memory/recall", data=asked)
        assert reply.status_code == 200, reply.text
        return reply.text

    async def store(self, people: list[Person]) -> None:
        """Let them say something that is stored, and recalled by every process from its cache."""
        await self.say(people, FULL)
        for person in people:
            for job_id in person.jobs:

                async def is_stored(job_id: str = job_id) -> bool:
                    return await self.is_job(job_id, "done")

                await wait_until(is_stored, "it is stored", 60)
            for process in range(len(self.stack.clients)):
                assert person.word in await self.recalled(person, process, fresh=False)

    async def check_the_end(self, people: list[Person]) -> None:
        """Those who watched were not blind, and what was said afterwards is kept."""

        async def is_quiet() -> bool:
            return not (await look(self.redis)).documents

        await wait_until(is_quiet, "everything has ended", 60)
        assert (await look(self.redis)).faults() == []
        for person in people:
            for process in range(len(self.stack.clients)):
                recalled = await self.recalled(person, process, fresh=False)
                assert NEW in recalled
                assert person.word not in recalled
            for job_id in person.jobs:
                assert await self.is_job(job_id, "done" if person.window == "stored" else "cancelled")

    async def is_frozen(self, person: Person) -> bool:
        """Whether a worker has its turns in its hands."""
        return bool(await self.redis.exists(keyspace.batch(person.bank)))

    async def is_sent(self, person: Person, operation: str) -> bool:
        """Whether Hindsight was asked for that."""
        requests = await self.stack.hindsight.requests()
        return any(r.operation == operation and r.bank_id == person.bank for r in requests)

    async def bring_into_flight(self, people: list[Person]) -> None:
        """Each into its window, by what Hindsight is slow at; all of them are there in the end."""
        hindsight = self.stack.hindsight
        steps: dict[str, tuple[Callable[[], Awaitable[None]], str]] = {
            "frozen": (lambda: hindsight.control("fail", operation="bank", **slow(people, "frozen")), "bank"),
            "retaining": (
                lambda: hindsight.control("fail", operation="retain", **slow(people, "retaining")),
                "retain",
            ),
            "settling": (lambda: hindsight.control("hold_operations", status="processing"), "operation"),
        }
        for window, (prepare, operation) in steps.items():
            await prepare()
            mine = [person for person in people if person.window == window]
            await self.say(mine, FULL)
            for person in mine:

                async def is_there(person: Person = person, operation: str = operation) -> bool:
                    return await self.is_frozen(person) and await self.is_sent(person, operation)

                # Seldom: all that Hindsight was ever asked is a long story.
                await wait_until(is_there, f"{person.user} is there", 60, poll_s=0.25)

    async def forget(self, person: Person) -> float:
        """Forget, again if it is not promised yet; when the answer came."""

        async def is_forgotten() -> bool:
            body = {"user_id": person.user, **SCOPES[person.scope]}
            reply = await next(self._turn).post("/memory/forget", json=body, timeout=60)
            assert reply.status_code in (200, 503), reply.text
            return reply.status_code == 200 and bool(reply.json()["verified"])

        await wait_until(is_forgotten, f"{person.user} is forgotten", 90)
        return monotonic()

    async def watch(self, person: Person, since: float) -> None:
        """Look everywhere until the time is up; what is seen is kept with the person."""
        is_new_said = False
        while monotonic() < since + WATCH_S:
            for process, client in enumerate(self.stack.clients):
                for fresh in (False, True):
                    self._look(
                        person, since, f"recall {fresh=}", await self.recalled(person, process, fresh=fresh)
                    )
                listed = await client.post("/memory/list", json={"user_id": person.user})
                assert listed.status_code == 200, listed.text
                self._look(person, since, "list", listed.text)
            if not is_new_said:
                await self.add(person, f"marigold {NEW} of {person.word[::-1]}")
                is_new_said = True
            await pause(EACH_S)

    async def watch_hindsight(
        self, people: list[Person], is_over: asyncio.Event, since: dict[str, float]
    ) -> None:
        """Look at what Hindsight holds of those who have had their answer."""
        while not is_over.is_set():
            # Whose answer has come after the look was begun may still have been there.
            answered = [person for person in people if person.user in since]
            banks = await self.stack.hindsight.banks()
            for person in answered:
                bank = banks.get(person.bank)
                texts = [*bank.texts, *(d.text for d in bank.documents.values())] if bank else []
                self._look(person, since[person.user], "Hindsight", "\n".join(texts))
            await pause(EACH_S, is_over)

    def _look(self, person: Person, since: float, where: str, text: str) -> None:
        if person.word in text:
            person.seen.append(f"{where} after {monotonic() - since:.1f} s")


def slow(people: list[Person], window: str) -> dict[str, object]:
    """A fault that takes as many requests as there are people in the window."""
    times = sum(person.window == window for person in people)
    return {"kind": "slow", "seconds": SLOW_S, "times": times}


@pytest.mark.timeout(600)
async def test_nothing_of_it_is_seen_for_a_minute(folder: Path, sizes: Sizes) -> None:
    given: dict[str, object] = {"quiet_s": QUIET_S, "batch_turns": FULL, "retain_timeout_s": 20}
    async with (
        open_stack(folder, sizes, cache_ttl_s=3600, **given) as stack,
        Redis.from_url(stack.redis.url, decode_responses=True) as redis,
    ):
        theatre = Theatre(stack, redis)
        stored, queued = theatre.people("stored"), theatre.people("queued")
        flying, stopped = theatre.people(*IN_FLIGHT), theatre.people(*IN_FLIGHT, suffix="stopped")
        everybody = [*stored, *queued, *flying, *stopped]
        since: dict[str, float] = {}
        is_over = asyncio.Event()

        async def forget_and_watch(person: Person) -> None:
            since[person.user] = await theatre.forget(person)
            await theatre.watch(person, since[person.user])

        await theatre.store(stored)
        async with asyncio.TaskGroup() as watches:
            looking = watches.create_task(theatre.watch_hindsight(everybody, is_over, since))
            await theatre.bring_into_flight(flying)
            await theatre.say(queued, 1)
            ours = [watches.create_task(forget_and_watch(p)) for p in (*stored, *queued, *flying)]
            await pause(1)
            await stack.hindsight.control("release_operations")
            await wait_until(lambda: len(since) == len(ours), "all that was in flight is forgotten", 90)

            await theatre.bring_into_flight(stopped)
            for worker in stack.workers:
                worker.pause()
            stopped_at = monotonic()
            ours += [watches.create_task(forget_and_watch(person)) for person in stopped]
            await pause(1)
            await stack.hindsight.control("release_operations")
            await wait_until(lambda: len(since) == len(everybody), "all is forgotten without workers", 90)
            await pause(stopped_at + CLAIM_S + 2 - monotonic())
            for worker in stack.workers:
                worker.resume()
            await asyncio.wait(ours)
            is_over.set()
            await looking

        assert {person.user: person.seen for person in everybody if person.seen} == {}
        assert all(monotonic() - answered >= WATCH_S for answered in since.values())
        await theatre.check_the_end(everybody)
