"""An API with a model behind `/v1`, that model's stand-in, and OpenAI's own client."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
from openai import AsyncOpenAI
from service.scope import bank_of
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from tests.fakes.hindsight import HindsightStandIn
from tests.fakes.llm import FakeLlm
from tests.integration.conftest import KEY, Api, Workshop, open_workshop, run_api, settings_for
from tests.support import RedisServer, serve

MODEL = "openai/fake-model"
Json = dict[str, Any]


@dataclass
class World:
    """All parts; `client` is OpenAI's, with the key of all scopes and no retries of its own."""

    api: Api
    llm: FakeLlm
    hindsight: HindsightStandIn
    workshop: Workshop
    client: AsyncOpenAI
    stack: AsyncExitStack = field(repr=False)

    async def client_with(self, key: str, **options: Any) -> AsyncOpenAI:
        """Another client."""
        made = AsyncOpenAI(api_key=key, base_url=f"{self.api.url}/v1", max_retries=0, **options)
        return await self.stack.enter_async_context(made)

    async def made(self, **fields: Any) -> AsyncOpenAI:
        """A client with a key that was made for it."""
        body = {"name": "n", "scopes": "chat", **fields}
        reply = await self.api.client.post("/admin/keys", json=body)
        assert reply.status_code == 201, reply.text
        return await self.client_with(reply.json()["key"])

    async def post(self, body: Json, **headers: str) -> httpx.Response:
        """A chat without OpenAI's client."""
        # The first one waits until litellm is loaded, which takes a busy machine half a minute.
        return await self.api.client.post("/v1/chat/completions", json=body, headers=headers, timeout=120)

    async def settle(self) -> None:
        """Store all that was accepted."""
        while await self.workshop.work():
            pass

    async def knows(self, user: str, text: str) -> None:
        """Let a user's memory hold a text."""
        reply = await self.api.add(user, text)
        assert reply.status_code == 202, reply.text
        await self.settle()

    def stored(self, user: str, tenant: str = "default") -> list[str]:
        """The documents of a user."""
        bank = self.hindsight.banks.get(bank_of(tenant, user))
        return [document.text for document in bank.documents.values()] if bank else []

    @property
    def shown(self) -> Json:
        """What the model was sent last."""
        request: Json = self.llm.calls[-1]["request"]
        return request


def app_of(completions: Callable[[Request], Awaitable[Response]]) -> Starlette:
    """A model's HTTP side."""
    return Starlette(routes=[Route("/v1/chat/completions", completions, methods=["POST"])])


class EndlessModel:
    """A model that begins to answer and never ends; `hung_up` is set once its client has gone."""

    WORDS = ("It is ", "a long ", "story ")

    def __init__(self) -> None:
        self.hung_up = asyncio.Event()
        self.calls = 0
        self.app = app_of(self._completions)

    async def _completions(self, http: Request) -> StreamingResponse:
        await http.json()
        self.calls += 1
        return StreamingResponse(self._chunks(), media_type="text/event-stream")

    async def _chunks(self) -> AsyncIterator[str]:
        common = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "endless"}
        try:
            for word in self.WORDS:
                choice = {"index": 0, "delta": {"role": "assistant", "content": word}, "finish_reason": None}
                yield f"data: {json.dumps({**common, 'choices': [choice]})}\n\n"
            await asyncio.Event().wait()
        finally:
            self.hung_up.set()


def said(text: str, **more: Any) -> Json:
    """The body of a chat of one message."""
    return {"model": "memory", "messages": [{"role": "user", "content": text}], **more}


@asynccontextmanager
async def chat_world(
    redis_server: RedisServer, *, model: Starlette | None = None, **changes: Any
) -> AsyncIterator[World]:
    """A world of its own, on an emptied Redis. `{llm}` in the file of models is the model's URL."""
    await redis_server.command("FLUSHALL")
    llm = FakeLlm()
    async with AsyncExitStack() as stack:
        hindsight = await stack.enter_async_context(HindsightStandIn())
        llm_url = await stack.enter_async_context(serve(model or llm.app))
        fields = {
            "min_score": 0,
            # On a busy machine, too, these tests are about what is said and not about how soon.
            "recall_deadline_ms": 8000,
            "gateway_model": MODEL,
            "gateway_api_key": "key-of-the-upstream",
            "gateway_base_url": f"{llm_url}/v1",
            "gateway_timeout_s": 20,
        }
        file = changes.get("gateway_models_file")
        if file is not None:
            file.write_text(file.read_text("utf-8").replace("{llm}", f"{llm_url}/v1"), "utf-8")
        settings = settings_for(redis_server.url, hindsight.url, **(fields | changes))
        workshop = await stack.enter_async_context(open_workshop(settings))
        api = await stack.enter_async_context(run_api(settings))
        inner = await stack.enter_async_context(AsyncExitStack())
        client = AsyncOpenAI(api_key=KEY, base_url=f"{api.url}/v1", max_retries=0)
        await inner.enter_async_context(client)
        try:
            yield World(api, llm, hindsight, workshop, client, inner)
        finally:
            llm.reset()
