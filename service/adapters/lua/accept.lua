-- Takes the turns of one request, says whose repetition they are, or that too many wait. All or nothing.
-- KEYS: seen, job, turns, conversations, batch, due, claims, number, dead, dead of the bank, waiting, forgotten,
--       and the bank's write epoch if the cache is here, too
-- ARGV: job id, seen TTL s, job TTL s, tenant, bank, conversation, quiet ms, max wait ms, max turns,
--       most that may wait of the bank, most of all, the time in ms from which on nobody waits for the answer,
--       then document id and payload of each turn
local now = now_ms()
-- The caller has been told that it failed: what it does about that must not be overtaken by this.
if now >= tonumber(ARGV[12]) then return {'late', ''} end
local job_id, bank, conversation = ARGV[1], ARGV[5], ARGV[6]
-- Its job and the number of its first turn, which outlives the job; older versions wrote the job alone.
local known, known_number = redis.call('GET', KEYS[1]), nil
if known then known, known_number = string.match(known, '^(%S+) ?(%d*)$') end
if known == job_id then return {'queued', known} end -- our own write, whose reply was lost
-- What was forgotten since is not known any more: the same words are new words.
local function is_forgotten()
  if redis.call('EXISTS', KEYS[12]) == 0 then return false end
  local job = string.sub(KEYS[2], 1, -#job_id - 1) .. known
  local number, first = unpack(redis.call('HMGET', job, 'number', 'document'))
  number = tonumber(known_number) or tonumber(number)
  -- Nobody knows which of both came first: a repetition that is lost is no harm, one that is stored is.
  if not number then return false end
  local labels = {conversation, first or nil}
  for i = 13, #ARGV, 2 do labels[#labels + 1] = ARGV[i] end
  return was_forgotten(KEYS[12], number, labels)
end
if known and not is_forgotten() then return {'duplicate', known} end
-- The mark may have expired while the turn still waits; storing it twice would lose a job.
local waiting = redis.call('HGET', KEYS[3], ARGV[13])
if waiting then
  local _, _, its_job = head_of(waiting)
  return {'duplicate', its_job}
end

-- Later documents of the request may still wait when its first one was stored or forgotten.
local fresh = {}
for i = 13, #ARGV, 2 do
  if redis.call('HEXISTS', KEYS[3], ARGV[i]) == 0 then fresh[#fresh + 1] = i end
end
local added = #fresh
if redis.call('HLEN', KEYS[3]) + added > tonumber(ARGV[10]) then return {'full', 'bank'} end
if (count_of(redis.pcall('GET', KEYS[11])) or 0) + added > tonumber(ARGV[11]) then return {'full', 'all'} end

redis.call('HSET', KEYS[2], 'status', 'queued', 'tenant', ARGV[4], 'bank', bank,
  'accepted_ms', now, 'left', added, 'kept', 0)
redis.call('EXPIRE', KEYS[2], ARGV[3])

local first, count, listed = now, 0, {}
local before = redis.call('HGET', KEYS[4], conversation)
if before then
  local since, _, many, documents = waiting_of(before)
  -- What cannot be read lists nothing. A time that is still to come was written while the clock was ahead.
  if since then first, count, listed[1] = math.min(since, now), many, documents end
end
local number = numbers(KEYS[8], added) - added
redis.call('SET', KEYS[1], string.format('%s %d', job_id, number + 1), 'EX', ARGV[2])
redis.call('HSET', KEYS[2], 'number', number + 1, 'document', ARGV[13])
for _, i in ipairs(fresh) do
  number = number + 1
  redis.call('HSET', KEYS[3], ARGV[i],
    table.concat({string.format('%d\n%d', number, now), job_id, conversation, ARGV[i + 1]}, '\n'))
  -- Said again after it had died: it is alive now.
  if redis.call('HDEL', KEYS[9], ARGV[i]) == 1 then redis.call('HDEL', KEYS[10], ARGV[i]) end
  listed[#listed + 1] = ARGV[i]
end
count_on(KEYS[11], added)
-- As `note_write` of the cache, without a second call: any text that was never there before will do.
if KEYS[13] then redis.call('SET', KEYS[13], job_id, 'EX', 604800) end
count = count + added
redis.call('HSET', KEYS[4], conversation, waiting_text(first, now, count, table.concat(listed, ' ')))

local due = due_ms(first, now, count, tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9]), now)
if redis.call('HEXISTS', KEYS[7], bank) == 1 or redis.call('EXISTS', KEYS[5]) == 1 then
  -- The score is the end of a claim or the next try of the batch; whoever lets go sets the next one.
  redis.call('ZADD', KEYS[6], 'NX', due, bank)
elseif redis.call('HLEN', KEYS[4]) == 1 then
  redis.call('ZADD', KEYS[6], due, bank) -- only this conversation waits: a new turn may postpone it
else
  redis.call('ZADD', KEYS[6], 'LT', due, bank)
end
return {'queued', job_id}
