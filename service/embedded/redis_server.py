"""The Redis-compatible servers of the local stack: Valkey, closed to other local users.

Two of them, since their promises contradict each other: accepted turns must survive, cached answers must
not cost a write to the disk, may be evicted, and hold memories that do not belong into another file.

Durability: a write is answered only after it was appended to the AOF *and* fsynced (`appendfsync always`),
so an accepted turn survives kill -9 and a power cut. Under `everysec` the append itself is put off for up to
two seconds while an earlier fsync runs: a kill -9 could lose what was acknowledged. All writes of one turn of
the server's loop share one fsync; reads cause none. When the disk is full the server ends rather than
acknowledge, and is started again.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from service.embedded import environment, packages, sockets
from service.embedded.data_dir import DataDir, write_private
from service.embedded.ports import listens
from service.embedded.probes import Address, redis_says
from service.embedded.supervisor import ChildSpec

NAME = "redis"
CACHE_NAME = "cache"

# Paths are relative to the server's folder: a configuration file has no safe quoting for every name.
_CONFIG = """\
# Written at every start by `dify-memory up`; changes here are lost.
daemonize no
{listen}
dir ./
logfile ""
loglevel notice
save ""
"""
_DURABLE = """\
appendonly yes
appendfsync always
no-appendfsync-on-rewrite no
maxmemory 0
maxmemory-policy noeviction
"""
_CACHE = """\
appendonly no
maxmemory 256mb
maxmemory-policy allkeys-lru
"""


@dataclass
class RedisServer:
    """Where the server listens and what a client needs to log in; without a socket `port` may change."""

    socket: Path | None
    port: int
    password: str | None
    name: str = NAME

    @property
    def address(self) -> Address:
        """Where it is now."""
        return Address(socket=self.socket) if self.socket is not None else Address(port=self.port)

    @property
    def url(self) -> str:
        """URL for clients, with the password if there is one."""
        if self.address.socket is not None:
            return f"unix://{self.address.socket}"
        return f"redis://:{self.password}@{self.address.host}:{self.address.port}/0"


def socket_path(data: DataDir, name: str = NAME) -> Path | None:
    """Path of the unix socket; None if it would not fit and a loopback port is needed."""
    path = data.sockets / f"{name}.sock"
    return path if sockets.fits(path) else None


def redis_server(data: DataDir, port: int, name: str = NAME) -> RedisServer:
    """The server on its unix socket, or else on loopback `port` with a password."""
    socket = socket_path(data, name)
    if socket is not None:
        return RedisServer(socket, 0, None, name)
    return RedisServer(None, port, data.secret("redis_password"), name)


def spec(data: DataDir, server: RedisServer, base_env: Mapping[str, str]) -> ChildSpec:
    """How to run it; the one named `CACHE_NAME` forgets when it ends.

    Raises:
        LocalStackError: the program is not installed.
    """
    folder = data.root / server.name
    config = _CONFIG + (_CACHE if server.name == CACHE_NAME else _DURABLE)

    async def prepare() -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        if server.address.socket is not None:
            listen = f"port 0\nunixsocket ../run/{server.name}.sock\nunixsocketperm 700"
        else:
            listen = f"bind {server.address.host}\nport {server.address.port}\nrequirepass {server.password}"
        # The password is in a private file, not in the command line that every local user can read.
        write_private(folder / "valkey.conf", config.format(listen=listen))

    async def is_ready(pid: int) -> bool:
        if await redis_says(server.address, server.password) != b"+PONG":
            return False
        return server.socket is not None or listens(pid, server.port)

    async def is_alive(_: int) -> bool:
        return bool(await redis_says(server.address, server.password))

    folder.mkdir(mode=0o700, exist_ok=True)
    return ChildSpec(
        name=server.name,
        command=[str(packages.valkey_server()), "valkey.conf"],
        env=environment.for_server(base_env),
        cwd=folder,
        log=data.logs / f"{server.name}.log",
        is_ready=is_ready,
        is_alive=is_alive,
        prepare=prepare,
        listener=server if server.socket is None else None,
        # A large AOF is read back before the first PONG.
        ready_timeout_s=300,
        stop_timeout_s=20,
    )
