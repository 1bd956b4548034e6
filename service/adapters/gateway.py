"""The models behind `/v1`, through litellm's router: routing, fallbacks and every provider it knows.

Only a process that serves these models loads litellm, in a thread, while it starts; the first request
waits for it. A request can steer the model and nothing else: of its fields only those of `PARAMETERS` go
on, so that nobody can name another server for our key to be sent to. Texts of the vendor's errors quote
what was sent, and are never logged or passed on.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

from service.adapters.gateway_direct import DirectUpstream, OpenAiServer
from service.adapters.gateway_errors import GatewayError, ModelMissing, error_for
from service.adapters.llm import Vendor, close_clients, load_vendor
from service.errors import LlmMisconfigured

_log = logging.getLogger(__name__)

# What OpenAI's API and Dify's provider know. Not `user`: who it is stays here. Not `store` and `metadata`:
# they would keep the chat at the provider's.
PARAMETERS: Final = frozenset(
    {
        "audio", "frequency_penalty", "function_call", "functions", "logit_bias", "logprobs",
        "max_completion_tokens", "max_tokens", "modalities", "n", "parallel_tool_calls", "prediction",
        "presence_penalty", "reasoning_effort", "response_format", "seed", "service_tier", "stop",
        "stream_options", "temperature", "thinking", "tool_choice", "tools", "top_logprobs", "top_p",
        "verbosity", "web_search_options",
    }
)  # fmt: skip
# Further ones that servers of open models take; OpenAI's own would refuse them.
_EXTRAS: Final = frozenset(
    {"chat_template_kwargs", "enable_thinking", "min_p", "repetition_penalty", "top_k"}
)
_TOO_LONG: Final = "ContextWindowExceededError"
_FILTERED: Final = "ContentPolicyViolationError"


@dataclass(frozen=True, slots=True)
class Upstream:
    """An answer that streams: iterate once, close always."""

    _source: Any
    _gateway: "Gateway"

    async def chunks(self) -> AsyncIterator[list[dict[str, Any]]]:
        """`chat.completion.chunk` objects as they come; raises what `Gateway` says, also in the middle."""
        try:
            async for chunk in self._source:
                yield [chunk.model_dump(exclude_none=True, exclude_unset=True)]
        except self._gateway.errors as exc:
            raise self._gateway.error(exc) from exc

    async def close(self) -> None:
        """Hang up; the provider stops. Can be repeated."""
        try:
            await self._source.aclose()
        except self._gateway.errors as exc:
            _log.debug("upstream_close_failed", extra={"kind": type(exc).__name__})


class Gateway:
    """The models of one process; open it as an async context manager.

    `names` are what clients may ask for, the first one also as `memory`; `deployments` and `routing` are
    litellm's `model_list` and arguments of its router. `direct` stands in for all of litellm, which is
    then not loaded.
    """

    ALIAS: Final = "memory"

    def __init__(
        self,
        names: Sequence[str],
        deployments: Sequence[Mapping[str, Any]],
        routing: Mapping[str, Any],
        *,
        timeout_s: float,
        direct: OpenAiServer | None = None,
    ) -> None:
        self._direct = direct
        self._real = tuple(names)
        self._deployments = [dict(deployment) for deployment in deployments]
        self._routing = dict(routing)
        self._timeout_s = timeout_s
        self.errors: tuple[type[Exception], ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """All names, `memory` first."""
        return tuple(dict.fromkeys((self.ALIAS, *self._real)))

    async def __aenter__(self) -> Self:
        if self._direct is not None:
            await self._direct.__aenter__()
            return self
        self._loading = asyncio.create_task(asyncio.to_thread(self._load))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._direct is not None:
            await self._direct.__aexit__(kind, error, trace)
            return
        # A thread that imports cannot be stopped.
        vendor, _ = await self._loading
        await close_clients(vendor)

    def _load(self) -> tuple[Vendor, Any]:
        vendor = load_vendor()
        # To guess the tokens of a picture it would fetch it; what the models count themselves is passed on.
        vendor.litellm.disable_token_counter = True
        routing = {
            "num_retries": 0,
            # A lone model that is put aside for a while would only turn one error into several.
            "disable_cooldowns": len(self._deployments) == 1,
            **self._routing,
        }
        try:
            router = vendor.litellm.Router(
                model_list=self._deployments, set_verbose=False, timeout=self._timeout_s, **routing
            )
        except vendor.errors as exc:
            # A model of no provider that litellm knows, for one; the memory has to be served all the same.
            _log.error("gateway_not_set_up", extra={"kind": type(exc).__name__})
            router = None
        return vendor, router

    def model_of(self, name: object) -> str:
        """The real name of a model that is asked for; raises `ModelMissing`."""
        if name == self.ALIAS and self.ALIAS not in self._real:
            return self._real[0]
        if isinstance(name, str) and name in self._real:
            return name
        raise ModelMissing("There is no model of that name; GET /v1/models lists those there are.")

    async def complete(
        self, model: str, messages: Sequence[Mapping[str, Any]], body: Mapping[str, Any]
    ) -> dict[str, Any]:
        """A `chat.completion`; `model` is a real name, of `body` only known parameters go on."""
        if self._direct is not None:
            return await self._direct.complete(messages, _parameters(body, is_streamed=False))
        answer = await self._ask(model, messages, body, is_streamed=False)
        dumped: dict[str, Any] = answer.model_dump(exclude_none=True)
        for choice in dumped.get("choices", ()):
            choice.get("message", {}).setdefault("content", None)
        return dumped

    async def stream(
        self, model: str, messages: Sequence[Mapping[str, Any]], body: Mapping[str, Any]
    ) -> Upstream | DirectUpstream:
        """The same as a stream, once the model has begun to answer."""
        if self._direct is not None:
            return await self._direct.stream(messages, _parameters(body, is_streamed=True))
        return Upstream(await self._ask(model, messages, body, is_streamed=True), self)

    async def _ask(
        self,
        model: str,
        messages: Sequence[Mapping[str, Any]],
        body: Mapping[str, Any],
        *,
        is_streamed: bool,
    ) -> Any:
        vendor, router = await asyncio.shield(self._loading)
        self.errors = vendor.errors
        if router is None:
            raise LlmMisconfigured(
                "The models behind /v1 cannot be set up: the operator has to check their names "
                "(provider/model, like openai/gpt-4o-mini) and routing."
            )
        known = _parameters(body, is_streamed=is_streamed)
        if extras := {name: known.pop(name) for name in _EXTRAS & known.keys()}:
            known["extra_body"] = extras
        try:
            return await router.acompletion(
                model=model,
                messages=[dict(message) for message in messages],
                stream=is_streamed,
                timeout=self._timeout_s,
                # Providers differ in what they know; the rest of a request is still worth an answer.
                drop_params=True,
                **known,
            )
        except vendor.errors as exc:
            raise self.error(exc) from exc

    def error(self, exc: Exception) -> GatewayError:
        """Ours for one of the vendor's, without its text."""
        kinds = {kind.__name__ for kind in type(exc).__mro__}
        status = getattr(exc, "status_code", None)
        status = status if isinstance(status, int) else 0
        _log.warning("model_failed", extra={"kind": type(exc).__name__, "status": status})
        if _TOO_LONG in kinds:
            return error_for(status, "context_length_exceeded")
        if _FILTERED in kinds:
            return error_for(status, "content_filter")
        return error_for(504 if isinstance(exc, TimeoutError) else status)


def _parameters(body: Mapping[str, Any], *, is_streamed: bool) -> dict[str, Any]:
    """The fields of a request that go on."""
    names = PARAMETERS | _EXTRAS if is_streamed else (PARAMETERS | _EXTRAS) - {"stream_options"}
    return {name: value for name, value in body.items() if name in names and value is not None}
