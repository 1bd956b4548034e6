-- Puts a bank that nobody would ever look at again back on the list, with every turn it holds.
-- No script of ours leaves one behind; a restored backup, a cut append-only file or a fault might.
-- KEYS: due, claims, turns, conversations, batch. ARGV: bank
local bank = ARGV[1]
if redis.call('ZSCORE', KEYS[1], bank) then return 0 end
redis.call('HDEL', KEYS[2], bank) -- needs no memory: it comes first (see although_full)
list_lost(KEYS[3], KEYS[4], KEYS[5])
if redis.call('EXISTS', KEYS[3], KEYS[4], KEYS[5]) == 0 then return 0 end
redis.call('ZADD', KEYS[1], now_ms(), bank)
return 1
