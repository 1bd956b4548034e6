-- Puts a bank that nobody would ever look at again back on the list, with every turn it holds.
-- No script of ours leaves one behind; a restored backup, a cut append-only file or a fault might.
-- KEYS: due, claims, turns, conversations, batch. ARGV: bank
local bank = ARGV[1]
if redis.call('ZSCORE', KEYS[1], bank) then return 0 end
redis.call('HDEL', KEYS[2], bank)

local listed = {}
local function list(documents)
  for document in string.gmatch(documents or '', '%S+') do listed[document] = true end
end
list(redis.call('HGET', KEYS[5], 'documents') or '')
for _, text in ipairs(redis.call('HVALS', KEYS[4])) do
  local _, _, _, documents = waiting_of(text)
  list(documents)
end

local lost = {}
for _, document in ipairs(redis.call('HKEYS', KEYS[3])) do
  if not listed[document] then
    local number, accepted, _, conversation = head_of(redis.call('HGET', KEYS[3], document))
    lost[#lost + 1] = {number = number, accepted = accepted, conversation = conversation, document = document}
  end
end
table.sort(lost, function(a, b) return a.number < b.number end)
for _, turn in ipairs(lost) do
  local first, last, count, documents = turn.accepted, turn.accepted, 0, nil
  local before = redis.call('HGET', KEYS[4], turn.conversation)
  if before then first, last, count, documents = waiting_of(before) end
  redis.call('HSET', KEYS[4], turn.conversation, waiting_text(first, math.max(last, turn.accepted), count + 1,
    documents and documents .. ' ' .. turn.document or turn.document))
end

if redis.call('EXISTS', KEYS[3], KEYS[4], KEYS[5]) == 0 then return 0 end
redis.call('ZADD', KEYS[1], now_ms(), bank)
return 1
