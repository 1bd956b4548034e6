"""Reflect: a question answered by a language model that looks through one user's memories.

It takes Hindsight several calls of its model and thousands of tokens, so that it has a deadline and a
place of its own, and nothing else waits for it. Like recall it never breaks a flow: what cannot be
answered is 200 with `degraded` and a reason.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from service.adapters.cache import Epochs, RecallCache
from service.adapters.hindsight_review import HindsightReview, TagGroup
from service.errors import (
    CacheUnavailable,
    HindsightRejected,
    InvalidRequest,
    ServiceError,
    Unavailable,
)
from service.memory.policies import Policies
from service.memory.redacting import off_loop
from service.policy.content import clean
from service.policy.kinds import KIND_TAG
from service.policy.redaction import RedactionPolicy, redact, redact_all
from service.schemas_review import ReflectRequest
from service.scope import BankId

# Each of them keeps a language model busy several times over; more at once only make all of them late.
_AT_ONCE = 4
# No model answers in less.
_LEAST_S = 0.1
_EPOCHS_S = 0.1


@dataclass(frozen=True, slots=True)
class Reflected:
    """The answer; if it is empty or `degraded`, the reason is a code, a colon and a sentence."""

    text: str
    structured: Mapping[str, Any] | None
    degraded: bool = False
    reason: str = ""
    source_ids: tuple[str, ...] = ()


class Reflector:
    """Answers questions, a few at a time."""

    def __init__(
        self, review: HindsightReview, cache: RecallCache, policies: Policies, deadline_s: float
    ) -> None:
        self._policies = policies
        self._review = review
        self._cache = cache
        self._deadline_s = deadline_s
        self._places = asyncio.Semaphore(_AT_ONCE)

    async def reflect(self, request: ReflectRequest, bank: BankId, *, tenant: str) -> Reflected:
        """The answer by the deadline: the server's, or the request's if that is sooner.

        Raises `InvalidRequest` for a question without words, a schema or a list that cannot be used.
        """
        schema = request.schema_object
        _ = request.fact_type_list  # raises, too
        # As for recall: a question keeps its sentences.
        redaction = self._policies.of(tenant).redaction.for_questions
        given = (clean(request.query).strip(), clean(request.context).strip())
        query, context = await off_loop(
            sum(map(len, given)), lambda: [redact(text, redaction).text for text in given]
        )
        tag_groups = _tag_groups(request, redaction)
        if not query:
            raise InvalidRequest("The field query must hold a question.")
        if context:
            query = f"{query}\n\nAdditional context: {context}"
        deadline_s = self._deadline_s
        if request.timeout_ms:
            deadline_s = min(deadline_s, request.timeout_ms / 1000)
        ends = asyncio.get_running_loop().time() + deadline_s
        try:
            async with asyncio.timeout_at(ends), self._places:
                return await self._answer(request, bank, query, schema, tag_groups, ends)
        except TimeoutError:
            return _degraded(
                "deadline", "No answer within the time limit; ask again, or allow more with timeout_ms."
            )
        except (Unavailable, HindsightRejected) as exc:
            return _degraded_by(exc)

    async def _answer(
        self,
        request: ReflectRequest,
        bank: BankId,
        query: str,
        schema: Mapping[str, Any] | None,
        tag_groups: Sequence[TagGroup],
        ends: float,
    ) -> Reflected:
        before = await self._epochs(bank)
        # Hindsight would make a bank for whoever it is asked about, and its model has nothing to say then.
        if not await self._review.memories(bank, limit=1):
            return Reflected("", None, reason="nothing_remembered: Nothing is remembered of this user yet.")
        # A little longer than the deadline, which ends all of this.
        left_s = ends - asyncio.get_running_loop().time() + 1
        if left_s < 1 + _LEAST_S:
            raise TimeoutError  # who waited for a place until now: a model would be paid for nothing
        reflection = await self._review.reflect(
            bank,
            query,
            budget=request.budget,
            response_schema=schema,
            timeout_s=left_s,
            tag_groups=tag_groups,
            fact_types=request.fact_type_list,
        )
        after = await self._epochs(bank)
        if before and after and before.purge != after.purge:
            return _degraded("memory_changed", "Something was forgotten while this was answered; ask again.")
        if schema and reflection.structured is None:
            broken = "no_structure: The model did not keep to response_schema; use the text, or simplify it."
            return Reflected(reflection.text, None, degraded=True, reason=broken)
        structured = reflection.structured if schema else None
        return Reflected(reflection.text, structured, source_ids=reflection.source_ids)

    async def _epochs(self, bank: BankId) -> Epochs | None:
        try:
            return await self._cache.epochs(bank, asyncio.get_running_loop().time() + _EPOCHS_S)
        except CacheUnavailable:
            return None  # then nothing can be forgotten either (see `RecallCache.note_purge`)


def _tag_groups(request: ReflectRequest, redaction: RedactionPolicy) -> list[TagGroup]:
    """What the tags of a memory have to fit, tags as they are stored."""
    groups: list[TagGroup] = []
    if kinds := request.kind_list:
        groups.append(([f"{KIND_TAG}{kind}" for kind in kinds], "any_strict"))
    if tags := request.tag_list:
        stored, _ = redact_all(map(clean, tags), redaction)
        groups.append((list(stored), "all_strict" if request.tags_match == "all" else "any_strict"))
    return groups


def _degraded(code: str, sentence: str) -> Reflected:
    return Reflected("", None, degraded=True, reason=f"{code}: {sentence}")


def _degraded_by(error: ServiceError) -> Reflected:
    return _degraded(error.code, error.detail)
