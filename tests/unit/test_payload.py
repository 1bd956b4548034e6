"""Bytes → fields: JSON and forms, and nothing that two readers could read differently."""

import json
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st
from service.errors import MalformedBody
from service.routes.payload import decode

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
