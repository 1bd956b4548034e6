-- Puts dead letters of one bank back into their conversations, each where it was, and their jobs with them.
-- KEYS: dead, dead of the bank, turns, conversations, batch, due, claims, waiting, forgotten
-- ARGV: bank, prefix of job keys, job TTL s, quiet ms, max wait ms, max turns, then document ids
-- Answers how many there were; one that was put back, dropped or forgotten meanwhile is none.
local bank = ARGV[1]
local revived, earliest = 0, nil

-- The document ids of a conversation with one more of them, in order of acceptance.
local function listed_with(documents, document, number)
  local before, after = {}, {}
  for other in string.gmatch(documents or '', '%S+') do
    local turn = redis.call('HGET', KEYS[3], other)
    local part = turn and (head_of(turn) or 0) > number and after or before
    part[#part + 1] = other
  end
  before[#before + 1] = document
  for _, other in ipairs(after) do before[#before + 1] = other end
  return table.concat(before, ' ')
end

local function revive_job(job_id, tenant, accepted, number, document)
  local job = ARGV[2] .. job_id
  if redis.call('EXISTS', job) == 0 then
    redis.call('HSET', job, 'tenant', tenant, 'bank', bank, 'accepted_ms', accepted, 'left', 0, 'kept', 0,
      'number', string.format('%d', number), 'document', document)
  elseif add_to(job, 'failed', -1) <= 0 then
    redis.call('HDEL', job, 'failed', 'reason')
  end
  redis.call('HSET', job, 'status', 'queued')
  add_to(job, 'left', 1)
  redis.call('HDEL', job, 'finished_ms')
  redis.call('EXPIRE', job, ARGV[3])
end

for i = 7, #ARGV do
  local document = ARGV[i]
  local letter = redis.call('HGET', KEYS[1], document)
  local its_bank, turn = string.match(letter or '', '^([^\n]*)\n[^\n]*\n(.*)$')
  if its_bank == bank and not drop_if_forgotten(KEYS[1], KEYS[2], KEYS[9], ARGV[2], document, turn) then
    local number, accepted, job_id, conversation = head_of(turn)
    local first, last, count, documents = accepted, accepted, 0, nil
    local before = redis.call('HGET', KEYS[4], conversation)
    if before then
      local since, latest, many, listed = waiting_of(before)
      -- What cannot be read lists nothing.
      if since then first, last, count, documents = since, latest, many, listed end
    end
    redis.call('HSET', KEYS[3], document, turn)
    count_on(KEYS[8], 1)
    first, last, count = math.min(first, accepted), math.max(last, accepted), count + 1
    redis.call('HSET', KEYS[4], conversation,
      waiting_text(first, last, count, listed_with(documents, document, number)))
    revive_job(job_id, redis.call('HGET', KEYS[2], document) or '', accepted, number, document)
    redis.call('HDEL', KEYS[1], document)
    redis.call('HDEL', KEYS[2], document)
    local due = due_ms(first, last, count, tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6]))
    if not earliest or due < earliest then earliest = due end
    revived = revived + 1
  end
end
if revived == 0 then return 0 end

earliest = math.max(earliest, now_ms())
if redis.call('HEXISTS', KEYS[7], bank) == 1 or redis.call('EXISTS', KEYS[5]) == 1 then
  redis.call('ZADD', KEYS[6], 'NX', earliest, bank) -- whoever lets go of the bank sets its next time
elseif redis.call('ZSCORE', KEYS[6], bank) then
  redis.call('ZADD', KEYS[6], 'LT', earliest, bank)
else
  redis.call('ZADD', KEYS[6], earliest, bank)
end
return revived
