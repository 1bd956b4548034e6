"""The Hindsight stand-in against the real Hindsight: the same checks, the same statuses, the same fields."""

import json
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.fakes.hindsight import HindsightStandIn
from tests.fakes.hindsight_checks import CHECKS, Check, finished, verbatim_bank

pytestmark = [pytest.mark.anyio, pytest.mark.hindsight]

# Objects whose keys are data, or depend on what else the server has to do.
_OPEN = {
    "links_by_link_type",
    "links_by_fact_type",
    "nodes_by_fact_type",
    "operations_by_status",
    # What a bank has of its own, which a default template of the real server fills.
    "overrides",
    "progress",
}
_FRESH = uuid.UUID(int=7)


@pytest.fixture
async def stand_in_url() -> AsyncIterator[str]:
    async with HindsightStandIn() as stand_in:
        yield stand_in.url


@pytest.fixture(params=["stand-in", "real"])
def either_url(request: pytest.FixtureRequest, stand_in_url: str, hindsight_url: str) -> str:
    return hindsight_url if request.param == "real" else stand_in_url


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_the_same_checks_hold(either_url: str, check: Check) -> None:
    async with verbatim_bank(either_url) as (client, bank_id):
        await check(client, bank_id)


@dataclass
class Answered:
    """One reply: what was asked, the status, and its JSON."""

    asked: str
    status: int
    body: Any


_ITEM = {
    "content": "I live in Hangzhou",
    "document_id": "d/1",
    "tags": ["c:1"],
    "metadata": {"a": "b"},
    "context": "ctx",
    "timestamp": "2026-01-01T00:00:00Z",
    "observation_scopes": "shared",
}
# Method, path below the bank, body; {bank}, {memory} and {operation} are filled in.
_ASKED: list[tuple[str, str, Any]] = [
    ("GET", "/health", None),
    ("GET", "/health/live", None),
    ("GET", "/version", None),
    ("GET", "/v1/version", None),
    ("GET", "/nowhere", None),
    ("PUT", "{bank}", {"name": "n"}),
    ("PUT", "/v1/default/banks/_x", {}),
    ("PUT", "/v1/default/banks/" + "x" * 193, {}),
    ("PUT", "/v1/default/banks/a%0Ab", {}),
    ("PUT", "/v1/default/banks/a%2Fb", {}),
    ("PATCH", "{bank}-nobody", {"name": "n"}),
    ("GET", "{bank}-nobody/config", None),
    ("GET", "{bank}/config", None),
    ("PATCH", "{bank}/config", {"updates": {"nonsense": 1}}),
    ("GET", "{bank}/stats", None),
    ("POST", "{bank}/memories", {"items": [_ITEM]}),
    ("POST", "{bank}/memories", {}),
    ("POST", "{bank}/memories", {"items": [{"content": "x", "metadata": {"a": 1}}]}),
    ("POST", "{bank}/memories", {"items": [{"content": "x", "update_mode": "sideways"}]}),
    ("POST", "{bank}/memories", {"items": [{"content": "x"}], "async": True, "operation_id": "no"}),
    ("POST", "{bank}/memories/recall", {"query": "Hangzhou"}),
    ("POST", "{bank}/memories/recall", {"query": "Hangzhou", "budget": "vast"}),
    ("POST", "{bank}/memories/recall", {}),
    ("GET", "{bank}/memories/list", None),
    ("GET", "{bank}/memories/list?limit=-1", None),
    ("GET", "{bank}/memories/list?tags_match=some", None),
    ("GET", "{bank}/memories/{memory}", None),
    ("PATCH", "{bank}/memories/{memory}", {"state": "invalidated", "reason": "wrong"}),
    ("GET", "{bank}/memories/list?state=invalidated", None),
    ("GET", "{bank}/documents", None),
    ("GET", "{bank}/documents?start_date=soon", None),
    ("GET", "{bank}/documents/d%2F1", None),
    ("GET", "{bank}/documents/none", None),
    ("GET", "{bank}/operations/{operation}", None),
    ("GET", "{bank}/operations/" + str(_FRESH), None),
    ("GET", "{bank}/operations?type=batch_retain", None),
    ("GET", "{bank}/operations?limit=0", None),
    ("DELETE", "{bank}/documents/d%2F1", None),
    ("DELETE", "{bank}/documents/d%2F1", None),
    ("DELETE", "{bank}/memories", None),
    ("DELETE", "{bank}", None),
    ("DELETE", "{bank}", None),
    ("PUT", "{bank}/memories", None),
    ("GET", "{bank}", None),
]


async def transcript(url: str) -> list[Answered]:
    """What a server answers to the fixed list of requests, on a bank with one memory."""
    async with verbatim_bank(url) as (client, bank_id), httpx.AsyncClient(base_url=url, timeout=60) as http:
        operation_id = (
            await client.aretain(bank_id, "async apple", document_id="a", retain_async=True)
        ).operation_id
        await finished(client, bank_id, operation_id)
        memory_id = (await client.alist_memories(bank_id)).items[0].id
        places = {
            "bank": f"/v1/default/banks/{bank_id}",
            "memory": memory_id,
            "operation": operation_id,
        }
        answers = []
        for method, path, body in _ASKED:
            answer = await http.request(method, path.format(**places), json=body)
            answers.append(Answered(f"{method} {path} {json.dumps(body)}", answer.status_code, answer.json()))
        return answers


def differences(real: Any, fake: Any, where: str) -> list[str]:
    """Where two JSON values differ in fields or types; null fits any type."""
    if real is None or fake is None:
        return []
    if isinstance(real, dict) and isinstance(fake, dict):
        if where.rpartition(".")[2] in _OPEN:
            return []
        found = [f"{where}: only one has {key!r}" for key in sorted(set(real) ^ set(fake))]
        for key in set(real) & set(fake):
            found += differences(real[key], fake[key], f"{where}.{key}")
        return found
    if isinstance(real, list) and isinstance(fake, list):
        if bool(real) != bool(fake):
            return [f"{where}: {len(real)} or {len(fake)} entries"]
        return differences(real[0], fake[0], f"{where}[0]") if real else []
    kinds = {type(real), type(fake)}
    return [] if len(kinds) == 1 or kinds == {int, float} else [f"{where}: {real!r} or {fake!r}"]


def detail(body: Any) -> Any:
    """The part of an error that a client may rely on."""
    found = body.get("detail") if isinstance(body, dict) else None
    return [(error["type"], error["loc"][:3]) for error in found][:1] if isinstance(found, list) else None


async def test_replies_have_the_same_status_and_fields(hindsight_url: str) -> None:
    real = await transcript(hindsight_url)
    async with HindsightStandIn() as stand_in:
        fake = await transcript(stand_in.url)
    found = []
    for one, other in zip(real, fake, strict=True):
        if one.status != other.status:
            found.append(f"{one.asked}: status {one.status} or {other.status}")
        elif one.status < 400:
            found += differences(one.body, other.body, one.asked)
        elif detail(one.body) != detail(other.body):
            found.append(f"{one.asked}: {detail(one.body)} or {detail(other.body)}")
    assert found == []


async def test_the_configuration_has_the_same_keys(hindsight_url: str) -> None:
    async def keys(url: str) -> set[str]:
        async with verbatim_bank(url) as (client, bank_id):
            return set((await client.aget_bank_config(bank_id))["config"])

    async with HindsightStandIn() as stand_in:
        assert await keys(stand_in.url) == await keys(hindsight_url)
