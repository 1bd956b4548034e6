"""Ten thousand users who ask, say something and want things forgotten, spread over all API processes."""

import asyncio
import itertools
import json
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from tests.soak.ledger import Ledger, marked

# As chatbots are used: a recall before each answer, an add after it; and forgets, more than in life.
_MIX = {"recall": 0.55, "add": 0.41, "forget": 0.04}
_WORDS = ("tea", "music", "hiking", "Hangzhou", "budget", "doctor", "school", "novels", "garden", "piano")
_CONVERSATIONS = 3
_REPEAT_S = 0.3
_ADD_PATIENCE_S = 60.0
_FORGET_PATIENCE_S = 120.0
_CALL_TIMEOUT_S = 30.0


@dataclass
class Counts:
    """What was seen from outside."""

    latencies_ms: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    answers: Counter[str] = field(default_factory=Counter)


class Unreachable(Exception):
    """No answer came from the process that was asked."""


@dataclass(frozen=True)
class Door:
    """A process of the API, and which of its lives it is in (see `Havoc.life`)."""

    url: str
    life: Callable[[], int | None]


class Load:
    """`callers` at once, `rate` operations a second together, each user in one hand at a time."""

    def __init__(
        self, doors: Sequence[Door], key: str, ledger: Ledger, rng: random.Random, *,
        users: int, rate: float, callers: int, deadline_s: float, call_timeout_s: float = _CALL_TIMEOUT_S,
    ) -> None:  # fmt: skip
        self._doors = itertools.cycle(doors)
        self._headers = {"Authorization": f"Bearer {key}"}
        self._ledger = ledger
        self._rng = rng
        self._users = users
        self._rate = rate
        self._callers = callers
        self._deadline_s = deadline_s
        self._call_timeout_s = call_timeout_s
        self._busy: set[int] = set()
        self._next_at = 0.0
        self.counts = Counts()

    async def run(self, is_over: asyncio.Event) -> None:
        """Go on until it is over; what was begun is ended."""
        self._next_at = time.monotonic()
        timeout = aiohttp.ClientTimeout(self._call_timeout_s)
        async with (
            aiohttp.ClientSession(headers=self._headers, timeout=timeout) as session,
            asyncio.TaskGroup() as tasks,
        ):
            for _ in range(self._callers):
                tasks.create_task(self._call_on(session, is_over))

    async def _call_on(self, session: aiohttp.ClientSession, is_over: asyncio.Event) -> None:
        while not is_over.is_set():
            self._next_at = max(self._next_at, time.monotonic() - 1) + 1 / self._rate
            await asyncio.sleep(max(0.0, self._next_at - time.monotonic()))
            user = self._pick()
            self._busy.add(user)
            try:
                [what] = self._rng.choices(list(_MIX), list(_MIX.values()))
                await getattr(self, f"_{what}")(session, user)
            finally:
                self._busy.discard(user)

    def _pick(self) -> int:
        """A user nobody talks for now; some talk much more than others."""
        while True:
            user = int(self._users * self._rng.random() ** 3)
            if user not in self._busy:
                return user

    async def _recall(self, session: aiohttp.ClientSession, user: int) -> None:
        asked = {
            "user_id": f"user-{user}",
            "query": f"What do you know about {self._rng.choice(_WORDS[:4])}?",
            "min_score": "0",
        }
        status, answer = await self._until_reached(session, "recall", asked)
        if status != 200:
            self._ledger.breaches.append(("recall without an answer", f"status {status}"))
            return
        took_ms = self.counts.latencies_ms["recall"][-1]
        if took_ms > self._deadline_s * 1000:
            self._ledger.breaches.append(("recall after its deadline", f"{took_ms:.0f} ms"))
        how = "cached" if answer["cached"] else "stale" if answer["stale"] else "asked"
        self.counts.answers[f"recall {how}"] += 1
        if answer["degraded"]:
            self.counts.answers[f"recall degraded: {answer['reason']}"] += 1
        self._ledger.check_recall(user, (memory["text"] for memory in answer["memories"]))

    async def _add(self, session: aiohttp.ClientSession, user: int) -> None:
        conversation = self._rng.randrange(_CONVERSATIONS)
        number = self._ledger.add(user, conversation)
        words = " ".join(self._rng.sample(_WORDS, 3))
        form = {
            "user_id": f"user-{user}",
            "conversation_id": f"c{conversation}",
            "turn_id": f"run-{user}-{number}",
            "user_message": marked(user, number, words),
            "assistant_message": f"I see: {words}.",
        }
        ends = time.monotonic() + _ADD_PATIENCE_S
        while time.monotonic() < ends:
            status, _ = await self._until_reached(session, "add", form)
            if status == 202:
                self._ledger.acknowledge(user, number)
                return
            self.counts.answers[f"add {status}"] += 1
            await asyncio.sleep(_REPEAT_S)

    async def _forget(self, session: aiohttp.ClientSession, user: int) -> None:
        conversation = self._rng.choice((None, *range(_CONVERSATIONS)))
        what = {"all": "true"} if conversation is None else {"conversation_id": f"c{conversation}"}
        meant = self._ledger.meant(user, conversation)
        for turn in meant:
            turn.state = "doubtful" if turn.state != "forgotten" else "forgotten"
        was_sent = [turn for turn in meant if turn.state == "doubtful"]
        ends = time.monotonic() + _FORGET_PATIENCE_S
        while time.monotonic() < ends:
            status, answer = await self._until_reached(session, "forget", {"user_id": f"user-{user}", **what})
            if status == 200:
                self.counts.answers[f"forget verified={answer['verified']}"] += 1
                for turn in was_sent:
                    turn.state = "forgotten"
                return
            self.counts.answers[f"forget {status}"] += 1
            await asyncio.sleep(_REPEAT_S)

    async def _until_reached(
        self, session: aiohttp.ClientSession, path: str, form: dict[str, str]
    ) -> tuple[int, Any]:
        """The answer of the first process that gives one, as behind a load balancer."""
        while True:
            try:
                return await self._once(session, path, form)
            except Unreachable:
                self.counts.answers["no answer: another process was asked"] += 1
                await asyncio.sleep(0.05)

    async def _once(self, session: aiohttp.ClientSession, path: str, form: dict[str, str]) -> tuple[int, Any]:
        door, began = next(self._doors), time.monotonic()
        life = door.life()
        try:
            async with session.post(f"{door.url}/memory/{path}", data=form) as reply:
                body = await reply.read()
        except (aiohttp.ClientError, TimeoutError) as exc:
            if life is not None and door.life() == life:
                # Nobody hurt it: it hung, or hung up, or ended by itself.
                what = f"{path}: {type(exc).__name__} after {time.monotonic() - began:.1f} s"
                self._ledger.breaches.append(("no answer from a living process", what))
            raise Unreachable from exc
        self.counts.latencies_ms[path].append((time.monotonic() - began) * 1000)
        try:
            return reply.status, json.loads(body)
        except ValueError:
            return reply.status, {}
