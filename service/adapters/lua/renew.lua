-- Keeps a claim alive. KEYS: claims, due. ARGV: bank, token, claim length ms
if not holds(KEYS[1], ARGV[1], ARGV[2]) then return 'lost' end
although_full(KEYS[1])
redis.call('ZADD', KEYS[2], now_ms() + ARGV[3], ARGV[1])
return 'ok'
