-- Shared by all scripts of the turns log: put in front of each by service/adapters/turns_redis.py.
-- One clock for everything: the server's, in Unix milliseconds.
local function now_ms()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

-- A conversation's waiting turns: when the first and the last came, how many, their document ids in order.
local function waiting_of(text)
  local first, last, count, documents = string.match(text, '^(%d+) (%d+) (%d+) (.*)$')
  return tonumber(first), tonumber(last), tonumber(count), documents
end

local function waiting_text(first, last, count, documents)
  return string.format('%d %d %d %s', first, last, count, documents)
end

-- Due once quiet for a while, or after the longest wait, or when full.
local function due_ms(first, last, count, quiet_ms, max_wait_ms, max_turns)
  if count >= max_turns then return first end
  return math.min(last + quiet_ms, first + max_wait_ms)
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

-- So many turns no longer wait. Nothing is left behind when none do; a count that a fault has made too small
-- never falls below none.
local function count_off(waiting, gone)
  if gone > 0 and redis.call('DECRBY', waiting, gone) <= 0 then redis.call('DEL', waiting) end
end
