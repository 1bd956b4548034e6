"""A model for benchmarks: it answers at once, in as many pieces and as far apart as it is asked to.

`max_tokens` is the number of pieces, `seed` the milliseconds between two of them (0: as fast as it goes).
"""

import argparse
import asyncio
import json
from typing import Any

import uvicorn

_HEAD = {"id": "chatcmpl-bench", "object": "chat.completion.chunk", "created": 1, "model": "bench"}


def _event(delta: dict[str, str], reason: str | None) -> bytes:
    chunk = {**_HEAD, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}]}
    return f"data: {json.dumps(chunk)}\n\n".encode()


_PIECE = _event({"content": " token"}, None)
_LAST = _event({}, "stop") + b"data: [DONE]\n\n"


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Streams to everything that is posted; anything else is answered with nothing."""
    if scope["type"] != "http":
        return
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    headers = [(b"content-type", b"text/event-stream")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    if scope["method"] == "POST":
        asked = json.loads(body)
        pause_s = asked["seed"] / 1000
        for _ in range(asked["max_tokens"]):
            await send({"type": "http.response.body", "body": _PIECE, "more_body": True})
            if pause_s:
                await asyncio.sleep(pause_s)
        await send({"type": "http.response.body", "body": _LAST, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


def main() -> None:
    """Serve it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    given = parser.parse_args()
    uvicorn.run(app, host="127.0.0.1", port=given.port, log_level="warning", access_log=False, lifespan="off")


if __name__ == "__main__":
    main()
