"""A double of the memory service as Dify's flows see it: it writes down each call and answers as told."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl


@dataclass(frozen=True)
class Call:
    """One request: the fields in the order they came, pairs and not a dictionary, so that none hides."""

    path: str
    fields: tuple[tuple[str, str], ...]
    headers: Mapping[str, str]

    def __getitem__(self, name: str) -> str:
        """The one value of a field."""
        (value,) = [value for key, value in self.fields if key == name]
        return value


@dataclass
class MemoryDouble:
    """An ASGI application; `replies` by path are (status, media type, body), `holds` are waited for."""

    calls: list[Call] = field(default_factory=list)
    replies: dict[str, tuple[int, str, str]] = field(default_factory=dict)
    holds: dict[str, asyncio.Event] = field(default_factory=dict)

    def calls_of(self, path: str) -> list[Call]:
        """The calls of one path, oldest first."""
        return [call for call in self.calls if call.path == path]

    def answer_json(self, path: str, body: object, status: int = 200) -> None:
        """Answer with JSON rendered as the service renders it."""
        self.replies[path] = (status, "application/json", json.dumps(body, ensure_ascii=False))

    async def __call__(self, scope: Mapping[str, Any], receive: Any, send: Any) -> None:
        """Handle one request."""
        if scope["type"] == "lifespan":
            return
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        path = scope["path"]
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        assert headers["content-type"] == "application/x-www-form-urlencoded", headers
        pairs = parse_qsl(body.decode("ascii"), keep_blank_values=True, strict_parsing=True)
        self.calls.append(Call(path, tuple(pairs), headers))
        if path in self.holds:
            await self.holds[path].wait()
        default = (202, "application/json", '{"status": "queued"}')
        status, media_type, text = self.replies.get(
            path, (200, "text/plain; charset=utf-8", "") if path == "/memory/recall" else default
        )
        await send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [(b"content-type", media_type.encode())],
            }
        )
        await send({"type": "http.response.body", "body": text.encode()})
