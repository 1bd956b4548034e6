"""A chat with a model that remembers, by OpenAI's own client (pip install openai). 和有记忆的模型对话。

DIFY_MEMORY_URL=http://127.0.0.1:8000 DIFY_MEMORY_API_KEY=… python openai_chat.py
"""

# ruff: noqa: T201 - an example prints

import os

from openai import OpenAI

USER = "example-carol"


def main() -> None:
    """Tell it a fact in one conversation and ask for it in another."""
    client = OpenAI(base_url=f"{os.environ['DIFY_MEMORY_URL']}/v1", api_key=os.environ["DIFY_MEMORY_API_KEY"])
    with client:
        client.chat.completions.create(
            model="memory", user=USER, messages=[{"role": "user", "content": "I live in Lisbon."}]
        )
        stream = client.chat.completions.create(
            model="memory",
            user=USER,
            messages=[{"role": "user", "content": "Where do I live?"}],
            stream=True,
            # Everything else that memory can do for a chat: see model.md.
            extra_body={"memory": {"max_memories": 3, "store": False}},
        )
        for chunk in stream:
            if chunk.choices:
                print(chunk.choices[0].delta.content or "", end="", flush=True)
        print()


if __name__ == "__main__":
    main()
