--[[
Puts sends back that Redis may have lost: each replica knows its own of the last window. Guarantees: moves no send that is there, so
repeating changes nothing, unless the clock of Redis was set back: what then lies far in the future counts from now on, because the
ceiling would stand still until that time.

KEYS  1 sends
ARGV  1 window ms  2... age ms, id, age ms, id ...
Reply how many were missing
]]
local windowMs, missing, now = tonumber(ARGV[1]), 0, serverMs()
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], text(now + windowMs), '+inf')) do
  redis.call('ZADD', KEYS[1], text(now), id)
end
for i = 2, #ARGV - 1, 2 do
  missing = missing + redis.call('ZADD', KEYS[1], 'NX', text(now - ARGV[i]), ARGV[i + 1])
end
redis.call('PEXPIRE', KEYS[1], text(windowMs + 1000))
return missing
