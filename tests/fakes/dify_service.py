"""A double of the memory service as `dify-memory doctor` sees it: well, until a test breaks it on purpose."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import parse_qs

from service.policy.dify_document import build_document

KEY = "test-key-0123456789"
_DIAGNOSIS: Mapping[str, Any] = {
    "turns_redis": {"ok": True, "append_only": True, "fsync": "always", "eviction": "noeviction"},
    "hindsight": {"ok": True, "version": "1.1.0", "features": {"llm_trace": False, "audit_log": False}},
    "settings": {"allow_anonymous_users": False},
}
_LOG: Mapping[str, Any] = {
    "ok": True,
    "worker": True,
    "waiting_banks": 0,
    "overdue_s": 0.0,
    "oldest_batch_s": 0.0,
    "dead_letters": 0,
}


@dataclass
class Canned:
    """An answer, after `slow_s`; with a `fault` none, or a byte at a time for ever."""

    status: int = 200
    body: object = None
    headers: Mapping[str, str] = field(default_factory=dict)
    fault: Literal["", "hang", "trickle"] = ""
    slow_s: float = 0.0


@dataclass
class ServiceDouble:
    """An ASGI application; `canned` overrules what a healthy service answers, by path ("*": all)."""

    scopes: frozenset[str] = frozenset({"recall", "add", "review", "forget", "chat", "admin"})
    server_url: str = "https://memory.example.com"
    canned: dict[str, Canned] = field(default_factory=dict)
    log: dict[str, Any] = field(default_factory=lambda: dict(_LOG))
    hindsight_ok: bool = True
    diagnosis: dict[str, dict[str, Any]] = field(
        default_factory=lambda: {name: dict(part) for name, part in _DIAGNOSIS.items()}
    )
    job: dict[str, Any] = field(default_factory=lambda: {"status": "done", "memories_kept": 1, "reason": ""})
    said: dict[str, str] = field(default_factory=dict)
    is_forgetful: bool = True
    is_leaky: bool = False
    calls: list[tuple[str, str]] = field(default_factory=list)

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
        fields = {name: values[0] for name, values in parse_qs(body.decode()).items()}
        headers = {name.decode(): value.decode("latin-1") for name, value in scope["headers"]}
        self.calls.append((path, fields.get("user_id", "")))
        answer = self.canned.get(path) or self.canned.get("*")
        if answer is None:
            status, data = self._healthy(path, headers.get("authorization", ""), fields)
            answer = Canned(status, data)
        await asyncio.sleep(answer.slow_s)
        if answer.fault == "hang":
            await receive()  # returns once the client has gone
            return
        is_text = isinstance(answer.body, str)
        content = str(answer.body).encode() if is_text else json.dumps(answer.body).encode()
        sent = {"content-type": "text/html" if is_text else "application/json", **answer.headers}
        await send(
            {
                "type": "http.response.start",
                "status": answer.status,
                "headers": [(name.encode(), value.encode()) for name, value in sent.items()],
            }
        )
        if answer.fault == "trickle":
            gone = asyncio.create_task(receive())
            while not gone.done():
                await send({"type": "http.response.body", "body": b" ", "more_body": True})
                await asyncio.sleep(0.05)
            return
        await send({"type": "http.response.body", "body": content})

    def _healthy(self, path: str, authorization: str, fields: Mapping[str, str]) -> tuple[int, object]:
        if path == "/health/live":
            return 200, {"status": "alive"}
        if path == "/health/ready":
            parts = {"turns_log": self.log, "hindsight": {"ok": self.hindsight_ok}}
            return 200, {"status": "ok", "parts": parts}
        if path == "/dify/openapi.json":
            return 200, build_document(self.server_url, "1")
        if authorization != f"Bearer {KEY}":
            return 401, {"error": {"code": "key_refused"}}
        return self._authorized(path, fields)

    def _authorized(self, path: str, fields: Mapping[str, str]) -> tuple[int, object]:
        needed = {
            "/memory/recall": "recall",
            "/memory/add": "add",
            "/memory/list": "review",
            "/memory/forget": "forget",
            "/v1/models": "chat",
            "/admin/diagnosis": "admin",
        }
        if path in needed and needed[path] not in self.scopes:
            return 403, {"error": {"code": "scope_missing"}}
        if path == "/admin/diagnosis":
            return 200, self.diagnosis
        if path == "/dify/knowledge/retrieval":
            return 200, {"records": []}
        if path == "/v1/models":
            return 200, {"object": "list", "data": []}
        if path.startswith("/memory/jobs/"):
            return 200, self.job
        user = fields.get("user_id")
        if not user:
            return 422, {"error": {"code": "invalid_request"}}
        return self._about(path, user, fields)

    def _about(self, path: str, user: str, fields: Mapping[str, str]) -> tuple[int, object]:
        if path == "/memory/add":
            self.said[user] = fields["user_message"]
            return 202, {"status": "queued", "job_id": "j-1"}
        if path == "/memory/forget":
            if self.is_forgetful:
                self.said.pop(user, None)
            return 200, {"verified": True}
        known = list(self.said.values()) if self.is_leaky else [self.said[user]] if user in self.said else []
        memories = [{"text": text} for text in known]
        return 200, {"memories": memories, "degraded": False, "reason": ""}
