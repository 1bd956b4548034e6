"""How the documented request bodies look in OpenAPI.

The routes read bodies themselves (see `payload`), so that one reader serves JSON, forms and the
limits; these entries tell the same to the document.
"""

from typing import Any

from service.schemas import ErrorReply, Request

ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorReply, "description": "The body cannot be read."},
    401: {"model": ErrorReply, "description": "The API key is missing or wrong."},
    403: {"model": ErrorReply, "description": "The API key lacks the scope."},
    409: {"model": ErrorReply, "description": "Two identities in one request."},
    413: {"model": ErrorReply, "description": "Too large."},
    422: {"model": ErrorReply, "description": "A field is missing or not valid."},
    429: {"model": ErrorReply, "description": "Too many requests; see Retry-After."},
    503: {"model": ErrorReply, "description": "Out of reach for now; see Retry-After."},
}


def body_of(model: type[Request]) -> dict[str, Any]:
    """`openapi_extra` of a route that reads `model` from JSON or a form."""
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    schema.pop("$defs", None)
    content = {"schema": schema}
    return {
        "requestBody": {
            "required": True,
            "content": {"application/json": content, "application/x-www-form-urlencoded": content},
        }
    }
