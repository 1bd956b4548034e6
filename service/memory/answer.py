"""The answer to one recall, computed anew: what Hindsight and the turns log know, ranked and shaped.

Either source may fail; the answer then says `degraded` and why, and holds what the other one had.
"""

import asyncio
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, tzinfo

from service.adapters.hindsight import Budget, HindsightAdapter, Recalled, TagsMatch
from service.adapters.turns import Turn, TurnsLog
from service.errors import ServiceError
from service.policy.block import BlockMemory, Language, language_of, render_block
from service.policy.excerpt import excerpt, total_budget
from service.policy.kinds import KeepPolicy, importance_of, importance_of_sources, kind_of
from service.policy.ranking import GENERIC, Calibration, Candidate, Ranked, Scored, rank
from service.schemas import MemoryReply, RecallRequest
from service.scope import BankId, ConversationId, conversation_of, turn_of_document

_log = logging.getLogger(__name__)

# Text of the candidates asked of Hindsight: enough for the second ranking to choose from.
_CANDIDATE_TOKENS = 8192
# The log is on the same machine or the next; silent this long, it is left out. Without it the answer
# is degraded, so that a busy moment is better waited out, as far as the deadline allows.
_LOG_PATIENCE_S = 0.25
_LOG_SHARE = 0.25
# What is kept back of the deadline for ranking, shaping and the way home.
_SHAPING_S = 0.03
_CONVERSATION_TAG = "c-"
# Standard deviations that an accepted turn of now has over an old one: among equals, age decides.
_PENDING_RECENCY = 0.1


@dataclass(frozen=True, slots=True)
class Question:
    """One recall with everything that changes its answer; `query` is normalised.

    `is_strict`: the caller asked for the floor, so that what cannot be measured falls, too.
    """

    bank: BankId
    query: str
    top_k: int
    max_chars: int
    max_total_chars: int
    kinds: tuple[str, ...]
    fact_types: tuple[str, ...]
    min_score: float
    is_strict: bool
    budget: Budget
    tags: tuple[str, ...]
    tags_match: TagsMatch
    conversation: ConversationId | None
    language: Language
    policy: KeepPolicy = field(default_factory=KeepPolicy)


@dataclass(frozen=True, slots=True)
class Answer:
    """What is said: the block, the memories, how many fell under the floor, what went wrong.

    `has_recalled` tells whether Hindsight answered; if not, only accepted turns are in it.
    """

    context: str
    memories: tuple[MemoryReply, ...]
    filtered_count: int
    degraded: bool = False
    reason: str = ""
    has_recalled: bool = True


def question_of(
    request: RecallRequest,
    bank: BankId,
    query: str,
    tags: tuple[str, ...],
    default_min_score: float,
    policy: KeepPolicy,
) -> Question:
    """The question a request asks; `query` and `tags` are its own, as they are stored."""
    return Question(
        bank=bank,
        query=query,
        top_k=request.top_k,
        max_chars=request.max_chars,
        max_total_chars=request.max_total_chars,
        kinds=request.kind_list,
        fact_types=request.fact_type_list,
        min_score=default_min_score if request.min_score < 0 else request.min_score,
        is_strict=request.min_score > 0,
        budget=request.budget,
        tags=tags,
        tags_match="all_strict" if request.tags_match == "all" else "any_strict",
        conversation=conversation_of(bank, request.conversation_id) if request.conversation_id else None,
        language=language_of(query) if request.language == "auto" else request.language,
        policy=policy,
    )


def nothing(reason: str = "") -> Answer:
    """An empty answer; with a reason, one that is empty because nobody could be asked."""
    return Answer("", (), 0, degraded=bool(reason), reason=reason, has_recalled=not reason)


class Answerer:
    """Computes answers from Hindsight and the turns log."""

    def __init__(
        self,
        hindsight: HindsightAdapter,
        log: TurnsLog,
        zone: tzinfo,
        calibration: Calibration = GENERIC,
    ) -> None:
        self._hindsight = hindsight
        self._turns = log
        self._zone = zone
        self._calibration = calibration

    async def answer(self, question: Question, timeout_s: float) -> Answer:
        """The answer, at the latest after `timeout_s`; never raises a `ServiceError`."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + timeout_s - _SHAPING_S
        trouble: list[str] = []
        # The log first: a turn that moves from the log to Hindsight meanwhile is then seen twice
        # (and kept once), where the other order could miss it.
        pending: list[Turn] = []
        try:
            async with asyncio.timeout(max(0.0, min(_LOG_PATIENCE_S, _LOG_SHARE * timeout_s))):
                pending = await self._turns.pending(question.bank)
        except (ServiceError, TimeoutError) as exc:
            trouble.append(exc.code if isinstance(exc, ServiceError) else "turns_log_unavailable")
        recalled: list[Recalled] = []
        has_recalled = True
        try:
            recalled = await self._hindsight.recall(
                question.bank,
                question.query,
                budget=question.budget,
                max_tokens=_CANDIDATE_TOKENS,
                fact_types=question.fact_types,
                tags=question.tags,
                tags_match=question.tags_match,
                timeout_s=max(0.001, ends - loop.time()),
            )
        except ServiceError as exc:
            has_recalled = False
            trouble.append(exc.code)
            _log.warning("recall_degraded", extra={"code": exc.code})
        return replace(
            self._shaped(question, recalled, pending),
            degraded=bool(trouble),
            reason=", ".join(trouble),
            has_recalled=has_recalled,
        )

    def joined(self, question: Question, last_good: bytes, now: Answer) -> Answer:
        """The last good answer (as JSON, see `encode`) with the accepted turns of `now`, best first."""
        old = json.loads(last_good)
        memories = list(now.memories)
        seen = {memory.id for memory in memories} | {memory.text for memory in memories}
        for fields in old["memories"]:
            memory = MemoryReply(**fields)
            # One that was pending then may be so still, or be known to Hindsight under another id.
            if memory.id not in seen and memory.text not in seen:
                memories.append(memory)
        memories.sort(key=lambda memory: -1.0 if memory.score is None else memory.score, reverse=True)
        memories = memories[: question.top_k]
        texts = total_budget([memory.text for memory in memories], question.max_total_chars)
        memories = [
            memory.model_copy(update={"text": text}) for memory, text in zip(memories, texts, strict=False)
        ]
        return replace(
            now,
            context=self._block(memories, question.language),
            memories=tuple(memories),
            filtered_count=old["filtered_count"] + now.filtered_count,
        )

    def _ranked(
        self, question: Question, recalled: Sequence[Candidate], pending: Sequence[Candidate]
    ) -> Ranked:
        """The best of both, best first.

        Accepted turns have no score yet: they are ranked among themselves, by the words they share with
        the query and by age. The best of them are sure of half the places, since what was said last is
        what a user expects to be remembered; those that share no word take places that are left, unless
        the caller asked for a floor.
        """
        now = datetime.now(UTC)
        known = rank(
            question.query,
            recalled,
            calibration=self._calibration,
            min_score=question.min_score,
            top_k=question.top_k,
            now=now,
        )
        new = rank(
            question.query,
            pending,
            min_score=0,
            top_k=question.top_k,
            now=now,
            recency_weight=_PENDING_RECENCY,
        )
        fitting = [scored for scored in new.kept if scored.relevance > 0 or not question.is_strict]
        sure = [scored for scored in fitting if scored.relevance > 0][: question.top_k // 2]
        rest = sorted([*known.kept, *fitting[len(sure) :]], key=_relevance, reverse=True)
        kept = sorted([*sure, *rest[: question.top_k - len(sure)]], key=_relevance, reverse=True)
        return Ranked(tuple(kept), known.filtered_count + len(new.kept) - len(fitting))

    def _block(self, memories: Sequence[MemoryReply], language: Language) -> str:
        lines = [
            BlockMemory(
                memory.text,
                datetime.fromisoformat(memory.created_at) if memory.created_at else None,
                memory.pending,
                memory.kind,
            )
            for memory in memories
        ]
        return render_block(lines, language, self._zone)

    def _shaped(self, question: Question, recalled: Sequence[Recalled], pending: Sequence[Turn]) -> Answer:
        known = {turn_of_document(memory.document_id) for memory in recalled if memory.document_id}
        now = datetime.now(UTC)
        ranked = self._ranked(
            question,
            [
                _candidate(memory)
                for memory in recalled
                if _is_wanted(memory.tags, question)
                and question.policy.is_recalled(kind_of(memory.tags), memory.said_at, now)
            ],
            [
                _pending_candidate(turn)
                for turn in pending
                if turn.document_id not in known
                and turn.conversation != question.conversation
                and _has_tags(turn.tags, question)
                # Nobody knows yet of which kind or type a turn is.
                and not (question.kinds or question.fact_types)
            ],
        )
        pending_ids = {turn.document_id for turn in pending}
        by_id = {memory.id: memory for memory in recalled}
        texts = total_budget(
            [excerpt(kept.candidate.text, question.query, question.max_chars) for kept in ranked.kept],
            question.max_total_chars,
        )
        memories = [
            _reply(kept, text, by_id.get(kept.candidate.id), kept.candidate.id in pending_ids)
            for kept, text in zip(ranked.kept, texts, strict=False)
        ]
        return Answer(
            context=self._block(memories, question.language),
            memories=tuple(memories),
            filtered_count=ranked.filtered_count,
        )


def encode(answer: Answer, *, as_text: bool) -> bytes:
    """What is cached: a JSON object of all that does not change from call to call, or the block alone."""
    if as_text:
        return answer.context.encode()
    return json.dumps(
        {
            "context": answer.context,
            "memories": [memory.model_dump() for memory in answer.memories],
            "count": len(answer.memories),
            "filtered_count": answer.filtered_count,
        },
        ensure_ascii=False,
    ).encode()


def _has_tags(tags: Sequence[str], question: Question) -> bool:
    if not question.tags:
        return True
    matches = [tag in tags for tag in question.tags]
    return all(matches) if question.tags_match == "all_strict" else any(matches)


def _is_wanted(tags: Sequence[str], question: Question) -> bool:
    return not question.kinds or kind_of(tags) in question.kinds


def _candidate(memory: Recalled) -> Candidate:
    importance = importance_of(memory.metadata, memory.tags)
    if importance is None:
        importance = importance_of_sources(memory.source_tags)
    return Candidate(
        id=memory.id,
        text=memory.text,
        semantic=memory.semantic,
        keyword=memory.keyword,
        reranker=memory.reranker,
        final=memory.final,
        occurred_at=memory.said_at,
        document_id=memory.document_id,
        fact_type=memory.fact_type,
        group=next((tag for tag in memory.tags if tag.startswith(_CONVERSATION_TAG)), None),
        source_ids=memory.source_fact_ids,
        importance=importance,
    )


def _relevance(scored: Scored) -> float:
    return scored.relevance


def _pending_candidate(turn: Turn) -> Candidate:
    said_at = datetime.fromisoformat(turn.said_at) if turn.said_at else None
    return Candidate(
        id=turn.document_id,
        text=turn.text,
        occurred_at=said_at or datetime.fromtimestamp(turn.accepted_ms / 1000, UTC),
        document_id=turn.document_id,
        fact_type="pending",
        group=turn.conversation,
    )


def _reply(kept: Scored, text: str, memory: Recalled | None, is_pending: bool) -> MemoryReply:
    when = kept.candidate.occurred_at
    return MemoryReply(
        id=kept.candidate.id,
        text=text,
        kind=kind_of(memory.tags) if memory else None,
        score=round(kept.relevance, 4),
        importance=kept.candidate.importance,
        created_at=when.isoformat(timespec="seconds") if when else None,
        pending=is_pending,
    )
