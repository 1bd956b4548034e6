"""What could not be stored: seen, tried again or dropped by whoever runs the service."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Annotated, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from service.adapters.cache import RecallCache
from service.adapters.dead_letters import DeadLetter, DeadLetters
from service.errors import CacheUnavailable, InvalidRequest, NotFound
from service.scope import BankId, DocumentId

Action = Literal["replay", "drop"]
# Told of each dead letter that is shown, replayed or dropped, for the audit trail.
Note = Callable[[DeadLetter], object]

_MOST_IDS = 1000
_PAGE = 200
# Redis's cursors are numbers of 64 bits; it takes a larger one for an error of the command.
_MOST_CURSOR = 2**64 - 1


def _listed(value: object) -> object:
    """Ids as a list, or as one text with commas, which is all a form can carry."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


class Choice(BaseModel):
    """Which dead letters: those named, or all of the caller's tenant."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    ids: Annotated[list[Annotated[str, Field(pattern=r"^[!-~]{1,200}$")]], BeforeValidator(_listed)] = Field(
        [], max_length=_MOST_IDS, description="Ids of dead letters, as a list or separated by commas."
    )
    all: bool = Field(False, description="true: every dead letter of this key's tenant.")

    @classmethod
    def read(cls, data: Mapping[str, object]) -> Self:
        """The choice in `data`; raises `InvalidRequest` unless it is exactly one of `ids` and `all`."""
        try:
            choice = cls.model_validate(
                {name: value for name, value in data.items() if value not in ("", None)}
            )
        except ValidationError:
            raise InvalidRequest(f"Send ids (at most {_MOST_IDS}) or all=true, and nothing else.") from None
        if bool(choice.ids) == choice.all:
            raise InvalidRequest("Send either ids or all=true.")
        return choice


class DeadLetterReply(BaseModel):
    """One dead letter; `text` only for whoever may see what was said, and asks for it."""

    id: str
    bank: str
    job_id: str
    reason: str
    accepted_at: str
    chars: int
    text: str | None


class DeadLettersReply(BaseModel):
    """A page of dead letters; `next_cursor` is empty at the end."""

    dead_letters: list[DeadLetterReply]
    next_cursor: str


class DoneReply(BaseModel):
    """How many dead letters were replayed or dropped."""

    count: int
    request_id: str


async def page(
    letters: DeadLetters,
    *,
    tenant: str | None,
    cursor: str = "",
    limit: int = 100,
    bank: str = "",
    shows_text: bool = False,
    note: Note | None = None,
) -> DeadLettersReply:
    """About `limit` of a tenant's dead letters (None: of all tenants), oldest first within the page.

    `note` is told of each.
    """
    is_number = cursor.isascii() and (cursor.isdigit() or not cursor)
    if not is_number or len(cursor) > 20 or int(cursor or "0") > _MOST_CURSOR:
        raise InvalidRequest("The cursor is not one that was answered before.")
    found, next_cursor = await letters.page(cursor=cursor, limit=limit, bank=BankId(bank) if bank else None)
    mine = sorted(_of(found, tenant), key=lambda letter: letter.turn.number)
    _tell(note, mine)
    return DeadLettersReply(
        dead_letters=[_reply(letter, shows_text) for letter in mine], next_cursor=next_cursor
    )


async def settle(
    letters: DeadLetters,
    cache: RecallCache,
    choice: Choice,
    *,
    tenant: str | None,
    action: Action,
    note: Note | None = None,
) -> int:
    """Replay or drop the chosen dead letters of a tenant (None: of all tenants); how many there were.

    `note` is told of each, once that is done.
    Can be repeated: what is gone already is not counted. Raises `NotFound` when ids are named and
    none of them is a dead letter of the tenant.
    """
    if not choice.all:
        found = _of(await letters.find(map(DocumentId, choice.ids)), tenant)
        if not found:
            raise NotFound("There are no such dead letters.")
        count = await _apply(letters, cache, found, action)
        _tell(note, found)
        return count
    count = 0
    cursor = ""
    while True:
        page_of, cursor = await letters.page(cursor=cursor, limit=_PAGE)
        chosen = _of(page_of, tenant)
        count += await _apply(letters, cache, chosen, action)
        _tell(note, chosen)
        if not cursor:
            return count


async def _apply(letters: DeadLetters, cache: RecallCache, chosen: list[DeadLetter], action: Action) -> int:
    if action == "drop":
        return await letters.drop(chosen)
    count = await letters.replay(chosen)
    for bank in {letter.bank for letter in chosen}:
        try:
            # They are pending turns again, which recall shows.
            await cache.note_write(bank)
        except CacheUnavailable:
            break  # cached answers show them when they expire
    return count


def _tell(note: Note | None, letters: list[DeadLetter]) -> None:
    if note is not None:
        for letter in letters:
            note(letter)


def _of(letters: list[DeadLetter], tenant: str | None) -> list[DeadLetter]:
    return [letter for letter in letters if tenant is None or letter.tenant == tenant]


def _reply(letter: DeadLetter, shows_text: bool) -> DeadLetterReply:
    accepted = datetime.fromtimestamp(letter.turn.accepted_ms / 1000, UTC)
    return DeadLetterReply(
        id=letter.turn.document_id,
        bank=letter.bank,
        job_id=letter.turn.job_id,
        reason=letter.reason,
        accepted_at=accepted.isoformat(timespec="milliseconds"),
        chars=len(letter.turn.text),
        text=letter.turn.text if shows_text else None,
    )
