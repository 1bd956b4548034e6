"""The messages of a chat: the question, the place of the memory, and the turn."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from service.policy.chat_messages import (
    AnswerSoFar,
    is_chat,
    is_check,
    is_forced,
    query_of,
    sound,
    text_of,
    turn_of,
    with_block,
)

BLOCK = "<user_memories>\nx\n</user_memories>"
SYSTEM = {"role": "system", "content": "Be brief."}
PICTURE = {"type": "image_url", "image_url": {"url": "data:,"}}


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def bot(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


@pytest.mark.parametrize("messages", [None, [], "x", [1], [{}], [{"role": 1}], {"role": "user"}])
def test_what_is_no_chat(messages: object) -> None:
    assert not is_chat(messages)


def test_what_no_model_can_be_sent_is_taken_out() -> None:
    given = {"a": ["x\ud800y", "\ud83d\ude00", {"é\udc00": "é"}, 5, None, True]}
    assert sound(given) == {"a": ["xy", "😀", {"é": "é"}, 5, None, True]}
    deep: Any = "x"
    for _ in range(70):
        deep = [deep]
    with pytest.raises(ValueError, match="nested"):
        sound(deep)


def test_words_of_parts() -> None:
    assert text_of([{"type": "text", "text": "a"}, PICTURE, "odd", {"text": 5}, {"text": "b"}]) == "a\nb"
    assert text_of(None) == text_of({}) == text_of(5) == ""


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([user("ping")], True),
        ([user(" Ping ")], True),
        ([SYSTEM, user([{"type": "text", "text": "ping"}])], True),
        ([user("ping"), bot("pong"), user("ping")], False),
        ([user("ping the server")], False),
        ([SYSTEM], False),
    ],
)
def test_difys_check(messages: list[dict[str, Any]], expected: bool) -> None:
    assert is_check(messages) is expected


def test_the_question_is_the_last_user_message() -> None:
    assert query_of([user("one"), bot("two"), user(" three "), bot(None), {"role": "tool"}]) == "three"
    assert query_of([SYSTEM, bot("x")]) == query_of([user([PICTURE])]) == ""


def test_a_block_joins_the_system_message_or_makes_one() -> None:
    messages = [SYSTEM, user("hi")]
    assert with_block(messages, BLOCK, "system")[0]["content"] == f"Be brief.\n\n{BLOCK}"
    assert SYSTEM["content"] == "Be brief.", "what came is left alone"
    parts = [{"role": "developer", "content": [{"type": "text", "text": "a"}]}, user("hi")]
    assert with_block(parts, BLOCK, "system")[0]["content"][1] == {"type": "text", "text": BLOCK}
    assert with_block([user("hi")], BLOCK, "system") == [{"role": "system", "content": BLOCK}, user("hi")]
    assert with_block([{"role": "system", "content": None}], BLOCK, "system")[0]["content"] == BLOCK


def test_a_block_goes_before_the_last_user_message() -> None:
    messages = [user("one"), bot("two"), user("three"), bot("four")]
    new = with_block(messages, BLOCK, "user")
    assert [m["content"] for m in new] == ["one", "two", f"{BLOCK}\n\nthree", "four"]
    assert with_block([user([PICTURE])], BLOCK, "user")[0]["content"] == [
        {"type": "text", "text": BLOCK},
        PICTURE,
    ]
    assert with_block([bot("x")], BLOCK, "user")[0] == {"role": "system", "content": BLOCK}


def test_no_block_changes_nothing() -> None:
    messages = [SYSTEM, user("hi")]
    for where in ("system", "user"):
        assert with_block(messages, "", where) == messages


def test_a_turn_is_what_was_said_last_and_its_answer() -> None:
    messages = [SYSTEM, user("old"), bot("older"), user("context"), user("question")]
    assert turn_of(messages, {"content": "answer"}) == [
        user("context"),
        user("question"),
        bot("answer"),
    ]
    assert turn_of([SYSTEM, bot("x")], {"content": "answer"}) == []
    assert turn_of([user("hi")], {"content": None}) == [user("hi")]


def test_calls_and_results_of_tools_are_text() -> None:
    call = {"function": {"name": "look", "arguments": '{"a": 1}'}}
    messages = [
        user("q"),
        bot("Let me see.", tool_calls=[call, "odd"]),
        {"role": "tool", "content": "r" * 5000},
        bot(None, function_call={"name": "old", "arguments": None}),
    ]
    turn = turn_of(messages, {"content": "done"})
    assert turn[1]["content"] == 'Let me see.\n[look({"a": 1})]'
    assert turn[2] == {"role": "tool", "content": "r" * 4000}
    assert turn[3]["content"] == "[old()]"


@pytest.mark.parametrize(
    ("choice", "expected"),
    [("auto", False), (None, False), ("none", False), ("required", True), ({"type": "function"}, True)],
)
def test_a_forced_call_is_an_answer(choice: object, expected: bool) -> None:
    assert is_forced(choice) is expected


def test_an_answer_is_put_together_again() -> None:
    answer = AnswerSoFar()
    assert answer.message == {"content": ""}
    call = {"index": 0, "id": "c", "function": {"name": "look", "arguments": '{"a"'}}
    for choices in (
        [{"index": 0, "delta": {"content": "He"}}, {"index": 1, "delta": {"content": "other"}}],
        [{"delta": {"content": "llo"}, "finish_reason": None}],
        [{"index": 0, "delta": {"content": None, "tool_calls": [call]}}],
        [{"index": 0, "delta": {"tool_calls": [{"function": {"name": None, "arguments": ": 1}"}}]}}],
        [],
        None,
        [{"index": 0, "delta": None, "finish_reason": "stop"}],
        [{"index": 1, "delta": {}, "finish_reason": "length"}],
    ):
        answer.take({"choices": choices})
    function = {"name": "look", "arguments": '{"a": 1}'}
    assert answer.message == {"content": "Hello", "tool_calls": [{"function": function}]}
    assert answer.finish_reason == "stop"


def test_the_call_of_a_function_is_put_together_again() -> None:
    answer = AnswerSoFar()
    for part in ({"name": "look", "arguments": ""}, {"arguments": '{"a"'}, {"arguments": ": 1}"}):
        answer.take({"choices": [{"index": 0, "delta": {"content": None, "function_call": part}}]})
    answer.take({"choices": [{"index": 0, "delta": {}, "finish_reason": "function_call"}]})
    function = {"name": "look", "arguments": '{"a": 1}'}
    assert answer.message == {"content": "", "function_call": function}
    assert answer.finish_reason == "function_call"
    assert turn_of([user("q")], answer.message)[-1]["content"] == '[look({"a": 1})]'


FIELDS = (
    "index", "delta", "content", "text", "finish_reason", "tool_calls", "function", "function_call", "name",
    "arguments",
)  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=5),
    max_leaves=12,
)


@given(st.lists(st.lists(JSON, max_size=3) | JSON, max_size=4))
def test_chunks_of_any_shape_are_read_as_far_as_they_can_be(odd: list[Any]) -> None:
    answer = AnswerSoFar()
    for choices in odd:
        answer.take({"choices": choices})
        answer.take({"choices": [{"index": 0, "delta": choices}]})
    answer.take({})
    answer.take({"choices": [{"index": 0, "delta": {"content": "the end"}, "finish_reason": "stop"}]})
    assert answer.message["content"].endswith("the end")
    assert answer.finish_reason == "stop"
    assert turn_of([user("q")], answer.message)[0] == user("q")
