"""A deterministic OpenAI-compatible LLM that really serves Hindsight, and shows a chat what it remembers.

As an application: `serve(FakeLlm().app)` of `tests.support`; as a process: `python -m tests.fakes.llm`.

`POST /v1/chat/completions` (also streamed) and `GET /v1/models` are the model's own. A test steers it by
`POST /control` {"mode", "times", "seconds", "kind"}, scripts answers with `POST /script`, reads `GET /calls`
and starts over with `POST /reset`. A chat is answered with the memory lines the model was shown and with
what it was asked, so that a test can tell whether it "knew".
"""

import argparse
import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Literal

import uvicorn
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.fakes.llm_extraction import memories
from tests.fakes.llm_hindsight import (
    Json,
    ToolCall,
    consolidate,
    extract,
    kind_of,
    last_user_text,
    reflect,
    text_of,
)

MODEL = "fake-model"
Mode = Literal[
    "ok", "hang", "400", "401", "500", "429",
    "garbage", "empty", "truncated", "refusal", "slow", "not_json", "cut",
]  # fmt: skip
_MEMORIES = re.compile(r"<user_memories>\n(.*?)</user_memories>", re.DOTALL)
_MEMORY = re.compile(r"^- (?:〔[^〕]*〕 ?)?(.+)$", re.MULTILINE)
_CREATED = 1_700_000_000


class Control(BaseModel):
    """How the model behaves for the next `times` requests (None: until told otherwise).

    ok; hang (until reset); 400; 401; 500; 429 (with Retry-After); garbage (prose, not what was asked for);
    empty (no text); truncated (half the text, finish_reason length); refusal; slow (`seconds` first);
    not_json (200 with a body that is not JSON); cut (a stream that ends in the middle).
    `kind` limits it to one kind of request, `retry_after` is for 429.
    """

    model_config = ConfigDict(extra="forbid")

    mode: Mode
    times: int | None = None
    seconds: float = 0.0
    kind: str | None = None
    retry_after: str = "1"


class Scripted(BaseModel):
    """An answer for requests whose messages contain a text; the first that fits is given, every time."""

    model_config = ConfigDict(extra="forbid")

    contains: str
    content: str


def remembered(request: Json) -> list[str]:
    """The memory lines that a request shows the model."""
    whole = "\n".join(text_of(message) for message in request["messages"])
    return [line.strip() for block in _MEMORIES.findall(whole) for line in _MEMORY.findall(block)]


def chat(request: Json) -> str:
    """An answer that says what the model was shown and asked."""
    known = remembered(request)
    knows = "I remember: " + " / ".join(known) if known else "I remember nothing"
    return f"{knows}. You said: {last_user_text(request)}"


def answer(request: Json, kind: str) -> str | ToolCall:
    """What the model says to a request of a kind when nothing is wrong."""
    if kind == "ping":
        return "ok"
    if kind == "memories":
        return memories(last_user_text(request))
    if kind == "extraction":
        return extract(request)
    if kind == "consolidation":
        return consolidate(request)
    return reflect(request) if kind == "reflect" else chat(request)


def _spoiled(said: str | ToolCall, mode: Mode) -> Json:
    """A message, and why it ended, in which the model behaves as told."""
    if isinstance(said, ToolCall) and mode not in ("empty", "refusal", "garbage"):
        call_id = f"call_{said.name}"
        arguments = json.dumps(said.arguments, ensure_ascii=False)
        if mode == "truncated":
            arguments = arguments[: len(arguments) // 2]
        function = {"name": said.name, "arguments": arguments}
        calls = [{"id": call_id, "type": "function", "function": function}]
        reason = "length" if mode == "truncated" else "tool_calls"
        return {"content": None, "tool_calls": calls, "finish_reason": reason}
    text = said if isinstance(said, str) else json.dumps(said.arguments, ensure_ascii=False)
    if mode == "garbage":
        return {"content": "Sure! Here is {what you asked for: 好的", "finish_reason": "stop"}
    if mode == "empty":
        return {"content": "", "finish_reason": "stop"}
    if mode == "truncated":
        return {"content": text[: len(text) // 2], "finish_reason": "length"}
    if mode == "refusal":
        return {"content": None, "refusal": "I cannot help with that.", "finish_reason": "stop"}
    return {"content": text, "finish_reason": "stop"}


def _usage(request: Json, message: Json) -> Json:
    asked = sum(len(text_of(m)) for m in request["messages"]) // 4 + 1
    said = len(message.get("content") or "") // 4 + 1
    return {"prompt_tokens": asked, "completion_tokens": said, "total_tokens": asked + said}


def _completion(request: Json, message: Json, number: int) -> JSONResponse:
    reason = message.pop("finish_reason")
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": reason}
    body = {"id": f"chatcmpl-{number}", "object": "chat.completion", "created": _CREATED}
    body |= {"model": request.get("model") or MODEL, "choices": [choice], "usage": _usage(request, message)}
    return JSONResponse(body)


async def _chunks(request: Json, message: Json, number: int, mode: Mode) -> AsyncIterator[str]:
    base = {"id": f"chatcmpl-{number}", "object": "chat.completion.chunk", "created": _CREATED}
    base["model"] = request.get("model") or MODEL
    reason = message.pop("finish_reason")

    def line(delta: Json, finish_reason: str | None = None) -> str:
        choices = [{"index": 0, "delta": delta, "finish_reason": finish_reason}]
        return f"data: {json.dumps({**base, 'choices': choices}, ensure_ascii=False)}\n\n"

    yield line({"role": "assistant", "content": ""})
    text = message.get("content") or ""
    pieces = [text[start : start + 8] for start in range(0, len(text), 8)]
    for number_sent, piece in enumerate(pieces):
        if mode == "cut" and number_sent >= len(pieces) // 2:
            return
        yield line({"content": piece})
    for key in ("refusal", "tool_calls"):
        if message.get(key):
            value = message[key]
            yield line({key: [{"index": 0, **call} for call in value] if key == "tool_calls" else value})
    yield line({}, reason)
    if (request.get("stream_options") or {}).get("include_usage"):
        usage = {**base, "choices": [], "usage": _usage(request, message)}
        yield f"data: {json.dumps(usage)}\n\n"
    yield "data: [DONE]\n\n"


def _error(status: int, message: str, headers: dict[str, str] | None = None) -> JSONResponse:
    body = {"error": {"message": message, "type": "fake", "code": str(status)}}
    return JSONResponse(body, status, headers=headers)


class FakeLlm:
    """One model with what it was told and asked. `app` is its HTTP side; a test may read `calls` itself."""

    def __init__(self) -> None:
        self.controls: list[Control] = []
        self.script: list[Scripted] = []
        self.calls: list[Json] = []
        self._released = asyncio.Event()
        self.app = Starlette(
            routes=[
                Route("/v1/chat/completions", self._completions, methods=["POST"]),
                Route("/v1/models", self._models),
                Route("/control", self._control, methods=["POST"]),
                Route("/script", self._script, methods=["POST"]),
                Route("/calls", self._calls),
                Route("/reset", self._reset, methods=["POST"]),
            ]
        )

    def calls_for(self, kind: str) -> list[Json]:
        """The requests of one kind, oldest first."""
        return [call for call in self.calls if call["kind"] == kind]

    def behave(
        self, mode: Mode, *, times: int | None = None, seconds: float = 0, kind: str | None = None
    ) -> None:
        """Plan how the next `times` requests of a kind go (None: all, of any kind); `ok` ends all plans."""
        self._plan(Control(mode=mode, times=times, seconds=seconds, kind=kind))

    def reset(self) -> None:
        """Forget everything and let go of requests that hang."""
        self.controls.clear()
        self.script.clear()
        self.calls.clear()
        self._released.set()
        self._released = asyncio.Event()

    def _plan(self, control: Control) -> None:
        if control.mode == "ok":
            self.controls.clear()
        else:
            self.controls.append(control)

    def _take(self, kind: str) -> Control:
        for control in self.controls:
            if control.kind not in (None, kind):
                continue
            if control.times is not None:
                control.times -= 1
                if control.times <= 0:
                    self.controls.remove(control)
            return control
        return Control(mode="ok")

    def _scripted(self, request: Json) -> str | None:
        whole = "\n".join(text_of(message) for message in request["messages"])
        return next((one.content for one in self.script if one.contains in whole), None)

    async def _completions(self, http: Request) -> Response:
        request: Json = await http.json()
        if not isinstance(request.get("messages"), list) or not request["messages"]:
            return _error(400, "messages must be a list of messages")
        kind = kind_of(request)
        authorization = http.headers.get("authorization", "")
        call = {"kind": kind, "authorization": authorization, "request": request}
        # Which connection it came by.
        self.calls.append(call | {"client": http.client and list(http.client)})
        number = len(self.calls)
        control = self._take(kind)
        if (failed := await self._failure(control)) is not None:
            return failed
        message = _spoiled(self._scripted(request) or answer(request, kind), control.mode)
        if request.get("stream"):
            chunks = _chunks(request, message, number, control.mode)
            return StreamingResponse(chunks, media_type="text/event-stream")
        return _completion(request, message, number)

    async def _failure(self, control: Control) -> Response | None:
        """The reply of a request that does not get as far as the model."""
        if control.mode == "hang":
            await self._released.wait()
            return _error(503, "let go")
        if control.mode == "slow":
            await asyncio.sleep(control.seconds)
        if control.mode in ("400", "401", "500"):
            return _error(int(control.mode), "planned fault")
        if control.mode == "429":
            return _error(429, "planned fault", {"Retry-After": control.retry_after})
        if control.mode == "not_json":
            return Response("<html>bad gateway</html>", media_type="text/html")
        return None

    async def _models(self, _http: Request) -> Response:
        model = {"id": MODEL, "object": "model", "created": _CREATED, "owned_by": "tests"}
        return JSONResponse({"object": "list", "data": [model]})

    async def _control(self, http: Request) -> Response:
        try:
            self._plan(Control.model_validate(await http.json()))
        except ValidationError as exc:
            return _error(422, str(exc))
        return JSONResponse({"planned": len(self.controls)})

    async def _script(self, http: Request) -> Response:
        try:
            self.script.append(Scripted.model_validate(await http.json()))
        except ValidationError as exc:
            return _error(422, str(exc))
        return JSONResponse({"scripted": len(self.script)})

    async def _calls(self, _http: Request) -> Response:
        return JSONResponse(self.calls)

    async def _reset(self, _http: Request) -> Response:
        self.reset()
        return JSONResponse({})


def main() -> None:
    """Run the model until it is stopped."""
    parser = argparse.ArgumentParser(description="A deterministic OpenAI-compatible LLM, for tests.")
    parser.add_argument("--port", type=int, required=True)
    arguments = parser.parse_args()
    uvicorn.run(FakeLlm().app, host="127.0.0.1", port=arguments.port, access_log=False, ws="none")


if __name__ == "__main__":
    main()
