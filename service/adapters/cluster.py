"""A Redis Cluster, spoken to like one server: each command goes to the node that has its key.

The keys of one bank share a hash tag, so that each command of the cache has one slot. The map of slots is
read from any node when it is first needed, corrected by what nodes answer (`MOVED`, `ASK`) and read again
after a node was lost or did not answer in time: until its replica has taken over, what lies there is not to
be had, and the rest is.
"""

import asyncio
from collections.abc import Awaitable
from types import TracebackType
from typing import Any, Protocol, Self, cast

import hiredis
from redis.crc import key_slot

from service.adapters.pipelined import PipelinedRedis
from service.adapters.redis_urls import cluster_url, is_cluster

Node = tuple[str, int]

_SLOTS = 16_384
# From one node to the next and back: more is a cluster that is being taken apart.
_MOST_HOPS = 3
_REFRESH_PAUSE_S = 0.2
# A node that hangs must leave time for the next one.
_ASK_S = 0.5
_NAMELESS = b"-"


class CacheRedis(Protocol):
    """What the cache needs: one server and a cluster can do it alike."""

    def server_of(self, key: bytes) -> bytes:
        """The run id of the server that has `key`; `-` when it is not known."""

    async def execute(self, *command: bytes) -> Any:
        """The reply to one command; raises `ConnectionError` or `hiredis.ReplyError`."""

    def execute_by(self, ends: float, *command: bytes) -> Awaitable[Any]:
        """`execute`, but `TimeoutError` at `ends` (the loop's time)."""

    def post(self, *command: bytes) -> None:
        """Send a command whose reply nobody waits for."""

    async def ping(self) -> None:
        """One look whether all of it answers; raises `ConnectionError` or `hiredis.ReplyError`."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def cache_redis(url: str) -> CacheRedis:
    """The client for `url`, one server or a cluster; open it as an async context manager."""
    return ClusterRedis(url) if is_cluster(url) else PipelinedRedis(url)


class ClusterRedis:
    """`PipelinedRedis` for a cluster; open it as an async context manager."""

    def __init__(self, url: str) -> None:
        self._url = cluster_url(url)
        self._nodes: dict[Node, PipelinedRedis] = {}
        self._slots: list[Node | None] = [None] * _SLOTS
        # Those that failed somebody and were not heard of since: they are asked last.
        self._silent: set[Node] = set()
        self._is_closed = False
        self._refreshing: asyncio.Task[None] | None = None
        self._refreshed_at = -_REFRESH_PAUSE_S

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_closed = True
        if (refreshing := self._refreshing) is not None:
            refreshing.cancel()
            await asyncio.wait([refreshing])
        for node in self._nodes.values():
            await node.__aexit__(kind, error, trace)

    def server_of(self, key: bytes) -> bytes:
        """The run id of the node that has `key`: another one after a restart or a fail-over."""
        node = self._slots[key_slot(key)]
        return _NAMELESS if node is None else self._nodes[node].server

    async def execute(self, *command: bytes) -> Any:
        """The reply to one command; raises `ConnectionError` or `hiredis.ReplyError`."""
        slot = key_slot(_key_of(command))
        if self._slots[slot] is None:
            await self._refresh()
        node = self._slots[slot]
        if node is None:
            raise ConnectionError("no node has this slot")
        is_asking = False
        for _ in range(_MOST_HOPS):
            try:
                reply = await self._send(node, command, is_asking=is_asking)
            except hiredis.ReplyError as exc:
                self._silent.discard(node)
                kind, _, rest = str(exc).partition(" ")
                if kind not in ("MOVED", "ASK"):
                    raise
                node = await self._node_in(rest, node)
                is_asking = kind == "ASK"
                if not is_asking:
                    self._slots[slot] = node
            except (OSError, asyncio.CancelledError):
                self._note_silence(node)
                raise
            else:
                self._silent.discard(node)
                return reply
        raise ConnectionError("the cluster sends us from node to node")

    async def execute_by(self, ends: float, *command: bytes) -> Any:
        """`execute`, but `TimeoutError` at `ends` (the loop's time)."""
        async with asyncio.timeout_at(ends):
            return await self.execute(*command)

    def post(self, *command: bytes) -> None:
        """Send a command whose reply nobody waits for; it is dropped where its node is not known."""
        node = self._slots[key_slot(_key_of(command))]
        if node is not None:
            self._nodes[node].post(*command)

    async def ping(self) -> None:
        """One look whether all nodes with slots answer; raises `ConnectionError` or `hiredis.ReplyError`."""
        if None in self._slots:
            await self._refresh()
        nodes = set(self._slots)
        if None in nodes:
            raise ConnectionError("no node has some of the slots")
        await asyncio.gather(*(self._ping(node, self._nodes[node]) for node in nodes if node is not None))

    async def _ping(self, node: Node, redis: PipelinedRedis) -> None:
        try:
            await redis.ping()
        except (OSError, asyncio.CancelledError):
            self._note_silence(node)
            raise
        self._silent.discard(node)

    def _note_silence(self, node: Node) -> None:
        # Callers are more impatient than connections: with a node that hangs, most of them are
        # cancelled by their own limit before the connection counts as lost.
        self._silent.add(node)
        if not self._is_closed:
            self._refresh_later()

    async def _send(self, node: Node, command: tuple[bytes, ...], *, is_asking: bool) -> Any:
        if not is_asking:
            return await self._nodes[node].execute(*command)
        _, reply = await self._nodes[node].execute_all((b"ASKING",), command)
        if isinstance(reply, hiredis.ReplyError):
            raise reply
        return reply

    async def _node_in(self, redirection: str, asked: Node) -> Node:
        """The node of `1234 host:port`; without a host it is the one that was asked, on another port."""
        host, _, port = redirection.rpartition(" ")[2].rpartition(":")
        return await self._known((host or asked[0], int(port)))

    async def _known(self, node: Node) -> Node:
        if node not in self._nodes:
            self._nodes[node] = await PipelinedRedis(self._url.node(*node)).__aenter__()
        return node

    async def _refresh(self) -> None:
        """Read the map of slots once, however many ask for it."""
        # Shielded: one impatient caller must not cancel what the others wait for.
        await asyncio.shield(self._refresh_later())

    def _refresh_later(self) -> "asyncio.Task[None]":
        if self._refreshing is None:
            pause_s = max(0.0, self._refreshed_at + _REFRESH_PAUSE_S - self._loop.time())
            self._refreshing = asyncio.ensure_future(self._read_slots(pause_s))
            self._refreshing.add_done_callback(self._refresh_done)
        return self._refreshing

    def _refresh_done(self, task: "asyncio.Task[None]") -> None:
        self._refreshing = None
        self._refreshed_at = self._loop.time()
        if not task.cancelled():
            task.exception()  # whoever waits has it; with nobody there the next command tries again

    async def _read_slots(self, pause_s: float) -> None:
        await asyncio.sleep(pause_s)
        known = dict.fromkeys(node for node in (*self._slots, *self._url.hosts) if node is not None)
        for asked in sorted(known, key=self._silent.__contains__):
            try:
                async with asyncio.timeout(_ASK_S):
                    ranges = await self._nodes[await self._known(asked)].execute(b"CLUSTER", b"SLOTS")
            except (OSError, hiredis.ReplyError):
                self._silent.add(asked)
                continue
            for first, last, (host, port, *_), *_ in cast("list[Any]", ranges):
                node = await self._known((host.decode() if host else asked[0], port))
                self._slots[first : last + 1] = [node] * (last + 1 - first)
            await self._drop_others()
            return
        raise ConnectionError("no node of the cluster answers")

    async def _drop_others(self) -> None:
        """Close the connections to nodes that have no slot any more."""
        used = {*self._slots, *self._url.hosts}
        gone = [self._nodes.pop(node) for node in (*self._nodes,) if node not in used]
        self._silent &= used
        for node in gone:
            await node.__aexit__(None, None, None)


def _key_of(command: tuple[bytes, ...]) -> bytes:
    """The first key: of a script it comes after the text and the number of keys."""
    return command[3] if command[0] == b"EVAL" else command[1]
