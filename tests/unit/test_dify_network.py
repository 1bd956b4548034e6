"""The rules of Dify's proxy and importer, re-stated in `policy` for the doctor."""

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from service.policy.dify_document import build_document
from service.policy.dify_import import import_faults, server_url_of
from service.policy.dify_network import address_faults, is_inner_name

from tests.fakes.dify_tools import ImportRefused, parse

URL = "https://memory.example.com"


@pytest.mark.parametrize(
    ("url", "faults"),
    [
        (URL, []),
        (f"{URL}:443", []),
        ("http://memory:8000", []),
        ("http://memory", []),
        ("http://memory:1025", []),
        ("http://8.8.8.8:8000", []),
        (f"{URL}/", ["slash"]),
        (f"{URL}:8443", ["https_port"]),
        ("http://memory:81", ["http_port"]),
        ("http://memory:1024", ["http_port"]),
        ("http://localhost:8000", ["localhost"]),
        ("http://api.localhost:8000", ["localhost"]),
        ("http://127.0.0.1:8000", ["localhost"]),
        ("http://0.0.0.0:8000", ["localhost"]),
        ("http://[::1]:8000", ["localhost"]),
        ("http://192.168.1.5:8000", ["private"]),
        ("http://10.0.0.1:8000/", ["slash", "private"]),
        ("http://[fd00::1]:8000", ["private"]),
        ("https://localhost:8443", ["https_port", "localhost"]),
        ("memory:8000", ["not_a_url"]),
        ("ftp://memory", ["not_a_url"]),
        ("http://", ["not_a_url"]),
        ("http://memory:port", ["not_a_url"]),
        ("http://[::1", ["not_a_url"]),
        ("", ["not_a_url"]),
    ],
)
def test_what_the_proxy_makes_of_an_address(url: str, faults: list[str]) -> None:
    assert address_faults(url) == faults


@pytest.mark.parametrize(
    ("url", "is_inner"),
    [
        ("http://memory:8000", True),
        ("http://host.docker.internal:8000", True),
        ("http://nas.local", True),
        (URL, False),
        ("http://8.8.8.8", False),
        ("http://[2001:4860::1]", False),
    ],
)
def test_names_that_mean_something_inside_only(url: str, is_inner: bool) -> None:
    assert is_inner_name(url) is is_inner


def _operation(data: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = data["paths"]["/memory/recall"]["post"]
    return found


def _schema(data: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = _operation(data)["requestBody"]["content"]["application/json"]["schema"]
    return found


# What is broken, and whether Dify refuses the document (else it loses something without a word).
_BROKEN: list[tuple[str, bool, Callable[[dict[str, Any]], object]]] = [
    ("no_document", True, lambda data: data.pop("info")),
    ("no_server", True, lambda data: data.pop("servers")),
    ("no_server", True, lambda data: data.update(servers=[])),
    ("relative_server", False, lambda data: data.update(servers=[{"url": "/api"}])),
    ("slash", False, lambda data: data.update(servers=[{"url": f"{URL}/"}])),
    ("no_operation", True, lambda data: data.update(paths={})),
    ("tool_name", True, lambda data: _operation(data).update(operationId="recall memory")),
    ("description", True, lambda data: _operation(data).update(description=None)),
    (
        "parameters",
        False,
        lambda data: _operation(data).update(parameters=[{"name": "Authorization", "in": "header"}]),
    ),
    ("body", False, lambda data: _operation(data).update(requestBody={"$ref": "#/components/x"})),
    (
        "body",
        False,
        lambda data: _operation(data)["requestBody"]["content"].update({"text/plain": {"schema": {}}}),
    ),
    ("field", True, lambda data: _schema(data)["properties"]["top_k"].update(type=["integer", "null"])),
    ("field", True, lambda data: _schema(data)["properties"]["top_k"].update(description=None)),
    ("field", False, lambda data: _schema(data)["properties"].update(tags={"type": "array"})),
    ("field", False, lambda data: _schema(data)["properties"].update(tags={"anyOf": []})),
]


@pytest.mark.parametrize(("code", "is_refused", "break_it"), _BROKEN)
def test_what_dify_stumbles_over_is_named(
    code: str, is_refused: bool, break_it: Callable[[dict[str, Any]], object]
) -> None:
    data = copy.deepcopy(build_document(URL, "1"))
    assert import_faults(data) == []
    break_it(data)
    assert code in {fault.code for fault in import_faults(data)}
    # The same rules, stated once more for the tests, agree on what is refused.
    if is_refused:
        with pytest.raises(ImportRefused):
            parse(json.dumps(data))
    else:
        assert parse(json.dumps(data))


def test_the_server_is_the_first_one() -> None:
    assert server_url_of(build_document(URL, "1")) == URL
    odd: tuple[object, ...] = (
        None,
        [],
        {},
        {"servers": None},
        {"servers": []},
        {"servers": [7]},
        {"servers": [{}]},
    )
    for document in odd:
        assert server_url_of(document) == ""


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["info", "servers", "paths", "/x", "post", "requestBody", "content", "url"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(document=_JSON)
def test_no_document_breaks_it(document: object) -> None:
    import_faults(document)
    server_url_of(document)


@given(url=st.text(max_size=40) | st.text(max_size=20).map("http://{}".format))
def test_no_address_breaks_it(url: str) -> None:
    if address_faults(url) != ["not_a_url"]:
        is_inner_name(url)
