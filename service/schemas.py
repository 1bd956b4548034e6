"""The wire: flat requests as Dify can send them, and the replies.

Every field may come as a string, optional ones also as `""`, `"null"`, `"None"` or null, which all
mean "not given". Unknown fields are refused, so that a typo is seen while a flow is being built.
"""

import ast
import contextlib
import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from service.errors import InvalidRequest
from service.scope import MAX_ID_CHARS, holds_reference, is_absent

MAX_TAGS = 20
MAX_TAG_CHARS = 64
MAX_METADATA = 20
MAX_METADATA_CHARS = 500
# Hindsight's own: what is true of the world, what an assistant did, and what sums up several facts.
FACT_TYPES = ("world", "experience", "observation")
# Far from where a calendar ends: a moment there cannot be moved to another time zone, nor stored.
_YEARS = range(1900, 2200)
# Free text may be the word "null"; everything else that says "nothing" means "not given".
_TEXT_FIELDS = frozenset({"user_id", "query", "user_message", "assistant_message", "messages"})


def _whole(value: object) -> object:
    """Numbers as language models write them: `"5"`, `"5.0"`, `5.0`, ` 5 `."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return value
    if isinstance(value, float) and math.isfinite(value) and value.is_integer():
        return int(value)
    return value


def choice(value: object) -> object:
    """One word of a list, however it is written."""
    return value.strip().lower() if isinstance(value, str) else value


def _optional_id(value: object) -> object:
    return "" if isinstance(value, str) and (is_absent(value) or holds_reference(value)) else value


def _sound(value: object) -> object:
    """Without lone surrogates, which JSON can carry and UTF-8 cannot; halves of one character are joined."""
    if isinstance(value, str) and not value.isascii():
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "ignore")
    return value


Text = Annotated[str, BeforeValidator(_sound)]
Flag = Annotated[bool, BeforeValidator(choice)]
WholeNumber = Annotated[int, BeforeValidator(_whole)]
OptionalId = Annotated[str, BeforeValidator(_optional_id), Field(max_length=MAX_ID_CHARS)]


class Request(BaseModel):
    """Base of all requests."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    user_id: str = Field(
        description="Whose memory this is about: bind it to sys.user_id. Never invent or change it."
    )

    @model_validator(mode="before")
    @classmethod
    def _drop_absent(cls, data: object) -> object:
        """Leave out what says "nothing", so that the default holds."""
        if not isinstance(data, Mapping):
            return data
        return {
            name: value
            for name, value in data.items()
            if not (value is None and name != "user_id")
            and not (name not in _TEXT_FIELDS and isinstance(value, str) and is_absent(value))
        }

    @classmethod
    def read(cls, data: Mapping[str, object]) -> Self:
        """The request in `data`, or `InvalidRequest` naming the first field that is wrong (not its value)."""
        try:
            return cls.model_validate(data)
        except ValidationError as exc:
            raise InvalidRequest(cls._sentence(exc)) from None

    @classmethod
    def _sentence(cls, exc: ValidationError) -> str:
        first = exc.errors(include_url=False, include_context=False, include_input=False)[0]
        field = next((str(part) for part in first["loc"]), "")
        if first["type"] == "extra_forbidden":
            # The unknown name is input; the known ones help more.
            return f"The request has an unknown field; known are: {', '.join(cls.model_fields)}."
        if field not in cls.model_fields:
            return "The request must be an object with the documented fields."
        if first["type"] == "missing":
            return f"The field {field} is missing."
        return f"The field {field} is not valid: {first['msg'][0].lower()}{first['msg'][1:]}."


def comma_list(text: str, *, most: int, max_chars: int, field: str) -> tuple[str, ...]:
    """The items of a list separated by commas, each once; raises `InvalidRequest` beyond the limits."""
    items = tuple(dict.fromkeys(item.strip() for item in text.replace("，", ",").split(",") if item.strip()))
    if len(items) > most or any(len(item) > max_chars for item in items):
        raise InvalidRequest(
            f"The field {field} takes at most {most} items of at most {max_chars} characters."
        )
    return items


def fact_types_in(text: str) -> tuple[str, ...]:
    """Hindsight's fact types in a comma list; raises `InvalidRequest` for any other word."""
    names = comma_list(text, most=MAX_TAGS, max_chars=MAX_TAG_CHARS, field="fact_types")
    if not set(names) <= set(FACT_TYPES):
        raise InvalidRequest(f"The field fact_types takes {', '.join(FACT_TYPES)}, separated by commas.")
    return names


def object_in(text: str) -> object:
    """What a JSON text says, or a Python literal: Dify prints the object a model gave with `str()`.

    Raises `ValueError` for anything else. Bound the length first.
    """
    for read in (json.loads, ast.literal_eval):
        with contextlib.suppress(ValueError, SyntaxError, RecursionError, MemoryError):
            return read(text)
    raise ValueError("neither JSON nor a Python literal")


def _metadata_in(text: str) -> object:
    try:
        if len(text) <= 2 * MAX_METADATA * (MAX_TAG_CHARS + MAX_METADATA_CHARS):
            return object_in(text)
    except ValueError:
        pass
    raise InvalidRequest("The field metadata must be a JSON object of short texts.")


class RecallRequest(Request):
    """`POST /memory/recall`."""

    query: Text = Field(description="What to look for: the user's message as it is.", max_length=1_000_000)
    top_k: WholeNumber = Field(5, ge=1, le=50, description="How many memories at most.")
    max_chars: WholeNumber = Field(100, ge=1, le=10_000, description="Longest memory, in characters.")
    max_total_chars: WholeNumber = Field(
        0, ge=0, le=100_000, description="Longest sum of all memories, in characters; 0: no limit."
    )
    kinds: str = Field("", max_length=1000, description="Only these kinds, separated by commas.")
    fact_types: str = Field(
        "",
        max_length=1000,
        description="Only these of world, experience and observation, separated by commas.",
    )
    min_score: float = Field(
        -1, ge=-1, le=1, description="Least relevance from 0 to 1; -1: the server's own floor."
    )
    budget: Annotated[Literal["low", "mid", "high"], BeforeValidator(choice)] = Field(
        "mid", description="How many candidates are looked at: low, mid or high."
    )
    tags: str = Field("", max_length=2000, description="Only memories with these tags, separated by commas.")
    tags_match: Annotated[Literal["all", "any"], BeforeValidator(choice)] = Field(
        "all", description="Whether a memory needs all of the tags or any of them."
    )
    conversation_id: OptionalId = Field(
        "", description="The asking conversation (sys.conversation_id): its newest turns are left out."
    )
    format: Annotated[Literal["json", "text"], BeforeValidator(choice)] = Field(
        "json", description="json: the whole reply; text: only the block for the prompt."
    )
    language: Annotated[Literal["auto", "zh", "en"], BeforeValidator(choice)] = Field(
        "auto", description="Language of the block: zh, en, or auto (by the query)."
    )
    fresh: Flag = Field(False, description="true: do not answer from the cache.")
    on_error: Annotated[Literal["empty", "fail"], BeforeValidator(choice)] = Field(
        "empty", description="When the memory is out of reach: answer empty, or fail with an error."
    )
    timeout_ms: WholeNumber = Field(
        0, ge=0, le=60_000, description="When to answer at the latest, in ms; 0: the server's own deadline."
    )

    @property
    def tag_list(self) -> tuple[str, ...]:
        """`tags`, split."""
        return comma_list(self.tags, most=MAX_TAGS, max_chars=MAX_TAG_CHARS, field="tags")

    @property
    def kind_list(self) -> tuple[str, ...]:
        """`kinds`, split."""
        return comma_list(self.kinds, most=MAX_TAGS, max_chars=MAX_TAG_CHARS, field="kinds")

    @property
    def fact_type_list(self) -> tuple[str, ...]:
        """`fact_types`, split; empty means all of them."""
        return fact_types_in(self.fact_types)


class AddRequest(Request):
    """`POST /memory/add`."""

    messages: Any = Field(
        None, description='A JSON array of {"role", "content"}, as text; or send user_message instead.'
    )
    user_message: Text = Field("", description="What the user said.")
    assistant_message: Text = Field("", description="What was answered.")
    conversation_id: OptionalId = Field("", description="The conversation (sys.conversation_id).")
    turn_id: OptionalId = Field(
        "", description="Names this turn, so that a repetition is not stored twice (sys.workflow_run_id)."
    )
    timestamp: str = Field("", max_length=64, description="When it was said, ISO 8601; empty: now.")
    tags: str = Field("", max_length=2000, description="Tags of the memories, separated by commas.")
    metadata: Any = Field(None, description="A JSON object of short texts, as text.")

    @property
    def tag_list(self) -> tuple[str, ...]:
        """`tags`, split."""
        return comma_list(self.tags, most=MAX_TAGS, max_chars=MAX_TAG_CHARS, field="tags")

    @property
    def said_at(self) -> str:
        """`timestamp` as ISO 8601 with an offset (UTC if it came without one), or empty."""
        if not self.timestamp:
            return ""
        try:
            moment = datetime.fromisoformat(self.timestamp.strip())
        except ValueError:
            raise InvalidRequest(
                "The field timestamp must be ISO 8601, like 2026-01-31T09:30:00+08:00."
            ) from None
        if moment.year not in _YEARS:
            raise InvalidRequest(
                f"The field timestamp must be in one of the years {_YEARS[0]} to {_YEARS[-1]}."
            )
        offset = moment.utcoffset()
        if offset is None:
            moment = moment.replace(tzinfo=UTC)
        elif offset % timedelta(minutes=1):  # Python writes such an offset, few others read it
            moment = moment.astimezone(UTC)
        return moment.isoformat()

    @property
    def metadata_map(self) -> dict[str, str]:
        """`metadata` as text → text; numbers and booleans become text."""
        value: object = self.metadata
        if isinstance(value, str):
            value = _metadata_in(value)
        if value is None:
            return {}
        if not isinstance(value, dict) or len(value) > MAX_METADATA:
            raise InvalidRequest(f"The field metadata must be a JSON object of at most {MAX_METADATA} texts.")
        texts: dict[str, str] = {}
        for name, item in value.items():
            if (
                not isinstance(item, str | int | float)
                or not isinstance(name, str)
                or len(name) > MAX_TAG_CHARS
            ):
                raise InvalidRequest("The field metadata must be a JSON object of short texts.")
            text = json.dumps(item) if not isinstance(item, str) else item
            if len(text) > MAX_METADATA_CHARS:
                raise InvalidRequest(f"A text in metadata may have at most {MAX_METADATA_CHARS} characters.")
            texts[name] = text
        return texts


class MemoryReply(BaseModel):
    """One memory in a recall; `score` is 0–1 or null, `created_at` ISO 8601 or null."""

    id: str
    text: str
    kind: str | None
    score: float | None
    importance: float | None
    created_at: str | None
    pending: bool


class RecallReply(BaseModel):
    """Reply of `POST /memory/recall`; `context` is the block to put into a prompt as it is."""

    context: str
    memories: list[MemoryReply]
    count: int
    filtered_count: int
    cached: bool
    stale: bool
    degraded: bool
    reason: str
    request_id: str


class AddReply(BaseModel):
    """Reply of `POST /memory/add`: messages `accepted` and `skipped`, passages `redacted`."""

    status: Literal["queued", "duplicate", "skipped"]
    job_id: str
    accepted: int
    skipped: int
    redacted: int
    searchable_now: bool
    request_id: str


class JobReply(BaseModel):
    """Reply of `GET /memory/jobs/{job_id}`; times are ISO 8601."""

    job_id: str
    status: Literal["queued", "waiting", "retaining", "done", "failed", "cancelled"]
    memories_kept: int | None = Field(
        description="How many memories were made so far; null: the memory engine did not tell."
    )
    reason: str
    accepted_at: str
    finished_at: str | None


class ErrorBody(BaseModel):
    """What went wrong: a stable code for programs, a sentence for people."""

    code: str
    message: str
    request_id: str


class ErrorReply(BaseModel):
    """Every error."""

    error: ErrorBody
