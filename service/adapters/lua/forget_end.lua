-- A forget has come to its end. The operations it has used up are kept in mind as long as a request of before
-- may still be on its way: whoever deletes the whole bank frees their ids, and has to use them up again.
-- KEYS: claims, forgetting. ARGV: bank, token, how long they are kept (s)
if not holds(KEYS[1], ARGV[1], ARGV[2]) then return 'lost' end
local now, kept = now_ms(), false
local all = redis.call('HGETALL', KEYS[2])
for i = 1, #all, 2 do
  local operation = string.match(all[i], '^operation (.+)$')
  if operation then redis.call('HSET', KEYS[2], 'fenced ' .. operation, now) end
  -- Nobody knows how old what cannot be read is: it stays until all of them go.
  local since = count_of(all[i + 1]) or now
  local is_recent = string.match(all[i], '^fenced ') and now - since < tonumber(ARGV[3]) * 1000
  kept = kept or operation or is_recent
  if not is_recent then redis.call('HDEL', KEYS[2], all[i]) end
end
if kept then redis.call('EXPIRE', KEYS[2], ARGV[3]) end
return 'ok'
