-- Lists a dead letter with its bank, unless it was seen to meanwhile; what was forgotten since goes instead.
-- KEYS: dead, dead of the bank, forgotten. ARGV: document id, its tenant, prefix of job keys
-- Answers 1 if it was listed by this.
local turn = string.match(redis.call('HGET', KEYS[1], ARGV[1]) or '', '^[^\n]*\n[^\n]*\n(.*)$')
if not turn or drop_if_forgotten(KEYS[1], KEYS[2], KEYS[3], ARGV[3], ARGV[1], turn) then return 0 end
return redis.call('HSETNX', KEYS[2], ARGV[1], ARGV[2])
