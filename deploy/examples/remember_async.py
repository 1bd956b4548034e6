"""The same for asyncio: several users at once. 异步：同时处理多个用户。

DIFY_MEMORY_URL=http://127.0.0.1:8000 DIFY_MEMORY_API_KEY=… python remember_async.py
"""

# ruff: noqa: T201 - an example prints

import asyncio

from service.client import AsyncMemoryClient

FACTS = {"example-ana": "I live in Lisbon.", "example-bob": "I live in Porto."}


async def talk(memory: AsyncMemoryClient, user: str, fact: str) -> str:
    """What is known of a user after they have told a fact."""
    await memory.add(user, user_message=fact, turn_id="example-1")
    # A turn is recalled before it is stored; nothing has to be waited for.
    return (await memory.recall(user, "Where do I live?")).context


async def main() -> None:
    """Print what is known of each of them, then forget both."""
    async with AsyncMemoryClient() as memory:
        for context in await asyncio.gather(*(talk(memory, user, fact) for user, fact in FACTS.items())):
            print(context)
        await asyncio.gather(*(memory.forget(user, all=True) for user in FACTS))


if __name__ == "__main__":
    asyncio.run(main())
