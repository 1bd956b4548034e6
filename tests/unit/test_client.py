"""The client for other people's code, without a service: what it loads, sends, repeats and refuses."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import httpx
import pytest
from service.client import (
    ApiError,
    ExportCut,
    MemoryClient,
    MemoryClientError,
    NotAllowed,
    NotFound,
    RequestRefused,
    Unavailable,
    UnexpectedReply,
    Unreachable,
    calls,
)

_LOADED = "import sys, service.client; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
_OURS = "import sys, service.client; print(*sorted(n for n in sys.modules if n.startswith('service')))"


def printed(code: str) -> list[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, text=True
    ).stdout.split()


def test_it_loads_httpx_and_nothing_of_the_service() -> None:
    loaded = printed(_LOADED)
    assert "httpx" in loaded
    heavy = {"aiohttp", "fastapi", "hindsight_client", "litellm", "openai", "pydantic", "redis", "uvicorn"}
    assert not heavy & set(loaded)
    assert {name.split(".")[1] for name in printed(_OURS) if "." in name} == {"client"}


def test_a_client_needs_an_address_and_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DIFY_MEMORY_URL", "DIFY_MEMORY_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    for given in ((None, None), ("http://x", None), (None, "k"), ("", "k"), ("x:8000", "k")):
        with pytest.raises(ValueError, match="DIFY_MEMORY_URL"):
            MemoryClient(*given)
    monkeypatch.setenv("DIFY_MEMORY_URL", "http://127.0.0.1:1/")
    monkeypatch.setenv("DIFY_MEMORY_API_KEY", "key")
    with MemoryClient(retries=0) as memory, pytest.raises(Unreachable):
        memory.recall("ana", "x")


@pytest.mark.parametrize(
    ("url", "key"), [("http://[::1", "k"), ("http://a", "k\n"), ("http://a", "ké"), ("http://a:x", "k")]
)
def test_an_address_or_key_that_is_none_is_told_at_once(url: str, key: str) -> None:
    with pytest.raises(ValueError, match=r"URL|key"):
        MemoryClient(url, key)


@pytest.mark.parametrize("after", ["²", "soon", "-1", ""])
def test_a_pause_that_cannot_be_read_is_none(after: str) -> None:
    reply = httpx.Response(503, json={}, headers=[(b"retry-after", after.encode())])
    with pytest.raises(Unavailable) as caught:
        calls.check(reply)
    assert caught.value.retry_after_s is None


def test_an_endless_answer_is_no_answer() -> None:
    with pytest.raises(UnexpectedReply):
        calls.job("j", 0).result(httpx.Response(200, content=b"[" * 200_000))
    with pytest.raises(ApiError):
        calls.check(httpx.Response(500, content=b"[" * 200_000))


def test_what_is_asked_becomes_a_flat_body() -> None:
    zone = timezone(timedelta(hours=8))
    call = calls.add(
        "ana",
        {
            "user_message": "hello",
            "tags": ["a", "b"],
            "metadata": {"x": "y"},
            "timestamp": datetime(2026, 1, 31, 9, 30, tzinfo=zone),
        },
    )
    assert call.body == {
        "user_id": "ana",
        "user_message": "hello",
        "tags": "a,b",
        "metadata": {"x": "y"},
        "timestamp": "2026-01-31T09:30:00+08:00",
    }
    local = datetime(2026, 1, 31, 9, 30)  # noqa: DTZ001 - as people write it
    body = calls.add("ana", {"timestamp": local}).body or {}
    assert datetime.fromisoformat(str(body["timestamp"])) == local.astimezone(UTC)
    assert (calls.recall("ana", "q", {"kinds": "one"}).body or {})["kinds"] == "one"
    with pytest.raises(ValueError, match="comma"):
        calls.recall("ana", "q", {"tags": ["a,b"]})
    assert calls.job("../x?y", 0).path == "/memory/jobs/..%2Fx%3Fy"


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, RequestRefused),
        (401, NotAllowed),
        (403, NotAllowed),
        (404, NotFound),
        (409, RequestRefused),
        (413, RequestRefused),
        (422, RequestRefused),
        (429, Unavailable),
        (500, ApiError),
        (502, Unavailable),
        (503, Unavailable),
        (504, Unavailable),
    ],
)
def test_an_error_has_its_kind_and_all_that_was_said(status: int, kind: type[ApiError]) -> None:
    said = {"error": {"code": "some_code", "message": "What to do.", "request_id": "r-1"}}
    reply = httpx.Response(status, json=said, headers={"Retry-After": "7"})
    with pytest.raises(ApiError) as caught:
        calls.check(reply)
    error = caught.value
    assert type(error) is kind
    assert (error.status, error.code, error.message) == (status, "some_code", "What to do.")
    assert (error.request_id, error.retry_after_s) == ("r-1", 7)


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"error": "x"}', b'{"error": {"code": 1}}'])
def test_an_error_of_something_else_is_one_too(body: bytes) -> None:
    with pytest.raises(Unavailable) as caught:
        calls.check(httpx.Response(502, content=body))
    assert caught.value.code == "unknown"
    assert body.decode() not in str(caught.value) or not body


@pytest.mark.parametrize("body", [b"", b"<html>hello</html>", b"[]", b'"x"', b"{}"])
def test_an_answer_of_something_else_is_no_recall(body: bytes) -> None:
    with pytest.raises(UnexpectedReply):
        calls.recall("ana", "q", {}).result(httpx.Response(200, content=body))


REFUSED = httpx.ConnectError("x")
CUT = httpx.ReadError("x")
LATE = httpx.ReadTimeout("x")
BUSY = Unavailable(503, "busy", "m", "r", None)
WRONG = RequestRefused(422, "invalid_request", "m", "r", None)
TURN: Callable[[], Any] = lambda: calls.add("ana", {"user_message": "x"})  # noqa: E731
NAMED_TURN: Callable[[], Any] = lambda: calls.add("ana", {"user_message": "x", "turn_id": "t"})  # noqa: E731
RECALL: Callable[[], Any] = lambda: calls.recall("ana", "q", {})  # noqa: E731
FORGET: Callable[[], Any] = lambda: calls.forget("ana", {"all": True})  # noqa: E731


@pytest.mark.parametrize(
    ("call", "repeated"),
    [
        (RECALL, {REFUSED, CUT, LATE, BUSY}),
        (NAMED_TURN, {REFUSED, CUT, LATE, BUSY}),
        (TURN, {REFUSED}),
        (FORGET, {REFUSED}),
    ],
)
def test_only_what_does_no_harm_is_repeated(call: Callable[[], Any], repeated: set[Exception]) -> None:
    for failure in (REFUSED, CUT, LATE, BUSY, WRONG):
        if failure in repeated:
            assert 0.2 <= call().pause_s(failure, 0, 2) <= 0.25
            assert 0.4 <= call().pause_s(failure, 1, 2) <= 0.5
        else:
            with pytest.raises(MemoryClientError):
                call().pause_s(failure, 0, 2)
        with pytest.raises(MemoryClientError):
            call().pause_s(failure, 2, 2)


def test_a_pause_is_as_long_as_asked_for_within_reason() -> None:
    assert 3 <= RECALL().pause_s(Unavailable(429, "c", "m", "r", 3), 0, 2) <= 3.75
    assert RECALL().pause_s(Unavailable(429, "c", "m", "r", 3600), 0, 2) == 30


def line(**fields: Any) -> bytes:
    memory: dict[str, Any] = {
        "type": "memory",
        "kind": None,
        "said_at": "",
        "tags": [],
        "metadata": {},
        "conversation": "",
    }
    return json.dumps(memory | fields, ensure_ascii=False).encode() + b"\n"


END = b'{"type": "end", "memories": 2, "pending": 0}\n'


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_an_export_is_read_by_its_own_line_ends(size: int) -> None:
    # All of these end a line for `str.splitlines`, which httpx's own lines are made with.
    texts = ["one\u2028two\u0085three\u2029", "四\x1c五"]
    whole = b"".join(line(text=text) for text in texts) + END
    lines = calls.Lines()
    found = [memory.text for at in range(0, len(whole), size) for memory in lines.feed(whole[at : at + size])]
    assert found == texts
    lines.close()


@pytest.mark.parametrize("tail", [b"", END.replace(b"2", b"3"), END[:-1]])
def test_an_export_that_was_cut_off_says_so(tail: bytes) -> None:
    lines = calls.Lines()
    assert len(list(lines.feed(line(text="a") + line(text="b") + tail))) == 2
    with pytest.raises(ExportCut):
        lines.close()


def test_a_wait_asks_for_no_more_than_is_left() -> None:
    now = time.monotonic()
    assert calls.share_s(now + 1000) == 30
    assert calls.share_s(now - 1) == 0
    assert 4 < calls.share_s(now + 5) <= 5
