-- Hindsight tells that something has ended: a bank whose batch waits for that is looked at now.
-- Only one that waits for a running operation: a pause after a failure is meant to be a pause.
-- KEYS: mark of the event, due, claims, batch. ARGV: bank, TTL of the mark s. Answers 'known' or 'new'.
if not redis.call('SET', KEYS[1], '1', 'NX', 'EX', ARGV[2]) then return 'known' end
if redis.call('HEXISTS', KEYS[3], ARGV[1]) == 1 then return 'new' end -- somebody is looking at it
if (count_of(redis.call('HGET', KEYS[4], 'looks')) or 0) > 0 then
  redis.call('ZADD', KEYS[2], 'XX', 'LT', now_ms(), ARGV[1])
end
return 'new'
