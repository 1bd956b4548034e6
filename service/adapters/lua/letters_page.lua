-- One page of the dead letters, of all banks or of one.
-- KEYS: dead, and the dead of the bank if it is to be one. ARGV: prefix of keys of the dead of a bank,
-- cursor ('0' to begin), about how many
-- Answers {next cursor ('0' at the end), {document id, tenant, letter, ...}}.
local page = redis.call('HSCAN', KEYS[2] or KEYS[1], ARGV[2], 'COUNT', ARGV[3])
local found = {}
for i = 1, #page[2], 2 do
  local letter = redis.call('HGET', KEYS[1], page[2][i])
  if letter then
    found[#found + 1] = page[2][i]
    found[#found + 1] = redis.call('HGET', ARGV[1] .. string.match(letter, '^[^\n]*'), page[2][i]) or ''
    found[#found + 1] = letter
  end
end
return {page[1], found}
