"""`/dify/openapi.*`: the document to paste into Dify as a custom tool, or to fetch by its URL.

It holds nothing secret, so that it can be read without a key: Dify fetches it without one.
"""

from importlib.metadata import version
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from service.policy.dify_document import as_yaml, build_document
from service.problems import NO_STORE, JsonReply
from service.routes.services import services_of

router = APIRouter(prefix="/dify", tags=["dify"])


@router.get(
    "/openapi.json", operation_id="dify_openapi_json", summary="The document for Dify's custom tools, JSON"
)
async def openapi_json(request: Request) -> Response:
    """`servers` holds `MEMORY_PUBLIC_URL`, or else the URL this request came to."""
    return JsonReply(_document(request), headers=NO_STORE)


@router.get(
    "/openapi.yaml",
    operation_id="dify_openapi_yaml",
    summary="The document for Dify's custom tools, YAML",
    response_class=PlainTextResponse,
)
async def openapi_yaml(request: Request) -> Response:
    """The same as YAML; as plain text, which browsers show instead of saving it."""
    return Response(as_yaml(_document(request)), media_type="text/plain; charset=utf-8", headers=NO_STORE)


def _document(request: Request) -> dict[str, Any]:
    public_url = services_of(request).settings.public_url
    return build_document(public_url or str(request.base_url), version("dify-memory"))
