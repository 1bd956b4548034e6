-- Puts the counter of waiting turns right if it is wrong for sure.
-- KEYS: waiting, number, claims. ARGV: turns counted since, waiting and number before the count
-- They were not counted all at once. No more turns can have come since than numbers were given out, nor more gone
-- than the counter tells then; only what is beyond that is drift. Answers 1 if there was one.
although_full(KEYS[3])
local counted, before = tonumber(ARGV[1]), tonumber(ARGV[2])
local waiting = count_of(redis.pcall('GET', KEYS[1])) or 0
local came = (count_of(redis.pcall('GET', KEYS[2])) or 0) - tonumber(ARGV[3])
if came < 0 then return 0 end -- somebody's hand: the next count will tell
local gone = math.max(0, before + came - waiting)
if math.abs(counted - waiting) <= came + gone then return 0 end
-- At once with the look at the counter: nobody's turns come or go between.
if counted > 0 then redis.call('SET', KEYS[1], ARGV[1]) else redis.call('DEL', KEYS[1]) end
return 1
