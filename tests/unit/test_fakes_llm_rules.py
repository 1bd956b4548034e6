"""The fake LLM's rules, on text alone and on the prompts that Hindsight 1.1 sends."""

import json
from typing import Any

import pytest

from tests.fakes.llm_hindsight import ToolCall, consolidate, extract, kind_of, reflect
from tests.fakes.llm_rules import classified, statements, subjects_of, updated
from tests.fakes.words import similarity, words

FACT_1 = "11111111-1111-1111-1111-111111111111"
FACT_2 = "22222222-2222-2222-2222-222222222222"
OBSERVATION = "33333333-3333-3333-3333-333333333333"


@pytest.mark.parametrize(
    ("turn", "expected"),
    [
        ("我在杭州做后端", ["用户在杭州做后端"]),
        ("用户：我搬到上海了。\n助手：上海很大，我喜欢上海。", ["用户搬到上海了"]),
        ("I moved to Shanghai", ["The user moved to Shanghai"]),
        (
            "User: I live in Hangzhou. My cat is called Mimi.",
            ["The user lives in Hangzhou", "My cat is called Mimi"],
        ),
        ("我每个月预算三千块找健身房", ["用户每个月预算三千块找健身房"]),
        ("我的猫叫小黑", ["我的猫叫小黑"]),
        ("user: I work as a nurse\nuser: I work as a nurse", ["The user works as a nurse"]),
        ("今天真热", []),
        ("ok", []),
        ("嗯嗯", []),
        ("hello", []),
        ("谢谢！再见。", []),
        ("帮我写一首诗", []),
        ("Where do I live?", []),
        ("我住在哪里？", []),
        ("……\n!!!", []),
        ("Assistant: I live in Paris", []),
        ("", []),
    ],
)
def test_what_is_taken_from_a_turn(turn: str, expected: list[str]) -> None:
    assert [statement.text for statement in statements(turn)] == expected


@pytest.mark.parametrize(
    ("text", "subjects"),
    [
        ("我在杭州做后端", {"city", "job"}),
        ("我搬到上海了", {"city"}),
        ("I moved to New York", {"city"}),
        ("The user works as a backend engineer", {"job"}),
        ("My budget is 300", {"budget"}),
        ("我的猫叫小黑", set()),
    ],
)
def test_what_a_statement_is_about(text: str, subjects: set[str]) -> None:
    assert subjects_of(text) == subjects


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("用户在杭州做后端", "用户搬到上海了", "用户在上海做后端"),
        ("The user lives in Hangzhou", "The user moved to Shanghai", "The user lives in Shanghai"),
        ("The user lives in Hangzhou", "用户搬到上海了", "用户搬到上海了"),
        ("用户在杭州做后端", "用户转行做前端了", "用户在杭州做前端"),
        ("用户预算三千", "用户预算五千", "用户预算五千"),
    ],
)
def test_an_update_leaves_only_the_newest(old: str, new: str, expected: str) -> None:
    assert updated(old, new) == expected


def test_labels_come_from_what_is_offered() -> None:
    groups = {
        "memory_type": ["fact", "preference"],
        "importance": ["1", "2", "3", "4", "5"],
        "mood": ["a", "b"],
    }
    assert classified("我喜欢美式", groups) == {"memory_type": "preference", "importance": "3", "mood": "a"}
    assert classified("用户住在北京", groups)["importance"] == "5"
    assert classified("The cat is black", {"importance": ["high", "low", "medium"]}) == {"importance": "low"}


def test_words_are_latin_words_and_pairs_of_characters() -> None:
    assert words("我在杭州 doing Backend!") == {"我在", "在杭", "杭州", "doing", "backend"}
    assert similarity("杭州", "我在杭州") > similarity("杭州", "我在上海") == 0


def user(text: str, system: str = "system") -> dict[str, Any]:
    return {"messages": [{"role": "system", "content": system}, {"role": "user", "content": text}]}


def chunk(content: str) -> str:
    return f"Extract facts from the following chunk.\n\nChunk: 1/1\nContext: none\n\nContent:\n{content}"


def test_an_extraction_prompt_is_answered_with_facts() -> None:
    request = user(chunk("用户：我住在北京"))
    assert kind_of(request) == "extraction"
    (fact,) = json.loads(extract(request))["facts"]
    assert (fact["what"], fact["fact_type"], fact["entities"]) == ("用户住在北京", "world", ["北京"])
    assert "labels" not in fact


def test_labels_are_filled_only_when_asked_for() -> None:
    system = (
        "ENTITY LABELS - CLASSIFICATION ATTRIBUTES\n\n- memory_type (single value or null): kind\n"
        '    • "preference" — likes\n    • "profile" — who\n'
    )
    (fact,) = json.loads(extract(user(chunk("我住在北京"), system)))["facts"]
    assert fact["labels"] == {"memory_type": "profile"}


def consolidation(facts: list[str], observations: list[dict[str, Any]]) -> dict[str, Any]:
    text = (
        f"### New facts\n\n{chr(10).join(facts)}\n\n### Existing observations\n\n{json.dumps(observations)}"
    )
    return user(text, "You are a memory consolidation system. Go.")


def test_a_new_subject_is_created_and_a_known_one_updated() -> None:
    known = [{"id": OBSERVATION, "text": "用户在杭州做后端", "mentioned_at": "2026-01-01"}]
    facts = [
        f"[{FACT_1}] 用户搬到上海了 | Involving: 用户 (mentioned_at=2026-01-02)",
        f"[{FACT_2}] 用户预算三千 (mentioned_at=2026-01-03)",
    ]
    request = consolidation(facts, known)
    assert kind_of(request) == "consolidation"
    answer = json.loads(consolidate(request))
    assert [(c["text"], c["source_fact_ids"]) for c in answer["creates"]] == [("用户预算三千", [FACT_2])]
    (update,) = answer["updates"]
    assert (update["observation_id"], update["text"]) == (OBSERVATION, "用户在上海做后端")
    assert update["source_fact_ids"] == [FACT_1]


def test_two_facts_of_one_batch_become_one_observation_whatever_their_order() -> None:
    facts = [
        f"[{FACT_2}] The user moved to Shanghai (mentioned_at=2026-01-02T00:00:00+00:00)",
        f"[{FACT_1}] The user lives in Hangzhou (mentioned_at=2026-01-01T00:00:00+00:00)",
    ]
    (create,) = json.loads(consolidate(consolidation(facts, [])))["creates"]
    assert create["text"] == "The user lives in Shanghai"
    assert sorted(create["source_fact_ids"]) == [FACT_1, FACT_2]


def test_an_older_fact_that_comes_late_changes_nothing() -> None:
    known = [{"id": OBSERVATION, "text": "用户住在上海", "mentioned_at": "2026-02-01"}]
    request = consolidation([f"[{FACT_1}] 用户住在杭州 (mentioned_at=2026-01-01)"], known)
    (update,) = json.loads(consolidate(request))["updates"]
    assert update["text"] == "用户住在上海"


def test_only_equal_observations_are_merged() -> None:
    prompt = "You reconcile long-term memory observations.\n\n[NEW] {}\n[EXISTING] {}\n"
    assert json.loads(consolidate(user(prompt.format("a", "a"))))["action"] == "merge"
    assert json.loads(consolidate(user(prompt.format("a", "b"))))["action"] == "keep"


def tool(name: str, *properties: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {key: {"type": "string"} for key in properties}}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def test_a_reflection_searches_stops_and_answers() -> None:
    done = tool("done", "answer", "answer_found", "memory_ids", "observation_ids")
    tools = [tool("search_observations"), tool("recall"), tool("answer_ready"), done]
    request = {**user("Question: 我住在哪里？"), "tools": tools}
    named = {"type": "function", "function": {"name": "search_observations"}}
    assert kind_of(request) == "reflect"
    first = reflect({**request, "tool_choice": named})
    assert isinstance(first, ToolCall)
    assert (first.name, first.arguments["query"]) == ("search_observations", "我住在哪里？")
    assert reflect({**request, "tool_choice": "required"}) == ToolCall(
        "answer_ready", {"answer_found": False}
    )
    result = json.dumps({"observations": [{"id": "o1", "text": "用户住在上海"}]})
    request["messages"].append({"role": "tool", "tool_call_id": "1", "content": result})
    assert reflect({**request, "tool_choice": "required"}) == ToolCall("answer_ready", {"answer_found": True})
    last = reflect({**request, "tool_choice": {"type": "function", "function": {"name": "done"}}})
    assert isinstance(last, ToolCall)
    assert last.arguments["answer"] == "据我所知：用户住在上海。"
    assert last.arguments["observation_ids"] == ["o1"]


def test_what_is_no_business_of_hindsights_is_other() -> None:
    assert kind_of(user("hello")) == "other"
    assert kind_of({"messages": [{"role": "user", "content": "Say 'ok'"}]}) == "ping"
