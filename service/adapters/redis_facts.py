"""What a Redis says of itself: whether what it acknowledged survives, and what it throws away when full."""

import asyncio
from dataclasses import dataclass
from typing import Any

from redis.exceptions import RedisError, ResponseError

from service.adapters.redis_urls import open_client
from service.errors import TurnsLogUnavailable


@dataclass(frozen=True, slots=True)
class RedisFacts:
    """Durability settings; None where the server does not tell (managed ones often hide them).

    `fsync` is always, everysec or no; `eviction` the policy at `max_memory_bytes` (0: no limit).
    """

    version: str
    append_only: bool | None
    fsync: str | None
    eviction: str | None
    max_memory_bytes: int | None
    used_memory_bytes: int | None


async def read_redis_facts(url: str, timeout_s: float) -> RedisFacts:
    """Ask the Redis at `url`, on a connection of its own; raises `TurnsLogUnavailable`."""
    client = open_client(url, decode_responses=True, socket_connect_timeout=timeout_s)
    try:
        async with asyncio.timeout(timeout_s), client:
            info: dict[str, Any] = await client.info()
            try:
                config: dict[str, str] = await client.config_get("append*")
            except ResponseError:  # renamed or forbidden
                config = {}
    except (RedisError, OSError, TimeoutError) as exc:
        raise TurnsLogUnavailable("Redis does not answer.") from exc
    version = info.get("valkey_version") or info.get("redis_version") or ""
    return RedisFacts(
        version=str(version),
        append_only=bool(info["aof_enabled"]) if "aof_enabled" in info else None,
        fsync=config.get("appendfsync"),
        eviction=info.get("maxmemory_policy"),
        max_memory_bytes=info.get("maxmemory"),
        used_memory_bytes=info.get("used_memory"),
    )
