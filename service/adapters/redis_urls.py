"""What a Redis URL may name: one server, the master that Sentinels know, or a cluster.

| URL | means |
|---|---|
| `redis://`, `rediss://`, `unix://` | one server (or a managed one behind one name); `rediss` is TLS |
| `redis+sentinel://USER:PASSWORD@HOST:PORT,HOST:PORT/MASTER/DB` | the master, as the Sentinels say |
| `redis+cluster://USER:PASSWORD@HOST:PORT,HOST:PORT` | a cluster, found by any of these nodes |

`rediss+sentinel` and `rediss+cluster` do it over TLS, with the `ssl_…` fields of redis-py for all that they
connect to, Sentinels and servers: `?ssl_ca_certs=/etc/ca.pem`. Sentinels with a password of their own:
`?sentinel_username=…&sentinel_password=…`. Other fields are refused.
"""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

from redis.asyncio import Redis
from redis.asyncio.connection import SSLConnection, parse_url
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool

SENTINEL_PORT = 26379
_LOGINS = frozenset({"sentinel_username", "sentinel_password"})
# What both redis-py and our shared connection take as text.
_TLS = frozenset(
    {
        "ssl_keyfile",
        "ssl_certfile",
        "ssl_cert_reqs",
        "ssl_ca_certs",
        "ssl_ca_data",
        "ssl_check_hostname",
        "ssl_ciphers",
    }
)
# A Sentinel that hangs must leave time for the next one.
_SENTINEL_TIMEOUT_S = 0.5


@dataclass(frozen=True)
class SentinelUrl:
    """Where the Sentinels are, which master is meant, and how to log in to both."""

    hosts: tuple[tuple[str, int], ...]
    master: str
    database: int
    username: str | None
    password: str | None = field(repr=False)
    sentinel_username: str | None = None
    sentinel_password: str | None = field(default=None, repr=False)
    is_tls: bool = False
    # How redis-py calls it.
    tls: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def sentinel(self, **connection: Any) -> Sentinel:
        """A client of the Sentinels; close it with `close_sentinels`. `connection` goes to the master's."""
        to_sentinels: dict[str, Any] = {
            "socket_timeout": _SENTINEL_TIMEOUT_S,
            "socket_connect_timeout": _SENTINEL_TIMEOUT_S,
            "username": self.sentinel_username,
            "password": self.sentinel_password,
        }
        to_master: dict[str, Any] = {
            "db": self.database,
            "username": self.username,
            "password": self.password,
            **connection,
        }
        if self.is_tls:
            to_sentinels |= {"ssl": True, **self.tls}
            to_master |= {"ssl": True, **self.tls}
        return cast("Sentinel", cast("Any", Sentinel)(self.hosts, sentinel_kwargs=to_sentinels, **to_master))

    async def master_address(self) -> tuple[str, int]:
        """Where the master is now; raises `redis.exceptions.ConnectionError` when no Sentinel can tell."""
        sentinel = self.sentinel()
        try:
            host, port = await sentinel.discover_master(self.master)
        finally:
            await close_sentinels(sentinel)
        return str(host), int(port)


class _Pool(SentinelConnectionPool):
    """Closes the connections to the Sentinels with its own: the client that owns it knows no others."""

    async def disconnect(self, inuse_connections: bool = True) -> None:
        await super().disconnect(inuse_connections)
        await close_sentinels(cast("Sentinel", self.sentinel_manager))


async def close_sentinels(sentinel: Sentinel) -> None:
    """Close its connections; it may be used again."""
    for client in sentinel.sentinels:
        await client.aclose()


def is_sentinel(url: str) -> bool:
    """Whether the URL names Sentinels."""
    return urlsplit(url).scheme.endswith("+sentinel")


def is_cluster(url: str) -> bool:
    """Whether the URL names a cluster."""
    return urlsplit(url).scheme.endswith("+cluster")


def sentinel_url(url: str) -> SentinelUrl:
    """Take a `redis+sentinel://` URL apart; raises `ValueError` if there is no master or an unknown field."""
    parts = urlsplit(url)
    user, hosts = _hosts(parts.netloc, SENTINEL_PORT)
    master, _, database = parts.path.strip("/").partition("/")
    if not master:
        raise ValueError("name the master: redis+sentinel://host:26379,host:26379/MASTER")
    name, _, password = user.partition(":")
    login, tls = _fields(parts, _LOGINS)
    return SentinelUrl(
        hosts=hosts,
        master=unquote(master),
        database=int(database or 0),
        username=unquote(name) or None,
        password=unquote(password) or None,
        sentinel_username=login.get("sentinel_username"),
        sentinel_password=login.get("sentinel_password"),
        is_tls=_is_tls(parts),
        tls=tls,
    )


@dataclass(frozen=True)
class ClusterUrl:
    """The nodes a cluster is found by, and how to make the URL of any node."""

    hosts: tuple[tuple[str, int], ...]
    _scheme: str
    _user: str = field(repr=False)
    _query: str

    def node(self, host: str, port: int) -> str:
        """URL of one node as of a single server."""
        where = f"[{host}]" if ":" in host else host
        login = f"{self._user}@" if self._user else ""
        return f"{self._scheme}://{login}{where}:{port}" + (f"?{self._query}" if self._query else "")


def cluster_url(url: str) -> ClusterUrl:
    """Take a `redis+cluster://` URL apart; a cluster has only database 0. Raises `ValueError`."""
    parts = urlsplit(url)
    _fields(parts, frozenset())
    user, hosts = _hosts(parts.netloc, 6379)
    return ClusterUrl(hosts, parts.scheme.removesuffix("+cluster"), user, parts.query)


def _is_tls(parts: SplitResult) -> bool:
    return parts.scheme.startswith("rediss")


def _fields(parts: SplitResult, own: frozenset[str]) -> tuple[dict[str, str], dict[str, Any]]:
    """The fields after `?`: our own, and those of TLS as redis-py takes them.

    Raises `ValueError` for one that nobody would heed.
    """
    given = parse_qs(parts.query, keep_blank_values=True)
    for name in given:
        if name in _TLS and not _is_tls(parts):
            raise ValueError(f"{name} needs rediss")
        if name not in own | _TLS:
            raise ValueError("there is an unknown field after the ?")
    read = dict(parse_url(f"rediss://host/?{parts.query}"))
    tls = {name: value for name, value in read.items() if name in _TLS}
    return {name: values[0] for name, values in given.items() if name in own}, tls


def _hosts(netloc: str, default_port: int) -> tuple[str, tuple[tuple[str, int], ...]]:
    """User part as it is written, and the hosts."""
    user, _, listed = netloc.rpartition("@")
    hosts = []
    for item in listed.split(","):
        parts = urlsplit(f"//{item.strip()}")
        if parts.hostname is None:
            raise ValueError("a host is missing between the commas")
        hosts.append((parts.hostname, parts.port or default_port))
    return user, tuple(hosts)


def open_client(url: str, redis_class: type[Redis] = Redis, **options: Any) -> Redis:
    """redis-py's client for the server or master that `url` names; `aclose` closes all of it.

    `options` are those of `Redis.from_url`. Of a cluster it is the first node alone: good for looking at
    it, not for work.
    """
    if is_sentinel(url):
        address = sentinel_url(url)
        master: Redis = address.sentinel().master_for(
            address.master, redis_class=redis_class, connection_pool_class=_Pool, **options
        )
        return master
    if is_cluster(url):
        cluster = cluster_url(url)
        url = cluster.node(*cluster.hosts[0])
    client: Redis = redis_class.from_url(url, **options)
    return client


def connection_options(url: str) -> dict[str, Any]:
    """Host, port, path, login, database and TLS of a URL, as redis-py understands it.

    Of Sentinels: those of the master, without its host and port (see `SentinelUrl.master_address`).
    """
    if is_sentinel(url):
        address = sentinel_url(url)
        options = {"username": address.username, "password": address.password, "db": address.database}
        return options | ({"connection_class": SSLConnection, **address.tls} if address.is_tls else {})
    return dict(parse_url(url))


def tls_of(options: dict[str, Any]) -> ssl.SSLContext | None:
    """The TLS context that redis-py would use, so that one URL means the same to both clients."""
    if options.get("connection_class") is not SSLConnection:
        return None
    given = {name: value for name, value in options.items() if name.startswith("ssl_")}
    return SSLConnection(**given).ssl_context.get()
