-- Puts counters right that hold what is no count of ours. KEYS: waiting, number, claims
-- Answers how many wait by the counter, and the newest number; 0 where there is none. Both as texts.
although_full(KEYS[3])
local waiting, number = count_of(redis.pcall('GET', KEYS[1])), count_of(redis.pcall('GET', KEYS[2]))
if not waiting or waiting == 0 then redis.call('DEL', KEYS[1]) end
if not number and redis.call('EXISTS', KEYS[2]) == 1 then number = numbers(KEYS[2], 1) end
return {string.format('%d', waiting or 0), string.format('%d', number or 0)}
