"""Bodies that are too much, too little or nonsense: a clear 4xx in our form, never a 5xx, nothing lost."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import urlencode, urlsplit

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from service.schemas import AddRequest, RecallRequest

from tests.fakes.hindsight import HindsightStandIn
from tests.integration.conftest import KEY, Api, run_api, settings_for
from tests.integration.edge import checked, code_of, shared
from tests.support import RedisServer, wait_until

pytestmark = pytest.mark.anyio
__all__ = ["shared"]

PATHS = ("/memory/add", "/memory/recall")
FORM = "application/x-www-form-urlencoded"
TEN_MB = 10_000_000


async def in_chunks(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), 65_536):
        yield body[start : start + 65_536]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("content_type", ["application/json", FORM, "text/plain"])
async def test_ten_megabytes_are_refused_with_and_without_a_declared_length(
    shared: Api, path: str, content_type: str
) -> None:
    body = b'{"user_id": "u", "user_message": "' + b"x" * TEN_MB + b'"}'
    for content in (body, in_chunks(body)):
        reply = await shared.client.post(path, content=content, headers={"Content-Type": content_type})
        assert code_of(reply, 413) == "too_large"
    assert (await shared.recall("u", "hello")).status_code == 200


async def test_a_body_may_be_as_long_as_the_setting_says_and_not_a_byte_longer(
    redis_server: RedisServer, stand_in: HindsightStandIn
) -> None:
    async with run_api(settings_for(redis_server.url, stand_in.url, max_body_bytes=2048)) as api:
        body = json.dumps({"user_id": "u", "user_message": ""}).encode()
        fits = body[:-2] + b"x" * (2048 - len(body)) + b'"}'
        assert len(fits) == 2048
        for content in (fits, in_chunks(fits)):
            checked(await api.client.post("/memory/add", content=content), 202)
        for content in (fits + b" ", in_chunks(fits + b" ")):
            assert code_of(await api.client.post("/memory/add", content=content), 413) == "too_large"


async def raw(api: Api, *lines: str, body: bytes = b"", stays: bool = False) -> bytes:
    """Send a request byte by byte as given; the first line of the answer, b"" if `stays` is false."""
    address = urlsplit(api.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        writer.write("\r\n".join([*lines, "Host: h", f"Authorization: Bearer {KEY}", "", ""]).encode() + body)
        await writer.drain()
        return await reader.readline() if stays else b""
    finally:
        writer.close()
        await writer.wait_closed()


async def count_of(api: Api, route: str, status: int) -> float:
    wanted = f'memory_requests_total{{route="{route}",status="{status}"}} '
    text = (await api.stranger.get("/metrics")).text
    return sum(float(line.removeprefix(wanted)) for line in text.splitlines() if line.startswith(wanted))


@pytest.mark.parametrize("path", PATHS)
async def test_a_caller_that_goes_away_in_the_middle_is_no_fault_of_ours(api: Api, path: str) -> None:
    await raw(api, f"POST {path} HTTP/1.1", "Content-Length: 1000", body=b'{"user_id": ')

    async def is_counted() -> bool:
        return await count_of(api, path, 400) == 1

    await wait_until(is_counted, "the cut request is counted as a 400")
    assert await count_of(api, path, 500) == 0


async def test_a_length_that_is_no_number_is_refused(shared: Api) -> None:
    for length in ("-1", "1e3", "９"):
        lines = "POST /memory/add HTTP/1.1", f"Content-Length: {length}"
        status = await raw(shared, *lines, body=b"{}", stays=True)
        assert status.startswith(b"HTTP/1.1 400")


NEITHER = [
    (b"hello", "application/json"),
    (b"hello", ""),
    (b"<a/>", "application/xml"),
    (b"--x\r\n\r\n", "multipart/form-data; boundary=x"),
    (b"\x89PNG\r\n", "image/png"),
    (b'{"user_id": "u",', "application/json"),
    (b'["u", "hello"]', "application/json"),
    (b'"u"', "application/json"),
    (b"null", "application/json"),
    (b"5", "application/json"),
    (b"\xff\xfe{\x00}\x00", "application/json"),
    (b'{"user_id": "\xe9"}', "application/json"),
    (b'{"user_id": NaN}', "application/json"),
    (b'{"user_id": "u", "top_k": -Infinity}', "application/json"),
    (b'{"user_id": "u", "top_k": ' + b"9" * 5000 + b"}", "application/json"),
    (b"[" * 500_000, "application/json"),
    (b'{"a":' * 150_000, "application/json"),
    (b'{"user_id": "u", "user_id": "v", "query": "q"}', "application/json"),
    (b'{"user_id": "u", "user_id": "u", "query": "q"}', "application/json"),
    (b"user_id=u&user_id=v&query=q", FORM),
    (b"user_id=u&query=q&query=q", FORM),
    (b"user_id=%FF&query=q", FORM),
    (b"user_id=%ED%A0%80&query=q", FORM),
    ("&".join(f"f{i}=1" for i in range(100)).encode(), FORM),
]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("body", "content_type"), NEITHER)
async def test_a_body_that_cannot_be_read_is_refused(
    shared: Api, path: str, body: bytes, content_type: str
) -> None:
    reply = await shared.client.post(path, content=body, headers={"Content-Type": content_type})
    assert code_of(reply, 400) == "malformed_body"


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"user_id": "u"},
        {"query": "q", "user_message": "m"},
        {"user_id": None},
        {"user_id": 5, "query": "q"},
        {"user_id": ["u"], "query": "q"},
        {"user_id": {"id": "u"}, "query": "q"},
        {"user_id": True, "query": "q"},
        {"user_id": "u", "query": {"$gt": ""}},
        {"user_id": "u", "query": "q", "unknown": "x"},
        {"user_id": "u", "query": "q", "Query": "x"},
        {"user_id": "u", "query": "q", "a\ud800": "x"},
        {"user_id": "u", "query": "q", "": "x"},
        {"user_id": "u", "query": "q", "top_k": 10**300},
        {"user_id": "u", "query": "q", "top_k": 1e300},
        {"user_id": "u", "query": "q", "tags": "\ud800"},
        {"user_id": "u", "query": "q", "timeout_ms": -1},
        {"user_id": "u", "query": "q", "conversation_id": "x" * 1025},
    ],
)
async def test_fields_that_are_missing_unknown_or_wrong_are_refused(
    shared: Api, path: str, fields: dict[str, Any]
) -> None:
    if path == "/memory/add" and fields == {"user_id": "u"}:
        assert checked(await shared.client.post(path, json=fields), 200)["status"] == "skipped"
        return
    code = code_of(await shared.client.post(path, content=json.dumps(fields)), 422)
    assert code in ("invalid_request", "user_id_required")


async def test_json_is_read_whatever_it_is_called(shared: Api, user: str) -> None:
    for content_type in ("application/json", "", "text/plain", "application/octet-stream"):
        reply = await shared.client.post(
            "/memory/recall",
            content=json.dumps({"user_id": user, "query": "字"}, ensure_ascii=False).encode(),
            headers={"Content-Type": content_type},
        )
        checked(reply, 200)


@pytest.mark.parametrize(
    ("job", "query", "status"),
    [
        ("0" * 32, "", 404),
        ("x" * 65, "", 404),
        ("..", "", 404),
        ("%2e%2e", "", 404),
        ("%00", "", 404),
        ("任务", "", 404),
        ("%FF", "", 404),
        ("*", "", 404),
        ("0" * 32, "?wait_s=30", 404),
        ("0" * 32, "?wait_s=", 404),
        ("0" * 32, "?wait_s=null", 404),
        ("0" * 32, "?wait_s=0.0", 404),
        ("0" * 32, "?wait_s=31", 422),
        ("0" * 32, "?wait_s=-1", 422),
        ("0" * 32, "?wait_s=soon", 422),
        ("0" * 32, "?wait_s=-nan", 422),
        ("0" * 32, "?wait_s=inf", 422),
        ("0" * 32, "?wait_s=1e999", 422),
    ],
)
async def test_a_job_and_a_wait_that_are_none(shared: Api, job: str, query: str, status: int) -> None:
    reply = await shared.client.get(f"{shared.url}/memory/jobs/{job}{query}")
    checked(reply, status)


# --- Anything at all ------------------------------------------------------------------------------------
ANY_TEXT = st.text(alphabet=st.characters(exclude_categories=[]), max_size=40)
ODD_TEXTS = [
    "null",
    "5",
    "5.0",
    "false",
    "../x",
    "a:b",
    "%2e",
    "DEFAULT-USER",
    "{{#sys.user_id#}}",
    "😀",
    "Ａ",
    "[]",
    "{}",
    "[{}]",
    '[{"role":"user"}]',
]
ODD_TEXTS += ["", "\x00", "a\x00b", "\ud800", "9" * 400, "字" * 300, "e\u0301", "\u202e"]
PIECES = ANY_TEXT | st.sampled_from(ODD_TEXTS)
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | PIECES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(PIECES, inner, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from([*RecallRequest.model_fields, *AddRequest.model_fields])
LEAST = {"user_id": "u", "query": "q", "user_message": "m"}
TYPES = st.sampled_from(["application/json", FORM, "text/plain", "", "multipart/form-data", "text/json;x"])


def as_json(fields: object) -> bytes:
    return json.dumps(fields).encode()


def as_form(fields: Mapping[str, object]) -> bytes:
    return urlencode({k: str(v) for k, v in fields.items()}, errors="surrogatepass").encode()


FIELDS = st.dictionaries(NAMES | PIECES, ANY_JSON, max_size=5)
BODIES = st.one_of(
    st.tuples(st.binary(max_size=200), TYPES),
    st.tuples(ANY_JSON.map(as_json), TYPES),
    st.tuples(FIELDS.map(as_json), st.just("application/json")),
    st.tuples(FIELDS.map(lambda fields: as_json({**LEAST, **fields})), st.just("application/json")),
    st.tuples(FIELDS.map(as_form), st.just(FORM)),
    st.tuples(FIELDS.map(lambda fields: as_form({**LEAST, **fields})), st.just(FORM)),
)
# One API serves all examples of a test: they are requests to one server, as in life.
FUZZ = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.parametrize("path", PATHS)
@FUZZ
@given(body=BODIES)
async def test_any_body_is_answered_in_our_form(shared: Api, path: str, body: tuple[bytes, str]) -> None:
    content, content_type = body
    reply = await shared.client.post(path, content=content, headers={"Content-Type": content_type})
    if reply.status_code == 200 and reply.headers["content-type"].startswith("text/plain"):
        assert path == "/memory/recall"  # the body asked for format=text
        return
    checked(reply)


@pytest.mark.parametrize("path", PATHS)
@FUZZ
@given(name=NAMES, value=ANY_JSON, is_form=st.booleans())
async def test_any_value_of_any_one_field_is_answered_in_our_form(
    shared: Api, path: str, name: str, value: object, is_form: bool
) -> None:
    model = AddRequest if path == "/memory/add" else RecallRequest
    fields = {k: v for k, v in LEAST.items() if k in model.model_fields} | {name: value}
    reply = await shared.client.post(
        path,
        content=as_form(fields) if is_form else as_json(fields),
        headers={"Content-Type": FORM if is_form else "application/json"},
    )
    if not reply.headers["content-type"].startswith("text/plain"):
        checked(reply)


@FUZZ
@given(job=st.binary(max_size=20), wait_s=ANY_TEXT, key=st.binary(max_size=20))
async def test_any_job_wait_and_key_are_answered_in_our_form(
    shared: Api, job: bytes, wait_s: str, key: bytes
) -> None:
    path = "".join(f"%{byte:02X}" for byte in job)
    query = urlencode({"wait_s": wait_s}, errors="surrogatepass")
    url = httpx.URL(f"{shared.url}/memory/jobs/0{path}?{query}")
    checked(await shared.client.get(url))
    odd = bytes(byte for byte in key if byte >= 32 and byte != 127)
    checked(await shared.stranger.get(url, headers=[(b"Authorization", odd.strip())]), 401, 404)
