"""What a model says an answer has cost, in all the shapes that come."""

import pytest
from service.policy.chat_tokens import ChatTokens, tokens_of


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}, ChatTokens(7, 3)),
        ({"prompt_tokens": 7, "completion_tokens": 3}, ChatTokens(7, 3)),
        # What it has thought is in the sum alone.
        ({"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 30}, ChatTokens(7, 23)),
        ({"total_tokens": 10}, ChatTokens(0, 10)),
        ({"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 0}, ChatTokens(7, 3)),
        ({"prompt_tokens": 7}, ChatTokens(7, 0)),
        ({"prompt_tokens": 7, "completion_tokens": None}, ChatTokens(7, 0)),
        ({"prompt_tokens": -7, "completion_tokens": 3}, ChatTokens(0, 3)),
        ({"prompt_tokens": "7", "completion_tokens": 3}, ChatTokens(0, 3)),
        ({"prompt_tokens": True, "completion_tokens": 3}, ChatTokens(0, 3)),
        ({"prompt_tokens": 10**30, "completion_tokens": 3}, ChatTokens(0, 3)),
    ],
)
def test_tokens_are_what_was_sent_and_said(usage: object, tokens: ChatTokens) -> None:
    assert tokens_of(usage) == tokens


@pytest.mark.parametrize(
    "usage", [None, {}, [], "10", 10, {"prompt_tokens": 0, "completion_tokens": 0}, {"total_tokens": 1.5}]
)
def test_what_says_nothing_of_them_is_none(usage: object) -> None:
    assert tokens_of(usage) is None
