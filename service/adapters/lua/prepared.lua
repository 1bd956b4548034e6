-- Keeps what was made of the frozen batch's turns with it. KEYS: claims, batch
-- ARGV: bank, token, batch id, the text to keep
if not holds(KEYS[1], ARGV[1], ARGV[2]) then return 'lost' end
although_full(KEYS[1])
if redis.call('HGET', KEYS[2], 'id') ~= ARGV[3] then return 'gone' end
redis.call('HSET', KEYS[2], 'prepared', ARGV[4])
return 'ok'
