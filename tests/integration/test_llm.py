"""The language model's adapter against a model on the wire: answers, fallbacks, and every way to fail."""

import logging
from collections.abc import AsyncIterator
from importlib import import_module
from time import monotonic
from typing import Any

import pytest
from service.adapters.llm import LlmAdapter
from service.errors import LlmMisconfigured, LlmRejected, LlmUnavailable, ServiceError

from tests.fakes.llm import FakeLlm, Mode
from tests.support import serve

pytestmark = [
    pytest.mark.anyio,
    # Of a provider that litellm loads at the first call.
    pytest.mark.filterwarnings("ignore:Items? .* on TypedDict class:UserWarning"),
]
MESSAGES = [{"role": "user", "content": "marigold"}]
SCHEMA: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


@pytest.fixture
async def fake() -> AsyncIterator[tuple[FakeLlm, str]]:
    llm = FakeLlm()
    async with serve(llm.app) as url:
        yield llm, f"{url}/v1"
        llm.reset()


def adapter(url: str, *models: str, timeout_s: float = 5, key: str | None = "key-of-tests") -> LlmAdapter:
    return LlmAdapter(models or ("openai/fake-model",), api_key=key, base_url=url, timeout_s=timeout_s)


async def failure(llm: LlmAdapter) -> ServiceError:
    with pytest.raises((LlmUnavailable, LlmMisconfigured, LlmRejected)) as caught:
        await llm.complete(MESSAGES, SCHEMA, name="test")
    assert "marigold" not in str(caught.value)
    return caught.value


async def test_a_question_is_asked_as_it_is_and_answered(fake: tuple[FakeLlm, str]) -> None:
    model, url = fake
    async with adapter(url, "openai/gpt-4o-mini") as llm:
        answer = await llm.complete(MESSAGES, SCHEMA, name="test")
    assert "marigold" in answer.text
    assert answer.prompt_tokens > 0
    assert answer.completion_tokens > 0
    assert 0 < answer.cost_usd < 1
    assert not answer.is_cut
    [call] = model.calls
    assert call["authorization"] == "Bearer key-of-tests"
    asked = call["request"]
    assert (asked["model"], asked["temperature"], asked["messages"]) == ("gpt-4o-mini", 0, MESSAGES)
    assert asked["response_format"]["type"] == "json_schema"
    assert asked["response_format"]["json_schema"]["schema"] == SCHEMA


async def test_a_model_nobody_knows_is_asked_for_json_and_costs_nothing(fake: tuple[FakeLlm, str]) -> None:
    model, url = fake
    async with adapter(url) as llm:
        answer = await llm.complete(MESSAGES, SCHEMA, name="test")
    assert answer.cost_usd == 0
    assert answer.prompt_tokens > 0
    assert model.calls[0]["request"]["response_format"] == {"type": "json_object"}


@pytest.mark.parametrize("mode", ["500", "429", "not_json", "hang"])
async def test_what_may_pass_is_unavailable_in_time(fake: tuple[FakeLlm, str], mode: Mode) -> None:
    model, url = fake
    async with adapter(url, timeout_s=1) as llm:
        await llm.complete(MESSAGES, SCHEMA, name="test")  # loads litellm
        model.behave(mode)
        started = monotonic()
        assert isinstance(await failure(llm), LlmUnavailable)
        assert monotonic() - started < 2
        assert len(model.calls) == 2
        model.reset()


async def test_nobody_there_is_unavailable() -> None:
    async with adapter("http://127.0.0.1:1/v1", timeout_s=3) as llm:
        assert isinstance(await failure(llm), LlmUnavailable)


@pytest.mark.parametrize(("mode", "text"), [("empty", ""), ("refusal", "")])
async def test_an_answer_without_words_is_an_empty_answer(
    fake: tuple[FakeLlm, str], mode: Mode, text: str
) -> None:
    model, url = fake
    model.behave(mode)
    async with adapter(url) as llm:
        assert (await llm.complete(MESSAGES, SCHEMA, name="test")).text == text


async def test_a_cut_answer_says_so(fake: tuple[FakeLlm, str]) -> None:
    model, url = fake
    model.behave("truncated")
    async with adapter(url) as llm:
        assert (await llm.complete(MESSAGES, SCHEMA, name="test")).is_cut


async def test_a_pause_that_is_asked_for_is_kept(fake: tuple[FakeLlm, str]) -> None:
    model, url = fake
    model.behave("429", times=1)
    async with adapter(url) as llm:
        first = await failure(llm)
        second = await failure(llm)
    assert first.retry_after_s == 1
    assert isinstance(second, LlmUnavailable)
    assert second.retry_after_s == 1
    assert len(model.calls) == 1


async def test_a_fallback_is_asked_when_the_first_fails(fake: tuple[FakeLlm, str]) -> None:
    model, url = fake
    async with adapter(url, "openai/first", "openai/second") as llm:
        for mode in ("500", "hang"):
            model.behave(mode, times=1)
            assert (await llm.complete(MESSAGES, SCHEMA, name="test")).model == "openai/second"
    assert [call["request"]["model"] for call in model.calls] == ["first", "second"] * 2


async def test_every_error_of_the_vendor_becomes_one_of_ours() -> None:
    async with adapter("http://127.0.0.1:1/v1") as llm:
        vendor = await llm._loading
        kinds = [
            kind
            for kind in vars(import_module("litellm.exceptions")).values()
            if isinstance(kind, type)
            and issubclass(kind, Exception)
            and kind.__module__.startswith(("litellm", "openai"))
        ]
        assert len(kinds) > 15
        # Those of litellm's proxy server, which is not used here.
        proxy = {"GuardrailRaisedException", "BlockedPiiEntityError", "ModifyResponseException"}
        proxy |= {
            "SensitiveDataRouteException",
            "GuardrailInterventionNormalStringError",
            "ModelNotMappedError",
        }
        missed = [kind.__name__ for kind in kinds if not issubclass(kind, vendor.errors)]
        assert set(missed) <= proxy
        for status, ours in ((401, LlmMisconfigured), (404, LlmMisconfigured), (400, LlmRejected)):
            error = ValueError("marigold")
            error.status_code = status  # type: ignore[attr-defined]
            assert type(llm._error("m", error)) is ours


async def test_nothing_of_it_is_logged(
    fake: tuple[FakeLlm, str], caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    model, url = fake
    with caplog.at_level(logging.DEBUG, logger="service"):
        async with adapter(url) as llm:
            await llm.complete(MESSAGES, SCHEMA, name="test")
            model.behave("500")
            await failure(llm)
    said = capfd.readouterr()
    for text in (caplog.text, said.out, said.err):
        assert "marigold" not in text
        assert "key-of-tests" not in text


async def test_a_model_of_another_provider_gets_neither_key_nor_url(
    fake: tuple[FakeLlm, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """litellm then takes what the provider's own variables say."""
    model, url = fake
    monkeypatch.setenv("DEEPSEEK_API_KEY", "another-key")
    monkeypatch.setenv("DEEPSEEK_API_BASE", f"{url}/")
    async with adapter("http://127.0.0.1:1/v1", "openai/fake-model", "deepseek/deepseek-chat") as llm:
        assert (await llm.complete(MESSAGES, SCHEMA, name="test")).model == "deepseek/deepseek-chat"
    assert [call["authorization"] for call in model.calls] == ["Bearer another-key"]


async def test_a_model_of_the_same_provider_gets_both(fake: tuple[FakeLlm, str]) -> None:
    model, url = fake
    model.behave("500", times=1)
    async with adapter(url, "openai/fake-model", "gpt-4o-mini") as llm:
        assert (await llm.complete(MESSAGES, SCHEMA, name="test")).model == "gpt-4o-mini"
    assert [call["authorization"] for call in model.calls] == ["Bearer key-of-tests"] * 2


async def test_a_model_whose_provider_nobody_knows_is_the_operators_to_mend(
    fake: tuple[FakeLlm, str],
) -> None:
    """litellm answers 400, as a provider does to a text it refuses: a slip would give up every turn."""
    model, url = fake
    async with adapter(url, "opneai-gpt-4o-mini") as llm:
        assert isinstance(await failure(llm), LlmMisconfigured)
    assert model.calls == []


async def test_questions_share_a_connection_until_the_adapter_closes_it(fake: tuple[FakeLlm, str]) -> None:
    model, url = fake
    for _ in range(2):  # as litellm keeps clients for the whole process, the second gets none that is closed
        async with adapter(url) as llm:
            for _ in range(3):
                assert "marigold" in (await llm.complete(MESSAGES, SCHEMA, name="test")).text
    first, second = (
        {tuple(call["client"]) for call in calls} for calls in (model.calls[:3], model.calls[3:])
    )
    assert len(first) == len(second) == 1
    assert first != second


async def test_a_refusal_is_the_texts_fault_only_if_the_model_takes_a_harmless_one(
    fake: tuple[FakeLlm, str],
) -> None:
    model, url = fake
    async with adapter(url) as llm:
        model.behave("400")  # as to a parameter that it does not know
        assert isinstance(await failure(llm), LlmMisconfigured)
        assert isinstance(await failure(llm), LlmMisconfigured)
        # It was asked once whether it takes a harmless one, without a word of the text.
        assert len(model.calls) == 3
        assert "marigold" not in str(model.calls[1])
        for asked in model.calls[:2]:
            assert {k: v for k, v in asked["request"].items() if k != "messages"} == {
                k: v for k, v in model.calls[0]["request"].items() if k != "messages"
            }
    model.behave("ok")
    async with adapter(url) as llm:
        for _ in range(2):
            model.behave("400", times=1)
            assert isinstance(await failure(llm), LlmRejected)
    assert len(model.calls) == 3 + 3


async def test_a_pause_that_comes_of_the_harmless_question_counts(fake: tuple[FakeLlm, str]) -> None:
    model, url = fake
    async with adapter(url) as llm:
        model.behave("400", times=1)
        model.behave("429", times=1)
        assert isinstance(await failure(llm), LlmUnavailable)
