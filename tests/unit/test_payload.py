"""Bytes → fields: JSON and forms, and nothing that two readers could read differently."""

import asyncio
import json
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st
from service.errors import MalformedBody, TooLarge
from service.routes.payload import decode, read_payload
from starlette.types import Message

pytestmark = pytest.mark.anyio
FORM = "application/x-www-form-urlencoded"
JSON = "application/json"


@pytest.mark.parametrize(
    "content_type",
    [
        JSON,
        "application/json; charset=utf-8",
        "APPLICATION/JSON",
        "text/json",
        "application/vnd.api+json",
        "",
        "text/plain",
        "application/octet-stream",
    ],
)
def test_json_under_the_types_people_send_it_as(content_type: str) -> None:
    assert decode(content_type, '{"a": "字\\n\\"'.encode() + b'", "b": 5}') == {"a": '字\n"', "b": 5}


@pytest.mark.parametrize("content_type", [FORM, f"{FORM}; charset=UTF-8", FORM.upper()])
def test_a_form(content_type: str) -> None:
    assert decode(content_type, b"a=1%202+3&b=&c=%E5%AD%97") == {"a": "1 2 3", "b": "", "c": "字"}


def test_a_form_in_raw_utf8() -> None:
    assert decode(FORM, "a=字 😀&b=%E5%AD%97".encode()) == {"a": "字 😀", "b": "字"}


def test_a_byte_order_mark_is_no_content() -> None:
    assert decode(JSON, b'\xef\xbb\xbf{"a": 1}') == {"a": 1}


@pytest.mark.parametrize("content_type", [JSON, FORM, "", "multipart/form-data; boundary=x", "image/png"])
@pytest.mark.parametrize("body", [b"", b" ", b"\r\n"])
def test_an_empty_body_has_no_fields(content_type: str, body: bytes) -> None:
    assert decode(content_type, body) == {}


@pytest.mark.parametrize(
    "content_type",
    ["multipart/form-data; boundary=x", "text/html", "application/xml", "image/png", "nonsense"],
)
def test_another_content_type_is_refused_with_what_to_send(content_type: str) -> None:
    with pytest.raises(MalformedBody, match="Send JSON or application/x-www-form-urlencoded"):
        decode(content_type, b'{"a": 1}')


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b'{"a": }',
        b"{'a': 1}",
        b'{"a": 1,}',
        b'{"a": 1} x',
        b"a=1",
        b"\xff\xfe{\x00}\x00",
        '{"a": "é"}'.encode("latin-1"),
        b'{"a": NaN}',
        b'{"a": Infinity}',
        b'{"a": -Infinity}',
        b'{"a": ' + b"9" * 5000 + b"}",
        b"[]",
        b'[{"a": 1}]',
        b'"a"',
        b"5",
        b"null",
        b"true",
        b'{"a": "\n"}',
        b"\x00",
    ],
)
def test_what_is_no_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(MalformedBody):
        decode(JSON, body)


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'{"a":['])
def test_deep_nesting_is_refused(opening: bytes) -> None:
    with pytest.raises(MalformedBody):
        decode(JSON, opening * 150_000)


@pytest.mark.parametrize(
    "body",
    [b'{"a": 1, "a": 2}', b'{"a": 1, "a": 1}', b'{"a": {"b": 1, "b": 2}}', b'{"a": 1, "\\u0061": 2}'],
)
def test_two_values_of_one_field_in_json_are_refused(body: bytes) -> None:
    with pytest.raises(MalformedBody, match="two values"):
        decode(JSON, body)


@pytest.mark.parametrize("body", [b"a=1&a=2", b"a=1&a=1", b"a=&a=1", b"a=1&%61=2", b"a&a=2"])
def test_two_values_of_one_field_in_a_form_are_refused(body: bytes) -> None:
    with pytest.raises(MalformedBody, match="two values"):
        decode(FORM, body)


@pytest.mark.parametrize("body", [b"a=%FF", b"a=%ED%A0%80", b"a=\xff", b"%FF=a", "a=é".encode("latin-1")])
def test_a_form_that_is_not_utf8_is_refused(body: bytes) -> None:
    with pytest.raises(MalformedBody):
        decode(FORM, body)


def test_a_form_with_too_many_fields_is_refused() -> None:
    with pytest.raises(MalformedBody, match="too many"):
        decode(FORM, "&".join(f"f{i}=1" for i in range(65)).encode())
    assert len(decode(FORM, "&".join(f"f{i}=1" for i in range(64)).encode())) == 64


# dify-tool-LongTermMemory#8, dify#21889: a quote, newline or backslash broke the node's JSON.
TEXT = st.text(alphabet=st.characters(exclude_categories=["Cs"]))


@given(st.dictionaries(TEXT, TEXT, max_size=6))
def test_any_text_comes_out_of_a_form_and_of_json_as_it_went_in(fields: dict[str, str]) -> None:
    assert decode(JSON, json.dumps(fields).encode()) == fields
    assert decode(JSON, json.dumps(fields, ensure_ascii=False).encode()) == fields
    assert decode(FORM, urlencode(fields).encode()) == fields
    assert decode(FORM, urlencode(fields, quote_via=quote).encode()) == fields


@given(st.sampled_from([JSON, FORM, "", "text/plain"]), st.binary(max_size=200))
def test_any_bytes_are_fields_or_refused(content_type: str, body: bytes) -> None:
    try:
        fields: Any = decode(content_type, body)
    except MalformedBody:
        return
    assert isinstance(fields, dict)
    assert all(isinstance(name, str) for name in fields)


class Client:
    """Sends its messages in turn; waits before those numbered in `waits`, for ever before `stalls`."""

    def __init__(self, *messages: Message, waits: tuple[int, ...] = (), stalls: int = -1) -> None:
        self._messages = messages
        self._waits = waits
        self._stalls = stalls
        self._sent = 0
        self.was_left = False

    async def receive(self) -> Message:
        number = self._sent
        self._sent += 1
        try:
            if number == self._stalls:
                await asyncio.Event().wait()
            if number in self._waits:
                # Once for a turn of the loop, once for something that ends.
                await asyncio.sleep(0)
                await asyncio.create_task(asyncio.sleep(0))
        except BaseException:
            self.was_left = True
            raise
        return self._messages[number]


def part(body: bytes, *, more: bool = False) -> Message:
    return {"type": "http.request", "body": body, "more_body": more}


GONE: Message = {"type": "http.disconnect"}
SCOPE: dict[str, Any] = {"headers": [(b"content-type", b"application/json")]}


@pytest.mark.parametrize("waits", [(), (0,), (1,), (0, 1)])
async def test_a_body_in_pieces_whether_it_is_there_or_has_to_come(waits: tuple[int, ...]) -> None:
    client = Client(part(b'{"a"', more=True), part(b": 1}"), waits=waits)
    assert await read_payload(SCOPE, client.receive, 100) == {"a": 1}
    client = Client(part(b'{"a": 1}'), waits=waits)
    assert await read_payload(SCOPE, client.receive, 8) == {"a": 1}


@pytest.mark.parametrize("waits", [(), (0,), (1,)])
async def test_a_body_that_is_too_large_or_breaks_off_is_refused(waits: tuple[int, ...]) -> None:
    first = part(b'{"a"', more=True)
    for limit, messages in ((3, [first]), (7, [first, part(b": 1}")]), (7, [part(b'{"a": 1}')])):
        with pytest.raises(TooLarge):
            await read_payload(SCOPE, Client(*messages, waits=waits).receive, limit)
    for messages in ([GONE], [first, GONE]):
        with pytest.raises(MalformedBody, match="whole"):
            await read_payload(SCOPE, Client(*messages, waits=waits).receive, 100)


@pytest.mark.parametrize("stalls", [0, 1])
async def test_who_is_cancelled_while_a_body_is_awaited_leaves_nothing_waiting(stalls: int) -> None:
    client = Client(part(b"{", more=True), stalls=stalls)
    reading = asyncio.create_task(read_payload(SCOPE, client.receive, 100))
    for _ in range(5):
        await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert client.was_left
