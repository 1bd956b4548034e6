"""What a chat may say about its memory: a `memory` object in its body, or `X-Memory-*` headers.

A field in both with two values is refused, an unknown one too, so that a typo is seen at once. What is
not said is decided by the key's defaults and then by those of all keys (see `gateway_file`).
"""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from service.errors import InvalidRequest
from service.policy.block import language_of
from service.schemas import Flag, OptionalId, RecallRequest, Text, WholeNumber, choice
from service.schemas_review import ReflectRequest
from service.scope import MAX_ID_CHARS

_PREFIX: Final = b"x-memory-"
# More than recall keeps of any query.
_MOST_QUERY_CHARS: Final = 100_000
_MOST_REFLECT_CHARS: Final = 8000
# How many characters a token has, at least: counting tokens exactly would need each model's own tokenizer.
_TOKEN_CHARS: Final = {"zh": 1, "en": 4}
_MOST_TOTAL_CHARS: Final = 100_000


def _listed(value: object) -> object:
    """A list as the comma list it is on every other way in."""
    if isinstance(value, list) and all(isinstance(item, str) and "," not in item for item in value):
        return ",".join(value)
    return value


CommaList = Annotated[str, BeforeValidator(_listed), Field(max_length=2000)]


class MemoryOptions(BaseModel):
    """All that can be said; None means "not said"."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    inject: Flag | None = Field(None, description="false: the model is not shown any memory.")
    store: Flag | None = Field(None, description="false: this turn is not remembered.")
    mode: Annotated[Literal["recall", "reflect"], BeforeValidator(choice)] | None = Field(
        None, description="recall: memories as they are; reflect: an answer thought out from them (slow)."
    )
    injection_mode: Annotated[Literal["system", "user"], BeforeValidator(choice)] | None = Field(
        None, description="Into the system message, or in front of the last user message."
    )
    query: Text | None = Field(None, description="What to look for; else the last user message.")
    kinds: CommaList | None = Field(None, description="Only these kinds.")
    fact_types: CommaList | None = Field(None, description="Only these of world, experience, observation.")
    tags: CommaList | None = Field(None, description="Only memories with these tags; also put on the turn.")
    store_tags: CommaList | None = Field(None, description="Put on the turn instead of `tags`.")
    tags_match: Annotated[Literal["all", "any"], BeforeValidator(choice)] | None = Field(
        None, description="Whether a memory needs all of the tags or any of them."
    )
    budget: Annotated[Literal["low", "mid", "high"], BeforeValidator(choice)] | None = Field(
        None, description="How many candidates are looked at."
    )
    max_memories: WholeNumber | None = Field(None, ge=1, le=50, description="How many memories at most.")
    max_chars: WholeNumber | None = Field(None, ge=1, le=10_000, description="Longest memory, in characters.")
    max_tokens: WholeNumber | None = Field(
        None, ge=1, le=100_000, description="About how many tokens all memories may have."
    )
    min_score: float | None = Field(None, ge=0, le=1, description="Least relevance.")
    language: Annotated[Literal["auto", "zh", "en"], BeforeValidator(choice)] | None = Field(
        None, description="Language of the block."
    )
    fresh: Flag | None = Field(None, description="true: not from the cache.")
    timeout_ms: WholeNumber | None = Field(
        None, ge=1, le=120_000, description="How long the memory may take, in ms."
    )
    context: Text | None = Field(None, max_length=20_000, description="reflect: what else bears on it.")
    response_schema: Any = Field(None, description="reflect: the JSON Schema of an object.")
    exclude_models: CommaList | None = Field(
        None, description="Models that get no memory, as globs: `gpt-4*,*-mini`."
    )
    conversation_id: OptionalId | None = Field(None, description="The conversation this belongs to.")
    turn_id: OptionalId | None = Field(None, description="Names this turn, so that it is stored once.")
    metadata: Any = Field(None, description="An object of short texts for the turn.")
    debug: Flag | None = Field(None, description="true: the reply has a `memory` object.")
    user_id: str | None = Field(None, max_length=MAX_ID_CHARS, description="Instead of `user`.")
    user_token: str | None = Field(None, max_length=4096, description="A user token, for signed keys.")

    @classmethod
    def read(cls, given: object, headers: Iterable[tuple[bytes, bytes]]) -> Self:
        """The options in a body's `memory` and in headers; raises `InvalidRequest` naming a wrong field."""
        if given is not None and not isinstance(given, Mapping):
            raise InvalidRequest("The field memory must be an object.")
        in_body = {name: value for name, value in (given or {}).items() if value is not None}
        in_headers: dict[str, object] = {}
        for raw_name, raw in headers:
            if raw_name.startswith(_PREFIX):
                name = raw_name[len(_PREFIX) :].decode("latin-1").replace("-", "_")
                value = raw.decode("utf-8", "replace").strip()
                if in_headers.get(name, value) != value:
                    raise InvalidRequest("An X-Memory header was sent twice, with two values.")
                in_headers[name] = value
        said = {name: value for name, value in in_headers.items() if value != ""}
        first, second = cls._checked(in_body), cls._checked(said)
        for name in in_body.keys() & said.keys():
            if getattr(first, name) != getattr(second, name):
                raise InvalidRequest(f"memory.{name} and its X-Memory header say two different things.")
        return second.over(first)

    @classmethod
    def _checked(cls, data: Mapping[str, object]) -> Self:
        try:
            return cls.model_validate(data)
        except ValidationError as exc:
            error = exc.errors(include_url=False, include_context=False, include_input=False)[0]
            name = next((str(part) for part in error["loc"]), "")
            if name not in cls.model_fields:
                known = ", ".join(cls.model_fields)
                raise InvalidRequest(
                    f"The memory options have an unknown field; known are: {known}."
                ) from None
            raise InvalidRequest(f"The memory option {name} is not valid.") from None

    def over(self, others: Self) -> Self:
        """These options, and the others' where these say nothing."""
        return others.model_copy(update=self.model_dump(exclude_none=True))

    @property
    def tags_of_turn(self) -> str:
        """The tags that are put on the turn, as a comma list."""
        return (self.tags if self.store_tags is None else self.store_tags) or ""

    def excludes(self, model: str) -> bool:
        """Whether a model gets no memory."""
        globs = (glob.strip() for glob in (self.exclude_models or "").split(","))
        return any(fnmatchcase(model, glob) for glob in globs if glob)

    def most_chars(self, query: str) -> int | None:
        """How long the one text of reflect may be: `max_tokens` and `max_chars`; None for no limit."""
        said = [chars for chars in (self.max_chars, self._most_total_chars(query)) if chars is not None]
        return min(said, default=None)

    def _most_total_chars(self, query: str) -> int | None:
        if self.max_tokens is None:
            return None
        return min(self.max_tokens * _TOKEN_CHARS[language_of(query)], _MOST_TOTAL_CHARS)

    def recall_request(self, query: str, deadline_ms: int) -> RecallRequest:
        """What is asked of recall; raises `InvalidRequest` for lists that are too long."""
        query = (self.query or query)[-_MOST_QUERY_CHARS:]
        fields: dict[str, object] = {
            "user_id": "",
            "query": query,
            "top_k": self.max_memories,
            "max_chars": self.max_chars,
            "kinds": self.kinds,
            "fact_types": self.fact_types,
            "tags": self.tags,
            "tags_match": self.tags_match,
            "budget": self.budget,
            "min_score": self.min_score,
            "language": self.language,
            "fresh": self.fresh,
            "conversation_id": self.conversation_id,
            "timeout_ms": min(self.timeout_ms or deadline_ms, 60_000),
        }
        if (chars := self._most_total_chars(query)) is not None:
            fields["max_total_chars"] = chars
        request = RecallRequest.read({name: value for name, value in fields.items() if value is not None})
        _ = request.tag_list, request.kind_list, request.fact_type_list  # these raise, too
        return request

    def reflect_request(self, query: str) -> ReflectRequest:
        """What is asked of reflect; raises `InvalidRequest` for a schema that cannot be used."""
        fields: dict[str, object] = {
            "user_id": "",
            "query": (self.query or query)[-_MOST_REFLECT_CHARS:],
            "context": self.context,
            "response_schema": self.response_schema,
            "kinds": self.kinds,
            "fact_types": self.fact_types,
            "tags": self.tags,
            "tags_match": self.tags_match,
            "budget": self.budget,
            "timeout_ms": self.timeout_ms,
        }
        request = ReflectRequest.read({name: value for name, value in fields.items() if value is not None})
        _ = request.schema_object
        return request
