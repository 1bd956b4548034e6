-- Shared by all scripts of the turns log: put in front of each by service/adapters/turns_redis.py.
-- One clock for everything: the server's, in Unix milliseconds.
local function now_ms()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

-- A script that raises keeps what it has written so far: nothing may raise after a first write, whatever a hand,
-- a backup or a fault has left in a key. A count that is none of ours counts as 0 and is begun anew.
-- No count of ours comes this far, and a Lua number is no longer exact beyond.
local FURTHEST = 2 ^ 53

-- The count that a text is, nil if it is none of ours. What `redis.pcall` answers will do, too.
local function count_of(text)
  local count = type(text) == 'string' and string.match(text, '^%d+$') and tonumber(text)
  return count and count < FURTHEST and count or nil
end

-- Adds to a counter, which then is at least as much.
local function count_on(key, many)
  local count = redis.pcall('INCRBY', key, many)
  -- A full server refuses the second one as well, and that raises.
  if type(count) ~= 'number' or count < many or count >= FURTHEST then redis.call('SET', key, many) end
end

-- So many turns no longer wait. Nothing is left behind when none do; a count that a fault has made too small
-- never falls below none.
local function count_off(waiting, gone)
  if gone == 0 then return end
  local count = redis.pcall('DECRBY', waiting, gone)
  if type(count) ~= 'number' or count <= 0 or count >= FURTHEST then redis.call('DEL', waiting) end
end

-- Adds to a count in a hash; answers what it is then.
local function add_to(hash, field, many)
  many = tonumber(many)
  local count = redis.pcall('HINCRBY', hash, field, many)
  if type(count) == 'number' and count >= many and count < FURTHEST then return count end
  redis.call('HSET', hash, field, many)
  return many
end

-- Gives out so many numbers of turns, claims and forgets; answers the last one. They always grow: where the
-- counter is gone, or none of ours, it goes on from the time in microseconds, which no count has come to.
local function numbers(key, many)
  local last = redis.pcall('INCRBY', key, many)
  if type(last) == 'number' and last > many and last < FURTHEST then return last end
  local t = redis.call('TIME')
  last = t[1] * 1000000 + t[2] + many
  redis.call('SET', key, string.format('%d', last))
  return last
end

-- A conversation's waiting turns: when the first and the last came, how many, their document ids in order.
local function waiting_of(text)
  local first, last, count, documents = string.match(text, '^(%d+) (%d+) (%d+) (.*)$')
  return tonumber(first), tonumber(last), tonumber(count), documents
end

local function waiting_text(first, last, count, documents)
  return string.format('%d %d %d %s', first, last, count, documents)
end

-- Due once quiet for a while, or after the longest wait, or when full; `now` where it is known already.
local function due_ms(first, last, count, quiet_ms, max_wait_ms, max_turns, now)
  now = now or now_ms()
  -- What came later than now came while the clock was ahead: nobody knows how long it waits, so it waits no more.
  if first > now or last > now then return 0 end
  if count >= max_turns then return first end
  return math.min(last + quiet_ms, first + max_wait_ms)
end

-- A Redis whose memory is full refuses a script's first write if that may need memory, and none that come after
-- one that needs none (all versions; the flag `allow-oom` came with Redis 7). This is such a one, on a hash.
-- For what workers do: the queue must drain, or it stays full for ever.
local function although_full(hash)
  redis.call('HDEL', hash, '')
end

-- Only the newest claim of a bank may write; a worker that was away too long is told so.
local function holds(claims, bank, token)
  return redis.call('HGET', claims, bank) == token
end

-- A turn is written as number, acceptance in ms, job id, conversation, payload: one a line.
local function head_of(turn)
  local number, accepted, job_id, conversation = string.match(turn, '^(%d+)\n(%d+)\n([^\n]*)\n([^\n]*)\n')
  return tonumber(number), tonumber(accepted), job_id, conversation
end

-- Lists turns that are neither in the bank's batch nor listed by a conversation, each conversation's in their
-- order. What is listed in a way that cannot be read is listed anew, or no more if it holds nothing.
local function list_lost(turns, conversations, batch)
  local is_frozen, is_listed = {}, {}
  for document in string.gmatch(redis.call('HGET', batch, 'documents') or '', '%S+') do is_frozen[document] = true end
  local texts = redis.call('HGETALL', conversations)
  for i = 1, #texts, 2 do
    local _, _, _, documents = waiting_of(texts[i + 1])
    if not documents then redis.call('HDEL', conversations, texts[i]) end
    for document in string.gmatch(documents or '', '%S+') do is_listed[document] = true end
  end

  local waiting, has_lost = {}, {}
  local found = redis.call('HGETALL', turns)
  for i = 1, #found, 2 do
    local document = found[i]
    local number, accepted, _, conversation = head_of(found[i + 1])
    if number and not is_frozen[document] then
      waiting[conversation] = waiting[conversation] or {}
      table.insert(waiting[conversation], {number = number, accepted = accepted, document = document})
      if not is_listed[document] then has_lost[conversation] = true end
    end
  end
  for conversation in pairs(has_lost) do
    local its, documents = waiting[conversation], {}
    table.sort(its, function(a, b) return a.number < b.number end)
    local first, last = its[1].accepted, its[1].accepted
    for i, turn in ipairs(its) do
      first, last, documents[i] = math.min(first, turn.accepted), math.max(last, turn.accepted), turn.document
    end
    redis.call('HSET', conversations, conversation, waiting_text(first, last, #its, table.concat(documents, ' ')))
  end
end

-- Whether all of the bank, or one of the labels (conversation, documents), was forgotten after this number.
local function was_forgotten(marks, number, labels)
  if (tonumber(redis.call('HGET', marks, 'all')) or 0) > number then return true end
  for _, label in ipairs(labels) do
    if (tonumber(redis.call('HGET', marks, label)) or 0) > number then return true end
  end
  return false
end

-- A turn of this job is not to be stored any more. One that was dead may be the last: its job had ended then.
local function cancel_turn(job, was_dead, now, ttl_s)
  if redis.call('EXISTS', job) == 0 then return end
  redis.call('HSET', job, 'cancelled', 1)
  if was_dead then
    if add_to(job, 'failed', -1) <= 0 then redis.call('HDEL', job, 'failed') end
  else
    add_to(job, 'left', -1)
  end
  local left, failed = unpack(redis.call('HMGET', job, 'left', 'failed'))
  if (count_of(left) or 0) > 0 or (count_of(failed) or 0) > 0 then return end
  redis.call('HSET', job, 'status', 'cancelled', 'reason', '', 'finished_ms', now)
  if ttl_s then redis.call('EXPIRE', job, ttl_s) end
end

-- Drops a dead letter if its words were forgotten since. A forget looks at those that the bank lists; a worker
-- of an older version lists none, and a restored backup may hold some.
-- Answers true if it is dropped, and nothing of it may be shown or stored.
local function drop_if_forgotten(dead, dead_of, marks, job_prefix, document, turn)
  local number, _, job_id, conversation = head_of(turn)
  if not number or not was_forgotten(marks, number, {conversation, document}) then return false end
  redis.call('HDEL', dead, document)
  redis.call('HDEL', dead_of, document)
  cancel_turn(job_prefix .. job_id, true, now_ms())
  return true
end

-- Adds a dead letter to those to be answered, unless it is one to drop; the keys of its bank by their prefixes.
local function add_letter(found, dead, dead_of_prefix, marks_prefix, job_prefix, document, letter)
  local bank, turn = string.match(letter, '^([^\n]*)\n?[^\n]*\n?(.*)$')
  local dead_of = dead_of_prefix .. bank
  if drop_if_forgotten(dead, dead_of, marks_prefix .. bank, job_prefix, document, turn) then return end
  for _, part in ipairs({document, redis.call('HGET', dead_of, document) or '', letter}) do
    found[#found + 1] = part
  end
end
