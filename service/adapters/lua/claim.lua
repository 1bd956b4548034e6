-- Hands out the banks that are due, each under a token of its own that dies by itself.
-- KEYS: due, claims, number. ARGV: how many at most, claim length ms, nonce
-- The number may be given out again after a fail-over that has lost the last second; the nonce is not.
although_full(KEYS[2])
local now = now_ms()
local claimed = {}
for _, bank in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, ARGV[1])) do
  local token = string.format('%d-%s', numbers(KEYS[3], 1), ARGV[3])
  redis.call('HSET', KEYS[2], bank, token)
  redis.call('ZADD', KEYS[1], now + ARGV[2], bank)
  claimed[#claimed + 1] = bank
  claimed[#claimed + 1] = token
end
return claimed
