-- Those of some dead letters that there are. KEYS: dead
-- ARGV: prefix of keys of the dead of a bank, then document ids. Answers {document id, tenant, letter, ...}.
local found = {}
for i = 2, #ARGV do
  local letter = redis.call('HGET', KEYS[1], ARGV[i])
  if letter then
    found[#found + 1] = ARGV[i]
    found[#found + 1] = redis.call('HGET', ARGV[1] .. string.match(letter, '^[^\n]*'), ARGV[i]) or ''
    found[#found + 1] = letter
  end
end
return found
