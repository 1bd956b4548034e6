"""What the settings say about the models behind `/v1`."""

from service.adapters.gateway import Gateway
from service.adapters.gateway_direct import OpenAiServer
from service.policy.gateway_file import GatewayFile, MemoryRules, read_gateway_file
from service.policy.policy_mistakes import Mistake, PolicyFileError
from service.settings import Settings


def gateway_of(settings: Settings) -> tuple[Gateway, MemoryRules] | None:
    """The models and the rules of their memory; None if none are set up.

    Raises `PolicyFileError`, also for a file that cannot be read. Nothing is loaded yet.
    """
    plan = _plan_of(settings)
    if plan is None:
        return None
    routing = plan.router_settings.model_dump()
    gateway = Gateway(
        plan.names,
        plan.deployments,
        routing,
        timeout_s=settings.gateway_timeout_s,
        direct=_direct_of(settings),
    )
    return gateway, plan.memory


def _direct_of(settings: Settings) -> OpenAiServer | None:
    """The server of the one model, if it speaks OpenAI's language at an address of its own."""
    model, url, key = settings.gateway_model, settings.gateway_base_url, settings.gateway_api_key
    if not settings.gateway_direct or settings.gateway_models_file is not None or not model or url is None:
        return None
    provider, _, name = model.partition("/")
    if provider != "openai" or not name:
        return None
    return OpenAiServer(
        name,
        base_url=url,
        api_key=key.get_secret_value() if key else None,
        timeout_s=settings.gateway_timeout_s,
    )


def _plan_of(settings: Settings) -> GatewayFile | None:
    if settings.gateway_models_file is not None:
        try:
            text = settings.gateway_models_file.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as exc:
            mistake = Mistake(1, f"the file cannot be read ({type(exc).__name__})")
            raise PolicyFileError((mistake,)) from exc
        return read_gateway_file(text)
    if not settings.gateway_model:
        return None
    key, url = settings.gateway_api_key, settings.gateway_base_url
    params = {"model": settings.gateway_model}
    if key is not None:
        params["api_key"] = key.get_secret_value()
    if url is not None:
        params["api_base"] = url
    return GatewayFile.model_validate(
        {"model_list": [{"model_name": settings.gateway_model, "litellm_params": params}]}
    )
