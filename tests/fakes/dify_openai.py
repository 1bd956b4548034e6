"""A model of Dify's provider "OpenAI-API-compatible": from an address, with Dify's id of the user."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

from graphon.model_runtime.entities.message_entities import PromptMessage
from openai import OpenAI

from tests.fakes.dify_engine import StubModel


@dataclass
class ProviderModel(StubModel):
    """As the provider calls it; `end_user` is the id that Dify has for whoever chats now."""

    base_url: str = ""
    key: str = ""
    end_user: str = ""

    def check(self) -> None:
        """What Dify asks when the model is added."""
        with self._client() as client:
            reply = client.chat.completions.create(
                model="memory", messages=[{"role": "user", "content": "ping"}], max_tokens=5
            )
        assert reply.object == "chat.completion"

    def stream(self, messages: Sequence[PromptMessage]) -> Generator[str, None, None]:
        """The answer as it comes."""
        prompt = tuple((message.role.value, message.get_text_content()) for message in messages)
        self.prompts.append(prompt)
        said: Any = [{"role": role, "content": text} for role, text in prompt]
        with self._client() as client:
            for chunk in client.chat.completions.create(
                model="memory",
                messages=said,
                stream=True,
                stream_options={"include_usage": True},
                user=self.end_user,
            ):
                if chunk.choices and chunk.choices[0].delta.content:
                    yield chunk.choices[0].delta.content

    def _client(self) -> OpenAI:
        return OpenAI(api_key=self.key, base_url=self.base_url, max_retries=0)
