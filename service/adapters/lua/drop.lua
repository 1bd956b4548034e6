-- Drops dead letters of one bank for good; their jobs stay failed. Answers how many there were.
-- KEYS: dead, dead of the bank. ARGV: bank, then document ids
local dropped = 0
for i = 2, #ARGV do
  local letter = redis.call('HGET', KEYS[1], ARGV[i])
  if letter and string.match(letter, '^[^\n]*') == ARGV[1] then
    redis.call('HDEL', KEYS[1], ARGV[i])
    redis.call('HDEL', KEYS[2], ARGV[i])
    dropped = dropped + 1
  end
end
return dropped
