"""The fast lane of `POST /memory/add`, like that of recall (see `lane`): its steps without the framework."""

from typing import cast

from starlette.types import ASGIApp, Receive, Scope, Send

from service.errors import ServiceError
from service.problems import problem
from service.routes.memory import add_reply, router
from service.routes.services import Services

PATH = "/memory/add"


class AddLane:
    """ASGI layer; put it inside the request context, outside of the router."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._route = next(route for route in router.routes if getattr(route, "path", "") == PATH)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer an add, pass on anything else."""
        if scope["type"] != "http" or scope["path"] != PATH or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        services = cast("Services", scope["state"]["services"])
        scope["route"] = self._route  # as the router would have found it: metrics and logs name it
        try:
            reply = await add_reply(services, scope, receive)
        except ServiceError as exc:
            reply = problem(exc)
        await reply(scope, receive, send)
