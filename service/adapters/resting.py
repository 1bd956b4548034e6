"""Banks whose turns wait as they were told to: the language model is not asked for them before a time.

A day's budget that is spent may keep turns for hours. Who looks at the queue must see that and why, and must
not take it for work that nobody gets done.
"""

from typing import Final

from redis.asyncio import Redis

from service import keyspace
from service.scope import BankId

# A bank is looked at again at least every five minutes: what is not said again for long has passed.
_LONGEST_S: Final = 900
# Until the next try has told what came of it.
_MARGIN_S: Final = 120
# By the server's clock, like the times of the turns log.
_REST: Final = """
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
redis.call('ZADD', KEYS[1], now + ARGV[2] * 1000, ARGV[1])
if redis.call('TTL', KEYS[1]) < tonumber(ARGV[2]) then redis.call('EXPIRE', KEYS[1], ARGV[2]) end
redis.call('SET', KEYS[2], now, 'NX', 'EX', ARGV[2])
if redis.call('TTL', KEYS[2]) < tonumber(ARGV[2]) then redis.call('EXPIRE', KEYS[2], ARGV[2]) end
return 'ok'
"""


async def note_resting(redis: Redis, bank: BankId, code: str, wait_s: int) -> None:
    """The language model is not asked for this bank's turns for `wait_s` seconds, for the reason `code`."""
    until_s = min(_LONGEST_S, wait_s + _MARGIN_S)
    keys = keyspace.RESTING, keyspace.not_asked(code)
    await redis.eval(_REST, 2, *keys, bank, str(until_s))  # type: ignore[misc]


async def resting(redis: Redis, now_ms: int) -> frozenset[str]:
    """The banks for which that is so at `now_ms`, by the server's clock."""
    # Later than any can be: noted while the clock was ahead, it says nothing.
    latest = now_ms + (_LONGEST_S + _MARGIN_S) * 1000
    return frozenset(await redis.zrangebyscore(keyspace.RESTING, f"({now_ms}", latest))
