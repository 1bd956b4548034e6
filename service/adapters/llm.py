"""A language model, through litellm: the only module that knows it.

litellm takes seconds to import, so that only a worker that extracts loads it, in a thread, while it does
other things. Everything that goes wrong becomes one of three errors: `LlmUnavailable` (try again later),
`LlmMisconfigured` (nobody but the operator can help) and `LlmRejected` (this very text is refused). Texts
of the vendor's errors quote what was sent, and are never logged or passed on.
"""

import asyncio
import json
import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from time import monotonic
from types import TracebackType
from typing import Any, Final, Self

from service.errors import LlmMisconfigured, LlmNotAsked, LlmRejected, LlmUnavailable
from service.settings import Settings

_log = logging.getLogger(__name__)

_MISCONFIGURED: Final = frozenset({401, 403, 404})
_REJECTED: Final = frozenset({400, 413, 422})
_LONGEST_WAIT_S: Final = 3600.0
_MOST_ANSWER_TOKENS: Final = 4000
# How long it is believed that a model takes, or refuses, what nobody can object to.
_WELCOME_S: Final = 300.0
_UNWELCOME_S: Final = 60.0
# JSON is named, which some providers require of whoever asks for it.
_HARMLESS: Final = (
    {"role": "system", "content": "Answer with an empty JSON object."},
    {"role": "user", "content": "Hello."},
)


@dataclass(frozen=True, slots=True)
class Completion:
    """What a model has said; `cost_usd` is 0 where its price is not known, `is_cut` if it ran out of room."""

    text: str
    is_cut: bool
    model: str
    prompt_tokens: int
    completion_tokens: int
    cost_usd: float


@dataclass(frozen=True, slots=True)
class Vendor:
    """The imported library, and what it may raise."""

    litellm: Any
    errors: tuple[type[Exception], ...]


class LlmAdapter:
    """One model and the models that stand in for it; open it as an async context manager.

    `api_key` and `base_url` are the first model's. They also go to models of the same provider; a model of
    another one gets neither, and litellm takes its key from the provider's own environment variable.
    """

    def __init__(
        self, models: Sequence[str], *, api_key: str | None, base_url: str | None, timeout_s: float
    ) -> None:
        self._models = tuple(models)
        self._api_key = api_key
        self._base_url = base_url
        self._timeout_s = timeout_s
        # Models that asked for a pause, and when it ends (monotonic seconds).
        self._pauses: dict[str, float] = {}
        # Whether models take what is harmless, and until when that is believed (monotonic seconds).
        self._welcomes: dict[str, tuple[bool, float]] = {}

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """The models that `MEMORY_LLM_*` name."""
        return cls(
            settings.llm_models,
            api_key=settings.llm_api_key.get_secret_value() if settings.llm_api_key else None,
            base_url=settings.llm_base_url,
            timeout_s=settings.llm_timeout_s,
        )

    async def __aenter__(self) -> Self:
        self._loading = asyncio.create_task(asyncio.to_thread(load_vendor))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A thread that imports cannot be stopped.
        await close_clients(await self._loading)

    async def complete(
        self, messages: Sequence[Mapping[str, str]], schema: Mapping[str, Any], *, name: str
    ) -> Completion:
        """What the first model that answers says to `messages`, at temperature 0, as JSON of this `schema`.

        `name` is the schema's. Models that know no schemas are asked for JSON, which may then have another
        shape. Raises the errors that the module describes, of the model that came closest, at the latest
        after `timeout_s` seconds (not counting the first call's wait for litellm itself).
        """
        vendor = await asyncio.shield(self._loading)
        ends = monotonic() + self._timeout_s
        failures: list[LlmUnavailable | LlmMisconfigured | LlmRejected] = []
        for position, model in enumerate(self._models):
            share_s = (ends - monotonic()) / (len(self._models) - position)
            try:
                return await self._ask_or_blame(vendor, model, messages, schema, name, max(0.5, share_s))
            except (LlmUnavailable, LlmMisconfigured, LlmRejected) as exc:
                failures.append(exc)
                _log.warning("llm_failed", extra={"code": exc.code, "position": position})
        # What may pass goes before what only the operator can change, and that before a refusal.
        order = (LlmUnavailable, LlmNotAsked, LlmMisconfigured, LlmRejected)
        raise min(failures, key=lambda failure: order.index(type(failure)))

    async def _ask_or_blame(
        self,
        vendor: Vendor,
        model: str,
        messages: Sequence[Mapping[str, str]],
        schema: Mapping[str, Any],
        name: str,
        timeout_s: float,
    ) -> Completion:
        """As `_ask`; a refusal is the text's fault only if the model takes a harmless one.

        Providers answer 400 also to a parameter or a name that they do not know: all texts would be given up.
        """
        ends = monotonic() + timeout_s
        try:
            return await self._ask(vendor, model, messages, schema, name, timeout_s)
        except LlmRejected:
            is_welcome, until = self._welcomes.get(model, (False, 0.0))
            if until <= monotonic():
                try:
                    # Some tokens every five minutes at most: not worth an account.
                    await self._ask(vendor, model, _HARMLESS, schema, name, max(0.5, ends - monotonic()))
                    is_welcome = True
                except LlmRejected:
                    is_welcome = False
                believed_s = _WELCOME_S if is_welcome else _UNWELCOME_S
                self._welcomes[model] = is_welcome, monotonic() + believed_s
            if is_welcome:
                raise
            raise LlmMisconfigured(
                "The LLM refuses whatever it is asked; check its model and what that supports."
            ) from None

    async def _ask(
        self,
        vendor: Vendor,
        model: str,
        messages: Sequence[Mapping[str, str]],
        schema: Mapping[str, Any],
        name: str,
        timeout_s: float,
    ) -> Completion:
        pause_s = self._pauses.get(model, 0.0) - monotonic()
        if pause_s > 0:
            raise LlmNotAsked("The LLM asked for a pause.", retry_after_s=int(pause_s) + 1)
        if not _is_known(vendor, model, self._base_url):
            raise LlmMisconfigured("The LLM's provider is not known; check MEMORY_LLM_MODEL.")
        is_own = _provider(vendor, model) == _provider(vendor, self._models[0])
        try:
            async with asyncio.timeout(timeout_s):
                response = await vendor.litellm.acompletion(
                    model=model,
                    messages=[dict(message) for message in messages],
                    temperature=0,
                    max_tokens=_MOST_ANSWER_TOKENS,
                    response_format=_format(vendor, model, schema, name),
                    api_key=self._api_key if is_own else None,
                    api_base=self._base_url if is_own else None,
                    # One number for all: litellm keeps a client, and its connections, for each.
                    timeout=self._timeout_s,
                    num_retries=0,
                    max_retries=0,
                    # Some models know no temperature or no response format; the parser copes.
                    drop_params=True,
                )
            return _completion(model, response)
        except TimeoutError as exc:
            raise LlmUnavailable("The LLM does not answer in time.") from exc
        except vendor.errors as exc:
            raise self._error(model, exc) from exc

    def _error(self, model: str, exc: Exception) -> LlmUnavailable | LlmMisconfigured | LlmRejected:
        status = getattr(exc, "status_code", None)
        status = status if isinstance(status, int) else 0
        if status in _MISCONFIGURED:
            return LlmMisconfigured(f"The LLM answers {status}; check its model, key and URL.")
        if status in _REJECTED:
            return LlmRejected(f"The LLM refuses this with {status}.")
        wait_s = _retry_after_s(exc)
        if wait_s:
            self._pauses[model] = monotonic() + wait_s
        return LlmUnavailable(
            f"The LLM answers {status}." if status else "The LLM does not answer.",
            retry_after_s=int(wait_s) if wait_s else None,
        )


def load_vendor() -> Vendor:
    """Litellm, imported so that it reports nothing home and prints nothing of what it is given."""
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    os.environ["LITELLM_LOG"] = "CRITICAL"
    # For some providers it would fetch the pictures that a chat only names, from where this service stands.
    os.environ["MAX_IMAGE_URL_DOWNLOAD_SIZE_MB"] = "0"
    litellm: Any = import_module("litellm")
    litellm.telemetry = False
    litellm.suppress_debug_info = True
    litellm.turn_off_message_logging = True
    for name in ("LiteLLM", "LiteLLM Proxy", "LiteLLM Router"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    # Nearly all of litellm's errors are of its client's family; the rest is what an answer of another shape
    # makes of its parsers.
    family = import_module("openai").OpenAIError
    budget = import_module("litellm.exceptions").BudgetExceededError
    return Vendor(
        litellm, (family, budget, OSError, ValueError, LookupError, TypeError, AttributeError, RuntimeError)
    )


async def close_clients(vendor: Vendor) -> None:
    """End the connections of this process to its models."""
    await vendor.litellm.close_litellm_async_clients()
    # It closes clients, and would hand out the closed ones for ten minutes more.
    vendor.litellm.in_memory_llm_clients_cache.flush_cache()


def _provider(vendor: Vendor, model: str) -> str:
    """Who serves a model: what stands before its first "/", else whom litellm takes it to be of."""
    prefix, slash, _ = model.partition("/")
    if slash:
        return prefix.casefold()
    with suppress(*vendor.errors):  # of a model that litellm has never heard of
        return str(vendor.litellm.get_llm_provider(model)[1])
    return model


def _is_known(vendor: Vendor, model: str, base_url: str | None) -> bool:
    """Whether litellm can tell whose a model is; where not it answers 400, as a provider does to a text."""
    try:
        vendor.litellm.get_llm_provider(model, api_base=base_url)
    except vendor.errors:
        return False
    return True


def _format(vendor: Vendor, model: str, schema: Mapping[str, Any], name: str) -> dict[str, Any]:
    has_schemas = False
    with suppress(*vendor.errors):  # of a model that litellm has never heard of
        has_schemas = bool(vendor.litellm.supports_response_schema(model=model))
    if not has_schemas:
        return {"type": "json_object"}
    return {"type": "json_schema", "json_schema": {"name": name, "schema": dict(schema), "strict": True}}


def _completion(model: str, response: Any) -> Completion:
    choice = response.choices[0]
    usage = getattr(response, "usage", None)
    # None for a model whose price litellm does not know.
    cost_usd = (getattr(response, "_hidden_params", None) or {}).get("response_cost") or 0.0
    content = choice.message.content
    return Completion(
        text=content if isinstance(content, str) else json.dumps(content) if content else "",
        is_cut=choice.finish_reason == "length",
        model=model,
        prompt_tokens=int(getattr(usage, "prompt_tokens", 0) or 0),
        completion_tokens=int(getattr(usage, "completion_tokens", 0) or 0),
        cost_usd=max(0.0, float(cost_usd)),
    )


def _retry_after_s(exc: Exception) -> float:
    """Seconds that a `Retry-After` asks for, if there is one; a date is not worth reading."""
    response = getattr(exc, "response", None)
    headers = getattr(response, "headers", None) or getattr(exc, "litellm_response_headers", None) or {}
    try:
        return min(_LONGEST_WAIT_S, max(0.0, float(headers.get("retry-after", 0))))
    except (TypeError, ValueError):
        return 0.0
