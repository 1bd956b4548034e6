"""The model at `/v1` of a whole stack: two conversations by OpenAI's client, on the real Hindsight."""

import pytest
from openai import AsyncOpenAI

from tests.e2e.conftest import Stack
from tests.support import wait_until

pytestmark = [pytest.mark.anyio, pytest.mark.hindsight]


async def test_a_new_conversation_knows_what_the_last_one_told(stack: Stack, user: str) -> None:
    connection = stack.connection
    async with (
        stack.client as ours,
        AsyncOpenAI(api_key=connection.api_key, base_url=f"{connection.url}/v1") as client,
    ):
        told = await client.chat.completions.with_raw_response.create(
            model="memory",
            messages=[{"role": "user", "content": "I live in Lisbon and work as a nurse."}],
            user=user,
        )
        job = told.headers["x-memory-job-id"]

        async def is_done() -> bool:
            reply = await ours.get(f"/memory/jobs/{job}", params={"wait_s": 10})
            return bool(reply.json()["status"] == "done")

        await wait_until(is_done, "the turn is stored", timeout_s=60)
        for name, knows in ((user, True), (f"{user}x", False)):
            stream = await client.chat.completions.create(
                model="memory",
                messages=[{"role": "user", "content": "Where do I live?"}],
                user=name,
                stream=True,
                extra_body={"memory": {"timeout_ms": 10_000}},
            )
            pieces = [c.choices[0].delta.content or "" async for c in stream if c.choices]
            assert ("Lisbon" in "".join(pieces)) is knows
