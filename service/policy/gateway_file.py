"""The models behind `/v1`, and what each key's chats do with memory: `MEMORY_GATEWAY_MODELS_FILE`.

Models and routing are written as litellm's own proxy reads them, so that a file of it can be used:

    model_list:
      - model_name: fast                      # what a client asks for
        litellm_params: {model: openai/gpt-4o-mini, api_key: os.environ/OPENAI_API_KEY}
      - model_name: careful
        litellm_params: {model: anthropic/claude-sonnet-4-5, api_key: os.environ/ANTHROPIC_API_KEY}
    router_settings: {fallbacks: [{fast: [careful]}]}
    memory:
      exclude_models: [careful]
      defaults: {max_memories: 8}             # any option of a chat
      keys: {3f9c2a10: {mode: reflect}}       # by id of the key
"""

from collections.abc import Mapping
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from service.policy.chat_options import MemoryOptions
from service.policy.policy_mistakes import Mistake, PolicyFileError


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class _Params(_Part):
    """Whatever litellm takes for one deployment."""

    model_config = ConfigDict(extra="allow", frozen=True, hide_input_in_errors=True)

    model: str = Field(min_length=1, max_length=200)


class Deployment(_Part):
    """One model at one place; several of one name share the load."""

    model_config = ConfigDict(extra="ignore", frozen=True, hide_input_in_errors=True)

    model_name: str = Field(min_length=1, max_length=200)
    litellm_params: _Params


class Routing(_Part):
    """litellm's own words; see its documentation of the router."""

    fallbacks: list[dict[str, list[str]]] = Field(default_factory=list)
    context_window_fallbacks: list[dict[str, list[str]]] = Field(default_factory=list)
    content_policy_fallbacks: list[dict[str, list[str]]] = Field(default_factory=list)
    num_retries: int = Field(0, ge=0, le=10)
    routing_strategy: str = Field("simple-shuffle", max_length=64)
    allowed_fails: int = Field(3, ge=0, le=1000)
    cooldown_time: float = Field(5, ge=0, le=3600)


class MemoryRules(_Part):
    """Defaults of the options of a chat, for all keys and for one."""

    defaults: MemoryOptions = Field(default_factory=MemoryOptions)
    keys: dict[str, MemoryOptions] = Field(default_factory=dict)
    exclude_models: list[str] = Field(default_factory=list)

    def for_key(self, key_id: str) -> MemoryOptions:
        """What holds for a key unless a request says otherwise."""
        options = self.keys.get(key_id, MemoryOptions()).over(self.defaults)
        if options.exclude_models is None and self.exclude_models:
            return options.model_copy(update={"exclude_models": ",".join(self.exclude_models)})
        return options


class GatewayFile(_Part):
    """The whole file."""

    model_list: list[Deployment] = Field(min_length=1)
    router_settings: Routing = Field(default_factory=Routing)
    memory: MemoryRules = Field(default_factory=MemoryRules)

    @property
    def names(self) -> tuple[str, ...]:
        """What a client may ask for, in the file's order."""
        return tuple(dict.fromkeys(deployment.model_name for deployment in self.model_list))

    @property
    def deployments(self) -> list[dict[str, Any]]:
        """`model_list` as litellm's router wants it."""
        return [deployment.model_dump() for deployment in self.model_list]


def read_gateway_file(text: str) -> GatewayFile:
    """The file in `text`; raises `PolicyFileError`, which says what is wrong and never quotes a value."""
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as exc:
        mark = getattr(exc, "problem_mark", None)
        line = mark.line + 1 if mark else 1
        raise PolicyFileError((Mistake(line, "this is not YAML"),)) from None
    if not isinstance(data, Mapping):
        raise PolicyFileError((Mistake(1, "the file must have a model_list"),))
    try:
        return GatewayFile.model_validate(data)
    except ValidationError as exc:
        mistakes = tuple(
            Mistake(1, f"{'.'.join(str(part) for part in error['loc'])}: {error['msg']}")
            for error in exc.errors(include_url=False, include_context=False, include_input=False)
        )
        raise PolicyFileError(mistakes) from None
