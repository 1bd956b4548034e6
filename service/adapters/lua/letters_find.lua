-- Those of some dead letters that there are; what was forgotten since goes instead. KEYS: dead
-- ARGV: prefixes of keys of the dead of a bank, of what was forgotten of a bank, and of jobs, then document ids
-- Answers {document id, tenant, letter, ...}.
local found = {}
for i = 4, #ARGV do
  local letter = redis.call('HGET', KEYS[1], ARGV[i])
  if letter then add_letter(found, KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[i], letter) end
end
return found
