-- Takes the turns of one request, or says whose repetition they are. All or nothing.
-- KEYS: seen, job, turns, conversations, batch, due, claims, number, dead
-- ARGV: job id, seen TTL s, job TTL s, tenant, bank, conversation, quiet ms, max wait ms, max turns,
--       then document id and payload of each turn
local job_id, bank, conversation = ARGV[1], ARGV[5], ARGV[6]
local known = redis.call('GET', KEYS[1])
if known == job_id then return {'queued', known} end -- our own write, whose reply was lost
if known then return {'duplicate', known} end
-- The mark may have expired while the turn still waits; storing it twice would lose a job.
local waiting = redis.call('HGET', KEYS[3], ARGV[10])
if waiting then
  local _, _, its_job = head_of(waiting)
  return {'duplicate', its_job}
end

local now = now_ms()
local added = (#ARGV - 9) / 2
redis.call('SET', KEYS[1], job_id, 'EX', ARGV[2])
redis.call('HSET', KEYS[2], 'status', 'queued', 'tenant', ARGV[4], 'bank', bank,
  'accepted_ms', now, 'left', added, 'kept', 0)
redis.call('EXPIRE', KEYS[2], ARGV[3])

local first, count, listed = now, 0, {}
local before = redis.call('HGET', KEYS[4], conversation)
if before then
  local _
  first, _, count, listed[1] = waiting_of(before)
end
local number = redis.call('INCRBY', KEYS[8], added) - added
for i = 10, #ARGV, 2 do
  number = number + 1
  redis.call('HSET', KEYS[3], ARGV[i],
    table.concat({string.format('%d\n%d', number, now), job_id, conversation, ARGV[i + 1]}, '\n'))
  redis.call('HDEL', KEYS[9], ARGV[i]) -- said again after it had died: it is alive now
  listed[#listed + 1] = ARGV[i]
end
count = count + added
redis.call('HSET', KEYS[4], conversation, waiting_text(first, now, count, table.concat(listed, ' ')))

local due = due_ms(first, now, count, tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9]))
if redis.call('HEXISTS', KEYS[7], bank) == 1 or redis.call('EXISTS', KEYS[5]) == 1 then
  -- The score is the end of a claim or the next try of the batch; whoever lets go sets the next one.
  redis.call('ZADD', KEYS[6], 'NX', due, bank)
elseif redis.call('HLEN', KEYS[4]) == 1 then
  redis.call('ZADD', KEYS[6], due, bank) -- only this conversation waits: a new turn may postpone it
else
  redis.call('ZADD', KEYS[6], 'LT', due, bank)
end
return {'queued', job_id}
