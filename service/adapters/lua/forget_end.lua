-- A forget has come to its end: nothing of it has to be looked for any more.
-- KEYS: claims, forgetting. ARGV: bank, token
if not holds(KEYS[1], ARGV[1], ARGV[2]) then return 'lost' end
redis.call('DEL', KEYS[2])
return 'ok'
