"""No URL in a request is ever fetched, whatever field it stands in: a trap on loopback hears of nobody."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from service.adapters.llm import load_vendor
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tests.fakes.hindsight import HindsightStandIn
from tests.fakes.llm import FakeLlm
from tests.integration.conftest import Api, open_workshop, run_api, settings_for
from tests.support import RedisServer, serve

pytestmark = [
    pytest.mark.anyio,
    # litellm's own: of a provider that it loads at the first call, and of how it reads its models.
    pytest.mark.filterwarnings("ignore:Items? .* on TypedDict class:UserWarning"),
    pytest.mark.filterwarnings("ignore:Accessing the 'model_:DeprecationWarning"),
]
MODELS = """
model_list:
  - model_name: open
    litellm_params: {model: openai/fake-model, api_base: "LLM/v1", api_key: k}
  - model_name: closed
    litellm_params: {model: anthropic/claude-sonnet-4-5, api_base: "LLM", api_key: k}
"""


@dataclass
class Trap:
    """A server that nobody has a reason to ask."""

    url: str = ""
    asked: list[str] = field(default_factory=list)

    async def answer(self, request: Request) -> Response:
        """Note who has come."""
        self.asked.append(request.url.path)
        return Response(b"\x89PNG", media_type="image/png")


@asynccontextmanager
async def trap() -> AsyncIterator[Trap]:
    made = Trap()
    app = Starlette(routes=[Route("/{path:path}", made.answer, methods=["GET", "HEAD", "POST"])])
    async with serve(app) as url:
        made.url = f"{url}/picture.png"
        yield made


def bodies(url: str) -> dict[str, list[dict[str, Any]]]:
    """Requests with the URL wherever a text may stand."""
    picture = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": f"See {url}"}]
    sound = {"type": "input_audio", "input_audio": {"data": url}}
    file = {"type": "file", "file": {"file_url": url}}
    turn = [{"role": "user", "content": [*picture, file, sound]}]
    plain = [{"role": "user", "content": picture}]
    schema = {"type": "object", "$id": url, "$schema": url, "properties": {"a": {"type": "string"}}}
    return {
        "/memory/add": [
            {"user_id": "anne", "messages": json.dumps(turn), "tags": url[:60], "metadata": {"url": url}},
            {"user_id": url, "user_message": f"![x]({url}) <img src='{url}'>", "conversation_id": url},
        ],
        "/memory/recall": [{"user_id": "anne", "query": url}, {"user_id": url, "query": "q", "kinds": url}],
        "/memory/list": [{"user_id": "anne", "query": url}],
        "/memory/reflect": [
            {"user_id": "anne", "query": url, "context": url, "response_schema": json.dumps(schema)},
            {"user_id": "anne", "query": url, "response_schema": json.dumps({"type": "object", "$ref": url})},
        ],
        "/memory/forget": [{"user_id": "anne", "memory_id": url}],
        "/memory/correct": [{"user_id": "anne", "memory_id": url, "text": url}],
        "/dify/knowledge/retrieval": [{"knowledge_id": url, "query": url}],
        "/v1/chat/completions": [
            {"model": model, "user": "anne", "messages": messages, "stream": stream, "image": url}
            for model in ("memory", "open", "closed")
            for messages in (turn, plain)
            for stream in (False, True)
        ],
        "/admin/keys": [{"name": url[:60], "scopes": "recall"}],
        "/admin/me-links": [{"user_id": url}],
        "/hooks/hindsight": [{"event": "retain.completed", "event_id": url, "bank_id": url}],
    }


async def send_all(api: Api, url: str) -> None:
    for path, requests in bodies(url).items():
        for body in requests:
            headers = {"Host": url.split("/")[2], "X-Forwarded-Host": url.split("/")[2], "Referer": url}
            reply = await api.client.post(path, json=body, headers=headers, timeout=120)
            assert reply.status_code < 500 or path.startswith("/v1/"), (path, reply.text)
    await api.client.get("/memory/export", params={"user_id": url})
    await api.client.get("/dify/openapi.json", headers={"Host": url.split("/")[2]})


@pytest.mark.parametrize("is_direct", [True, False], ids=["direct", "litellm"])
async def test_no_url_in_a_request_is_fetched(
    redis_server: RedisServer, stand_in: HindsightStandIn, tmp_path: Path, is_direct: bool
) -> None:
    await redis_server.command("FLUSHALL")
    async with trap() as made, serve(FakeLlm().app) as llm_url:
        file = tmp_path / "models.yaml"
        file.write_text(MODELS.replace("LLM", llm_url), "utf-8")
        one = {
            "gateway_model": "openai/fake-model",
            "gateway_base_url": f"{llm_url}/v1",
            "gateway_api_key": "k",
        }
        settings = settings_for(
            redis_server.url,
            stand_in.url,
            token_keys=f"a:{'s' * 40}",
            webhook_secret="a-secret-of-the-webhook",
            **(one if is_direct else {"gateway_models_file": file}),
        )
        async with run_api(settings) as api, open_workshop(settings) as workshop:
            await send_all(api, made.url)
            while await workshop.work():
                pass
        assert made.asked == []
        # The trap does hear who comes.
        async with httpx.AsyncClient() as client:
            assert (await client.get(made.url)).status_code == 200
        assert made.asked == ["/picture.png"]


def test_litellm_fetches_no_pictures_that_a_chat_names() -> None:
    litellm = load_vendor().litellm
    assert litellm.constants.MAX_IMAGE_URL_DOWNLOAD_SIZE_MB == 0
    assert litellm.user_url_validation is True
