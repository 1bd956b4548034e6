-- Gives a bank back with the time it has to be looked at next, or takes it off the list.
-- KEYS: claims, due, conversations, batch
-- ARGV: bank, token, retry a frozen batch in ms, quiet ms, max wait ms, max turns
local bank = ARGV[1]
if not holds(KEYS[1], bank, ARGV[2]) then return 'lost' end
redis.call('HDEL', KEYS[1], bank) -- needs no memory: it comes first (see although_full)
local now, next_due = now_ms(), nil
if redis.call('EXISTS', KEYS[4]) == 1 then
  next_due = now + ARGV[3] -- the batch goes first, whatever else is due
else
  for _, text in ipairs(redis.call('HVALS', KEYS[3])) do
    local first, last, count = waiting_of(text)
    local due = 0 -- what cannot be read is put right by the next one who takes
    if first then due = due_ms(first, last, count, tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])) end
    if not next_due or due < next_due then next_due = due end
  end
end
if next_due then
  -- Never before those that are due now: a bank that always has something would be the only one served.
  redis.call('ZADD', KEYS[2], math.max(next_due, now), bank)
else
  redis.call('ZREM', KEYS[2], bank)
end
return 'ok'
