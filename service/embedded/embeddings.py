"""The embeddings server of the local stack: how to run `embeddings_server` as a child."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from service.embedded import environment, packages
from service.embedded.data_dir import DataDir
from service.embedded.ports import LOOPBACK, listens
from service.embedded.probes import http_status
from service.embedded.supervisor import ChildSpec

NAME = "embeddings"
MODEL = "multilingual-e5-small"
# The roles e5 was trained with, as Hindsight puts them in front of a text.
QUERY_PREFIX = "query: "
PASSAGE_PREFIX = "passage: "


@dataclass
class EmbeddingsServer:
    """Where the server listens and the token it wants; `port` may change."""

    port: int
    key: str = field(repr=False)

    @property
    def url(self) -> str:
        """Its address without a path."""
        return f"http://{LOOPBACK}:{self.port}"


def spec(data: DataDir, server: EmbeddingsServer, base_env: Mapping[str, str]) -> ChildSpec:
    """How to run it.

    Raises:
        LocalStackError: the model is not installed or does not run on this processor.
    """
    packages.check_embeddings()
    env = environment.for_server(
        base_env,
        EMBEDDINGS_KEY=server.key,
        # Threads that wait for work must not spin on cores that the others need.
        OMP_WAIT_POLICY="PASSIVE",
    )

    async def prepare() -> None:
        env["EMBEDDINGS_PORT"] = str(server.port)

    async def answers(pid: int) -> bool:
        return await http_status(f"{server.url}/health") == 200 and listens(pid, server.port)

    return ChildSpec(
        name=NAME,
        # -P: the folder `up` was called in must not be looked into for modules.
        command=[sys.executable, "-P", "-m", "service.embedded.embeddings_server"],
        env=env,
        cwd=data.root,
        log=data.logs / "embeddings.log",
        is_ready=answers,
        is_alive=answers,
        prepare=prepare,
        listener=server,
        ready_timeout_s=120,
    )
