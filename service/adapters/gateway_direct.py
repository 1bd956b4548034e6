"""One OpenAI-compatible server, spoken to directly.

There is nothing to translate between it and a client of `/v1`, and litellm in between would cost each
answer some ten milliseconds and each chunk half of one.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

import aiohttp
from pydantic_core import from_json

from service.adapters.gateway_errors import GatewayError, error_for

_log = logging.getLogger(__name__)

_CONNECT_S: Final = 10
_MOST_ERROR_BYTES: Final = 65_536
_FAILURES: Final = (aiohttp.ClientError, TimeoutError, OSError, ValueError, RecursionError)


def _failed(exc: Exception) -> GatewayError:
    _log.warning("model_failed", extra={"kind": type(exc).__name__, "status": 0})
    return error_for(504 if isinstance(exc, TimeoutError) else 0)


@dataclass(slots=True)
class DirectUpstream:
    """An answer that streams: iterate once, close always."""

    _response: aiohttp.ClientResponse

    async def chunks(self) -> AsyncIterator[list[dict[str, Any]]]:
        """The chunks as they come, together if they have come together.

        Raises a `GatewayError`, also for a stream that ends too soon.
        """
        is_over = False
        try:
            async for events in self._events():
                batch: list[dict[str, Any]] = []
                try:
                    for data in events:
                        if data == b"[DONE]":
                            is_over = True
                            return
                        chunk = _read(data)
                        is_over = _checked(chunk, "delta") or is_over
                        batch.append(chunk)
                finally:
                    # Also what came before the end, and before what cannot be read.
                    if batch:
                        yield batch
        except _FAILURES as exc:
            raise _failed(exc) from exc
        if not is_over:
            _log.warning("model_failed", extra={"kind": "cut", "status": 200})
            raise error_for(0)

    async def _events(self) -> AsyncIterator[list[bytes]]:
        rest = b""
        async for piece in self._response.content.iter_any():
            *lines, rest = (rest + piece).split(b"\n")
            yield [line[5:].strip() for line in lines if line.startswith(b"data:")]
        if rest.startswith(b"data:"):
            yield [rest[5:].strip()]

    async def close(self) -> None:
        """Hang up; the server stops. Can be repeated."""
        self._response.close()


class OpenAiServer:
    """A server at `base_url` (with its /v1) and its model; open it as an async context manager."""

    def __init__(self, model: str, *, base_url: str, api_key: str | None, timeout_s: float) -> None:
        self._model = model
        self._url = f"{base_url.rstrip('/')}/chat/completions"
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._timeout_s = timeout_s

    async def __aenter__(self) -> Self:
        # Between two pieces of a stream as much time may pass as before the first; all of it, any.
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=self._timeout_s)
        connector = aiohttp.TCPConnector(limit=0)
        self._session = aiohttp.ClientSession(timeout=timeout, connector=connector, trust_env=True)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def complete(
        self, messages: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]
    ) -> dict[str, Any]:
        """A `chat.completion`; raises a `GatewayError`, at the latest when the time is over."""
        try:
            async with asyncio.timeout(self._timeout_s):
                response = await self._post({**parameters, "messages": messages, "model": self._model})
                async with response:
                    answer = json.loads(await response.read())
            _checked(answer, "message")
        except _FAILURES as exc:
            raise _failed(exc) from exc
        whole: dict[str, Any] = answer
        return whole

    async def stream(
        self, messages: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]
    ) -> DirectUpstream:
        """The same as a stream, once the server has begun to answer."""
        body = {**parameters, "messages": messages, "model": self._model, "stream": True}
        try:
            async with asyncio.timeout(self._timeout_s):
                response = await self._post(body)
        except _FAILURES as exc:
            raise _failed(exc) from exc
        if response.content_type != "text/event-stream":
            response.close()
            raise _failed(ValueError("no stream"))
        return DirectUpstream(response)

    async def _post(self, body: Mapping[str, Any]) -> aiohttp.ClientResponse:
        data = json.dumps(body, ensure_ascii=False).encode()
        headers = {**self._headers, "Content-Type": "application/json"}
        # A redirection could lead our key to somebody else.
        response = await self._session.post(self._url, data=data, headers=headers, allow_redirects=False)
        if response.status == 200:
            return response
        async with response:
            code = _code_in(await response.content.read(_MOST_ERROR_BYTES))
        _log.warning("model_failed", extra={"kind": "status", "status": response.status})
        raise error_for(response.status, code)


def _read(data: bytes) -> Any:
    """The JSON in `data`; raises `ValueError`."""
    try:
        return from_json(data)  # three times as fast as the standard library's
    except ValueError:
        return json.loads(data)  # which takes half a character, too, as a model may send it


def _checked(answer: Any, part: str) -> bool:
    """Whether any choice says why it ended; raises `ValueError` for what is no answer or holds an error.

    Many servers write `null` for what is not there; such a list of choices is made an empty one, since
    clients go through it.
    """
    if not isinstance(answer, dict) or answer.get("error") is not None:
        raise ValueError("no answer")
    answer.pop("error", None)
    if answer.get("choices") is None:
        answer["choices"] = []
    choices = answer["choices"]
    if not isinstance(choices, list) or (part == "message" and not choices):
        raise ValueError("no answer")
    for choice in choices:
        if not isinstance(choice, dict) or not isinstance(choice.get(part) or {}, dict):
            raise ValueError("no choice")  # noqa: TRY004 - of an answer, not of an argument
    return any(choice.get("finish_reason") for choice in choices)


def _code_in(body: bytes) -> str:
    """OpenAI's code of an error; compared with a few known ones and never passed on."""
    try:
        error = json.loads(body)["error"]
        return str(error["code"] or error["type"])
    except (ValueError, LookupError, TypeError):
        return ""
