-- Ends turns of a batch: stored ones are forgotten, dead ones move to the dead letters.
-- KEYS: claims, turns, batch, dead, then the job of each turn
-- ARGV: bank, token, batch id, 'done' or 'failed', reason, job TTL s,
--       then document id and memories kept of each turn
if not holds(KEYS[1], ARGV[1], ARGV[2]) then return 'lost' end
if redis.call('HGET', KEYS[3], 'id') ~= ARGV[3] then return 'gone' end
local is_failed = ARGV[4] == 'failed'
local now = now_ms()
local ended = {}

local function account(job, kept)
  if redis.call('EXISTS', job) == 0 then return end
  redis.call('HINCRBY', job, 'kept', kept)
  if is_failed then redis.call('HSET', job, 'failed', 1, 'reason', ARGV[5]) end
  if redis.call('HINCRBY', job, 'left', -1) > 0 then return end
  local failed = redis.call('HGET', job, 'failed')
  redis.call('HSET', job, 'status', failed and 'failed' or 'done', 'finished_ms', now)
  if not failed then redis.call('HSET', job, 'reason', '') end
  redis.call('EXPIRE', job, ARGV[6])
end

for i = 7, #ARGV, 2 do
  local document = ARGV[i]
  ended[document] = true
  local turn = redis.call('HGET', KEYS[2], document)
  if turn then -- else this was done before and the reply was lost, or it was forgotten meanwhile
    if is_failed then redis.call('HSET', KEYS[4], document, table.concat({ARGV[1], ARGV[5], turn}, '\n')) end
    redis.call('HDEL', KEYS[2], document)
    account(KEYS[4 + (i - 5) / 2], ARGV[i + 1])
  end
end

local staying = {}
for document in string.gmatch(redis.call('HGET', KEYS[3], 'documents'), '%S+') do
  if not ended[document] then staying[#staying + 1] = document end
end
if #staying == 0 then
  redis.call('DEL', KEYS[3])
else
  -- What one turn has cost is not held against the next one.
  redis.call('HSET', KEYS[3], 'documents', table.concat(staying, ' '), 'attempts', 0, 'tries', 0, 'looks', 0,
    'processing_ms', 0)
end
return 'ok'
