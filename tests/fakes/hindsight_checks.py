"""What is true of Hindsight 1.1.0 and must be true of its stand-in: asserted through the real client.

Run against the stand-in on every commit and against both by `tests/e2e/test_stand_in_is_faithful.py`. Each
check gets a client and the id of a bank of its own, which keeps text verbatim and consolidates nothing.
"""

import contextlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import pytest
from hindsight_client import Hindsight
from hindsight_client_api.exceptions import ApiException, NotFoundException
from hindsight_client_api.models.bank_config_update import BankConfigUpdate
from hindsight_client_api.models.update_memory_request import UpdateMemoryRequest

from tests.support import wait_until

# Its own types make every field optional, which here is what is being checked.
Client = Any
Check = Callable[[Client, str], Awaitable[None]]
Json = dict[str, Any]


@contextlib.asynccontextmanager
async def verbatim_bank(url: str) -> AsyncIterator[tuple[Client, str]]:
    """A client and a new bank that stores each text as one memory, LLM or not; deleted afterwards."""
    client: Client = Hindsight(base_url=url, timeout=60)
    bank_id = f"check-{uuid.uuid4().hex}"
    try:
        await client.acreate_bank(bank_id)
        await client.aupdate_bank_config(bank_id, retain_extraction_mode="chunks", enable_observations=False)
        yield client, bank_id
    finally:
        await client.adelete_bank(bank_id)
        await client.aclose()


async def finished(client: Client, bank_id: str, operation_id: str) -> str:
    """The state an operation ends in."""

    async def end() -> str | None:
        found = await client.operations.get_operation_status(bank_id, operation_id)
        return None if found.status in ("pending", "processing") else str(found.status)

    return await wait_until(end, "the operation has ended", timeout_s=30)


async def refusal(call: Awaitable[Any]) -> int:
    """The status with which a call is refused."""
    with pytest.raises(ApiException) as caught:
        await call
    return int(caught.value.status or 0)


async def texts(client: Client, bank_id: str, **filters: Any) -> list[str]:
    """The texts of a bank's memories, sorted."""
    return sorted(item.text for item in (await client.alist_memories(bank_id, **filters)).items)


async def documents(client: Client, bank_id: str, **filters: Any) -> list[str]:
    """The ids of a bank's documents, sorted."""
    return sorted(item.id for item in (await client.documents.list_documents(bank_id, **filters)).items)


async def check_a_retained_text_is_recalled_with_all_it_came_with(client: Client, bank_id: str) -> None:
    await client.aretain(
        bank_id,
        "我在杭州做后端",
        document_id="会话/1",
        tags=["c:1"],
        metadata={"role": "user"},
        timestamp="2026-01-02T03:04:05Z",
        observation_scopes="shared",
    )
    (found,) = (await client.arecall(bank_id, "杭州", budget="low")).results
    assert found.text == "我在杭州做后端"
    assert found.type == "world"
    assert found.document_id == "会话/1"
    assert found.tags == ["c:1"]
    assert found.metadata == {"role": "user"}
    assert found.mentioned_at == "2026-01-02T03:04:05+00:00"
    assert found.scores.final > 0
    assert 0 < found.scores.semantic <= 1
    assert found.scores.reranker is None
    assert found.scores.keyword is None


async def check_a_latin_word_has_a_keyword_score(client: Client, bank_id: str) -> None:
    await client.aretain(bank_id, "I live in Hangzhou", document_id="d")
    (found,) = (await client.arecall(bank_id, "Hangzhou")).results
    assert found.scores.keyword == pytest.approx(0.1)


async def check_the_nearest_memory_comes_first(client: Client, bank_id: str) -> None:
    await client.aupdate_bank_config(bank_id, enable_graph_retrieval=False, enable_temporal_retrieval=False)
    for text in ("我喜欢喝咖啡", "我住在上海浦东", "我的猫叫小黑"):
        await client.aretain(bank_id, text)
    results = (await client.arecall(bank_id, "我住在上海哪里")).results
    assert results[0].text == "我住在上海浦东"
    finals = [result.scores.final for result in results]
    assert finals == sorted(finals, reverse=True)


async def check_recall_filters_by_tags(client: Client, bank_id: str) -> None:
    await client.aretain(bank_id, "apple one", document_id="1", tags=["a"])
    await client.aretain(bank_id, "apple two", document_id="2", tags=["a", "b"])
    await client.aretain(bank_id, "apple three", document_id="3")
    expected = {
        "any": {"1", "2", "3"},
        "any_strict": {"1", "2"},
        "all": {"2", "3"},
        "all_strict": {"2"},
        "exact": {"2"},
    }
    for match, ids in expected.items():
        tags = ["a"] if match.startswith("any") else ["a", "b"]
        found = await client.arecall(bank_id, "apple", tags=tags, tags_match=match)
        assert {result.document_id for result in found.results} == ids, match


async def check_recall_filters_by_type(client: Client, bank_id: str) -> None:
    await client.aretain(bank_id, "apple")
    assert (await client.arecall(bank_id, "apple", types=["observation", "experience"])).results == []
    assert len((await client.arecall(bank_id, "apple", types=["world"])).results) == 1
    assert await refusal(client.arecall(bank_id, "apple", types=["dream"])) == 422


async def check_recall_refuses_a_query_without_a_word(client: Client, bank_id: str) -> None:
    assert await refusal(client.arecall(bank_id, "???")) == 422
    assert await refusal(client.arecall(bank_id, "")) == 422


async def check_a_semantic_floor_drops_what_only_that_arm_found(client: Client, bank_id: str) -> None:
    await client.aretain(bank_id, "我在杭州做后端", document_id="zh")
    await client.aretain(bank_id, "Hangzhou is where I spend my days", document_id="en")
    found = await client.arecall(bank_id, "杭州在哪 Hangzhou", min_scores={"semantic": 0.999})
    assert [result.document_id for result in found.results] == ["en"]
    assert found.results[0].scores.semantic is None


async def check_an_unknown_bank(client: Client, bank_id: str) -> None:
    nobody = f"{bank_id}-nobody"
    for call in (
        client.arecall(nobody, "apple"),
        client.alist_memories(nobody),
        client.documents.list_documents(nobody),
        client.documents.delete_document(nobody, "d"),
        client.operations.list_operations(nobody),
    ):
        assert await refusal(call) == 404
    assert (await client.adelete_bank(nobody)).success
    unknown = await client.operations.get_operation_status(nobody, str(uuid.uuid4()))
    assert unknown.status == "not_found"


async def check_a_retain_creates_the_bank(client: Client, bank_id: str) -> None:
    other = f"{bank_id}-other"
    await client.aretain(other, "apple", document_id="d", strategy="none of that name")
    assert await documents(client, other) == ["d"]
    await client.adelete_bank(other)
    assert await refusal(client.documents.list_documents(other)) == 404


async def check_the_same_document_is_replaced(client: Client, bank_id: str) -> None:
    await client.aretain(bank_id, "one apple", document_id="d", tags=["t"])
    await client.aretain(bank_id, "two pears", document_id="d")
    assert await texts(client, bank_id) == ["two pears"]
    (before,) = (await client.alist_memories(bank_id)).items
    await client.aretain(bank_id, "two pears", document_id="d", tags=["u"])
    (after,) = (await client.alist_memories(bank_id)).items
    assert after.id == before.id
    assert after.tags == ["u"]
    await client.aretain(bank_id, "three figs", document_id="d", update_mode="append")
    assert await texts(client, bank_id) == ["three figs", "two pears"]
    stored = await client.documents.get_document(bank_id, "d")
    assert stored.original_text == "two pears\nthree figs"


async def check_retain_refuses_what_it_cannot_store(client: Client, bank_id: str) -> None:
    assert await refusal(client.aretain(bank_id, "   ")) == 422
    assert await refusal(client.aretain(bank_id, "x", timestamp="soon")) == 422
    items = [{"content": "a", "document_id": "d"}, {"content": "b", "document_id": "d"}]
    assert await refusal(client.aretain_batch(bank_id, items, retain_async=True)) == 400
    assert (await client.aretain_batch(bank_id, items)).items_count == 2
    assert (await client.documents.get_document(bank_id, "d")).original_text == "a\nb"
    assert (await client.aretain_batch(bank_id, [])).items_count == 0


async def check_nul_and_lone_surrogates_are_dropped(client: Client, bank_id: str) -> None:
    body = rb'{"items":[{"content":"nul\u0000 and \ud800 half","document_id":"n"}]}'
    async with httpx.AsyncClient(base_url=base_url(client), timeout=30) as http:
        path = f"/v1/default/banks/{bank_id}/memories"
        answer = await http.post(path, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 200
    assert (await client.documents.get_document(bank_id, "n")).original_text == "nul and  half"


async def check_an_operation_id_is_written_once(client: Client, bank_id: str) -> None:
    operation_id = str(uuid.uuid4())

    async def submit(bank: str, content: str, document_id: str) -> Any:
        answer = await client.aretain(
            bank, content, document_id=document_id, retain_async=True, operation_id=operation_id
        )
        assert answer.var_async
        return answer.operation_id

    assert await submit(bank_id, "first apple", "1") == operation_id
    assert await finished(client, bank_id, operation_id) == "completed"
    assert await submit(bank_id, "second apple", "2") == operation_id
    assert await finished(client, bank_id, operation_id) == "completed"
    assert await texts(client, bank_id) == ["first apple"]
    assert await refusal(submit(f"{bank_id}-other", "x", "3")) == 409
    found = await client.operations.get_operation_status(bank_id, operation_id)
    assert found.operation_type == "batch_retain"
    assert found.result_metadata["unit_ids_count"] == 1
    assert [child.status for child in found.child_operations] == ["completed"]


async def check_operations_are_listed(client: Client, bank_id: str) -> None:
    operation_id = (await client.aretain(bank_id, "apple", document_id="d", retain_async=True)).operation_id
    assert operation_id is not None
    await finished(client, bank_id, operation_id)
    parts = await client.operations.list_operations(bank_id, type="retain")
    assert [part.document_id for part in parts.operations] == ["d"]
    status_of = client.operations.get_operation_status
    held = (await status_of(bank_id, parts.operations[0].id, include_payload=True)).task_payload
    assert [item["document_id"] for item in held["contents"]] == ["d"]
    assert (await status_of(bank_id, operation_id, include_payload=True)).task_payload is None
    wholes = await client.operations.list_operations(bank_id, type="batch_retain", status="completed")
    assert [whole.id for whole in wholes.operations] == [operation_id]
    failed = await client.operations.list_operations(bank_id, status="failed")
    assert (failed.total, failed.operations) == (0, [])
    assert await refusal(client.operations.get_operation_status(bank_id, "no-uuid")) == 400
    assert await refusal(client.operations.cancel_operation(bank_id, operation_id)) == 409
    assert await refusal(client.operations.cancel_operation(bank_id, str(uuid.uuid4()))) == 404


async def check_documents_are_listed_and_deleted(client: Client, bank_id: str) -> None:
    await client.aretain(bank_id, "apple", document_id="a/1", tags=["c:1"], metadata={"k": "v"})
    await client.aretain(bank_id, "pear", document_id="b 2")
    assert await documents(client, bank_id) == ["a/1", "b 2"]
    assert await documents(client, bank_id, tags=["c:1"]) == ["a/1"]
    assert await documents(client, bank_id, tags=["c:2"]) == []
    assert await documents(client, bank_id, q="PEAR") == ["b 2"]
    assert await documents(client, bank_id, limit=1, offset=1) == ["a/1"]
    assert await documents(client, bank_id, end_date="2020-01-01T00:00:00Z") == []
    page = await client.documents.list_documents(bank_id, limit=1)
    assert (page.total, page.items[0].memory_unit_count) == (2, 1)
    deleted = await client.documents.delete_document(bank_id, "a/1")
    assert deleted.memory_units_deleted == 1
    assert await documents(client, bank_id) == ["b 2"]
    assert await texts(client, bank_id) == ["pear"]
    assert await refusal(client.documents.delete_document(bank_id, "a/1")) == 404


async def check_memories_are_listed(client: Client, bank_id: str) -> None:
    await client.aretain(bank_id, "old apple", document_id="a", tags=["t"], timestamp="2020-01-01T00:00:00Z")
    await client.aretain(bank_id, "new pear", document_id="b")
    listed = (await client.alist_memories(bank_id)).items
    assert [item.text for item in listed] == ["new pear", "old apple"]
    assert [item.fact_type for item in listed] == ["world", "world"]
    assert await texts(client, bank_id, document_id="a") == ["old apple"]
    assert await texts(client, bank_id, search_query="PEAR") == ["new pear"]
    assert await texts(client, bank_id, type="observation") == []
    assert await texts(client, bank_id, tags=["t"], tags_match="all_strict") == ["old apple"]
    window = {"time_field": "mentioned_at", "end_date": "2021-01-01T00:00:00Z"}
    assert await texts(client, bank_id, **window) == ["old apple"]
    assert (await client.alist_memories(bank_id, limit=1)).total == 2


async def check_a_list_of_memories_by_time_breaks_ties_by_id(client: Client, bank_id: str) -> None:
    moments = {"a": "2026-01-01T00:00:00Z", "b": "2026-01-01T00:00:00Z", "c": "2026-01-02T00:00:00Z"}
    for name, moment in moments.items():
        await client.aretain(bank_id, f"apple {name}", document_id=name, timestamp=moment)
    listed = (await client.alist_memories(bank_id, time_field="mentioned_at")).items
    assert listed[0].text == "apple c"
    assert [item.id for item in listed[1:]] == sorted(item.id for item in listed[1:])
    window = {"time_field": "mentioned_at", "end_date": "2026-01-02T00:00:00+00:00"}
    assert await texts(client, bank_id, **window) == ["apple a", "apple b"]
    assert len(await texts(client, bank_id, **window, limit=1, offset=1)) == 1


async def check_a_search_in_memories_takes_patterns_and_sees_context(client: Client, bank_id: str) -> None:
    await client.aretain(bank_id, "50% off apples", document_id="a", context="about pears")
    assert await texts(client, bank_id, search_query="5%apples") == ["50% off apples"]
    assert await texts(client, bank_id, search_query="appl_s") == ["50% off apples"]
    assert await texts(client, bank_id, search_query="PEARS") == ["50% off apples"]
    assert await texts(client, bank_id, search_query="50\\%") == ["50% off apples"]
    assert await texts(client, bank_id, search_query="5\\%apples") == []


async def check_a_corrected_memory_keeps_its_text_when_its_document_comes_again(
    client: Client, bank_id: str
) -> None:
    await client.aretain(bank_id, "an apple a day", document_id="d")
    (listed,) = (await client.alist_memories(bank_id)).items
    await client.memory.update_memory(bank_id, listed.id, UpdateMemoryRequest(text="a pear a day"))
    await client.aretain(bank_id, "an apple a day", document_id="d")
    assert await texts(client, bank_id) == ["a pear a day"]
    (found,) = (await client.arecall(bank_id, "pear")).results
    assert found.text == "a pear a day"
    blank = UpdateMemoryRequest(text=" ")
    assert await refusal(client.memory.update_memory(bank_id, listed.id, blank)) == 400


async def check_a_memory_is_invalidated_and_comes_back(client: Client, bank_id: str) -> None:
    await client.aretain(bank_id, "an apple a day", document_id="d")
    (listed,) = (await client.alist_memories(bank_id)).items
    update = client.memory.update_memory
    changed = await update(bank_id, listed.id, UpdateMemoryRequest(state="invalidated", reason="wrong"))
    assert (changed["state"], changed["invalidation_reason"]) == ("invalidated", "wrong")
    assert (await client.arecall(bank_id, "apple")).results == []
    assert await texts(client, bank_id) == []
    assert await texts(client, bank_id, state="invalidated") == ["an apple a day"]
    assert await refusal(update(bank_id, listed.id, UpdateMemoryRequest(text="a pear a day"))) == 400
    await update(bank_id, listed.id, UpdateMemoryRequest(state="valid"))
    assert len((await client.arecall(bank_id, "apple")).results) == 1
    changed = await update(bank_id, listed.id, UpdateMemoryRequest(text="a pear a day"))
    assert (changed["text"], changed["edited_at"] is not None) == ("a pear a day", True)
    assert await refusal(update(bank_id, listed.id, UpdateMemoryRequest(state="lost"))) == 422
    assert await refusal(update(bank_id, listed.id, UpdateMemoryRequest())) == 422
    assert await refusal(update(bank_id, "no-uuid", UpdateMemoryRequest(state="valid"))) == 400
    with pytest.raises(NotFoundException):
        await update(bank_id, str(uuid.uuid4()), UpdateMemoryRequest(state="valid"))


async def check_memories_are_cleared_with_their_documents(client: Client, bank_id: str) -> None:
    await client.aretain(bank_id, "apple", document_id="d")
    assert (await client.memory.clear_bank_memories(bank_id, type="world")).deleted_count == 1
    assert (await texts(client, bank_id), await documents(client, bank_id)) == ([], ["d"])
    await client.aretain(bank_id, "pear", document_id="e")
    assert (await client.memory.clear_bank_memories(bank_id)).deleted_count == 1
    assert await documents(client, bank_id) == []


async def check_a_deleted_bank_takes_its_operations_along(client: Client, bank_id: str) -> None:
    operation_id = str(uuid.uuid4())
    await client.aretain(bank_id, "apple", document_id="d", retain_async=True, operation_id=operation_id)
    await client.adelete_bank(bank_id)
    assert await finished(client, bank_id, operation_id) == "not_found"
    assert await refusal(client.documents.list_documents(bank_id)) == 404
    # The id is free again.
    await client.aretain(bank_id, "pear", document_id="d", retain_async=True, operation_id=operation_id)
    assert await finished(client, bank_id, operation_id) == "completed"
    assert (await client.documents.get_document(bank_id, "d")).original_text == "pear"


async def check_the_configuration_of_a_bank(client: Client, bank_id: str) -> None:
    await client.areset_bank_config(bank_id)
    await client.aupdate_bank_config(bank_id, enable_graph_retrieval=False)
    found = await client.aget_bank_config(bank_id)
    assert found["overrides"] == {"enable_graph_retrieval": False}
    assert found["config"]["enable_graph_retrieval"] is False
    assert found["config"]["enable_text_search"] is True
    cleared = BankConfigUpdate(updates={"enable_graph_retrieval": None, "entity_labels": None})
    await client.banks.update_bank_config(bank_id, cleared)
    assert (await client.aget_bank_config(bank_id))["overrides"] == {}
    assert (await client.areset_bank_config(bank_id))["overrides"] == {}


async def check_a_bank_keeps_the_name_it_was_given(client: Client, bank_id: str) -> None:
    async def names() -> list[str | None]:
        page = await client.banks.list_banks(q=bank_id)
        return [bank.name for bank in page.banks if bank.bank_id == bank_id]

    assert await names() == [bank_id]
    await client.acreate_bank(bank_id, name="tenant-1")
    assert await names() == ["tenant-1"]
    await client.acreate_bank(bank_id, enable_graph_retrieval=False)
    await client.aretain(bank_id, "pear", document_id="d")
    assert await names() == ["tenant-1"]


async def check_the_version(client: Client, bank_id: str) -> None:
    assert (await client.aget_version()).api_version == "1.1.0"


def base_url(client: Client) -> str:
    """Where a client sends its requests."""
    return str(client._api_client.configuration.host)


CHECKS: list[Check] = [value for name, value in list(globals().items()) if name.startswith("check_")]
