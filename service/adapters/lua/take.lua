-- The bank's frozen batch; if there is none, that of the conversation that is due and has waited longest.
-- KEYS: claims, turns, conversations, batch
-- ARGV: bank, token, id for a new batch, prefix of job keys, quiet ms, max wait ms, max turns
-- Answers 'lost', nothing, or {fields of the batch, {document id, turn, ...}, now}.
if not holds(KEYS[1], ARGV[1], ARGV[2]) then return 'lost' end
although_full(KEYS[1])
local now, most = now_ms(), tonumber(ARGV[7])

-- Those of the documents that were not forgotten, with what they say.
local function turns_of(documents)
  local found = {}
  for document in string.gmatch(documents, '%S+') do
    local turn = redis.call('HGET', KEYS[2], document)
    if turn then
      found[#found + 1] = document
      found[#found + 1] = turn
    end
  end
  return found
end

-- The fields of the frozen batch; counts that are none are begun anew.
local function batch_with_counts()
  local is_whole, fields = {}, redis.call('HGETALL', KEYS[4])
  for i = 1, #fields, 2 do is_whole[fields[i]] = count_of(fields[i + 1]) ~= nil end
  local is_mended = false
  for _, name in ipairs({'attempts', 'tries', 'looks', 'round', 'solo', 'processing_ms', 'frozen_ms'}) do
    if not is_whole[name] then
      redis.call('HSET', KEYS[4], name, name == 'frozen_ms' and now or 0)
      is_mended = true
    end
  end
  return is_mended and redis.call('HGETALL', KEYS[4]) or fields
end

local frozen = redis.call('HGET', KEYS[4], 'documents')
if frozen then
  local turns = turns_of(frozen)
  if #turns > 0 then return {batch_with_counts(), turns, now} end
  redis.call('DEL', KEYS[4])
end

-- Leaves what is over the limit for the next batch.
local function freeze(conversation, text)
  local _, last, _, documents = waiting_of(text)
  local waiting, taken, left = turns_of(documents), {}, {}
  for i = 1, #waiting, 2 do
    local part = i <= 2 * most and taken or left
    part[#part + 1] = waiting[i]
  end
  if #left > 0 then
    local _, first = head_of(waiting[2 * most + 2])
    redis.call('HSET', KEYS[3], conversation, waiting_text(first, last, #left, table.concat(left, ' ')))
  else
    redis.call('HDEL', KEYS[3], conversation)
  end
  if #taken == 0 then return nil end
  redis.call('HSET', KEYS[4], 'id', ARGV[3], 'conversation', conversation, 'attempts', 0, 'tries', 0,
    'looks', 0, 'round', 0, 'solo', 0, 'processing_ms', 0, 'frozen_ms', now, 'documents', table.concat(taken, ' '))
  local turns = {}
  for i = 1, 2 * #taken do turns[i] = waiting[i] end
  for i = 2, #turns, 2 do
    local _, _, job_id = head_of(turns[i])
    local job = ARGV[4] .. job_id
    if redis.call('EXISTS', job) == 1 then redis.call('HSET', job, 'status', 'retaining') end
  end
  return {redis.call('HGETALL', KEYS[4]), turns, now}
end

local is_mended = false
while true do
  local all = redis.call('HGETALL', KEYS[3])
  local chosen, oldest, listed, is_broken = nil, nil, 0, false
  for i = 1, #all, 2 do
    local first, last, count = waiting_of(all[i + 1])
    if first then
      local due = due_ms(first, last, count, tonumber(ARGV[5]), tonumber(ARGV[6]), most)
      if due <= now and (not oldest or first < oldest) then chosen, oldest = i, first end
      listed = listed + count
    else
      is_broken = true
    end
  end
  -- A fault that none of our scripts leaves behind: without this, those turns would wait for ever.
  if not is_mended and (is_broken or listed < redis.call('HLEN', KEYS[2])) then
    is_mended = true
    list_lost(KEYS[2], KEYS[3], KEYS[4])
  else
    if not chosen then return {} end
    local batch = freeze(all[chosen], all[chosen + 1])
    if batch then return batch end
  end
end
