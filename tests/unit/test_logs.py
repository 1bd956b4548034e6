"""Logs: one JSON object a line, facts and context, never the text of an exception."""

import json
import logging
import subprocess
import sys
from typing import Any

import pytest
from service import logs


def line_of(record: logging.LogRecord) -> dict[str, Any]:
    text = logs.JsonFormatter().format(record)
    assert "\n" not in text
    parsed: dict[str, Any] = json.loads(text)
    return parsed


def record_of(event: str = "thing_done", **facts: Any) -> logging.LogRecord:
    made = logging.makeLogRecord(
        {"name": "service.x", "levelno": 20, "levelname": "INFO", "msg": event, **facts}
    )
    made.created = 1767225600.5
    return made


def test_a_line_has_time_level_logger_event_and_facts() -> None:
    assert line_of(record_of(hits=3, ms=1.5)) == {
        "time": "2026-01-01T00:00:00.500+00:00",
        "level": "info",
        "logger": "service.x",
        "event": "thing_done",
        "hits": 3,
        "ms": 1.5,
    }


@pytest.mark.parametrize("name", ["request_id", "bank_id", "job_id"])
def test_the_context_is_on_the_line_once_it_is_set(name: str) -> None:
    variable = {"request_id": logs.request_id, "bank_id": logs.bank_id, "job_id": logs.job_id}[name]
    assert name not in line_of(record_of())
    token = variable.set("abc")
    try:
        assert line_of(record_of())[name] == "abc"
    finally:
        variable.reset(token)


def test_the_trace_is_on_the_line_while_there_is_one() -> None:
    assert "trace_id" not in line_of(record_of())
    token = logs.traceparent.set("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    try:
        assert line_of(record_of())["trace_id"] == "0af7651916cd43dd8448eb211c80319c"
    finally:
        logs.traceparent.reset(token)


def test_what_litellm_marks_records_with_is_no_fact() -> None:
    marked = record_of(hits=3, litellm_redacted=object(), litellm_call="x")
    assert line_of(marked) == line_of(record_of(hits=3))


def test_of_an_exception_only_class_and_place_are_kept() -> None:
    try:
        int("the user's words")
    except ValueError:
        record = record_of("it_failed")
        record.exc_info = sys.exc_info()
    line = line_of(record)
    assert line["exception"] == "ValueError"
    assert line["at"].startswith("test_logs.py:")
    assert "words" not in json.dumps(line)


def test_an_exception_without_a_traceback_is_logged_as_well() -> None:
    record = record_of("it_failed")
    record.exc_info = (ValueError, ValueError("words"), None)
    assert line_of(record)["exception"] == "ValueError"
    record.exc_info = (None, None, None)
    assert "exception" not in line_of(record)


def test_line_breaks_and_surrogates_stay_inside_the_line() -> None:
    assert line_of(record_of("a\nb"))["event"] == "a\nb"
    assert line_of(record_of(fact="a\r\n\ud800"))["fact"] == "a\r\n\ud800"


def test_facts_of_any_type_are_logged() -> None:
    assert line_of(record_of(fact={1}, other=ValueError))["fact"] == "{1}"


def run(code: str) -> list[dict[str, Any]]:
    """The lines that a process of its own logs; its root logger is not this one's."""
    prelude = "import logging\nfrom service import logs\n"
    done = subprocess.run(
        [sys.executable, "-c", prelude + code], capture_output=True, text=True, check=True, encoding="utf-8"
    )
    assert done.stdout == ""
    return [json.loads(line) for line in done.stderr.splitlines()]


def test_a_process_logs_json_on_standard_error_from_its_level_on() -> None:
    lines = run(
        "logs.configure('warning')\n"
        "logging.getLogger('service.x').info('quiet')\n"
        "logging.getLogger('service.x').warning('loud', extra={'n': 1})\n"
        "logging.getLogger('uvicorn.error').error('also')\n"
        "logging.getLogger('uvicorn.access').error('GET /?api_key=secret')\n"
    )
    assert [(line["event"], line.get("n")) for line in lines] == [("loud", 1), ("also", None)]


def test_libraries_that_print_requests_or_arguments_are_silent_even_at_debug() -> None:
    names = ["httpx", "httpcore.http11", "aiohttp.client", "arq.worker", "uvicorn.access", "redis"]
    lines = run(
        "logs.configure('debug')\n"
        f"[logging.getLogger(n).info('GET /?api_key=secret') for n in {names[:-1]!r}]\n"
        "logging.getLogger('service').debug('still_here')\n"
    )
    assert [line["event"] for line in lines] == ["still_here"]


def test_what_standard_error_cannot_encode_is_escaped() -> None:
    lines = run(
        "logs.configure('info')\nlogging.getLogger('x').info('thing', extra={'fact': 'a\\ud800字'})\n"
    )
    assert lines[0]["event"] == "thing"
