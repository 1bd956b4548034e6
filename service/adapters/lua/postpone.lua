-- Notes how a try at a batch went. KEYS: claims, batch, then the jobs of its turns.
-- ARGV: bank, token, batch id, attempts, tries, looks, round, solo, processing since ms, job status, reason
if not holds(KEYS[1], ARGV[1], ARGV[2]) then return 'lost' end
although_full(KEYS[1])
if redis.call('HGET', KEYS[2], 'id') ~= ARGV[3] then return 'gone' end
redis.call('HSET', KEYS[2], 'attempts', ARGV[4], 'tries', ARGV[5], 'looks', ARGV[6], 'round', ARGV[7],
  'solo', ARGV[8], 'processing_ms', ARGV[9])
for i = 3, #KEYS do
  if redis.call('EXISTS', KEYS[i]) == 1 then
    redis.call('HSET', KEYS[i], 'status', ARGV[10], 'reason', ARGV[11])
  end
end
return 'ok'
