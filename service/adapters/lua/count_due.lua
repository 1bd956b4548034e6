-- How many banks are due. KEYS: due
return redis.call('ZCOUNT', KEYS[1], '-inf', now_ms())
