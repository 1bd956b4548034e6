-- How much waits in some banks. KEYS: turns, conversations, batch of each bank
-- Answers for each how many turns it holds, and when the oldest came that is in no batch (ms; 0: there is none,
-- or a batch goes first and its own age tells).
local answer = {}
for i = 1, #KEYS, 3 do
  local held, listed, oldest = redis.call('HLEN', KEYS[i]), 0, nil
  if held > 0 and redis.call('EXISTS', KEYS[i + 2]) == 0 then
    for _, text in ipairs(redis.call('HVALS', KEYS[i + 1])) do
      local first, _, count = waiting_of(text)
      if first then
        listed = listed + count
        oldest = math.min(oldest or first, first)
      end
    end
    -- Some are listed by none, or by what cannot be read: only they themselves can tell.
    if listed < held then
      for _, turn in ipairs(redis.call('HVALS', KEYS[i])) do
        local _, accepted = head_of(turn)
        if accepted then oldest = math.min(oldest or accepted, accepted) end
      end
    end
  end
  answer[#answer + 1] = held
  answer[#answer + 1] = oldest or 0
end
return answer
