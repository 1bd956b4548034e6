"""`GET /admin/diagnosis`: what `dify-memory doctor` asks an installation about itself."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from service import logs
from service.memory.diagnosis import Diagnosis, diagnose
from service.problems import NO_STORE, JsonReply
from service.routes.bodies import ERRORS
from service.routes.services import services_of

router = APIRouter(tags=["operation"], responses={code: ERRORS[code] for code in (401, 403)})


@router.get(
    "/admin/diagnosis",
    operation_id="admin_diagnosis",
    summary="How durable and how up to date the parts are",
    response_model=Diagnosis,
)
async def diagnosis(request: Request) -> Response:
    """Versions and durability settings of the parts; no secrets, nothing of users. Scope `admin`."""
    services = services_of(request)
    services.keys.authenticate(request.scope).require("admin")
    found = await diagnose(services.settings)
    return JsonReply(found.model_dump() | {"request_id": logs.request_id.get()}, headers=NO_STORE)
