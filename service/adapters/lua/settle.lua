-- Ends turns of a batch: stored ones are forgotten, dead ones move to the dead letters.
-- KEYS: claims, turns, batch, dead, dead of the bank, waiting, then the job of each turn
-- ARGV: bank, token, batch id, 'done' or 'failed', reason, job TTL s,
--       then document id and memories kept ('': not known) of each turn
if not holds(KEYS[1], ARGV[1], ARGV[2]) then return 'lost' end
although_full(KEYS[1])
if redis.call('HGET', KEYS[3], 'id') ~= ARGV[3] then return 'gone' end
local is_failed = ARGV[4] == 'failed'
local now = now_ms()
local ended, gone = {}, 0

local function account(job, kept)
  if redis.call('EXISTS', job) == 0 then return end
  if kept == '' then redis.call('HSET', job, 'kept_unknown', 1) else add_to(job, 'kept', kept) end
  if is_failed then
    add_to(job, 'failed', 1)
    redis.call('HSET', job, 'reason', ARGV[5])
  end
  if add_to(job, 'left', -1) > 0 then return end
  local failed = (count_of(redis.call('HGET', job, 'failed')) or 0) > 0
  local unhurt = redis.call('HEXISTS', job, 'cancelled') == 1 and 'cancelled' or 'done' -- part of it was forgotten
  redis.call('HSET', job, 'status', failed and 'failed' or unhurt, 'finished_ms', now)
  if not failed then redis.call('HSET', job, 'reason', '') end
  redis.call('EXPIRE', job, ARGV[6])
end

-- What is not in the batch (any more) was ended before and the reply was lost, and may be alive again since.
local listed = {}
for document in string.gmatch(redis.call('HGET', KEYS[3], 'documents'), '%S+') do listed[document] = true end

for i = 7, #ARGV, 2 do
  local document = ARGV[i]
  ended[document] = true
  local turn = listed[document] and redis.call('HGET', KEYS[2], document)
  if turn then
    local job = KEYS[6 + (i - 5) / 2]
    if is_failed then
      redis.call('HSET', KEYS[4], document, table.concat({ARGV[1], ARGV[5], turn}, '\n'))
      redis.call('HSET', KEYS[5], document, redis.call('HGET', job, 'tenant') or '')
    end
    redis.call('HDEL', KEYS[2], document)
    gone = gone + 1
    account(job, ARGV[i + 1])
  end
end

count_off(KEYS[6], gone)

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
  redis.call('HDEL', KEYS[3], 'prepared')
end
return 'ok'
