"""Courtesies are nothing to remember; everything else is."""

import pytest
from service.policy.small_talk import is_small_talk

COURTESIES = [
    "User: ok",
    "User: OK!",
    "User: thanks!",
    "User: 👍",
    "User: good night",
    "User: no, thanks",
    "User: hello\nAssistant: Hello! How can I help you today?",
    "User: Thank you so much\nAssistant: You're welcome! Let me know if you need anything else.",
    "用户：嗯嗯",
    "用户：哈哈哈",
    "用户：好的，谢谢\n助手：不客气！还有什么可以帮您的吗？",
    "用户：好的\n助手：好的，很高兴为您服务。",
]
MATTERS = [
    "User: ok, I moved to Oslo",
    "User: okra is my favourite",
    "User: Yesenia called",
    "User: no nuts please",
    "User: ok\nAssistant: I booked your flight to Osaka.",
    "User: hi\nAssistant: Your order 123 has shipped.",
    "User: no\nTool: 42",
    "User: ok\nUser: 3000",
    "用户：好的，我住上海",
    "用户：今天真热",
    "用户：可以喝咖啡吗",
    "用户：嗯\n助手：我们聊聊杭州吧",
    'User: "',
    "User: }{][",
    "ok",
    "",
]


@pytest.mark.parametrize("text", COURTESIES)
def test_courtesies(text: str) -> None:
    assert is_small_talk(text)


@pytest.mark.parametrize("text", MATTERS)
def test_anything_else(text: str) -> None:
    assert not is_small_talk(text)


def test_a_long_text_is_read_by_nobody() -> None:
    assert not is_small_talk("User: " + "ok " * 200)
