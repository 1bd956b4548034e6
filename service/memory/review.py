"""Review: what is kept of one user, page by page, and the correcting of it.

Listed is what recall answers from: observations, and the facts that no observation rests on, so that a
person sees "lives in Shanghai" and not the Hangzhou it replaced. `include_superseded` lists those facts,
too; the export always has them.

A page ends at a position (moment said, id), not at a count, so that what is added meanwhile neither
repeats nor hides anything. Corrections go to facts. An observation is what Hindsight makes of facts and
would come back from them: correcting it gives the newest of its facts the new text and forgets the
others, and Hindsight derives what follows from that.
"""

import base64
import binascii
import re
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import MAXYEAR, UTC, datetime, timedelta

from service.adapters.cache import RecallCache
from service.adapters.hindsight_erase import HindsightEraser
from service.adapters.hindsight_review import HindsightReview, StoredMemory
from service.adapters.turns import Turn, TurnsLog
from service.errors import CacheUnavailable, InvalidRequest, NotFound, NotStoredYet, Unavailable
from service.memory.redacting import off_loop
from service.policy.content import clean, strip_blocks
from service.policy.kinds import KIND_TAG, importance_of, kind_of
from service.policy.redaction import RedactionPolicy, redact
from service.schemas_review import CorrectRequest, ListedMemory, ListRequest, PendingMemory
from service.scope import BankId, DocumentId, is_reserved_tag, turn_of_document

_CONVERSATION_TAG = re.compile(r"c-[0-9a-f]{48}")
_PAGE = 100
_WAITS = "This was said just now and waits to be stored; correct it in a minute, or forget it now."
# A search that finds little must not read a whole bank in one request; the cursor says where to go on.
_MOST_PAGES = 20
_SOURCES_PAGE = 1000
_MOST_SOURCES_PAGES = 10
_TICK = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Position:
    """A place in the list: behind the memory `id` of that moment."""

    said_at: datetime
    id: str

    def encode(self) -> str:
        """As a cursor."""
        raw = f"{self.said_at.astimezone(UTC).isoformat()}|{self.id}"
        return base64.urlsafe_b64encode(raw.encode()).decode().rstrip("=")

    @classmethod
    def decode(cls, cursor: str) -> "Position":
        """The place a cursor names; raises `InvalidRequest` for one that is not ours."""
        try:
            raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
            moment, _, memory_id = raw.decode("ascii").partition("|")
            position = cls(datetime.fromisoformat(moment), str(uuid.UUID(memory_id)))
            is_ours = position.encode() == cursor and position.said_at.year < MAXYEAR
        except (ValueError, OverflowError, binascii.Error):
            is_ours = False
        if not is_ours:
            raise InvalidRequest(
                "The field cursor is not valid: send next_cursor of the page before, or nothing."
            )
        return position


@dataclass(frozen=True, slots=True)
class Page:
    """One page; `next_cursor` is empty when it is the last."""

    memories: tuple[ListedMemory, ...]
    pending: tuple[PendingMemory, ...]
    pending_count: int
    next_cursor: str


async def walk(
    review: HindsightReview,
    bank: BankId,
    *,
    after: Position | None = None,
    query: str = "",
    tags: Sequence[str] = (),
    page: int = _PAGE,
) -> AsyncIterator[list[StoredMemory]]:
    """All memories behind a position, newest first, page by page (of at least 2); only one page is held."""
    # How many memories of the position's moment stand before the next page. Each page begins with one that
    # was seen, so that a removal, which moves up all that follow, shows.
    offset = 0
    while True:
        found = await review.memories(
            bank,
            before=after.said_at + _TICK if after else None,
            query=query,
            tags=tags,
            limit=page,
            offset=offset,
        )
        if after and offset and not (found and not _is_behind(found[0], after)):
            offset = 0
            continue
        rows = [row for row in found if after is None or _is_behind(row, after)]
        if rows:
            yield rows
        if len(found) < page:
            return
        last = position_of(found[-1])
        if rows and (after is None or last.said_at != after.said_at):
            offset = sum(row.said_at == last.said_at for row in found) - 1
        else:
            offset += len(found) - 1
        if rows:
            after = last


def position_of(memory: StoredMemory) -> Position:
    """The place behind a memory."""
    return Position(memory.said_at, memory.id)


def _is_behind(memory: StoredMemory, position: Position) -> bool:
    return memory.said_at < position.said_at or (
        memory.said_at == position.said_at and memory.id > position.id
    )


async def superseded_facts(review: HindsightReview, bank: BankId) -> frozenset[str]:
    """Ids of the facts that observations rest on."""
    found: set[str] = set()
    for number in range(_MOST_SOURCES_PAGES):
        page = await review.memories(
            bank, fact_type="observation", limit=_SOURCES_PAGE, offset=number * _SOURCES_PAGE
        )
        found.update(source for observation in page for source in observation.source_ids)
        if len(page) < _SOURCES_PAGE:
            break
    return frozenset(found)


async def _importances(
    review: HindsightReview, bank: BankId, kept: Sequence[StoredMemory]
) -> dict[str, float | None]:
    """How much the observations of a page matter: as much as the most important fact each rests on.

    An observation has none of the labels that tell it of facts; facts that are too old to be found are
    left out.
    """
    sources = {memory.id: memory.source_ids for memory in kept if memory.is_derived}
    left = {source for ids in sources.values() for source in ids}
    found: dict[str, float | None] = {}
    for number in range(_MOST_SOURCES_PAGES if left else 0):
        page = await review.memories(bank, limit=_SOURCES_PAGE, offset=number * _SOURCES_PAGE)
        found |= {row.id: importance_of(row.metadata, row.tags) for row in page if row.id in left}
        left -= found.keys()
        if not left or len(page) < _SOURCES_PAGE:
            break
    return {
        memory: max((value for one in ids if (value := found.get(one)) is not None), default=None)
        for memory, ids in sources.items()
    }


async def list_page(
    request: ListRequest,
    bank: BankId,
    *,
    review: HindsightReview,
    log: TurnsLog,
    redaction: RedactionPolicy,
) -> Page:
    """The page a request asks for; its query is redacted, like the texts it is looked for in.

    Accepted turns that wait to be stored are on the first page, the newest `limit` of them, unless kinds
    are asked for (they have none yet). Raises `InvalidRequest` for a cursor that is not ours,
    `HindsightUnavailable` or `TurnsLogUnavailable` when one of the two cannot be asked: a list that
    silently lacks something would be taken for all there is.
    """
    after = Position.decode(request.cursor) if request.cursor else None
    kinds = request.kind_list
    query = redact(clean(request.query), redaction.for_questions).text.strip()
    # The log first: a turn that is being stored meanwhile is then seen twice, not missed.
    turns = [] if after or kinds else await log.pending(bank)
    hidden = frozenset() if request.include_superseded else await superseded_facts(review, bank)
    kept, cursor = await _kept(request, bank, after, query, hidden, review)
    return _page(kept, turns, query, cursor, request.limit, await _importances(review, bank, kept))


async def _kept(
    request: ListRequest,
    bank: BankId,
    after: Position | None,
    query: str,
    hidden: frozenset[str],
    review: HindsightReview,
) -> tuple[list[StoredMemory], str]:
    """The memories of a page, and the cursor of what follows."""
    tags = [KIND_TAG + kind for kind in request.kind_list]
    kept: list[StoredMemory] = []
    last: StoredMemory | None = None
    pages = 0
    async for rows in walk(review, bank, after=after, query=query, tags=tags):
        for row in rows:
            if row.id in hidden or not _contains(row.text, query):
                last = row
                continue
            if len(kept) == request.limit:
                return kept, position_of(last or row).encode()
            kept.append(row)
            last = row
        pages += 1
        if pages == _MOST_PAGES and last is not None:
            return kept, position_of(last).encode()
    return kept, ""


def _page(
    kept: Sequence[StoredMemory],
    turns: Sequence[Turn],
    query: str,
    cursor: str,
    limit: int,
    importances: Mapping[str, float | None],
) -> Page:
    # Memories extracted from a turn have documents of their own, named after the turn's.
    stored = {turn_of_document(memory.document_id) for memory in kept if memory.document_id}
    waiting = [
        turn for turn in reversed(turns) if turn.document_id not in stored and _contains(turn.text, query)
    ]
    return Page(
        memories=tuple(listed(memory, importances.get(memory.id)) for memory in kept),
        pending=tuple(
            PendingMemory(id=turn.document_id, text=turn.text, created_at=said_at(turn))
            for turn in waiting[:limit]
        ),
        pending_count=len(waiting),
        next_cursor=cursor,
    )


def _contains(text: str, query: str) -> bool:
    return query.casefold() in text.casefold()


def listed(memory: StoredMemory, derived_importance: float | None = None) -> ListedMemory:
    """A memory as a person gets to see it; an observation's importance is that of what it rests on."""
    importance = importance_of(memory.metadata, memory.tags)
    return ListedMemory(
        id=memory.id,
        text=memory.text,
        kind=kind_of(memory.tags),
        score=None,
        importance=derived_importance if importance is None else importance,
        created_at=memory.said_at.isoformat(timespec="seconds"),
        pending=False,
        type="observation" if memory.is_derived else "fact",
        tags=list(own_tags(memory.tags)),
        conversation=conversation_tag(memory.tags) or "",
        source_ids=list(memory.source_ids),
    )


def said_at(turn: Turn) -> str:
    """When a turn was said, ISO 8601, as it will be stored."""
    return turn.said_at or datetime.fromtimestamp(turn.accepted_ms / 1000, UTC).isoformat()


def conversation_tag(tags: Sequence[str]) -> str | None:
    """The conversation among a memory's tags."""
    return next((tag for tag in tags if is_conversation_tag(tag)), None)


def is_conversation_tag(tag: str) -> bool:
    """Whether a tag is one of those that name a conversation (see `scope.conversation_of`)."""
    return bool(_CONVERSATION_TAG.fullmatch(tag))


def own_tags(tags: Sequence[str]) -> tuple[str, ...]:
    """The tags that came with the memory, without those that we or an extraction have added."""
    return tuple(tag for tag in tags if not is_reserved_tag(tag))


async def correct(
    request: CorrectRequest,
    bank: BankId,
    *,
    review: HindsightReview,
    eraser: HindsightEraser,
    log: TurnsLog,
    cache: RecallCache,
    redaction: RedactionPolicy,
) -> ListedMemory:
    """Give a memory another text, redacted; recall and list know only that one once this returns.

    `memory_id` may also be the id a turn had while it waited, if it became exactly one memory. Raises
    `NotFound` (for another user's memory, too), `NotStoredYet`, and `Unavailable` when Hindsight or the
    cache cannot be reached; the same request may be repeated then.
    """
    given = strip_blocks(clean(request.text))
    text = (await off_loop(len(given), lambda: redact(given, redaction))).text.strip()
    if not text:
        raise InvalidRequest("The field text must hold the new words; to remove a memory, use forget.")
    memory_id = await _stored_id(request.memory_id, bank, review, log)
    # Proves that the cache answers before anything is changed; the one that counts comes after.
    await _purge(cache, bank)
    what = meant_by(memory_id)
    sources = await review.sources(bank, memory_id)
    facts = [source.id for source in sources or ()] or (await log.meant(bank, what)).get("facts", [])
    if sources is None and not facts:
        raise NotFound("There is no such memory of this user.")
    if pending := {turn.document_id for turn in await log.pending(bank)}:
        # Words that came past the log as well: what is made of the turn would say the old ones again.
        known = await eraser.memory(bank, memory_id)
        if known is not None and known.document in pending:
            raise NotStoredYet(_WAITS)
    if facts:
        # The first change of a source takes the observation along: nobody could tell any more what it was of.
        await log.keep_meant(bank, what, {"facts": facts})
    *others, fact_id = facts or [memory_id]
    changed = await review.correct(bank, fact_id, text)
    if changed is None:
        raise NotFound("There is no such memory of this user.")
    for other in others:
        await eraser.blank(bank, other)
    await _purge(cache, bank)
    if facts:
        await log.drop_meant(bank, what)
    return listed(changed)


def meant_by(memory_id: str) -> str:
    """Under which name the ids are kept that the correction of an observation changes."""
    return f"correct {memory_id.lower()}"


async def _stored_id(memory_id: str, bank: BankId, review: HindsightReview, log: TurnsLog) -> str:
    try:
        return str(uuid.UUID(memory_id))
    except ValueError:
        pass
    if any(turn.document_id == memory_id for turn in await log.pending(bank)):
        raise NotStoredYet(_WAITS)
    made = await review.memories(bank, document=DocumentId(memory_id), limit=2)
    if len(made) != 1:
        raise NotFound("There is no such memory of this user.")
    return made[0].id


async def _purge(cache: RecallCache, bank: BankId) -> None:
    try:
        await cache.note_purge(bank)
    except CacheUnavailable as exc:
        raise Unavailable(
            "Cached answers cannot be renewed now; send the same request again.", retry_after_s=5
        ) from exc
