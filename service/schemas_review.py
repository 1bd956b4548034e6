"""The wire of review: listing, forgetting, correcting and carrying away one user's memories."""

import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, Field, ValidationError, model_validator

from service.errors import InvalidRequest
from service.schemas import (
    MAX_TAG_CHARS,
    MAX_TAGS,
    Flag,
    MemoryReply,
    OptionalId,
    Request,
    Text,
    WholeNumber,
    choice,
    comma_list,
    fact_types_in,
    object_in,
)
from service.scope import holds_reference, is_absent

MAX_SCHEMA_CHARS = 10_000
_MAX_SCHEMA_DEPTH = 12
# Another document to fetch, or itself: a language model's server need not be made to follow either.
_REFERENCES = frozenset({"$ref", "$dynamicRef", "$recursiveRef"})


class ListRequest(Request):
    """`POST /memory/list`."""

    kinds: str = Field("", max_length=1000, description="Only these kinds, separated by commas.")
    query: Text = Field("", max_length=1000, description="Only memories that hold these words.")
    limit: WholeNumber = Field(20, ge=1, le=100, description="How many memories at most.")
    cursor: str = Field(
        "", max_length=200, description="next_cursor of the page before; empty: the first page."
    )
    include_superseded: Flag = Field(
        False, description="true: also the facts that a newer memory sums up or has replaced."
    )

    @property
    def kind_list(self) -> tuple[str, ...]:
        """`kinds`, split."""
        return comma_list(self.kinds, most=MAX_TAGS, max_chars=MAX_TAG_CHARS, field="kinds")


class ListedMemory(MemoryReply):
    """One memory in a list: `created_at` is when it was said; `source_ids` are the facts it rests on.

    `conversation` is the same for all memories of one conversation and tells nothing else.
    """

    type: Literal["fact", "observation"]
    tags: list[str]
    conversation: str
    source_ids: list[str]


class PendingMemory(BaseModel):
    """One accepted turn that waits to be stored."""

    id: str
    text: str
    created_at: str


class ListReply(BaseModel):
    """Reply of `POST /memory/list`; `next_cursor` is empty on the last page.

    `pending_count` may be more than are listed in `pending`, which the first page alone has.
    """

    memories: list[ListedMemory]
    pending: list[PendingMemory]
    pending_count: int
    next_cursor: str
    request_id: str


class CorrectRequest(Request):
    """`POST /memory/correct`."""

    memory_id: str = Field(min_length=1, max_length=200, description="The id of the memory, from a list.")
    text: Text = Field(min_length=1, max_length=8000, description="What it should say instead.")


class CorrectReply(BaseModel):
    """Reply of `POST /memory/correct`."""

    memory: ListedMemory
    request_id: str


class ForgetRequest(Request):
    """`POST /memory/forget`: exactly one of `memory_id`, `conversation_id` and `all`."""

    memory_id: OptionalId = Field("", description="The id of one memory, from a list or a recall.")
    conversation_id: OptionalId = Field("", description="Everything of this conversation.")
    all: Flag = Field(False, description="true: everything that is known of this user.")

    @model_validator(mode="after")
    def _names_one_thing(self) -> Self:
        if [bool(self.memory_id), bool(self.conversation_id), self.all].count(True) != 1:
            raise ValueError("not exactly one")
        return self

    @classmethod
    def read(cls, data: Mapping[str, object]) -> Self:
        """As for every request, but a reference that Dify could not resolve is no absent value here.

        Were it left out, what names one memory could go and what names a conversation stay.
        """
        for name in ("memory_id", "conversation_id", "all"):
            value = data.get(name)
            if isinstance(value, str) and (
                holds_reference(value) or (is_absent(value) and any(sign in value for sign in ".{"))
            ):
                raise InvalidRequest(f"The field {name} is a variable that Dify did not resolve.")
        return super().read(data)

    @classmethod
    def _sentence(cls, exc: ValidationError) -> str:
        if not exc.errors()[0]["loc"]:
            return "Send exactly one of memory_id, conversation_id and all=true."
        return super()._sentence(exc)


class Forgotten(BaseModel):
    """How much was removed: memories and documents that were stored, `pending` turns that were not yet,
    the jobs of those, and cached answers."""

    memories: int
    documents: int
    pending: int
    jobs: int
    cache_entries: int


class ForgetReply(BaseModel):
    """Reply of `POST /memory/forget`; `verified`: the store was asked afterwards and has nothing of it."""

    forgotten: Forgotten
    verified: bool
    request_id: str


class ImportReply(BaseModel):
    """Reply of `POST /memory/import`: lines `accepted`, known as `duplicate`, and `skipped`."""

    accepted: int
    duplicate: int
    skipped: int
    request_id: str


class ReflectRequest(Request):
    """`POST /memory/reflect`."""

    query: Text = Field(min_length=1, max_length=8000, description="The question to answer from memory.")
    context: Text = Field("", max_length=20_000, description="What else bears on the question.")
    response_schema: Any = Field(
        None, description="A JSON Schema, as text, of an object: the answer also comes in that form."
    )
    kinds: str = Field("", max_length=1000, description="Only these kinds, separated by commas.")
    fact_types: str = Field(
        "",
        max_length=1000,
        description="Only these of world, experience and observation, separated by commas.",
    )
    tags: str = Field("", max_length=2000, description="Only memories with these tags, separated by commas.")
    tags_match: Annotated[Literal["all", "any"], BeforeValidator(choice)] = Field(
        "all", description="Whether a memory needs all of the tags or any of them."
    )
    budget: Annotated[Literal["low", "mid", "high"], BeforeValidator(choice)] = Field(
        "low", description="How much is looked at: low, mid or high."
    )
    timeout_ms: WholeNumber = Field(
        0, ge=0, le=600_000, description="When to answer at the latest, in ms; 0: the server's own deadline."
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

    @property
    def schema_object(self) -> Mapping[str, Any] | None:
        """`response_schema` as an object, or None; raises `InvalidRequest` for one that cannot be used."""
        value = self.response_schema
        if value is None:
            return None
        try:
            text = value if isinstance(value, str) else json.dumps(value)
            read = object_in(text) if len(text) <= MAX_SCHEMA_CHARS else None
        except (ValueError, RecursionError, TypeError):
            read = None
        if not isinstance(read, dict) or read.get("type") != "object" or not _is_plain(read):
            raise InvalidRequest(
                "The field response_schema must be the JSON Schema of an object, like "
                '{"type": "object", "properties": {"city": {"type": "string"}}}: at most '
                f"{MAX_SCHEMA_CHARS} characters, {_MAX_SCHEMA_DEPTH} levels, no $ref."
            )
        return read


def _is_plain(schema: object, depth: int = 0) -> bool:
    if depth > _MAX_SCHEMA_DEPTH:
        return False
    if isinstance(schema, dict) and _REFERENCES & schema.keys():
        return False
    return all(_is_plain(part, depth + 1) for part in _parts(schema))


def _parts(value: object) -> Iterator[object]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list):
        yield from value


class ReflectReply(BaseModel):
    """Reply of `POST /memory/reflect`; `structured` is null unless asked for and made."""

    text: str
    structured: dict[str, Any] | None
    degraded: bool
    reason: str
    request_id: str
