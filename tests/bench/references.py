"""What the recall hit path is measured against, as apps of their own.

`raw`: an ASGI app that reads the body and answers fixed bytes: the limit of uvicorn on this machine.
`body`: the same, with our way of reading a body; `look_up`: and with our look-up in Redis.
`fastapi`: what one would write first: a FastAPI route, a model, redis-py, stored bytes out.
"""

import argparse
import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, Response
from pydantic import BaseModel
from redis.asyncio import Redis
from service.adapters.pipelined import PipelinedRedis
from service.routes.payload import read_body


def raw(body: bytes) -> Any:
    """Answers `body` to everything."""
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return app


def look_up(body: bytes, redis_url: str, key: str) -> Any:
    """Answers `body` to everything; with a key it asks Redis for it first, as a hit does."""
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    redis = PipelinedRedis(redis_url or "redis://127.0.0.1")
    names = (b"bench:write", b"bench:purge", key.encode())

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await redis.__aenter__()
            return
        await read_body(scope, receive, 1_000_000)
        if key:
            await redis.execute_by(asyncio.get_running_loop().time() + 1, b"MGET", *names)
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return app


class _Ask(BaseModel):
    user_id: str
    query: str
    top_k: int = 5
    max_chars: int = 100
    conversation_id: str = ""


def fastapi(redis_url: str, key: str) -> FastAPI:
    """Answers what Redis holds under `key`."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.redis = Redis.from_url(redis_url)
        yield
        await app.state.redis.aclose()

    app = FastAPI(lifespan=lifespan)

    @app.post("/memory/recall")
    async def recall(ask: _Ask, request: Request) -> Response:
        del ask
        body: bytes = await request.app.state.redis.get(key)
        return Response(body, media_type="application/json")

    return app


def main() -> None:
    """Run one of the apps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("app", choices=("raw", "body", "look_up", "fastapi"))
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--body", type=Path)
    parser.add_argument("--redis-url", default="")
    parser.add_argument("--key", default="")
    given = parser.parse_args()
    app: Any
    if given.app == "fastapi":
        app = fastapi(given.redis_url, given.key)
    elif given.app == "raw":
        app = raw(given.body.read_bytes())
    else:
        app = look_up(given.body.read_bytes(), given.redis_url, given.key)
    uvicorn.run(
        app, host="127.0.0.1", port=given.port, log_level="warning", access_log=False, lifespan="auto"
    )


if __name__ == "__main__":
    main()
