"""Every template in Dify's engine against a double of the service: what arrives, byte for byte, and what
the user sees when the service is down, slow or refuses."""

import asyncio
import re
import threading
from collections.abc import AsyncIterator
from functools import cache

import pytest
from service.policy.dify_template import LANGUAGES, TemplateName, render
from service.policy.dify_texts import TEXTS, Language

from tests.fakes.dify_engine import DifyEngine, Prompt, Run, StubModel
from tests.fakes.dify_memory import Call, MemoryDouble
from tests.fakes.dify_nasty_texts import NASTY, VICTIM
from tests.support import free_port, serve, wait_until

pytestmark = pytest.mark.anyio

KEY = "test-key-0123456789"
WITH_MEMORY: tuple[TemplateName, ...] = ("chatflow-memory", "chatflow-support", "workflow-memory")
CHATFLOWS: tuple[TemplateName, ...] = ("chatflow-memory", "chatflow-support")
USER_IDS = ("alice", "a:b/c d", "用户 一", "../x?y=1&z", "😀", 'q"uo\\te', "a%20b+c", "O'Neil; id=1")


@pytest.fixture
async def double() -> MemoryDouble:
    return MemoryDouble()


@pytest.fixture
async def url(double: MemoryDouble) -> AsyncIterator[str]:
    async with serve(double) as address:
        yield address


_rendered = cache(render)


def _engine(
    template: TemplateName, language: Language, url: str, model: StubModel | None = None, *, key: str = KEY
) -> DifyEngine:
    return DifyEngine(_rendered(template, language), {"MEMORY_URL": url, "MEMORY_API_KEY": key}, model)


async def _say(engine: DifyEngine, text: str, user: str = "alice", conversation: str = "c-1") -> Run:
    if engine.mode == "workflow":
        return await engine.work(user_id=user, query=text, conversation_id=conversation)
    return await engine.chat(text, user=user, conversation=conversation)


def _as_dify_shows(text: str) -> str:
    """A model's text once its thoughts are split off: Dify then also joins blank lines and trims."""
    return re.sub(r"\n\s*\n", "\n\n", text).strip()


def _only(calls: list[Call]) -> Call:
    (call,) = calls
    return call


# --- What arrives ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("template", WITH_MEMORY)
async def test_nasty_texts_arrive_byte_for_byte(
    template: TemplateName, double: MemoryDouble, url: str
) -> None:
    assert len(NASTY) >= 40
    engine = _engine(template, "en", url, StubModel(answer=lambda prompt: prompt[-1][1]))
    for text in NASTY:
        double.calls.clear()
        run = await _say(engine, text)
        assert run.status == "succeeded", (text, run)
        assert run.answer == _as_dify_shows(text)
        recall, add = _only(double.calls_of("/memory/recall")), _only(double.calls_of("/memory/add"))
        assert recall["query"] == text
        assert add["user_message"] == text
        assert add["assistant_message"] == run.answer
        for call in (recall, add):
            assert call["user_id"] == "alice"
            assert call["conversation_id"] == "c-1"
            assert call.headers["authorization"] == f"Bearer {KEY}"
            assert VICTIM not in str([value for name, value in call.fields if name == "user_id"])
    assert {call.path for call in double.calls} == {"/memory/recall", "/memory/add"}


@pytest.mark.parametrize("template", WITH_MEMORY)
async def test_user_ids_arrive_as_they_are(template: TemplateName, double: MemoryDouble, url: str) -> None:
    engine = _engine(template, "zh", url)
    for user in USER_IDS:
        double.calls.clear()
        await _say(engine, "hello", user, "会话/1")
        for call in double.calls:
            assert (call["user_id"], call["conversation_id"]) == (user, "会话/1")


@pytest.mark.parametrize("template", WITH_MEMORY)
async def test_each_turn_has_an_id_of_its_own(template: TemplateName, double: MemoryDouble, url: str) -> None:
    engine = _engine(template, "en", url)
    for _ in range(2):
        await _say(engine, "the same words")
    ids = [call["turn_id"] for call in double.calls_of("/memory/add")]
    assert len(set(ids)) == 2
    assert all(turn.startswith("run-") for turn in ids)


@pytest.mark.parametrize("template", WITH_MEMORY)
@pytest.mark.parametrize("language", LANGUAGES)
async def test_the_block_reaches_the_prompt_unchanged(
    template: TemplateName, language: Language, double: MemoryDouble, url: str
) -> None:
    block = '<user_memories>\n- 〔2026-03-01〕 likes "quotes" \\ {{#sys.user_id#}} 你好\n</user_memories>'
    double.replies["/memory/recall"] = (200, "text/plain; charset=utf-8", block)
    engine = _engine(template, language, url)
    assert (await _say(engine, "hello")).status == "succeeded"
    (prompt,) = engine.model.prompts
    assert [role for role, _ in prompt] == ["system", "user"]
    assert prompt[0][1].endswith(f"\n\n{block}")
    assert prompt[1][1] == "hello"


async def test_a_workflow_without_a_conversation_sends_none(double: MemoryDouble, url: str) -> None:
    engine = _engine("workflow-memory", "en", url)
    assert (await engine.work(user_id="alice", query="hello")).status == "succeeded"
    assert [call["conversation_id"] for call in double.calls] == ["", ""]


async def test_a_models_thoughts_are_not_remembered(double: MemoryDouble, url: str) -> None:
    model = StubModel(answer=lambda _: "<think>He must be tired.</think>Good morning!")
    run = await _say(_engine("chatflow-memory", "en", url, model), "hello")
    assert run.answer.strip() == "Good morning!"
    assert _only(double.calls_of("/memory/add"))["assistant_message"].strip() == "Good morning!"


@pytest.mark.parametrize("language", LANGUAGES)
async def test_the_openai_template_calls_nothing_but_the_model(
    language: Language, double: MemoryDouble, url: str
) -> None:
    engine = _engine("chatflow-openai", language, url)
    run = await _say(engine, "hello")
    assert (run.status, run.answer) == ("succeeded", "Echo: hello")
    assert double.calls == []


# --- What the user sees when things go wrong ---------------------------------------------------------------
@pytest.mark.parametrize("template", WITH_MEMORY)
@pytest.mark.parametrize("language", LANGUAGES)
async def test_with_the_service_down_the_chat_answers(template: TemplateName, language: Language) -> None:
    engine = _engine(template, language, f"http://127.0.0.1:{free_port()}")
    run = await _say(engine, "hello")
    assert (run.status, run.answer) == ("partial-succeeded", "Echo: hello")
    assert run.streamed.strip() == "Echo: hello"
    assert run.nodes["recall"].outputs["status_code"] == 0
    assert "memories>" not in engine.model.prompts[0][0][1].split("<user_memories> ", 1)[-1]


@pytest.mark.parametrize("template", WITH_MEMORY)
@pytest.mark.parametrize("status", [401, 403, 409, 413, 422, 429, 500, 503])
async def test_no_error_text_reaches_the_prompt(
    template: TemplateName, status: int, double: MemoryDouble, url: str
) -> None:
    for path in ("/memory/recall", "/memory/add"):
        double.answer_json(path, {"error": {"code": "x", "message": "ERRORTEXT"}}, status)
    engine = _engine(template, "en", url)
    run = await _say(engine, "hello")
    assert (run.status, run.answer) == ("partial-succeeded", "Echo: hello")
    assert "ERRORTEXT" not in str(engine.model.prompts)
    assert str(status) in run.nodes["recall"].error


@pytest.mark.parametrize("template", WITH_MEMORY)
async def test_an_empty_key_is_a_chat_without_memory(
    template: TemplateName, double: MemoryDouble, url: str
) -> None:
    run = await _say(_engine(template, "en", url, key=""), "hello")
    assert (run.status, run.answer) == ("partial-succeeded", "Echo: hello")
    assert double.calls == []


async def test_a_failed_add_is_sent_once_more_under_the_same_id(double: MemoryDouble, url: str) -> None:
    double.answer_json("/memory/add", {"error": {}}, 503)
    run = await _say(_engine("chatflow-memory", "en", url), "hello")
    assert run.answer == "Echo: hello"
    first, second = double.calls_of("/memory/add")
    assert first.fields == second.fields
    assert len(double.calls_of("/memory/recall")) == 1


async def test_a_hanging_service_costs_the_time_limits_and_no_more(double: MemoryDouble, url: str) -> None:
    double.holds = {"/memory/recall": asyncio.Event(), "/memory/add": asyncio.Event()}
    run = await _say(_engine("chatflow-memory", "en", url), "hello")
    for hold in double.holds.values():
        hold.set()
    assert (run.status, run.answer) == ("partial-succeeded", "Echo: hello")
    assert run.nodes["recall"].outputs["error_type"] == "HttpRequestNodeError"
    # The text was on the screen before the add was even tried.
    assert run.streamed.strip() == "Echo: hello"
    assert run.chunks[-1][0] <= run.nodes["remember"].ended_s
    assert run.nodes["remember"].attempts == 2


@pytest.mark.parametrize("template", WITH_MEMORY)
async def test_the_first_words_are_shown_while_the_model_still_writes(
    template: TemplateName, double: MemoryDouble, url: str
) -> None:
    del double
    gate = threading.Event()
    engine = _engine(template, "en", url, StubModel(answer=lambda _: "one two three", gate=gate))
    running = asyncio.create_task(_say(engine, "hello"))
    try:
        await wait_until(lambda: engine.current.streamed, "the first words are on the screen")
        assert engine.current.streamed == "one t"
        assert engine.current.nodes["llm"].status == "running"
    finally:
        gate.set()
    assert (await running).streamed.strip() == "one two three"


@pytest.mark.parametrize("template", WITH_MEMORY)
async def test_the_whole_text_is_shown_while_the_add_is_on_its_way(
    template: TemplateName, double: MemoryDouble, url: str
) -> None:
    double.holds = {"/memory/add": asyncio.Event()}
    engine = _engine(template, "en", url)
    running = asyncio.create_task(_say(engine, "hello"))
    try:
        await wait_until(lambda: double.calls_of("/memory/add"), "the add has arrived")
        await wait_until(
            lambda: engine.current.streamed.strip() == "Echo: hello", "the text is on the screen"
        )
        assert engine.current.nodes["remember"].status == "running"
    finally:
        double.holds["/memory/add"].set()
    assert (await running).status == "succeeded"


# --- Customer service --------------------------------------------------------------------------------------
def _said(language: Language, key: str) -> list[str]:
    return TEXTS[language][key].split("|")


@pytest.mark.parametrize("language", LANGUAGES)
async def test_support_tells_the_model_that_the_memory_is_out_of_reach(
    language: Language, double: MemoryDouble, url: str
) -> None:
    double.answer_json("/memory/recall", {"error": {}}, 503)
    engine = _engine("chatflow-support", language, url)
    run = await _say(engine, "hello")
    assert "llm" not in run.nodes
    assert engine.model.prompts[0][0][1] == TEXTS[language]["support_prompt_without"]
    assert _only(double.calls_of("/memory/recall"))["on_error"] == "fail"
    assert _only(double.calls_of("/memory/add"))["assistant_message"] == "Echo: hello"


@pytest.mark.parametrize("language", LANGUAGES)
async def test_support_forgets_only_on_the_exact_sentence(
    language: Language, double: MemoryDouble, url: str
) -> None:
    text = TEXTS[language]
    double.answer_json("/memory/forget", {"forgotten": {"memories": 2}, "verified": True, "request_id": "r"})
    engine = _engine("chatflow-support", language, url)
    for said in _said(language, "say_how"):
        run = await _say(engine, f"Please: {said} now")
        assert run.answer == text["how_to_forget_answer"]
    assert double.calls == []
    for said in _said(language, "say_forget"):
        double.calls.clear()
        run = await _say(engine, said)
        assert (run.status, run.answer) == ("succeeded", text["forgotten_answer"])
        call = _only(double.calls)
        assert call.fields == (("user_id", "alice"), ("all", "true")), "nothing of it is remembered"
    for said in _said(language, "say_forget"):
        double.calls.clear()
        await _say(engine, f"{said} – no, wait")
        assert double.calls_of("/memory/forget") == []
    assert engine.model.prompts == []


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, {"forgotten": {}, "verified": False, "request_id": "r"}),
        (503, {"error": {"code": "x"}}),
        (404, {"error": {"code": "x"}}),
        (401, {"error": {"code": "x"}}),
    ],
)
async def test_support_never_claims_to_have_forgotten(
    status: int, body: dict[str, object], double: MemoryDouble, url: str
) -> None:
    double.answer_json("/memory/forget", body, status)
    run = await _say(_engine("chatflow-support", "en", url), "yes, forget me")
    assert run.answer == TEXTS["en"]["not_forgotten_answer"]


@pytest.mark.parametrize("language", LANGUAGES)
async def test_support_says_what_it_knows(language: Language, double: MemoryDouble, url: str) -> None:
    text = TEXTS[language]
    memories = [
        {"id": "1", "text": 'Likes "tea"\nand 你好', "created_at": "2026-03-01T10:00:00+00:00"},
        {"id": "2", "text": "Lives in Lisbon", "created_at": None},
    ]
    engine = _engine("chatflow-support", language, url)
    for said in _said(language, "say_known"):
        double.calls.clear()
        double.answer_json(
            "/memory/list", {"memories": memories, "pending": [{"text": "new"}], "next_cursor": ""}
        )
        run = await _say(engine, f"Tell me: {said}?")
        assert run.status == "succeeded"
        lines = '- 2026-03-01 Likes "tea" and 你好\n- Lives in Lisbon\n- new'
        assert run.answer == f"{text['known_heading']}\n\n{lines}"
        call = _only(double.calls)
        assert call.fields == (("user_id", "alice"), ("limit", "50"))
    double.answer_json("/memory/list", {"memories": memories, "pending": [], "next_cursor": "x"})
    assert (await _say(engine, said)).answer.endswith(text["known_more"])
    double.answer_json("/memory/list", {"memories": [], "pending": [], "next_cursor": None})
    assert (await _say(engine, said)).answer == text["known_nothing"]


@pytest.mark.parametrize("trouble", ["status", "garbage", "sandbox"])
async def test_support_says_when_it_cannot_look(trouble: str, double: MemoryDouble, url: str) -> None:
    double.answer_json("/memory/list", {"memories": [], "pending": []}, 503 if trouble == "status" else 200)
    if trouble == "garbage":
        double.replies["/memory/list"] = (200, "text/html", "<html>")
    engine = DifyEngine(
        _rendered("chatflow-support", "en"),
        {"MEMORY_URL": url, "MEMORY_API_KEY": KEY},
        is_sandbox_down=trouble == "sandbox",
    )
    run = await _say(engine, "what do you know about me")
    assert run.answer == TEXTS["en"]["not_listed_answer"]


async def test_support_with_a_knowledge_node_in_its_place(double: MemoryDouble, url: str) -> None:
    """Where the note says: beside recall, joined at the choice; only one of the two models may run."""
    knowledge = """
    - data:
        code: |
          def main(q: str) -> dict:
              return {"result": "Returns within 30 days."}
        code_language: python3
        outputs: {result: {type: string, children: null}}
        title: Knowledge
        type: code
        variables: [{value_selector: [sys, query], value_type: string, variable: q}]
      id: knowledge
      type: custom
"""
    template = _rendered("chatflow-support", "en")
    template = template.replace("    nodes:\n", "    nodes:" + knowledge, 1)
    template = template.replace(
        "    edges:\n",
        "    edges:\n"
        "    - {id: k1, source: wish, sourceHandle: 'false', target: knowledge, targetHandle: target}\n"
        "    - {id: k2, source: knowledge, sourceHandle: source, target: in_reach, targetHandle: target}\n",
        1,
    )
    for status, ran in ((200, "llm"), (503, "llm_without")):
        double.replies["/memory/recall"] = (status, "text/plain", "")
        run = await _say(DifyEngine(template, {"MEMORY_URL": url, "MEMORY_API_KEY": KEY}), "hello")
        assert run.nodes["knowledge"].status == "succeeded"
        assert [name for name in run.nodes if name.startswith("llm")] == [ran]
        assert run.answer == "Echo: hello"


async def test_two_chats_at_once_do_not_mix(double: MemoryDouble, url: str) -> None:
    def answer(prompt: Prompt) -> str:
        return f"for {prompt[-1][1]}"

    engine = _engine("chatflow-memory", "en", url, StubModel(answer=answer))
    users = [f"user-{number}" for number in range(6)]
    runs = await asyncio.gather(*(_say(engine, f"I am {user}", user, f"c-{user}") for user in users))
    assert [run.answer for run in runs] == [f"for I am {user}" for user in users]
    for call in double.calls_of("/memory/add"):
        assert call["user_message"] == f"I am {call['user_id']}"
        assert call["assistant_message"] == f"for I am {call['user_id']}"
