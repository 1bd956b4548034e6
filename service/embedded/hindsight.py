"""The Hindsight server of the local stack: which settings it gets, and how it is run."""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from service.embedded import embeddings, environment, packages
from service.embedded.data_dir import DataDir
from service.embedded.embeddings import EmbeddingsServer
from service.embedded.ports import LOOPBACK, listens
from service.embedded.probes import http_status
from service.embedded.supervisor import ChildSpec
from service.settings import Settings

NAME = "hindsight"
# With the rrf reranker these two arms bury the turn that answers and triple the time of a recall (measured).
BANK_TEMPLATE = {
    "version": "1",
    "bank": {"enable_graph_retrieval": False, "enable_temporal_retrieval": False},
}
_SETTINGS = {
    "HINDSIGHT_API_HOST": LOOPBACK,
    # Its info lines hold parts of queries and memories.
    "HINDSIGHT_API_LOG_LEVEL": "warning",
    "HINDSIGHT_API_MCP_ENABLED": "false",
    # Work that a killed server had in hand is taken up again by the worker of the same name only; the
    # default, the host's name, changes with every container.
    "HINDSIGHT_API_WORKER_ID": "dify-memory",
    "HINDSIGHT_API_EMBEDDINGS_PROVIDER": "openai",
    "HINDSIGHT_API_EMBEDDINGS_OPENAI_MODEL": embeddings.MODEL,
    "HINDSIGHT_API_EMBEDDINGS_QUERY_PREFIX": embeddings.QUERY_PREFIX,
    "HINDSIGHT_API_EMBEDDINGS_PASSAGE_PREFIX": embeddings.PASSAGE_PREFIX,
    # The only reranker that needs no download.
    "HINDSIGHT_API_RERANKER_PROVIDER": "rrf",
    # One index per user slows the making of banks down and stops it near 2,100; below this a scan is as fast.
    "HINDSIGHT_API_VECTOR_INDEX_MIN_ROWS": "10000",
    "HINDSIGHT_API_DEFAULT_BANK_TEMPLATE": json.dumps(BANK_TEMPLATE),
    # Raw text must not stay for ever in traces and finished operations.
    "HINDSIGHT_API_LLM_TRACE_ENABLED": "false",
    "HINDSIGHT_API_OPERATION_RETENTION_DAYS": "7",
    # An LLM that hangs must not keep memory from starting.
    "HINDSIGHT_API_SKIP_LLM_VERIFICATION": "true",
    # PostgreSQL takes 100 connections, Hindsight's own default too, which would leave none for repairs.
    "HINDSIGHT_API_DB_POOL_MAX_SIZE": "50",
    "HINDSIGHT_API_OTEL_TRACES_ENABLED": "false",
    # litellm would fetch a price list from the network when it is imported.
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "DO_NOT_TRACK": "1",
    # Hindsight looks for a `.env` in its folder and all above and lets it override what is set here.
    "PYTHON_DOTENV_DISABLED": "1",
}
# Sent to LLM servers that want no key, where the client insists on one.
_NO_KEY = "none"


@dataclass
class HindsightServer:
    """Where the server listens; `port` may change."""

    port: int

    @property
    def url(self) -> str:
        """Its address without a path."""
        return f"http://{LOOPBACK}:{self.port}"


@dataclass(frozen=True)
class Webhook:
    """Where Hindsight reports what it has stored, and the secret it signs with."""

    url: str
    secret: str = field(repr=False)


def llm_settings(settings: Settings) -> dict[str, str]:
    """Hindsight's LLM settings for the LLM that litellm would use under `MEMORY_LLM_MODEL`.

    `openai/NAME` and a bare `NAME` go to Hindsight's own OpenAI client, which suits every compatible server;
    every other provider goes through the litellm inside Hindsight. Without a model there is no LLM.
    """
    if settings.llm_model is None:
        return {"HINDSIGHT_API_LLM_PROVIDER": "none"}
    key = settings.llm_api_key.get_secret_value() if settings.llm_api_key else ""
    provider, slash, name = settings.llm_model.partition("/")
    if not slash or provider == "openai":
        values = {
            "HINDSIGHT_API_LLM_PROVIDER": "openai",
            "HINDSIGHT_API_LLM_MODEL": name if slash else provider,
            "HINDSIGHT_API_LLM_API_KEY": key or _NO_KEY,
        }
    else:
        values = {
            "HINDSIGHT_API_LLM_PROVIDER": "litellm",
            "HINDSIGHT_API_LLM_MODEL": settings.llm_model,
            "HINDSIGHT_API_LLM_API_KEY": key,
        }
    if settings.llm_base_url:
        values["HINDSIGHT_API_LLM_BASE_URL"] = settings.llm_base_url
    return values


def _access_settings(settings: Settings) -> dict[str, str]:
    if settings.hindsight_api_key is None:
        return {}
    return {
        "HINDSIGHT_API_TENANT_EXTENSION": "hindsight_api.extensions.builtin.tenant:ApiKeyTenantExtension",
        "HINDSIGHT_API_TENANT_API_KEY": settings.hindsight_api_key.get_secret_value(),
    }


def _webhook_settings(webhook: Webhook | None) -> dict[str, str]:
    if webhook is None:
        return {}
    return {
        "HINDSIGHT_API_WEBHOOK_URL": webhook.url,
        "HINDSIGHT_API_WEBHOOK_SECRET": webhook.secret,
        "HINDSIGHT_API_WEBHOOK_EVENT_TYPES": "retain.completed,consolidation.completed",
        # Private addresses are refused unless they are named.
        "HINDSIGHT_API_WEBHOOK_ALLOWED_HOSTS": urlsplit(webhook.url).hostname or LOOPBACK,
    }


def _addresses(server: HindsightServer, embeddings_server: EmbeddingsServer) -> dict[str, str]:
    return {
        "HINDSIGHT_API_PORT": str(server.port),
        "HINDSIGHT_API_EMBEDDINGS_OPENAI_BASE_URL": f"{embeddings_server.url}/v1",
    }


def spec(
    data: DataDir,
    server: HindsightServer,
    *,
    database_url: Callable[[], str],
    embeddings_server: EmbeddingsServer,
    settings: Settings,
    webhook: Webhook | None,
    base_env: Mapping[str, str],
) -> ChildSpec:
    """How to run it. `database_url` is asked at each start: its password exists once the cluster does.

    So are the ports, which may have changed.

    Raises:
        LocalStackError: Hindsight is not installed.
    """
    packages.check_hindsight()
    folder = data.root / "hindsight"
    env = environment.for_server(
        base_env,
        **_SETTINGS,
        **llm_settings(settings),
        **_access_settings(settings),
        **_webhook_settings(webhook),
        **_addresses(server, embeddings_server),
        HINDSIGHT_API_EMBEDDINGS_OPENAI_API_KEY=embeddings_server.key,
    )
    # Without its compiled modules every start takes six seconds longer.
    env.pop("PYTHONDONTWRITEBYTECODE", None)

    async def prepare() -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        env.update(_addresses(server, embeddings_server))
        env["HINDSIGHT_API_DATABASE_URL"] = database_url()

    async def is_ready(pid: int) -> bool:
        return await http_status(f"{server.url}/health/ready") == 200 and listens(pid, server.port)

    async def is_alive(_: int) -> bool:
        return await http_status(f"{server.url}/health/live") > 0

    return ChildSpec(
        name=NAME,
        command=[sys.executable, "-P", "-m", "hindsight_api.main"],
        env=env,
        cwd=folder,
        log=data.logs / "hindsight.log",
        is_ready=is_ready,
        is_alive=is_alive,
        prepare=prepare,
        listener=server,
        depends_on=("postgres", "embeddings"),
        # A cold disk, two busy cores and a first migration take a minute and more.
        ready_timeout_s=300,
        stop_timeout_s=20,
    )
