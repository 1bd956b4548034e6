-- One page of the dead letters, of all banks or of one; what was forgotten since goes instead.
-- KEYS: dead, and the dead of the bank if it is to be one
-- ARGV: prefixes of keys of the dead of a bank, of what was forgotten of a bank, and of jobs,
--       cursor ('0' to begin), about how many
-- Answers {next cursor ('0' at the end), {document id, tenant, letter, ...}}.
local page = redis.call('HSCAN', KEYS[2] or KEYS[1], ARGV[4], 'COUNT', ARGV[5])
local found = {}
for i = 1, #page[2], 2 do
  local letter = redis.call('HGET', KEYS[1], page[2][i])
  if letter then add_letter(found, KEYS[1], ARGV[1], ARGV[2], ARGV[3], page[2][i], letter) end
end
return {page[1], found}
