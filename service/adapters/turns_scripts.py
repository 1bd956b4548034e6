"""Scripts on the connection that all tasks share: for every add, a third of the work of redis-py's pool."""

from collections.abc import Sequence
from typing import Any

from hiredis import ReplyError
from redis.commands.core import AsyncScript

from service.adapters.pipelined import PipelinedRedis


async def run_shared(
    redis: PipelinedRedis, script: AsyncScript, keys: Sequence[str], args: Sequence[str | int | float]
) -> list[str]:
    """The texts that `script` answers; it has to be safe to repeat.

    Raises `ConnectionError` or `hiredis.ReplyError`; the caller sets the time limit.
    """
    rest = (str(part).encode() for part in (len(keys), *keys, *args))
    call = (b"EVALSHA", script.sha.encode(), *rest)
    try:
        reply = await _execute(redis, *call)
    except ReplyError as exc:
        if not str(exc).startswith("NOSCRIPT"):
            raise
        await _execute(redis, b"SCRIPT", b"LOAD", str(script.script).encode())
        reply = await _execute(redis, *call)
    return [part.decode() for part in reply]


async def _execute(redis: PipelinedRedis, *command: bytes) -> Any:
    try:
        return await redis.execute(*command)
    except ConnectionError:
        # A closed idle connection, most likely: one quick repetition, as the log's other client does.
        return await redis.execute(*command)
