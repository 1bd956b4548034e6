"""The request bodies and queries that the Hindsight stand-in accepts, with Hindsight 1.1's own refusals."""

import re
import unicodedata
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, Field, model_validator

from tests.fakes.hindsight_search import instant
from tests.fakes.hindsight_store import Refused

TagsMatch = Literal["any", "all", "any_strict", "all_strict", "exact"]


class Budget(StrEnum):
    LOW = "low"
    MID = "mid"
    HIGH = "high"


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("content cannot be empty")
    return text


def _has_a_word(text: str) -> str:
    if not re.search(r"\w", unicodedata.normalize("NFKC", text)):
        raise ValueError("query must contain at least one word character after normalization")
    return text


def _as_time(text: str) -> str:
    if text == "unset":
        return text
    try:
        return instant(text, "timestamp").isoformat()
    except Refused:
        raise ValueError(f"Invalid timestamp/event_date format: {text!r}.") from None


def _is_uuid(text: str) -> str:
    if not re.fullmatch(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", text):
        raise ValueError("operation_id must be a valid UUID")
    return text


class Item(BaseModel):
    content: Annotated[str, AfterValidator(_not_blank)]
    timestamp: Annotated[str, AfterValidator(_as_time)] | None = None
    context: str | None = None
    metadata: dict[str, str] | None = None
    document_id: str | None = None
    entities: list[dict[str, str | None]] | None = None
    resolve_entities: bool = True
    tags: list[str] | None = None
    observation_scopes: (
        Literal["per_tag", "combined", "all_combinations", "shared"] | list[list[str]] | None
    ) = None
    strategy: str | None = None
    update_mode: Literal["replace", "append"] | None = None


class Retain(BaseModel):
    items: list[Item]
    is_async: bool = Field(False, alias="async")
    document_tags: list[str] | None = None
    operation_id: Annotated[str, AfterValidator(_is_uuid)] | None = None


class Recall(BaseModel):
    query: Annotated[str, AfterValidator(_has_a_word)]
    types: list[str] | None = None
    prefer_observations: bool | None = None
    budget: Budget = Budget.MID
    max_tokens: int = 4096
    tags: list[str] | None = None
    tags_match: TagsMatch = "any"
    min_scores: dict[str, float | None] | None = None


class TagGroup(BaseModel):
    tags: list[str]
    match: TagsMatch = "any_strict"


class Reflect(BaseModel):
    query: str
    budget: Budget = Budget.LOW
    response_schema: dict[str, Any] | None = None
    fact_types: list[str] | None = None
    tag_groups: list[TagGroup] | None = None
    include: dict[str, Any] | None = None


class MemoryUpdate(BaseModel):
    text: str | None = None
    context: str | None = None
    state: str | None = None
    reason: str | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not self.model_fields_set:
            raise ValueError("Provide at least one field to update.")
        if self.state not in (None, "valid", "invalidated"):
            raise ValueError("state must be 'valid' or 'invalidated'.")
        return self


class ListQuery(BaseModel):
    type: str | None = None
    q: str | None = None
    state: str | None = None
    status: str | None = None
    document_id: str | None = None
    exclude_parents: bool = False
    tags: list[str] | None = None
    tags_match: TagsMatch | None = None
    time_field: str | None = None
    start_date: str | None = None
    end_date: str | None = None
    limit: int = Field(100, ge=0)
    offset: int = Field(0, ge=0)


class OperationsQuery(ListQuery):
    limit: int = Field(20, ge=1, le=100)
