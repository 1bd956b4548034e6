-- Takes what is to be forgotten out of the log, and the bank out of the hands of whoever works on it.
-- KEYS: claims, due, number, turns, conversations, batch, dead, dead of the bank, waiting, forgotten, forgetting
-- ARGV: bank, token, claim length ms, TTL s of the marks, of the unfinished forget, of ended jobs,
--       prefix of job keys, id for what is left of the batch, 'all' | 'conversation' | 'documents',
--       then the conversation, or the document ids
-- Answers 'busy' while another forget has the bank, else turns and jobs this forget has ended so far
-- (over its repetitions), then each operation that may be on its way: batch id, round, solo, first document;
-- for 'all', which frees the ids in Hindsight, also those that forgets of late have used up.
local bank, token, kind = ARGV[1], ARGV[2], ARGV[9]
local now = now_ms()
local holder = redis.call('HGET', KEYS[1], bank)
local ends = tonumber(redis.call('ZSCORE', KEYS[2], bank) or '0')
-- A claim that ends later than any could was taken while the clock was ahead; whoever lives has renewed it.
if holder and holder ~= token and string.sub(holder, 1, 1) == 'f' and ends > now and ends <= now + ARGV[3] then
  return 'busy'
end
-- A worker that has the bank is refused from now on, whatever it wants to write.
redis.call('HSET', KEYS[1], bank, token)
redis.call('ZADD', KEYS[2], now + ARGV[3], bank)

-- What was accepted under a smaller number is no longer known: the same words are new words.
local number = string.format('%d', numbers(KEYS[3], 1))
local meant = {}
if kind == 'all' then
  redis.call('DEL', KEYS[10])
  redis.call('HSET', KEYS[10], 'all', number)
end
for i = 10, #ARGV do
  meant[ARGV[i]] = true
  redis.call('HSET', KEYS[10], ARGV[i], number)
end
redis.call('EXPIRE', KEYS[10], ARGV[4])

local function is_meant(document, turn)
  if kind == 'all' or meant[document] then return true end
  if kind == 'documents' then return false end
  local _, _, _, conversation = head_of(turn)
  return meant[conversation] or false
end

-- The documents to look at in a hash of turns.
local function candidates(key)
  if kind ~= 'documents' then return redis.call('HKEYS', key) end
  local found = {}
  for document in pairs(meant) do
    if redis.call('HEXISTS', key, document) == 1 then found[#found + 1] = document end
  end
  return found
end

local ended, jobs, gone, pending = {}, 0, {}, 0

local function cancel(job_id, was_dead)
  if not ended[job_id] then
    ended[job_id] = true
    jobs = jobs + 1
  end
  cancel_turn(ARGV[7] .. job_id, was_dead, now, ARGV[6])
end

local taken = 0
for _, document in ipairs(candidates(KEYS[4])) do
  local turn = redis.call('HGET', KEYS[4], document)
  if is_meant(document, turn) then
    local _, _, job_id = head_of(turn)
    redis.call('HDEL', KEYS[4], document)
    gone[document] = true
    taken = taken + 1
    cancel(job_id, false)
  end
end
count_off(KEYS[9], taken)
pending = taken

for _, document in ipairs(candidates(KEYS[8])) do
  local its_bank, turn = string.match(redis.call('HGET', KEYS[7], document) or '', '^([^\n]*)\n[^\n]*\n(.*)$')
  if its_bank == bank and is_meant(document, turn) then
    local _, _, job_id = head_of(turn)
    redis.call('HDEL', KEYS[7], document)
    redis.call('HDEL', KEYS[8], document)
    pending = pending + 1
    cancel(job_id, true)
  end
end

local function staying_of(documents)
  local staying = {}
  for document in string.gmatch(documents, '%S+') do
    if not gone[document] then staying[#staying + 1] = document end
  end
  return staying
end

if taken > 0 then
  local all = redis.call('HGETALL', KEYS[5])
  for i = 1, #all, 2 do
    local first, last, count, documents = waiting_of(all[i + 1])
    -- What cannot be read stays: it has the bank looked at, and the next one who takes puts it right.
    local staying = documents and staying_of(documents)
    if staying and #staying == 0 then
      redis.call('HDEL', KEYS[5], all[i])
    elseif staying and #staying < count then
      redis.call('HSET', KEYS[5], all[i], waiting_text(first, last, #staying, table.concat(staying, ' ')))
    end
  end
end

local batch = redis.call('HMGET', KEYS[6], 'id', 'round', 'solo', 'documents')
if batch[1] then
  local listed, documents = batch[4] or '', 0
  local staying = staying_of(listed)
  for _ in string.gmatch(listed, '%S+') do documents = documents + 1 end
  if #staying < documents then
    -- Its operation may be on its way to Hindsight; what is left has to go under an id that is not known there.
    local operation = string.format('operation %s %d %d %s', batch[1], count_of(batch[2]) or 0,
      count_of(batch[3]) or 0, string.match(listed, '%S+'))
    redis.call('HSET', KEYS[11], operation, 1)
    if #staying == 0 then
      redis.call('DEL', KEYS[6])
    else
      redis.call('HSET', KEYS[6], 'id', ARGV[8], 'documents', table.concat(staying, ' '), 'attempts', 0,
        'tries', 0, 'looks', 0, 'round', 0, 'solo', 0, 'processing_ms', 0)
      -- What a language model made of all of them together goes as well.
      redis.call('HDEL', KEYS[6], 'prepared')
    end
  end
end

-- Until this forget has ended, its repetitions add up, and know which operations to look for.
local label = kind .. ' ' .. (ARGV[10] or '')
local answer = {
  add_to(KEYS[11], 'turns ' .. label, pending),
  add_to(KEYS[11], 'jobs ' .. label, jobs),
}
redis.call('EXPIRE', KEYS[11], ARGV[5])
for _, field in ipairs(redis.call('HKEYS', KEYS[11])) do
  local state, id, round, solo, first = string.match(field, '^(%a+) (%S+) (%S+) (%S+) (%S+)$')
  if state == 'operation' or (state == 'fenced' and kind == 'all') then
    for _, part in ipairs({id, round, solo, first}) do answer[#answer + 1] = part end
  end
end
return answer
