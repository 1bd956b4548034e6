"""What is true of every answer of the API, whatever was asked."""

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from service import errors

from tests.fakes.hindsight import HindsightStandIn
from tests.integration.conftest import Api, run_api, settings_for
from tests.support import RedisServer

CODES: dict[str, int] = {
    kind.code: kind.status
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.ServiceError)
}


@pytest.fixture(scope="module")
async def shared(redis_server: RedisServer) -> AsyncIterator[Api]:
    """One API for the tests of a module that bring users of their own and change nothing else."""
    async with (
        HindsightStandIn() as stand_in,
        run_api(settings_for(redis_server.url, stand_in.url)) as running,
    ):
        yield running


def checked(reply: httpx.Response, *statuses: int) -> Any:
    """The reply's JSON, after proving that it is ours: form, bytes, headers, and never a 5xx.

    `statuses` are those that are expected; without any, every status below 500 is.
    """
    seen = f"{reply.status_code} {reply.headers.get('content-type')} {reply.text[:500]}"
    assert reply.status_code in statuses if statuses else reply.status_code < 500, seen
    assert reply.headers["content-type"] == "application/json", seen
    assert reply.headers["cache-control"] == "no-store", seen
    request_id = reply.headers["x-request-id"]
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", request_id), seen
    body = json.loads(reply.content)
    # Dify's agents put text and parsed JSON both into the prompt unless they are the same bytes.
    assert reply.content == json.dumps(body, ensure_ascii=False).encode(), seen
    if reply.status_code >= 400:
        assert set(body) == {"error"}, seen
        assert set(body["error"]) == {"code", "message", "request_id"}, seen
        assert body["error"]["request_id"] == request_id, seen
        assert CODES[body["error"]["code"]] == reply.status_code, seen
        assert re.fullmatch(r"\S.{10,}[.)]", body["error"]["message"]), seen
    elif "request_id" in body:
        assert body["request_id"] == request_id, seen
    return body


def code_of(reply: httpx.Response, status: int) -> str:
    """The code of an error with that status."""
    code: str = checked(reply, status)["error"]["code"]
    return code


def texts_of(recalled: Any) -> list[str]:
    """The texts of a recall's memories."""
    return [memory["text"] for memory in recalled["memories"]]
