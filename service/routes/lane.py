"""The fast lane of `POST /memory/recall`: the same steps as its route, without the framework's.

FastAPI spends several times what a cache hit takes on routing, dependency and response machinery.
This pure ASGI layer answers the one hot route itself and passes everything else on. It calls the
very functions the ordinary routes call (key, body, model, bank, use case, error form), so that
there is one validation and one auth; the route in `memory` stays for the document.
"""

from typing import cast

from starlette.types import ASGIApp, Receive, Scope, Send

from service.errors import ServiceError
from service.problems import problem
from service.routes.memory import recall_reply
from service.routes.services import Services

PATH = "/memory/recall"
_NO_STORE = (b"cache-control", b"no-store")


class RecallLane:
    """ASGI layer; put it inside the request context, outside of the router."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a recall, pass on anything else."""
        if scope["type"] != "http" or scope["path"] != PATH or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        services = cast("Services", scope["state"]["services"])
        scope["route_path"] = PATH
        try:
            reply = await recall_reply(services, scope, receive)
        except ServiceError as exc:
            await problem(exc)(scope, receive, send)
            return
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [
                    (b"content-type", reply.media_type.encode()),
                    (b"content-length", b"%d" % len(reply.body)),
                    _NO_STORE,
                ],
            }
        )
        await send({"type": "http.response.body", "body": reply.body})
