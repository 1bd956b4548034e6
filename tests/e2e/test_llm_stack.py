"""The stack with a language model: facts are made of turns, and new ones replace old ones."""

import pytest

from tests.e2e.conftest import LlmStack
from tests.e2e.test_stack import add, recalled
from tests.support import wait_until

pytestmark = [pytest.mark.anyio, pytest.mark.hindsight]


async def test_with_a_language_model_facts_are_extracted_and_superseded(
    llm_stack: LlmStack, user: str
) -> None:
    stack = llm_stack.stack
    assert (await add(stack, user, "我在杭州做后端", "好的", conversation_id="a"))["status"] == "done"
    assert "杭州" in str((await recalled(stack, user, "我住在哪里？"))["context"])
    assert (await add(stack, user, "我搬到上海了", "好的", conversation_id="b"))["status"] == "done"

    async def is_shanghai_only() -> bool:
        context = str((await recalled(stack, user, "我住在哪个城市？", fresh="true"))["context"])
        return "上海" in context and "杭州" not in context

    await wait_until(is_shanghai_only, "the new city has replaced the old one", timeout_s=60, poll_s=0.5)
