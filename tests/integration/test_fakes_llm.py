"""The fake LLM over HTTP: chat with and without streaming, faults, scripts and the record of its calls."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fakes.llm import FakeLlm
from tests.support import ServerProcess, free_port, serve, wait_until

pytestmark = pytest.mark.anyio

BLOCK = """<user_memories>
Facts remembered.
- 〔2026-03-01〕 住在上海
- 〔just now〕 likes tea
</user_memories>"""


@pytest.fixture
def llm() -> FakeLlm:
    return FakeLlm()


@pytest.fixture
async def http(llm: FakeLlm) -> AsyncIterator[httpx.AsyncClient]:
    async with serve(llm.app) as url, httpx.AsyncClient(base_url=url, timeout=5) as client:
        yield client


def asked(text: str, system: str | None = None, **more: Any) -> dict[str, Any]:
    messages = [{"role": "system", "content": system}] if system else []
    return {"model": "m", "messages": [*messages, {"role": "user", "content": text}], **more}


async def chat(http: httpx.AsyncClient, body: dict[str, Any]) -> dict[str, Any]:
    reply = await http.post("/v1/chat/completions", json=body)
    reply.raise_for_status()
    choice: dict[str, Any] = reply.json()["choices"][0]
    return choice


async def test_a_chat_shows_what_the_model_knew(http: httpx.AsyncClient) -> None:
    choice = await chat(http, asked("我住在哪里？"))
    assert choice["message"]["content"] == "I remember nothing. You said: 我住在哪里？"
    choice = await chat(http, asked("我住在哪里？", f"Be kind.\n{BLOCK}"))
    assert choice["message"]["content"] == "I remember: 住在上海 / likes tea. You said: 我住在哪里？"
    assert choice["finish_reason"] == "stop"


async def test_a_streamed_chat_says_the_same(http: httpx.AsyncClient) -> None:
    body = asked("hi", BLOCK, stream=True, stream_options={"include_usage": True})
    reply = await http.post("/v1/chat/completions", json=body)
    assert reply.headers["content-type"].startswith("text/event-stream")
    lines = [line.removeprefix("data: ") for line in reply.text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    chunks = [json.loads(line) for line in lines[:-1]]
    said = "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"])
    assert said == "I remember: 住在上海 / likes tea. You said: hi"
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["total_tokens"] > 0
    assert chunks[-2]["choices"][0]["finish_reason"] == "stop"


async def test_models_are_listed(http: httpx.AsyncClient) -> None:
    assert [model["id"] for model in (await http.get("/v1/models")).json()["data"]] == ["fake-model"]


async def test_calls_are_recorded_by_kind(http: httpx.AsyncClient, llm: FakeLlm) -> None:
    await http.post("/v1/chat/completions", json=asked("Say 'ok'"), headers={"Authorization": "Bearer k"})
    await chat(http, asked("hi"))
    calls = (await http.get("/calls")).json()
    assert [(call["kind"], call["authorization"]) for call in calls] == [("ping", "Bearer k"), ("other", "")]
    assert llm.calls_for("other")[0]["request"]["messages"][0]["content"] == "hi"
    await http.post("/reset")
    assert (await http.get("/calls")).json() == []


async def test_a_scripted_answer(http: httpx.AsyncClient) -> None:
    await http.post("/script", json={"contains": "magic", "content": '{"memories": []}'})
    assert (await chat(http, asked("say the magic word")))["message"]["content"] == '{"memories": []}'
    assert (await chat(http, asked("hi")))["message"]["content"].startswith("I remember nothing")


@pytest.mark.parametrize(
    ("mode", "content", "finish_reason"),
    [
        ("empty", "", "stop"),
        ("truncated", "I remember nothi", "length"),
        ("garbage", "Sure! Here is {what you asked for: 好的", "stop"),
        ("refusal", None, "stop"),
    ],
)
async def test_answers_that_are_none(
    http: httpx.AsyncClient, mode: str, content: str | None, finish_reason: str
) -> None:
    await http.post("/control", json={"mode": mode, "times": 1})
    choice = await chat(http, asked("hi"))
    assert (choice["message"]["content"], choice["finish_reason"]) == (content, finish_reason)
    assert ("refusal" in choice["message"]) == (mode == "refusal")
    assert (await chat(http, asked("hi")))["message"]["content"] == "I remember nothing. You said: hi"


async def test_http_errors_last_until_told_otherwise(http: httpx.AsyncClient) -> None:
    await http.post("/control", json={"mode": "500"})
    for _ in range(3):
        assert (await http.post("/v1/chat/completions", json=asked("hi"))).status_code == 500
    await http.post("/control", json={"mode": "ok"})
    await http.post("/control", json={"mode": "429", "times": 1, "retry_after": "9"})
    reply = await http.post("/v1/chat/completions", json=asked("hi"))
    assert (reply.status_code, reply.headers["retry-after"]) == (429, "9")
    await http.post("/control", json={"mode": "not_json", "times": 1})
    assert (await http.post("/v1/chat/completions", json=asked("hi"))).text.startswith("<html>")
    assert (await http.post("/control", json={"mode": "weird"})).status_code == 422


async def test_a_fault_for_one_kind_leaves_the_others_alone(http: httpx.AsyncClient, llm: FakeLlm) -> None:
    llm.behave("500", kind="extraction")
    await chat(http, asked("hi"))
    chunk = "Extract facts from the following chunk.\n\nContent:\n我住在北京"
    assert (await http.post("/v1/chat/completions", json=asked(chunk))).status_code == 500


async def test_a_model_that_hangs_and_one_that_is_slow(http: httpx.AsyncClient, llm: FakeLlm) -> None:
    llm.behave("slow", times=1, seconds=0.3)
    with pytest.raises(httpx.ReadTimeout):
        await http.post("/v1/chat/completions", json=asked("hi"), timeout=0.1)
    llm.behave("hang")
    stuck = asyncio.create_task(http.post("/v1/chat/completions", json=asked("hi")))
    await wait_until(lambda: len(llm.calls) == 2, "the request has arrived")
    llm.reset()
    assert (await stuck).status_code == 503


async def test_a_stream_that_is_cut_has_no_end(http: httpx.AsyncClient, llm: FakeLlm) -> None:
    llm.behave("cut", times=1)
    reply = await http.post("/v1/chat/completions", json=asked("hi", stream=True))
    assert "[DONE]" not in reply.text
    assert '"finish_reason": "stop"' not in reply.text
    assert "data: " in reply.text


async def test_it_runs_as_a_process(tmp_path: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"

    async def answers() -> bool:
        async with httpx.AsyncClient() as client:
            return (await client.get(f"{url}/v1/models")).is_success

    argv = [sys.executable, "-m", "tests.fakes.llm", "--port", str(port)]
    process = ServerProcess(argv, log_path=tmp_path / "llm.log", is_ready=answers)
    await process.start()
    await process.stop()
    assert process.returncode is not None
