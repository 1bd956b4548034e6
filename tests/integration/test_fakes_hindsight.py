"""The Hindsight stand-in: true to its original as far as `CHECKS` go, and it fails in every planned way."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest
from hindsight_client import Hindsight
from hindsight_client_api.exceptions import ApiException, ServiceException
from pydantic import ValidationError

from tests.fakes.hindsight import HindsightProcess, HindsightStandIn
from tests.fakes.hindsight_checks import CHECKS, Check, finished, refusal, verbatim_bank
from tests.fakes.hindsight_store import Fact
from tests.support import wait_until

pytestmark = pytest.mark.anyio


@pytest.fixture
async def stand_in() -> AsyncIterator[HindsightStandIn]:
    async with HindsightStandIn() as running:
        yield running


@pytest.fixture
async def client(stand_in: HindsightStandIn) -> AsyncIterator[Any]:
    hindsight: Any = Hindsight(base_url=stand_in.url, timeout=0.5, max_attempts=1)
    yield hindsight
    await hindsight.aclose()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_it_is_true_to_hindsight(stand_in: HindsightStandIn, check: Check) -> None:
    async with verbatim_bank(stand_in.url) as (hindsight, bank_id):
        await check(hindsight, bank_id)


async def test_writes_and_requests_are_recorded(stand_in: HindsightStandIn, client: Any) -> None:
    await client.aretain("b", "apple", document_id="d")
    await client.aretain("b", "apple", document_id="d")
    await client.aretain("b", "pear", document_id="e")
    bank = stand_in.banks["b"]
    assert bank.documents["d"].writes == 2
    assert bank.written == [("d", "apple"), ("d", "apple"), ("e", "pear")]
    assert bank.texts == ["apple", "pear"]
    first = stand_in.requests_for("retain")[0]
    assert (first.bank_id, first.status) == ("b", 200)
    assert first.body["items"][0]["content"] == "apple"
    assert "user-agent" in first.headers


@pytest.mark.parametrize("kind", ["hang", "commit_then_hang"])
async def test_a_hang_ends_in_the_callers_time_out(
    stand_in: HindsightStandIn, client: Any, kind: Any
) -> None:
    stand_in.fail("retain", kind, times=1)
    with pytest.raises(TimeoutError):
        await client.aretain("b", "apple", document_id="d")
    assert ("b" in stand_in.banks) == (kind == "commit_then_hang")
    await client.aretain("b", "apple", document_id="d")
    assert stand_in.banks["b"].documents["d"].writes == (2 if kind == "commit_then_hang" else 1)


@pytest.mark.parametrize("kind", ["close", "commit_then_close"])
async def test_a_dropped_connection(stand_in: HindsightStandIn, client: Any, kind: Any) -> None:
    stand_in.fail("retain", kind, times=1)
    with pytest.raises((aiohttp.ServerDisconnectedError, aiohttp.ClientOSError)):
        await client.aretain("b", "apple", document_id="d")
    assert ("b" in stand_in.banks) == (kind == "commit_then_close")
    assert stand_in.requests[0].status is None


async def test_a_reply_cut_in_the_middle(stand_in: HindsightStandIn, client: Any) -> None:
    await client.aretain("b", "apple")
    stand_in.fail("recall", "cut", times=1)
    with pytest.raises(aiohttp.ClientError):
        await client.arecall("b", "apple")


@pytest.mark.parametrize("status", [404, 422, 429, 500, 503])
async def test_a_status(stand_in: HindsightStandIn, client: Any, status: int) -> None:
    stand_in.fail("recall", "status", status=status, retry_after="7", times=1)
    await client.acreate_bank("b")
    with pytest.raises(ApiException) as caught:
        await client.arecall("b", "apple")
    assert caught.value.status == status
    assert (caught.value.headers or {})["Retry-After"] == "7"
    await client.arecall("b", "apple")


async def test_garbage_and_a_wrong_shape(stand_in: HindsightStandIn, client: Any) -> None:
    await client.acreate_bank("b")
    stand_in.fail("recall", "garbage", times=1)
    stand_in.fail("recall", "wrong_shape", times=1)
    with pytest.raises(ValueError, match=r"JSON|column|char"):
        await client.arecall("b", "apple")
    with pytest.raises(ValidationError):
        await client.arecall("b", "apple")
    assert (await client.arecall("b", "apple")).results == []


async def test_slow_and_trickling_replies(stand_in: HindsightStandIn, client: Any) -> None:
    await client.acreate_bank("b")
    stand_in.fail("recall", "slow", seconds=0.2, times=1)
    stand_in.fail("recall", "trickle", seconds=0.05, times=1)
    began = time.monotonic()
    await client.arecall("b", "apple")
    assert time.monotonic() - began >= 0.2
    with pytest.raises(TimeoutError):
        await client.arecall("b", "apple")


async def test_a_client_that_goes_away_stops_a_slow_write(stand_in: HindsightStandIn, client: Any) -> None:
    stand_in.fail("retain", "slow", seconds=1.0, times=1)
    with pytest.raises(TimeoutError):
        await client.aretain("b", "apple", document_id="d")
    await client.aretain("b", "pear", document_id="e")
    began = time.monotonic()
    await wait_until(lambda: time.monotonic() - began > 1.0, "the slow write would have happened")
    assert stand_in.banks["b"].texts == ["pear"]


async def test_faults_stay_until_they_are_healed(stand_in: HindsightStandIn, client: Any) -> None:
    await client.acreate_bank("b")
    stand_in.fail("*", "status", status=503)
    for _ in range(3):
        with pytest.raises(ServiceException):
            await client.arecall("b", "apple")
    assert await refusal(client.alist_memories("b")) == 503
    stand_in.heal()
    await client.arecall("b", "apple")


async def test_healing_lets_go_of_requests_that_hang(stand_in: HindsightStandIn) -> None:
    stand_in.fail("health", "hang")
    async with httpx.AsyncClient(timeout=5) as http:
        stuck = asyncio.create_task(http.get(f"{stand_in.url}/health"))
        await wait_until(lambda: stand_in.requests_for("health"), "the request has arrived")
        stand_in.heal("health")
        with pytest.raises(httpx.TransportError):
            await stuck


@pytest.mark.parametrize("status", ["pending", "processing"])
async def test_an_operation_stays_where_it_is_held(
    stand_in: HindsightStandIn, client: Any, status: Any
) -> None:
    stand_in.hold_operations(status)
    operation_id = (await client.aretain("b", "apple", document_id="d", retain_async=True)).operation_id

    async def is_there() -> bool:
        found = await client.operations.get_operation_status("b", operation_id)
        return bool(found.status == status)

    await wait_until(is_there, f"the operation is {status}")
    assert stand_in.banks["b"].texts == []
    stand_in.release_operations()
    assert await finished(client, "b", operation_id) == "completed"
    assert stand_in.banks["b"].texts == ["apple"]


@pytest.mark.parametrize("outcome", ["failed", "cancelled", "empty"])
async def test_an_operation_can_end_otherwise(stand_in: HindsightStandIn, client: Any, outcome: Any) -> None:
    stand_in.end_operations(outcome, error_message="out of tokens")
    operation_id = (await client.aretain("b", "apple", document_id="d", retain_async=True)).operation_id
    assert await finished(client, "b", operation_id) == ("completed" if outcome == "empty" else outcome)
    found = await client.operations.get_operation_status("b", operation_id)
    assert found.error_message == ("out of tokens" if outcome == "failed" else None)
    assert stand_in.banks["b"].texts == []
    assert list(stand_in.banks["b"].documents) == (["d"] if outcome == "empty" else [])
    operation_id = (await client.aretain("b", "pear", retain_async=True)).operation_id
    assert await finished(client, "b", operation_id) == "completed"


@pytest.mark.parametrize("part", ["parent", "child"])
async def test_only_cancelling_the_part_keeps_it_from_being_stored(
    stand_in: HindsightStandIn, client: Any, part: str
) -> None:
    stand_in.hold_operations("pending")
    operation_id = (await client.aretain("b", "apple", document_id="d", retain_async=True)).operation_id
    child_id = stand_in.operations[operation_id].child_id
    await client.operations.cancel_operation("b", operation_id if part == "parent" else child_id)
    assert await finished(client, "b", operation_id) == "cancelled"
    stand_in.release_operations()
    after = (await client.aretain("b", "pear", document_id="e", retain_async=True)).operation_id
    assert await finished(client, "b", after) == "completed"
    assert stand_in.banks["b"].texts == (["apple", "pear"] if part == "parent" else ["pear"])


async def test_a_planned_extraction_and_observations(stand_in: HindsightStandIn, client: Any) -> None:
    label = "memory_type:preference"
    stand_in.extract_with({"tea": [Fact("The user prefers tea", tags=[label])], "hello": []})
    await client.aretain("b", "I like tea more", document_id="d", tags=["c"])
    await client.aretain("b", "hello", document_id="e")
    (fact,) = stand_in.banks["b"].memories.values()
    assert (fact.text, fact.tags) == ("The user prefers tea", ["c", label])
    stand_in.add_memory("b", "Tea it is", type="observation", source_fact_ids=[fact.id])
    found = await client.arecall("b", "tea", prefer_observations=True)
    assert [row.text for row in found.results] == ["Tea it is"]
    assert len((await client.arecall("b", "tea")).results) == 2
    await client.documents.delete_document("b", "d")
    assert stand_in.banks["b"].texts == []


async def test_a_killed_process_keeps_what_it_has_acknowledged(tmp_path: Path) -> None:
    process = HindsightProcess(tmp_path)
    await process.start()
    client: Any = Hindsight(base_url=process.url, timeout=5)
    try:
        await client.aretain("b", "apple", document_id="d")
        await process.control("hold_operations", status="pending")
        operation_id = str(uuid.uuid4())
        await client.aretain("b", "pear", document_id="e", retain_async=True, operation_id=operation_id)
        await process.kill()
        await process.start()
        await client.aretain("b", "fig", document_id="f")
        assert await finished(client, "b", operation_id) == "completed"
        assert sorted((await process.banks())["b"].texts) == ["apple", "fig", "pear"]
        await process.control("fail", operation="recall", kind="status", status=500, times=1)
        assert await refusal(client.arecall("b", "apple")) == 500
        assert [request.operation for request in await process.requests()].count("retain") == 1
    finally:
        await client.aclose()
        await process.stop()
