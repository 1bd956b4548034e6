"""The whole local stack: which children there are for these settings, and their common life."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from service.embedded import embeddings, environment, hindsight, ports, postgres, redis_server
from service.embedded.connection import Connection, remove_connection, write_connection
from service.embedded.console import Console
from service.embedded.data_dir import DataDir
from service.embedded.errors import LocalStackError
from service.embedded.probes import Address, accepts, http_status
from service.embedded.supervisor import ChildSpec, Supervisor
from service.settings import Settings

_SERVE = [sys.executable, "-P", "-m", "service.cli.main", "serve"]
_WORK = [sys.executable, "-P", "-m", "service.cli.main", "worker"]


class _Server(Protocol):
    """One that is used; the address of a local one may change as long as the stack runs."""

    @property
    def url(self) -> str: ...


@dataclass(frozen=True)
class _Elsewhere:
    """A server that somebody else runs."""

    url: str = field(repr=False)


@dataclass(frozen=True)
class Plan:
    """What will run, and where clients find it."""

    specs: list[ChildSpec]
    api: ports.Reservation = field(repr=False)
    api_key: str = field(repr=False)
    token_keys: str = field(repr=False)
    redis: _Server = field(repr=False)
    cache: _Server = field(repr=False)
    hindsight: _Server = field(repr=False)
    webhook_secret: str | None = field(repr=False)
    another_port: Callable[[str], int] = field(repr=False)

    @property
    def port(self) -> int:
        """Port of the API; it stays, since people have put it into other programs."""
        return self.api.port

    @property
    def url(self) -> str:
        """Address of the API for clients on this machine."""
        return _local_url(self.api.host, self.port)

    def connection(self, pids: dict[str, int]) -> Connection:
        """What `connection.json` says."""
        return Connection(
            url=self.url,
            api_key=self.api_key,
            token_keys=self.token_keys,
            redis_url=self.redis.url,
            cache_redis_url=self.cache.url,
            hindsight_url=self.hindsight.url,
            pids=pids,
        )


def _local_url(host: str, port: int) -> str:
    """Where a server that listens on `host` is reached from this machine."""
    host = {"0.0.0.0": ports.LOOPBACK, "::": "::1", "": ports.LOOPBACK}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def make_plan(settings: Settings, data: DataDir, *, webhook: bool = True) -> Plan:
    """Choose ports, secrets and children.

    A Redis or Hindsight URL that somebody set (rather than the default) takes the place of the local server.
    With `webhook` the local Hindsight tells the API what it has stored.

    Raises:
        LocalStackError: a port is taken, a package is missing, an external server does not answer.
    """
    base = dict(os.environ)
    api = ports.reserve(settings.host, settings.port, is_explicit="port" in settings.model_fields_set)
    choose = _PortChooser(data, taken={api.port})
    if settings.api_key is not None:
        api_key = settings.api_key.get_secret_value()
    else:
        api_key = data.secret("api_key", prefix="dm_")
    if settings.token_keys is not None:
        token_keys = settings.token_keys.get_secret_value()
    else:
        token_keys = f"local:{data.secret('token_key')}"
    webhook_secret = settings.webhook_secret.get_secret_value() if settings.webhook_secret else None
    specs: list[ChildSpec] = []
    needs: list[str] = []

    def local_redis(name: str) -> _Server:
        redis_port = 0 if redis_server.socket_path(data, name) else choose(name)
        local = redis_server.redis_server(data, redis_port, name)
        specs.append(redis_server.spec(data, local, base))
        needs.append(name)
        return local

    is_redis_local = "redis_url" not in settings.model_fields_set
    redis: _Server
    if is_redis_local:
        redis = local_redis(redis_server.NAME)
    else:
        redis = _Elsewhere(settings.redis_url)
        await _check_redis(redis.url)
    cache = redis if settings.cache_redis_url is None else _Elsewhere(settings.cache_redis_url)
    if settings.cache_redis_url is None and is_redis_local:
        cache = local_redis(redis_server.CACHE_NAME)

    memory: _Server
    if "hindsight_url" in settings.model_fields_set:
        memory = _Elsewhere(settings.hindsight_url)
        await _check_http("Hindsight", "--hindsight-url", memory.url)
    else:
        postgres_port = 0 if postgres.socket_path(data) else choose(postgres.NAME)
        database = postgres.postgres_server(data, postgres_port)
        embedder = embeddings.EmbeddingsServer(choose(embeddings.NAME), data.secret("embeddings_key"))
        memory = server = hindsight.HindsightServer(choose(hindsight.NAME))
        hook = None
        if webhook:
            webhook_secret = webhook_secret or data.secret("webhook_secret")
            hook = hindsight.Webhook(f"{_local_url(api.host, api.port)}/hooks/hindsight", webhook_secret)
        specs += [
            postgres.spec(database, await postgres.identity(), base),
            embeddings.spec(data, embedder, base),
            hindsight.spec(
                data,
                server,
                database_url=database.url,
                embeddings_server=embedder,
                settings=settings,
                webhook=hook,
                base_env=base,
            ),
        ]
        needs.append(hindsight.NAME)
    choose.remember()

    def another_port(name: str) -> int:
        port = choose(name)
        choose.remember()
        return port

    plan = Plan(specs, api, api_key, token_keys, redis, cache, memory, webhook_secret, another_port)
    specs += _our_processes(settings, data, plan, tuple(needs), base)
    return plan


class _PortChooser:
    """Hands out free loopback ports by name, the same ones as last time where possible."""

    def __init__(self, data: DataDir, taken: set[int]) -> None:
        self._data = data
        self._known = data.remembered_ports()
        self._taken = taken

    def __call__(self, name: str) -> int:
        port = ports.internal_port(self._known.get(name), self._taken)
        self._taken.add(port)
        self._known[name] = port
        return port

    def remember(self) -> None:
        self._data.remember_ports(self._known)


def _our_processes(
    settings: Settings, data: DataDir, plan: Plan, needs: tuple[str, ...], base: dict[str, str]
) -> list[ChildSpec]:
    # Of somebody else's Hindsight only its operator knows the model.
    is_local = hindsight.NAME in needs
    model = {"MEMORY_EMBEDDING_MODEL": embeddings.MODEL} if is_local else {}
    if plan.webhook_secret:
        model["MEMORY_WEBHOOK_SECRET"] = plan.webhook_secret
    env = environment.for_ours(
        base,
        MEMORY_HOST=settings.host,
        MEMORY_PORT=str(plan.port),
        # Nobody spreads requests over several of them here.
        MEMORY_DRAIN_S="0",
        MEMORY_API_KEY=plan.api_key,
        MEMORY_TOKEN_KEYS=plan.token_keys,
        MEMORY_DATA_DIR=str(data.root),
        LITELLM_LOCAL_MODEL_COST_MAP="True",
        **model,
    )

    serve = list(_SERVE)

    async def prepare() -> None:
        env.update(
            MEMORY_REDIS_URL=plan.redis.url,
            MEMORY_CACHE_REDIS_URL=plan.cache.url,
            MEMORY_HINDSIGHT_URL=plan.hindsight.url,
        )

    async def prepare_api() -> None:
        await prepare()
        plan.api.hold()
        serve[:] = [*_SERVE, *(word for fd in plan.api.fds for word in ("--fd", str(fd)))]

    async def is_ready(pid: int) -> bool:
        return await http_status(f"{plan.url}/health/ready?only=accepting") == 200 and ports.listens(
            pid, plan.port
        )

    async def is_alive(_: int) -> bool:
        return await http_status(f"{plan.url}/health/live") > 0

    # Paths in settings are relative to where `up` was called.
    here = Path.cwd()
    return [
        ChildSpec(
            name="api",
            command=serve,
            env=env,
            cwd=here,
            log=data.logs / "api.log",
            is_ready=is_ready,
            is_alive=is_alive,
            prepare=prepare_api,
            depends_on=needs,
            reservation=plan.api,
            ready_timeout_s=120,
            stop_timeout_s=15,
        ),
        ChildSpec(
            name="worker",
            command=_WORK,
            env=env,
            cwd=here,
            log=data.logs / "worker.log",
            prepare=prepare,
            depends_on=needs,
            # It has no port to ask; one that cannot start ends within this time.
            settle_s=3,
            # A batch in hand may take its whole time limit; what is cut off is done again.
            stop_timeout_s=settings.retain_timeout_s + 5,
        ),
    ]


async def _check_redis(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme.endswith("+sentinel"):
        return  # several addresses, of which some may be away: the processes wait for their master
    if parts.scheme == "unix":
        address = Address(socket=Path(parts.path))
    else:
        address = Address(host=parts.hostname or "localhost", port=parts.port or 6379)
    if not await accepts(address):
        where = address.socket or f"{address.host}:{address.port}"
        raise LocalStackError(f"No Redis answers at {where}; check --redis-url or MEMORY_REDIS_URL.")


async def _check_http(what: str, option: str, url: str) -> None:
    parts = urlsplit(url)
    default = 443 if parts.scheme == "https" else 80
    host, port = parts.hostname or "localhost", parts.port or default
    if not await accepts(Address(host=host, port=port)):
        raise LocalStackError(f"No {what} answers at {host}:{port}; check {option}.")


class _Run:
    """One life of the stack: signals in, `connection.json` out."""

    def __init__(self, data: DataDir, console: Console) -> None:
        self._data = data
        self._console = console
        self._plan: Plan | None = None
        self._supervisor: Supervisor | None = None
        self._is_published = False
        self.stop = asyncio.Event()

    def listen(self) -> None:
        """Take the signals that end the stack; under nohup a closed terminal is not one of them.

        SIGINT counts even where a shell has set it to be ignored, as shells do for background jobs: whoever
        sends it to this process means it.
        """
        loop = asyncio.get_running_loop()
        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            numbers.append(signal.SIGHUP)
        for number in numbers:
            loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: signal.Signals) -> None:
        if not self.stop.is_set():
            self._console.say(f"{number.name}: stopping (once more to stop at once)")
            self.stop.set()
            remove_connection(self._data.root)
        elif self._supervisor is not None:
            self._supervisor.hurry()

    async def supervise(self, plan: Plan, on_ready: Callable[[Plan], None]) -> None:
        """Run the children of the plan until `stop`."""
        self._plan = plan
        self._supervisor = supervisor = Supervisor(
            plan.specs, say=self._console.say, on_pids=self._publish, another_port=plan.another_port
        )

        def ready() -> None:
            self._is_published = True
            self._publish(supervisor.pids)
            on_ready(plan)

        await supervisor.run(self.stop, ready)

    def _publish(self, pids: dict[str, int]) -> None:
        if self._plan is None or not self._is_published or self.stop.is_set():
            return
        try:
            write_connection(self._data.root, self._plan.connection(pids))
        except OSError as exc:  # a full disk: the stack itself can go on
            self._console.say(f"connection.json could not be written ({exc.strerror})")


async def run(
    settings: Settings,
    data: DataDir,
    console: Console,
    on_ready: Callable[[Plan], None],
    *,
    webhook: bool = True,
) -> None:
    """Run the stack until SIGINT, SIGTERM or SIGHUP; a second signal ends it without patience.

    `connection.json` is there from when everything is ready until the stop begins. No process is left.

    Raises:
        LocalStackError: the stack could not be started.
    """
    remove_connection(data.root)
    life = _Run(data, console)
    life.listen()
    try:
        plan = await make_plan(settings, data, webhook=webhook)
        if not life.stop.is_set():
            await life.supervise(plan, on_ready)
    except LocalStackError as exc:
        console.note(str(exc))
        raise
    finally:
        remove_connection(data.root)
