"""The OpenAPI document of the whole API says which operations want a key: exactly those that do."""

import re
from typing import Any

import pytest

from tests.integration.conftest import KEY, Api

pytestmark = pytest.mark.anyio


async def operations(api: Api) -> list[tuple[str, str, dict[str, Any]]]:
    document = (await api.stranger.get("/openapi.json")).json()
    assert {scheme["scheme"] for scheme in document["components"]["securitySchemes"].values()} == {"bearer"}
    return [
        (method.upper(), re.sub(r"\{[^}]*\}", "x", path), operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]


async def test_what_wants_a_key_says_so_and_nothing_else_does(api: Api) -> None:
    wanting, others = 0, 0
    for method, path, operation in await operations(api):
        reply = await api.stranger.request(method, path)
        is_refused = reply.status_code in (401, 403) and "API key is missing or wrong" in reply.text
        assert is_refused == bool(operation["security"]), (method, path, reply.text)
        wanting, others = wanting + is_refused, others + (not is_refused)
        if is_refused:
            # As the scheme says it: in the header Authorization, after Bearer.
            let_in = await api.stranger.request(method, path, headers={"Authorization": f"Bearer {KEY}"})
            assert let_in.status_code not in (401, 403), (method, path)
    assert wanting >= 20
    assert others >= 15
