"""Reflect on the real Hindsight: only what fits the tags, kinds and fact types that are asked for."""

import secrets
from typing import Unpack

import httpx
import pytest
from service.client import AsyncMemoryClient
from service.client.options import ReflectOptions
from service.scope import bank_of

from tests.e2e.conftest import LlmStack

pytestmark = [pytest.mark.anyio, pytest.mark.hindsight]

FACTS = (
    ("My cat is called Biscuit.", ["home", "memory_type:user_profile"]),
    ("My dog is called Crumb.", ["farm", "memory_type:task_state"]),
)


async def test_reflect_looks_at_what_fits_alone(llm_stack: LlmStack) -> None:
    user = f"reflect-{secrets.token_hex(4)}"
    connection = llm_stack.stack.connection
    async with httpx.AsyncClient(base_url=llm_stack.hindsight_url, timeout=60) as hindsight:
        for number, (text, tags) in enumerate(FACTS):
            item = {"content": text, "document_id": f"d{number}", "tags": tags}
            item["observation_scopes"] = "shared"
            path = f"/v1/default/banks/{bank_of('default', user)}/memories"
            reply = await hindsight.post(path, json={"items": [item]})
            assert reply.status_code == 200, reply.text
    async with AsyncMemoryClient(connection.url, connection.api_key, timeout_s=60) as memory:

        async def knows(**options: Unpack[ReflectOptions]) -> list[str]:
            answer = await memory.reflect(user, "What are my cat and my dog called?", **options)
            assert not answer.degraded, answer
            return [name for name in ("Biscuit", "Crumb") if name in answer.text]

        assert await knows(fact_types=["world", "experience"]) == ["Biscuit", "Crumb"]
        assert await knows(tags=["farm"]) == ["Crumb"]
        assert await knows(tags=["farm", "home"], tags_match="all") == []
        assert await knows(kinds=["user_profile"]) == ["Biscuit"]
        assert await knows(kinds=["user_profile", "task_state"], tags=["farm"], tags_match="any") == ["Crumb"]
