"""The ways to answer a question that the benchmark compares, all in one running product and its Hindsight."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Protocol

import httpx

from tests.bench.recall.dataset import Person, Question, Turn
from tests.bench.recall.scoring import Memory, Outcome

_ARMS_ON: Final = {"enable_graph_retrieval": True, "enable_temporal_retrieval": True}
_ARMS_OFF: Final = {"enable_graph_retrieval": False, "enable_temporal_retrieval": False}
_BATCH: Final = 20
_PATIENCE_MS: Final = 10_000


class Path(Protocol):
    """One way to answer. `prepare` is called once per person, before that person's questions."""

    name: str

    async def prepare(self, person: Person) -> None: ...

    async def answer(self, question: Question) -> Outcome: ...


@dataclass(frozen=True, slots=True)
class Banks:
    """The part of Hindsight's HTTP API that the benchmark needs. Bank names begin with `prefix`."""

    client: httpx.AsyncClient
    prefix: str

    async def configure(self, bank: str, **settings: object) -> None:
        """Make the bank if it is missing and set its configuration."""
        made = await self.client.put(self._url(bank), json={})
        made.raise_for_status()
        updates = {"retain_extraction_mode": "chunks", **settings}
        (await self.client.patch(f"{self._url(bank)}/config", json={"updates": updates})).raise_for_status()

    async def retain(self, bank: str, items: Sequence[dict[str, Any]]) -> None:
        """Store the items; those of one document must come one after the other."""
        for first in range(0, len(items), _BATCH):
            body = {"items": items[first : first + _BATCH]}
            (await self.client.post(f"{self._url(bank)}/memories", json=body)).raise_for_status()

    async def recall(self, bank: str, query: str, **parameters: object) -> list[dict[str, Any]]:
        """The results in Hindsight's order."""
        reply = await self.client.post(
            f"{self._url(bank)}/memories/recall", json={"query": query, **parameters}
        )
        reply.raise_for_status()
        results: list[dict[str, Any]] = reply.json()["results"]
        return results

    def _url(self, bank: str) -> str:
        return f"/v1/default/banks/{self.prefix}{bank}"


def _whole_turn(turn: Turn) -> dict[str, Any]:
    """A turn as one text, the way an application that calls Hindsight itself would keep it."""
    return {
        "content": f"User: {turn.user_text}\nAssistant: {turn.assistant_text}",
        "document_id": turn.id,
        "timestamp": turn.at.isoformat(),
        "tags": [f"conversation:{turn.session}"],
    }


class PlainHindsight:
    """Hindsight's recall as it comes: one document per turn, default parameters, its whole reply."""

    name = "hindsight_defaults"

    def __init__(self, banks: Banks) -> None:
        self._banks = banks

    async def prepare(self, person: Person) -> None:
        """Load the person's turns into a bank with all arms on."""
        await self._banks.configure(f"plain-{person.user}", **_ARMS_ON)
        await self._banks.retain(f"plain-{person.user}", [_whole_turn(turn) for turn in person.turns])

    async def answer(self, question: Question) -> Outcome:
        """The whole default reply."""
        started = time.perf_counter()
        results = await self._banks.recall(f"plain-{question.user}", question.text)
        took_ms = (time.perf_counter() - started) * 1000
        memories = tuple(Memory(result["document_id"], result["text"]) for result in results)
        return Outcome(question, memories, sum(len(memory.text) for memory in memories), took_ms)


class FewerArms(PlainHindsight):
    """The same banks with the graph and the temporal arm switched off. Runs after PlainHindsight."""

    name = "hindsight_two_arms_off"

    async def prepare(self, person: Person) -> None:
        """Only the configuration changes."""
        await self._banks.configure(f"plain-{person.user}", **_ARMS_OFF)


class Ours:
    """The product as a workflow uses it: `POST /memory/add`, then `POST /memory/recall` with its defaults."""

    name = "ours"

    def __init__(self, client: httpx.AsyncClient, prefix: str) -> None:
        self._client = client
        self._prefix = prefix
        self._turns: dict[str, dict[datetime, str]] = {}

    async def prepare(self, person: Person) -> None:
        """Add the person's turns and wait until all of them are stored."""
        self._note(person)
        jobs = [await self._add(person, turn) for turn in person.turns]
        await asyncio.gather(*map(self._stored, jobs))

    async def answer(self, question: Question) -> Outcome:
        """What a workflow would get. A memory is known to be of the turn that was said at its time."""
        started = time.perf_counter()
        reply = await self._client.post("/memory/recall", json=self._body(question))
        took_ms = (time.perf_counter() - started) * 1000
        reply.raise_for_status()
        answer = reply.json()
        assert not answer["degraded"], answer["reason"]
        assert not answer["cached"], "fresh was asked for"
        turns = self._turns[question.user]
        memories = tuple(
            Memory(turns[datetime.fromisoformat(memory["created_at"])], memory["text"])
            for memory in answer["memories"]
        )
        return Outcome(question, memories, sum(len(memory.text) for memory in memories), took_ms)

    def _note(self, person: Person) -> None:
        self._turns[person.user] = {turn.at: turn.id for turn in person.turns}
        assert len(self._turns[person.user]) == len(person.turns), "two turns at one time"

    def _body(self, question: Question) -> dict[str, object]:
        # Quality is measured here, and speed elsewhere: a busy machine must not cost answers.
        return {
            "user_id": self._prefix + question.user,
            "query": question.text,
            "fresh": True,
            "timeout_ms": _PATIENCE_MS,
        }

    async def _add(self, person: Person, turn: Turn) -> str:
        reply = await self._client.post(
            "/memory/add",
            json={
                "user_id": self._prefix + person.user,
                "conversation_id": turn.session,
                "turn_id": turn.id,
                "timestamp": turn.at.isoformat(),
                "user_message": turn.user_text,
                "assistant_message": turn.assistant_text,
            },
        )
        reply.raise_for_status()
        job_id: str = reply.json()["job_id"]
        return job_id

    async def _stored(self, job_id: str) -> None:
        status = "queued"
        while status != "done":
            reply = await self._client.get(f"/memory/jobs/{job_id}", params={"wait_s": 20})
            reply.raise_for_status()
            status = reply.json()["status"]
            assert status not in {"failed", "cancelled"}, reply.json()["reason"]


class OursWithoutFloor(Ours):
    """The same with `min_score` 0: what the floor costs. Runs after Ours, with the same prefix."""

    name = "ours_without_floor"

    async def prepare(self, person: Person) -> None:
        """The memories are there."""
        self._note(person)

    def _body(self, question: Question) -> dict[str, object]:
        return {**super()._body(question), "min_score": 0}
