"""Counters in the fields of a hash in Redis that go on whatever has got in their place.

Somebody's mistake must not stop what is counted, nor what is stored only once it is counted: a value that is
no whole number, is less than nothing or more than Redis can add up is no count, and is begun anew; so is a
hash whose key holds something else.
"""

from collections.abc import Mapping
from typing import Final

from redis.asyncio.client import Pipeline
from redis.exceptions import ResponseError

# What Redis can count up to.
_MOST: Final = 2**63 - 1
# ARGV: the key's TTL in s, 1 to write although the server is full (see lua/common.lua), names and counts.
_ADD: Final = """
local kind = redis.call('TYPE', KEYS[1]).ok
if kind ~= 'hash' and kind ~= 'none' then redis.call('DEL', KEYS[1]) end
if ARGV[2] == '1' then redis.call('HDEL', KEYS[1], '') end
for i = 3, #ARGV, 2 do
  local sum = redis.pcall('HINCRBY', KEYS[1], ARGV[i], ARGV[i + 1])
  -- No number, or too large a one; or what there was before was less than nothing.
  if type(sum) == 'table' or sum < tonumber(ARGV[i + 1]) then
    redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1])
  end
end
redis.call('EXPIRE', KEYS[1], ARGV[1])
"""


def add(
    pipe: Pipeline, key: str, counts: Mapping[str, int], *, ttl_s: int, although_full: bool = False
) -> None:
    """Let `pipe` add counts (none below 0) to fields of `key`: all of them, or none with an error.

    `although_full` also on a server without memory left: for little that others wait for.
    """
    fields = [part for name, count in counts.items() for part in (name, str(count))]
    pipe.eval(_ADD, 1, key, str(ttl_s), "1" if although_full else "0", *fields)


def value_of(text: str | None) -> int:
    """What a counter has come to; 0 for none, and for what is no count."""
    try:
        count = int(text or 0)
    except ValueError:
        return 0
    return count if 0 <= count <= _MOST else 0


def is_no_hash(error: ResponseError) -> bool:
    """Whether a hash was asked for where something else is."""
    return "WRONGTYPE" in str(error)
