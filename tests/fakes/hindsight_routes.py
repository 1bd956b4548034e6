"""The paths of the Hindsight stand-in: each decodes, asks the store and encodes as Hindsight 1.1 does."""

import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from aiohttp import web
from pydantic import BaseModel, ValidationError

from tests.fakes import hindsight_search as search
from tests.fakes.hindsight_config import CONFIG_DEFAULTS
from tests.fakes.hindsight_schemas import ListQuery, MemoryUpdate, OperationsQuery, Recall, Reflect, Retain
from tests.fakes.hindsight_store import Bank, Json, Operation, Refused, Store

Handler = Callable[[Store, web.Request], Awaitable[web.StreamResponse]]
VERSION = "1.1.0"
FEATURES = {
    "observations": True,
    "mcp": True,
    "worker": True,
    "bank_config_api": True,
    "bank_llm_health": False,
    "file_upload_api": True,
    "document_export_api": True,
    "document_import_api": True,
    "audit_log": False,
    "llm_trace": False,
    "store_document_text": True,
}
_NO_TOKENS = {
    "input_tokens": 0,
    "output_tokens": 0,
    "total_tokens": 0,
    "cached_tokens": 0,
    "thoughts_tokens": 0,
}


Model = TypeVar("Model", bound=BaseModel)


def reply(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """A JSON answer with non-ASCII characters as they are."""
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    return web.Response(text=text, status=status, headers=headers, content_type="application/json")


def _valid(model: type[Model], value: Any, where: str) -> Model:
    try:
        return model.model_validate(value)
    except ValidationError as exc:
        errors = [
            {"type": e["type"], "loc": [where, *e["loc"]], "msg": e["msg"], "input": e["input"]}
            for e in exc.errors()
        ]
        raise Refused(422, errors) from None


async def _body(model: type[Model], request: web.Request) -> Model:
    try:
        value = await request.json()
    except ValueError:
        error = {"type": "json_invalid", "loc": ["body", 0], "msg": "JSON decode error", "input": {}}
        raise Refused(422, [error]) from None
    return _valid(model, value, "body")


def _query(model: type[Model], request: web.Request) -> Json:
    values: Json = dict(request.query)
    if "tags" in request.query:
        values["tags"] = request.query.getall("tags")
    return _valid(model, values, "query").model_dump()


def _bank_id(request: web.Request) -> str:
    bank_id = request.match_info["bank"]
    if "/" in bank_id:
        raise Refused(404, "Not Found")
    return bank_id


def _profile(bank: Bank) -> Json:
    kinds = ("skepticism", "literalism", "empathy")
    disposition = {kind: bank.config.get(f"disposition_{kind}") or 3 for kind in kinds}
    mission = bank.config.get("reflect_mission") or ""
    return {
        "bank_id": bank.id,
        "name": bank.name,
        "disposition": disposition,
        "mission": mission,
        "background": mission,
    }


async def put_bank(store: Store, request: web.Request) -> web.Response:
    given: Json = await request.json()
    bank_id = _bank_id(request)
    bank = store.bank(bank_id) if request.method == "PATCH" else store.ensure_bank(bank_id)
    bank.name = given.get("name") or bank.name
    store.set_config(bank_id, {k: v for k, v in given.items() if k in CONFIG_DEFAULTS and v is not None})
    return reply(_profile(bank))


async def delete_bank(store: Store, request: web.Request) -> web.Response:
    bank_id = _bank_id(request)
    count = store.delete_bank(bank_id)
    message = f"Bank '{bank_id}' and all associated data deleted successfully"
    return reply({"success": True, "message": message, "deleted_count": count})


async def list_banks(store: Store, request: web.Request) -> web.Response:
    query = _query(ListQuery, request)
    rows = [
        {
            **{key: value for key, value in _profile(bank).items() if key != "background"},
            "created_at": bank.created_at,
            "updated_at": bank.updated_at,
            "fact_count": len(bank.memories),
            "last_document_at": None,
            "last_write_at": None,
            "display_alias": None,
            "matched_aliases": [],
        }
        for bank in store.banks.values()
        if (query["q"] or "").casefold() in f"{bank.id}\n{bank.name}".casefold()
    ]
    limit, offset = query["limit"], query["offset"]
    page = {"banks": rows[offset : offset + limit], "total": len(rows), "limit": limit, "offset": offset}
    return reply(page)


async def config(store: Store, request: web.Request) -> web.Response:
    bank_id = _bank_id(request)
    if request.method == "PATCH":
        bank = store.set_config(bank_id, (await request.json()).get("updates") or {})
    else:
        bank = store.bank(bank_id)
    if request.method == "DELETE":
        bank.config.clear()
    return reply({"bank_id": bank.id, "config": CONFIG_DEFAULTS | bank.config, "overrides": bank.config})


async def retain(store: Store, request: web.Request) -> web.Response:
    bank_id, given = _bank_id(request), await _body(Retain, request)
    items = [item.model_dump(exclude_none=True) for item in given.items]
    for item in items:
        if given.document_tags:
            item["tags"] = [*item.get("tags", []), *given.document_tags]
    operation_id = None
    if given.is_async:
        operation_id = store.submit(bank_id, items, given.operation_id).id
    else:
        store.retain(bank_id, items)
    return reply(
        {
            "success": True,
            "bank_id": bank_id,
            "items_count": len(items),
            "async": given.is_async,
            "operation_id": operation_id,
            "operation_ids": None,
            "usage": None if given.is_async else _NO_TOKENS,
        }
    )


async def recall(store: Store, request: web.Request) -> web.Response:
    given = await _body(Recall, request)
    return reply(search.recall(store.bank(_bank_id(request)), given.model_dump()))


async def reflect(store: Store, request: web.Request) -> web.Response:
    given = await _body(Reflect, request)
    asked = Recall(query=given.query, types=given.fact_types).model_dump()
    found = [
        row
        for row in search.recall(store.ensure_bank(_bank_id(request)), asked)["results"]
        if all(search.tags_fit(group.tags, row["tags"], group.match) for group in given.tag_groups or ())
    ]
    facts = {"memories": found, "mental_models": [], "directives": []}
    text = "\n".join(row["text"] for row in found) or "I know nothing about that."
    structured = dict.fromkeys((given.response_schema or {}).get("properties", {}), text)
    return reply(
        {
            "text": text,
            "based_on": facts if (given.include or {}).get("facts") is not None else None,
            "structured_output": structured if given.response_schema else None,
            "structured_output_error": None,
            "usage": _NO_TOKENS,
            "trace": None,
        }
    )


def _operation_body(store: Store, operation: Operation) -> Json:
    documents = [item.get("document_id") for item in operation.items]
    facts: Json = {"items_count": len(operation.items)}
    if len(documents) == 1:
        facts["document_id"] = documents[0]
    children = None
    if operation.parent_id is not None:
        facts |= {"sub_batch_index": 1, "total_sub_batches": 1, "parent_operation_id": operation.parent_id}
    elif child := store.operations.get(operation.child_id or ""):
        facts |= {"is_parent": True, "num_sub_batches": 1, "total_tokens": 1}
        if operation.memories is not None:
            facts |= {"unit_ids_count": operation.memories, "extraction_errors_count": 0}
        children = [
            {
                "operation_id": child.id,
                "status": child.status,
                "sub_batch_index": 1,
                "items_count": len(child.items),
                "error_message": child.error_message,
            }
        ]
    return {
        "operation_id": operation.id,
        "status": operation.status,
        "operation_type": operation.kind,
        "id": operation.id,
        "task_type": operation.kind,
        "mental_model_id": None,
        "created_at": operation.created_at,
        "updated_at": operation.updated_at,
        "completed_at": operation.completed_at,
        "error_message": operation.error_message,
        "retry_count": 0,
        "next_retry_at": None,
        "progress": None,
        "result_metadata": facts,
        "details": None,
        "child_operations": children,
        "task_payload": None,
    }


async def get_operation(store: Store, request: web.Request) -> web.Response:
    operation_id = request.match_info["operation"]
    operation = store.operation(_bank_id(request), operation_id)
    if operation is not None:
        body = _operation_body(store, operation)
        # A parent has no payload of its own.
        if request.query.get("include_payload") == "true" and operation.child_id is None:
            body["task_payload"] = {"contents": operation.items}
        return reply(body)
    unknown = _operation_body(store, Operation(operation_id, "", "", []))
    known = {"operation_id": operation_id, "id": operation_id, "status": "not_found"}
    return reply({**dict.fromkeys(unknown), **known})


async def cancel_operation(store: Store, request: web.Request) -> web.Response:
    operation_id = request.match_info["operation"]
    store.cancel(_bank_id(request), operation_id)
    message = f"Operation {operation_id} cancelled"
    return reply({"success": True, "message": message, "operation_id": operation_id})


async def list_operations(store: Store, request: web.Request) -> web.Response:
    bank, query = store.bank(_bank_id(request)), _query(OperationsQuery, request)
    rows = []
    for operation in reversed(store.operations.values()):
        if operation.bank_id != bank.id or query["status"] not in (None, operation.status):
            continue
        if query["type"] not in (None, operation.kind) or (query["exclude_parents"] and operation.child_id):
            continue
        body = _operation_body(store, operation)
        ids = [item.get("document_id") for item in operation.items]
        for key in ("completed_at", "result_metadata", "child_operations", "task_payload"):
            del body[key]
        body |= {"items_count": len(ids), "document_id": ids[0] if len(ids) == 1 else None, "filename": None}
        rows.append(body)
    limit, offset = query["limit"], query["offset"]
    page = {"bank_id": bank.id, "total": len(rows), "limit": limit, "offset": offset}
    return reply({**page, "operations": rows[offset : offset + limit]})


async def list_documents(store: Store, request: web.Request) -> web.Response:
    return reply(search.list_documents(store.bank(_bank_id(request)), _query(ListQuery, request)))


async def get_document(store: Store, request: web.Request) -> web.Response:
    bank = store.banks.get(_bank_id(request))
    document = bank.documents.get(request.match_info["document"]) if bank else None
    if bank is None or document is None:
        raise Refused(404, "Document not found")
    return reply(search.document_body(bank, document))


async def delete_document(store: Store, request: web.Request) -> web.Response:
    document_id = request.match_info["document"]
    count = store.delete_document(_bank_id(request), document_id)
    message = f"Document '{document_id}' and {count} associated memory units deleted successfully"
    return reply(
        {"success": True, "message": message, "document_id": document_id, "memory_units_deleted": count}
    )


async def list_memories(store: Store, request: web.Request) -> web.Response:
    return reply(search.list_memories(store.bank(_bank_id(request)), _query(ListQuery, request)))


async def get_memory(store: Store, request: web.Request) -> web.Response:
    bank_id = _bank_id(request)
    memory = store.memory(bank_id, request.match_info["memory"])
    derived = memory.type == "observation"
    more = search.observation_body(store.banks[bank_id], memory) if derived else {}
    return reply({**search.memory_body(memory), **more})


async def update_memory(store: Store, request: web.Request) -> web.Response:
    given = await _body(MemoryUpdate, request)
    changes = given.model_dump(exclude_unset=True)
    memory = store.update_memory(_bank_id(request), request.match_info["memory"], changes)
    return reply(search.memory_body(memory))


async def clear_memories(store: Store, request: web.Request) -> web.Response:
    bank_id, fact_type = _bank_id(request), request.query.get("type")
    count = store.clear(bank_id, fact_type)
    scope = f" of type '{fact_type}'" if fact_type else ""
    message = f"Cleared {count} memory unit(s){scope} from bank '{bank_id}'"
    return reply({"success": True, "message": message, "deleted_count": count})


async def stats(store: Store, request: web.Request) -> web.Response:
    bank = store.bank(_bank_id(request))
    memories = bank.memories.values()
    own = [op.status for op in store.operations.values() if op.bank_id == bank.id]
    return reply(
        {
            "bank_id": bank.id,
            "total_nodes": len(bank.memories),
            "total_links": 0,
            "total_documents": len(bank.documents),
            "nodes_by_fact_type": {
                kind: sum(m.type == kind for m in memories) for kind in {m.type for m in memories}
            },
            "links_by_link_type": {},
            "links_by_fact_type": {},
            "links_breakdown": {},
            "pending_operations": own.count("pending"),
            "failed_operations": own.count("failed"),
            "operations_by_status": {status: own.count(status) for status in set(own)},
            "last_consolidated_at": None,
            "last_memory_write_at": bank.updated_at,
            "pending_consolidation": 0,
            "failed_consolidation": 0,
            "total_observations": sum(m.type == "observation" for m in memories),
        }
    )


async def health(_store: Store, request: web.Request) -> web.Response:
    if request.path == "/health/live":
        return reply({"status": "alive", "version": VERSION, "uptime_seconds": 1.0})
    pool = {"db_pool_waiting": 0, "db_pool_in_use": 0, "db_pool_max": 100, "db_pool_idle": 5}
    return reply({"status": "healthy", "database": "connected", "db_acquire_ms": 0.1, **pool})


async def version(store: Store, _request: web.Request) -> web.Response:
    # One that does not tell whether it has a language model is old.
    return reply({"api_version": VERSION if store.has_llm is not None else "1.0.9", "features": FEATURES})


async def refresh_mental_model(store: Store, request: web.Request) -> web.Response:
    if store.has_llm is None:
        raise Refused(404, "Not Found")
    if not store.has_llm:
        raise Refused(
            400, "Mental model refresh requires an LLM provider. Current provider is set to 'none'."
        )
    raise Refused(404, f"Mental model {request.match_info['model']} not found in bank {_bank_id(request)}")


_BANKS = "/v1/default/banks"
_BANK = _BANKS + "/{bank}"
# Method, path, operation (a trailing underscore tells two paths of one operation apart), handler.
ROUTES: list[tuple[str, str, str, Handler]] = [
    ("GET", "/health", "health", health),
    ("GET", "/health/ready", "health_", health),
    ("GET", "/health/live", "health__", health),
    ("GET", "/version", "version", version),
    ("GET", "/v1/version", "version_", version),
    ("GET", _BANKS, "banks", list_banks),
    ("PUT", _BANK, "bank", put_bank),
    ("PATCH", _BANK, "bank_", put_bank),
    ("DELETE", _BANK, "bank_delete", delete_bank),
    ("GET", _BANK + "/config", "bank_config", config),
    ("PATCH", _BANK + "/config", "bank_config_", config),
    ("DELETE", _BANK + "/config", "bank_config__", config),
    ("GET", _BANK + "/stats", "stats", stats),
    ("POST", _BANK + "/mental-models/{model}/refresh", "mental_model_refresh", refresh_mental_model),
    ("POST", _BANK + "/memories/recall", "recall", recall),
    ("POST", _BANK + "/reflect", "reflect", reflect),
    ("POST", _BANK + "/memories", "retain", retain),
    ("DELETE", _BANK + "/memories", "memories_clear", clear_memories),
    ("GET", _BANK + "/memories/list", "memories", list_memories),
    ("GET", _BANK + "/memories/{memory}", "memory", get_memory),
    ("PATCH", _BANK + "/memories/{memory}", "memory_update", update_memory),
    ("GET", _BANK + "/documents", "documents", list_documents),
    ("GET", _BANK + "/documents/{document:.+}", "document", get_document),
    ("DELETE", _BANK + "/documents/{document:.+}", "document_delete", delete_document),
    ("GET", _BANK + "/operations", "operations", list_operations),
    ("GET", _BANK + "/operations/{operation}", "operation", get_operation),
    ("DELETE", _BANK + "/operations/{operation}", "operation_cancel", cancel_operation),
]
