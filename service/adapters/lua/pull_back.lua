-- Pulls back banks that are to be looked at later than any can be: they were put off while the clock was ahead.
-- KEYS: due, claims. ARGV: longest that a bank is put off ms, claim length ms, how many at most
-- Answers how many there were. Whoever has such a bank and lives renews its claim in time.
although_full(KEYS[2])
local now = now_ms()
local found = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. now + ARGV[1], '+inf', 'LIMIT', 0, ARGV[3])
for _, bank in ipairs(found) do
  local is_claimed = redis.call('HEXISTS', KEYS[2], bank) == 1
  redis.call('ZADD', KEYS[1], is_claimed and now + ARGV[2] or now, bank)
end
return #found
