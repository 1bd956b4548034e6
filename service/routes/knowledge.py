"""`POST /dify/knowledge/retrieval`: the memory as a knowledge base of Dify's.

Dify registers the address without its last part and checks it with an empty POST, of whose answers it
takes all for good except 403, 404, 429 and 5xx: a refused key therefore answers 403 here (401 elsewhere),
so that it is seen while the knowledge base is made and not when the first chat stays empty. Errors have
the form of Dify's contract, `{"error_code", "error_msg"}`.
"""

import logging
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from service import logs
from service.auth import bank_for
from service.errors import KeyRefused, MalformedBody, ScopeMissing, ServiceError, TooLarge
from service.memory.knowledge import KnowledgeReply, question_in, records_of
from service.problems import NO_STORE, JsonReply
from service.routes.payload import read_payload
from service.routes.services import Services, services_of

_log = logging.getLogger(__name__)

# Codes that Dify's contract suggests; other errors carry their HTTP status.
_AUTHORIZATION_FAILED = 1002

_CONDITION: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "description": "user_id (needed), kind or tag."},
        "comparison_operator": {
            "type": "string",
            "description": "is, = or in; for kind and tag also contains.",
        },
        "value": {"type": "string", "description": "For user_id: {{#sys.user_id#}}."},
    },
}
_BODY: dict[str, Any] = {
    "type": "object",
    "properties": {
        "knowledge_id": {"type": "string", "description": "Not used: a key has one memory per user."},
        "query": {"type": "string"},
        "retrieval_setting": {
            "type": "object",
            "properties": {
                "top_k": {"type": "integer", "minimum": 1, "maximum": 50, "default": 5},
                "score_threshold": {"type": "number", "minimum": 0, "maximum": 1, "default": 0},
            },
        },
        "metadata_condition": {
            "type": "object",
            "properties": {
                "logical_operator": {"type": "string", "enum": ["and", "or"], "default": "and"},
                "conditions": {"type": "array", "items": _CONDITION},
            },
        },
    },
}
_ERROR: dict[str, Any] = {
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "properties": {"error_code": {"type": "integer"}, "error_msg": {"type": "string"}},
            }
        }
    }
}

router = APIRouter(prefix="/dify", tags=["dify"])


@router.post(
    "/knowledge/retrieval",
    operation_id="dify_knowledge_retrieval",
    summary="Memories of one user as external knowledge",
    response_model=KnowledgeReply,
    openapi_extra={"requestBody": {"content": {"application/json": {"schema": _BODY}}}},
    responses={
        400: {"description": "The body cannot be read.", **_ERROR},
        403: {"description": "The API key is missing or wrong, or lacks the scope.", **_ERROR},
        413: {"description": "Too large.", **_ERROR},
    },
)
async def retrieval(request: Request) -> Response:
    """Records of the one user a condition names; without one there are none, and `reason` says why."""
    try:
        found = await _found(services_of(request), request)
    except (KeyRefused, ScopeMissing) as exc:
        return _refusal(exc, 403, _AUTHORIZATION_FAILED)
    except (MalformedBody, TooLarge) as exc:
        return _refusal(exc, exc.status, exc.status)
    except ServiceError as exc:
        # Whatever else it is (no such user, one request too many), the chat that asks goes on.
        found = _nothing(exc.code)
    return JsonReply(found, headers=NO_STORE)


async def _found(services: Services, request: Request) -> dict[str, Any]:
    caller = services.keys.authenticate(request.scope)
    caller.require("recall")
    settings = services.settings
    payload = await read_payload(request.scope, request.receive, settings.max_body_bytes)
    question = question_in(payload)
    if question.reason:
        return _nothing(question.reason)
    # Raises for no user, except with a key that is good for one user only.
    bank = bank_for(caller, request.scope, question.user_id, allow_anonymous=settings.allow_anonymous_users)
    asked = question.recall_request(settings.recall_deadline_ms)
    logs.bank_id.set(bank)
    reply = await services.recaller.recall(asked, bank, request.receive, tenant=caller.tenant)
    services.metrics.note_recall(reply.outcome, caller.tenant)
    return records_of(reply.body, question.query)


def _nothing(reason: str) -> dict[str, Any]:
    # Dify shows nobody why a knowledge base stays empty; the log does.
    _log.info("knowledge_without_records", extra={"reason": reason})
    return KnowledgeReply(records=[], reason=reason).model_dump()


def _refusal(error: ServiceError, status: int, code: int) -> JsonReply:
    body = {"error_code": code, "error_msg": error.detail, "request_id": logs.request_id.get()}
    return JsonReply(body, status_code=status, headers=NO_STORE)
