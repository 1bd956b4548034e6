"""The fast lane of `POST /memory/recall`: the same steps as its route, without the framework's.

FastAPI spends several times what a cache hit takes on routing, dependency and response machinery.
This pure ASGI layer answers the one hot route itself and passes everything else on. It calls the
very functions the ordinary routes call (key, body, model, bank, use case, error form), so that
there is one validation and one auth; the route in `memory` stays for the document.
"""

from typing import cast

from starlette.types import Receive, Scope, Send

from service.errors import ServiceError
from service.problems import SAFE_HEADERS, problem, safe
from service.routes.memory import recall_reply
from service.routes.services import Services

PATH = "/memory/recall"


class RecallLane:
    """Answers recalls in front of the router; see `takes`."""

    def takes(self, scope: Scope) -> bool:
        """Whether this request is the lane's."""
        return bool(scope["path"] == PATH and scope["method"] == "POST")

    async def answer(
        self, scope: Scope, receive: Receive, send: Send, request_id: tuple[bytes, bytes]
    ) -> int:
        """Answer a recall; the status. `request_id` is the header that every reply carries."""
        services = cast("Services", scope["state"]["services"])
        try:
            reply = await recall_reply(services, scope, receive)
        except ServiceError as exc:
            response = problem(exc)
            response.raw_headers = safe(response.raw_headers, request_id)
            await response(scope, receive, send)
            return response.status_code
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [
                    (b"content-type", reply.media_type.encode()),
                    (b"content-length", b"%d" % len(reply.body)),
                    *SAFE_HEADERS,
                    request_id,
                ],
            }
        )
        await send({"type": "http.response.body", "body": reply.body})
        return 200
