"""The doctor's way to a service: one request at a time, each with its own end, each failure with a name."""

import asyncio
import json
import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self
from urllib.parse import urlsplit

import httpx

_MOST_BYTES = 2_000_000

Status = Literal["ok", "warn", "fail", "skipped"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found: `code` is stable and names a text, `facts` fill it in."""

    check: str
    status: Status
    code: str
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Answer:
    """One HTTP reply; `data` is its JSON object, empty when it is none."""

    place: str
    status: int
    headers: httpx.Headers
    data: Mapping[str, Any]
    ms: float


class Trouble(Exception):
    """A request that did not end in an answer of the memory service; `code` and `facts` as in a finding."""

    def __init__(self, code: str, /, **facts: str) -> None:
        super().__init__(code)
        self.code = code
        self.facts = facts

    def finding(self, check: str) -> Finding:
        """The same as a failed check."""
        return Finding(check, "fail", self.code, self.facts)


class ServiceClient:
    """Talks to the service at `base_url`; open it as an async context manager.

    Redirects are not followed and no proxy of the environment is used: what is looked at is this very
    address. No request takes longer than `timeout_s`, however slowly its answer trickles.
    """

    def __init__(self, base_url: str, key: str, timeout_s: float) -> None:
        self.base_url = base_url
        self._key = key
        self._timeout_s = timeout_s

    async def __aenter__(self) -> Self:
        self._client = httpx.AsyncClient(
            base_url=self.base_url,
            timeout=self._timeout_s,
            trust_env=False,
            # The system's authorities; loading them takes longer than a request without any.
            verify=ssl.create_default_context() if self.base_url.startswith("https:") else False,
            headers={"User-Agent": "dify-memory-doctor"},
        )
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._client.aclose()

    async def ask(
        self,
        method: str,
        path: str,
        *,
        has_key: bool = True,
        timeout_s: float | None = None,
        params: Mapping[str, str] | None = None,
        **fields: str,
    ) -> Answer:
        """Send one request (with `fields` as a form) and read its JSON answer, whatever its status.

        Raises `Trouble` when there is none, or one that is no answer of ours.
        """
        limit_s = timeout_s or self._timeout_s
        place = urlsplit(self.base_url).netloc
        request = self._client.build_request(
            method,
            path,
            data=fields or None,
            params=params,
            headers={"Authorization": f"Bearer {self._key}"} if has_key else {},
            timeout=limit_s,
        )
        started = time.perf_counter()
        try:
            async with asyncio.timeout(limit_s):
                reply = await self._client.send(request, stream=True)
                body = await _body(reply)
        except (httpx.TimeoutException, TimeoutError) as exc:
            raise Trouble("timeout", place=place, seconds=f"{limit_s:g}") from exc
        except httpx.ConnectError as exc:
            raise Trouble(_why_not_connected(exc), place=place) from exc
        except httpx.HTTPError as exc:
            raise Trouble("broken", place=place) from exc
        ms = (time.perf_counter() - started) * 1000
        if reply.is_redirect:
            target = urlsplit(reply.headers.get("location", ""))
            location = f"{target.scheme}://{target.netloc}" if target.netloc else target.path
            raise Trouble("redirect", place=place, location=location)
        data = _object_in(body)
        if data is None:
            kind = reply.headers.get("content-type", "").split(";")[0] or "?"
            raise Trouble("not_ours", place=place + path, status=str(reply.status_code), type=kind)
        return Answer(place + path, reply.status_code, reply.headers, data, ms)

    async def ask_for(self, method: str, path: str, *statuses: int, **rest: Any) -> Answer:
        """The same, with one of these statuses; `Trouble` for any other."""
        answer = await self.ask(method, path, **rest)
        if answer.status not in statuses:
            raise refusal(answer)
        return answer


def refusal(answer: Answer) -> Trouble:
    """What an answer with an unexpected status means."""
    error = answer.data.get("error")
    code = error.get("code") if isinstance(error, Mapping) else None
    request_id = answer.headers.get("x-request-id", "?")
    return Trouble(
        "failed", place=answer.place, status=str(answer.status), code=str(code or "?"), request=request_id
    )


async def _body(reply: httpx.Response) -> bytes:
    """The body, or its beginning when it is far too long to be ours."""
    body = b""
    try:
        async for chunk in reply.aiter_bytes():
            body += chunk
            if len(body) > _MOST_BYTES:
                break
    finally:
        await reply.aclose()
    return body


def _object_in(body: bytes) -> Mapping[str, Any] | None:
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def _why_not_connected(error: BaseException) -> str:
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, ssl.SSLCertVerificationError):
            return "tls"
        if isinstance(seen, ssl.SSLError):
            return "tls_mismatch"
        if isinstance(seen, socket.gaierror):
            return "dns"
        seen = seen.__cause__ or seen.__context__
    return "refused"
