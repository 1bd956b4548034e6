"""The ways to answer a question that the benchmark compares, all in one real Hindsight."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Protocol

import httpx
from service.policy import ranking

from tests.bench.recall.dataset import Person, Question, Turn
from tests.bench.recall.scoring import EXCERPT_CHARS, TOP, Memory, Outcome

_ARMS_ON: Final = {"enable_graph_retrieval": True, "enable_temporal_retrieval": True}
_ARMS_OFF: Final = {"enable_graph_retrieval": False, "enable_temporal_retrieval": False}
_BATCH: Final = 20


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


def whole_turn(turn: Turn) -> list[dict[str, Any]]:
    """A turn as one text, the way an application that calls Hindsight itself would keep it."""
    return [_item(turn, f"User: {turn.user_text}\nAssistant: {turn.assistant_text}")]


def two_sides(turn: Turn) -> list[dict[str, Any]]:
    """A turn as one document of two texts, each with a vector of its own."""
    return [
        _item(turn, turn.user_text, role="user"),
        _item(turn, turn.assistant_text, role="assistant"),
    ]


def _item(turn: Turn, text: str, **metadata: str) -> dict[str, Any]:
    return {
        "content": text,
        "document_id": turn.id,
        "timestamp": turn.at.isoformat(),
        "tags": [f"conversation:{turn.session}"],
        "metadata": metadata,
    }


class PlainHindsight:
    """Hindsight's recall as it comes: one document per turn, default parameters, its whole reply."""

    name = "hindsight_defaults"

    def __init__(self, banks: Banks) -> None:
        self._banks = banks

    async def prepare(self, person: Person) -> None:
        """Load the person's turns into a bank with all arms on."""
        await self._banks.configure(f"plain-{person.user}", **_ARMS_ON)
        await self._banks.retain(
            f"plain-{person.user}", [item for turn in person.turns for item in whole_turn(turn)]
        )

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
    """What this service does: own ranking, floor, five memories of 100 characters."""

    name = "ours"

    def __init__(self, banks: Banks, *, min_score: float = ranking.DEFAULT_MIN_SCORE) -> None:
        self._banks = banks
        self._min_score = min_score
        self._calibration = ranking.calibration_for("multilingual-e5-small")
        self._now: dict[str, datetime] = {}

    async def prepare(self, person: Person) -> None:
        """Load the person's turns into a bank that is configured as recall was tuned for."""
        self._now[person.user] = person.asked_at
        await self._banks.configure(f"ours-{person.user}", **_ARMS_OFF)
        await self._banks.retain(
            f"ours-{person.user}", [item for turn in person.turns for item in two_sides(turn)]
        )

    async def answer(self, question: Question) -> Outcome:
        """Recall, rank, cut. The one place to call another interface instead."""
        started = time.perf_counter()
        results = await self._banks.recall(
            f"ours-{question.user}", question.text, budget="mid", max_tokens=8192
        )
        ranked = ranking.rank(
            question.text,
            [_candidate(result) for result in results],
            calibration=self._calibration,
            min_score=self._min_score,
            top_k=TOP,
            now=self._now[question.user],
        )
        took_ms = (time.perf_counter() - started) * 1000
        memories = tuple(
            Memory(scored.candidate.document_id, scored.candidate.text[:EXCERPT_CHARS])
            for scored in ranked.kept
        )
        return Outcome(question, memories, sum(len(memory.text) for memory in memories), took_ms)


class OursWithoutFloor(Ours):
    """The same with `min_score` 0: what the floor costs. Runs after Ours."""

    name = "ours_without_floor"

    def __init__(self, banks: Banks) -> None:
        super().__init__(banks, min_score=0.0)

    async def prepare(self, person: Person) -> None:
        """The banks are there."""
        self._now[person.user] = person.asked_at


def _candidate(result: dict[str, Any]) -> ranking.Candidate:
    scores = result["scores"] or {}
    at = result["mentioned_at"]
    return ranking.Candidate(
        id=result["id"],
        text=result["text"],
        semantic=scores.get("semantic"),
        keyword=scores.get("keyword"),
        reranker=scores.get("reranker"),
        final=scores.get("final"),
        occurred_at=datetime.fromisoformat(at) if at else None,
        document_id=result["document_id"],
        fact_type=result["type"],
        group=next((tag for tag in result["tags"] or () if tag.startswith("conversation:")), None),
        role=(result["metadata"] or {}).get("role"),
    )
