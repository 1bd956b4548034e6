"""From turns to memories: what is stored of a batch, and what it makes outdated.

One call of the language model per frozen batch. Its vetted result is kept with the batch before anything
is stored, and the documents it becomes are named after their turn, so that every repetition (a lost reply,
a killed worker, another worker) stores the same memories and asks nobody twice. What is outdated is
invalidated, which can be undone, only once the new memories are stored and before anybody is told. A turn
that has also come to Hindsight past the log, word for word, is taken away then: its memories say it. Where
Hindsight extracts it stays so (see `words`).

A model that fails leaves the batch waiting. After `max_tries` failures in a row the turns are kept word for
word, or put aside, as configured; at once when the model refuses just these words. A model that is not asked,
since the day's budget is spent or it wanted a pause, has not failed: the batch waits, however long it takes.
"""

import json
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Literal

from service.adapters.hindsight import HindsightAdapter, Item
from service.adapters.hindsight_curate import HindsightCurate, StoredFact
from service.adapters.hindsight_erase import HindsightEraser
from service.adapters.llm import Completion, LlmAdapter
from service.adapters.spending import Spending
from service.adapters.turns import Batch, Claim, Turn, TurnsLog
from service.errors import (
    HindsightRejected,
    LlmBudgetSpent,
    LlmMisconfigured,
    LlmNotAsked,
    LlmRejected,
    LlmUnavailable,
)
from service.memory.words import documents_of_words
from service.metrics import Metrics
from service.policy.bank_config import Mode
from service.policy.extraction import SCHEMA_NAME, Known, Spoken, prompt, schema, spoken
from service.policy.extraction_answer import Fact, UnusableAnswer, read_answer, vet
from service.policy.extraction_subject import is_about_another, says_one_thing
from service.policy.kinds import IMPORTANCE, KIND_TAG, SUBJECT, KeepPolicy, importance_of, kind_of
from service.policy.ranking import has_word, keep_tail
from service.policy.small_talk import is_small_talk
from service.policy.takeover import is_instruction_like
from service.scope import BankId, DocumentId, OperationId, fact_document_of, turn_digest
from service.settings import Settings

_log = logging.getLogger(__name__)

_NEAR = 20
_NEAR_TOKENS = 2048
_NEWEST = 20
_RECALL_S = 5.0
# The same question gets the same answer: one that cannot be used is not worth many more tries.
_UNUSABLE_TRIES = 2
_SUPERSEDED = "superseded by a newer memory"


@dataclass(frozen=True, slots=True)
class ExtractOptions:
    """How one tenant's memories are made; limits of 0 mean none. See the settings of the same names."""

    mode: Mode = "auto"
    policy: KeepPolicy = field(default_factory=KeepPolicy)
    tenant: str = "default"
    max_tries: int = 10
    fallback: Literal["none", "dead_letter"] = "none"
    daily_usd: float = 0.0
    daily_tokens: int = 0
    over_budget: Literal["wait", "none"] = "wait"

    @classmethod
    def from_settings(cls, settings: Settings) -> "ExtractOptions":
        """What is the same for all tenants; the rest is in their policies (see `extractors`)."""
        return cls(
            mode=settings.extraction_mode,
            max_tries=settings.extraction_max_tries,
            fallback=settings.extraction_fallback,
            over_budget=settings.extraction_over_budget,
        )


@dataclass(frozen=True, slots=True)
class Prepared:
    """What to store of some turns, and what has to be done once it is stored.

    `kept` tells how many memories each turn gave, None where only Hindsight can tell. `superseded` are ids
    of memories that the new ones make outdated, each with the digest of what it said when that was decided
    (empty: not known); `superfluous` are documents with the words of turns of which
    memories were made, as the way past the log writes them (see `fallback`).
    """

    items: tuple[Item, ...]
    kept: dict[DocumentId, int] | None = None
    superseded: tuple[tuple[str, str], ...] = ()
    vetted_documents: tuple[DocumentId, ...] = ()
    superfluous: tuple[DocumentId, ...] = ()


class Extractor:
    """Prepares batches; one per worker. Without `llm` and `spending` the mode `litellm` cannot be had."""

    def __init__(
        self,
        log: TurnsLog,
        hindsight: HindsightAdapter,
        metrics: Metrics,
        options: ExtractOptions,
        llm: LlmAdapter | None = None,
        spending: Spending | None = None,
    ) -> None:
        self._turns = log
        self._hindsight = hindsight
        self._curate = HindsightCurate(hindsight)
        self._eraser = HindsightEraser(hindsight)
        self._metrics = metrics
        self._options = options
        self._llm = llm
        self._spending = spending

    async def prepare(
        self,
        claim: Claim,
        batch: Batch,
        group: Sequence[Turn],
        verbatim: Sequence[Item],
        *,
        looks_up: bool = True,
    ) -> Prepared:
        """What to store of `group`, whose words are in `verbatim`; the same again at every repetition.

        Without `looks_up` Hindsight is not asked what is known, and nothing becomes outdated.
        Raises `LlmUnavailable` or `LlmMisconfigured` while it is worth waiting, `LlmRejected` when the turns
        have to be put aside, and whatever Redis and Hindsight raise.
        """
        worth = [not is_small_talk(turn.text) for turn in group]
        # What was exported as memories and comes back has its kind already.
        is_made = all(kind_of(turn.tags) for turn in group)
        if self._options.mode != "litellm" or is_made or not any(worth):
            items = tuple(item for item, is_worth in zip(verbatim, worth, strict=True) if is_worth)
            if self._options.mode == "hindsight":
                return Prepared(items, None, (), tuple(item.document_id for item in items))
            return Prepared(items, None if items else {turn.document_id: 0 for turn in group})
        kept = _restored(batch.prepared, group)
        if kept is None:
            kept = await self._extracted(claim.bank, batch, group, looks_up)
            await self._turns.note_prepared(claim, batch, _written(kept, group))
        return _prepared(kept, group, verbatim, worth)

    async def finish(self, bank: BankId, prepared: Prepared, operation: OperationId) -> bool:
        """Invalidate what the stored memories make outdated, or what was extracted and is not to be kept.

        `operation` is the completed one that has stored them. And delete what is superfluous; False while
        Hindsight may still write it. May, and then must, be repeated. Raises `HindsightUnavailable`, and
        `HindsightRejected` where lists are refused.
        """
        for memory_id, digest in prepared.superseded:
            if await self._says_the_same(bank, memory_id, digest):
                await self._invalidate(bank, memory_id, _SUPERSEDED)
        found = {one: await self._curate.facts_of(bank, one) for one in prepared.vetted_documents}
        texts = {one.document_id: one.text for one in prepared.items}
        words = await documents_of_words(self._hindsight, bank, operation, texts, found)
        for document, facts in found.items():
            for fact in () if document in words else facts:
                kind, importance = kind_of(fact.tags), importance_of(fact.metadata, fact.tags)
                reason = self._options.policy.why_dropped(kind, importance)
                if not reason and is_instruction_like(fact.text):
                    reason = "instruction"
                self._metrics.facts.labels(reason or "kept").inc()
                if reason:
                    await self._invalidate(bank, fact.id, f"not kept: {reason}")
        return await self._drop_words(bank, prepared.superfluous)

    async def _says_the_same(self, bank: BankId, memory_id: str, before: str) -> bool:
        """Whether a memory is still what was found outdated: one that was corrected meanwhile is not."""
        if not before:
            return True
        try:
            text = await self._curate.text_of(bank, memory_id)
        except HindsightRejected:
            _log.warning("invalidation_refused")
            return False
        said = turn_digest(text or "")
        return text is not None and said == before

    async def _drop_words(self, bank: BankId, documents: Sequence[DocumentId]) -> bool:
        """Delete turns' own documents; False while an operation that writes one of them runs."""
        is_over = True
        try:
            for operation in await self._eraser.running(bank, asks_what=True) if documents else ():
                if operation.kind != "retain" or not operation.documents & set(documents):
                    continue
                if operation.is_idle:
                    await self._eraser.cancel(bank, operation.id)
                else:
                    is_over = False
            await self._eraser.delete_documents(bank, list(documents))
        except HindsightRejected:
            # The memories are stored; that the words stay is no reason to store them again.
            _log.warning("words_not_dropped")
        return is_over

    async def _invalidate(self, bank: BankId, memory_id: str, reason: str) -> None:
        try:
            await self._curate.invalidate(bank, memory_id, reason)
        except HindsightRejected:
            # The new memories are stored; that an old one stays is no reason to store them again.
            _log.warning("invalidation_refused")

    async def _extracted(self, bank: BankId, batch: Batch, group: Sequence[Turn], looks_up: bool) -> "_Kept":
        """The facts of a group, or the decision to keep its words."""
        try:
            return await self._ask(bank, group, looks_up)
        except LlmNotAsked as exc:
            self._metrics.llm_calls.labels(exc.code).inc()
            if isinstance(exc, LlmBudgetSpent) and self._options.over_budget == "none":
                _log.info("extraction_over_budget", extra={"turns": len(group)})
                return _Kept(None, ())
            raise
        except (LlmUnavailable, LlmMisconfigured, LlmRejected, UnusableAnswer) as exc:
            self._metrics.llm_calls.labels("unusable" if isinstance(exc, UnusableAnswer) else exc.code).inc()
            tries = {LlmRejected: 0, UnusableAnswer: _UNUSABLE_TRIES}.get(type(exc), self._options.max_tries)
            if batch.tries < min(tries, self._options.max_tries):
                if isinstance(exc, UnusableAnswer):
                    raise LlmUnavailable(str(exc)) from None
                raise
            _log.warning("extraction_given_up", extra={"turns": len(group), "tries": batch.tries})
            if self._options.fallback == "dead_letter":
                raise LlmRejected("The LLM could not make memories of this.") from exc
            return _Kept(None, ())

    async def _ask(self, bank: BankId, group: Sequence[Turn], looks_up: bool) -> "_Kept":
        turns = [spoken(turn.text, turn.said_at) for turn in group]
        if not any(turn.user.strip() for turn in turns):
            return _Kept((), ())
        await self._check_budget()
        own = {turn.document_id for turn in group}
        candidates = await self._candidates(bank, turns, own) if looks_up else []
        known = [_known(memory) for memory in candidates]
        policy = self._options.policy
        if self._llm is None:
            raise LlmMisconfigured("There is no LLM; set MEMORY_LLM_MODEL.")
        answer = await self._llm.complete(prompt(turns, known, policy), schema(policy), name=SCHEMA_NAME)
        await self._account(answer)
        vetted = vet(read_answer(answer.text), turns, known, policy)
        self._metrics.llm_calls.labels("ok").inc()
        self._metrics.facts.labels("kept").inc(len(vetted.facts))
        for dropped in vetted.dropped:
            self._metrics.facts.labels(dropped.reason).inc()
        replaced = {
            candidates[one].id: turn_digest(candidates[one].text)
            for fact in vetted.facts
            for one in fact.replaces
        }
        _log.info(
            "facts_extracted",
            extra={
                "turns": len(group),
                "facts": len(vetted.facts),
                "dropped": len(vetted.dropped),
                "superseded": len(replaced),
                "tokens": answer.prompt_tokens + answer.completion_tokens,
            },
        )
        return _Kept(vetted.facts, tuple(replaced.items()))

    async def _candidates(
        self, bank: BankId, turns: Sequence[Spoken], own: Collection[DocumentId]
    ) -> list[StoredFact]:
        """Memories that what was said now may make outdated: the nearest ones, and the newest.

        Who moves need not name the old city, so that likeness alone would miss what is outdated. Of turns
        that were kept word for word only those that say one thing: with a longer one, what is still true
        of it would go, so that it stays, beside the new memory, until it is forgotten. Documents in `own`
        hold the very words that are being worked on.
        """
        query = keep_tail(" ".join(" ".join(turn.user for turn in turns).split()))
        if not has_word(query):
            return []
        near = await self._hindsight.recall(
            bank, query, budget="mid", max_tokens=_NEAR_TOKENS, timeout_s=_RECALL_S
        )
        found = {
            one.id: StoredFact(one.id, one.text, one.tags, one.metadata, document_id=one.document_id)
            for one in near[:_NEAR]
            if one.fact_type != "observation"  # Hindsight's own to change
        }
        for fact in await self._curate.newest(bank, _NEWEST):
            found.setdefault(fact.id, fact)
        return [
            one
            for one in found.values()
            if one.document_id not in own and (kind_of(one.tags) or says_one_thing(spoken(one.text).user))
        ]

    async def _check_budget(self) -> None:
        options = self._options
        if self._spending is None or not (options.daily_usd or options.daily_tokens):
            return
        spent = await self._spending.today(options.tenant)
        if (options.daily_usd and spent.usd >= options.daily_usd) or (
            options.daily_tokens and spent.tokens >= options.daily_tokens
        ):
            raise LlmBudgetSpent("Today's budget for the LLM is spent.", retry_after_s=_left_of_day_s())

    async def _account(self, answer: Completion) -> None:
        tokens = answer.prompt_tokens + answer.completion_tokens
        self._metrics.llm_tokens.labels("sent").inc(answer.prompt_tokens)
        self._metrics.llm_tokens.labels("said").inc(answer.completion_tokens)
        self._metrics.llm_cost.inc(answer.cost_usd)
        self._metrics.note_usage("llm_tokens", self._options.tenant, tokens)
        # Plain numbers are whole: millionths.
        self._metrics.note_usage("llm_micro_usd", self._options.tenant, round(answer.cost_usd * 1_000_000))
        if self._spending is not None:
            await self._spending.note(self._options.tenant, usd=answer.cost_usd, tokens=tokens)


def _known(memory: StoredFact) -> Known:
    kind = kind_of(memory.tags)
    if kind is None:
        words = spoken(memory.text).user.strip()
        return Known(words, "", "other" if is_about_another(words) else "user")
    return Known(memory.text, kind, "other" if memory.metadata.get(SUBJECT) == "other" else "user")


def _left_of_day_s() -> int:
    """Seconds until a new day's budget (UTC)."""
    now = datetime.now(UTC)
    return 86_400 - (now.hour * 3600 + now.minute * 60 + now.second)


@dataclass(frozen=True, slots=True)
class _Kept:
    """The facts of a group (None: keep its words), by the turn's position, and what they make outdated."""

    facts: tuple[Fact, ...] | None
    superseded: tuple[tuple[str, str], ...]


def _written(kept: _Kept, group: Sequence[Turn]) -> str:
    facts = kept.facts and [
        [fact.turn, fact.text, fact.kind, fact.importance, fact.subject] for fact in kept.facts
    ]
    body = {
        "of": [turn.document_id for turn in group],
        "facts": facts,
        "superseded": [memory_id for memory_id, _ in kept.superseded],
        # Beside the ids, so that a worker of an older version can go on with this.
        "digests": [digest for _, digest in kept.superseded],
    }
    return json.dumps(body, ensure_ascii=False, separators=(",", ":"))


def _restored(text: str, group: Sequence[Turn]) -> _Kept | None:
    """What an earlier try has written about just this group."""
    if not text:
        return None
    body = json.loads(text)
    if body["of"] != [turn.document_id for turn in group]:
        return None
    facts = body["facts"]
    superseded = body["superseded"]
    # A worker of an older version has written none.
    digests = body.get("digests") or [""] * len(superseded)
    return _Kept(
        None if facts is None else tuple(Fact(*fact) for fact in facts),
        tuple(zip(superseded, digests, strict=True)),
    )


def _prepared(
    kept: _Kept, group: Sequence[Turn], verbatim: Sequence[Item], worth: Sequence[bool]
) -> Prepared:
    if kept.facts is None:
        return Prepared(tuple(item for item, is_worth in zip(verbatim, worth, strict=True) if is_worth))
    numbers = [0] * len(group)
    items: list[Item] = []
    for fact in kept.facts:
        base, turn = verbatim[fact.turn], group[fact.turn]
        written = {IMPORTANCE: f"{fact.importance:.2f}", SUBJECT: fact.subject}
        items.append(
            replace(
                base,
                document_id=fact_document_of(turn.document_id, numbers[fact.turn]),
                text=fact.text,
                context="",
                # The turn's own id, so that the turn can be forgotten with all that was made of it.
                tags=(*base.tags, turn.document_id, f"{KIND_TAG}{fact.kind}"),
                metadata={**base.metadata, **written},
            )
        )
        numbers[fact.turn] += 1
    counts = {turn.document_id: number for turn, number in zip(group, numbers, strict=True)}
    return Prepared(tuple(items), counts, kept.superseded, superfluous=tuple(counts))
