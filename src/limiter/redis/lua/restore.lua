--[[
Puts sends back that Redis may have lost: each replica knows its own of the last window. Guarantees: moves no send that is there, so
repeating changes nothing, unless the clock of Redis was set back: what then lies far in the future counts from now on, because the
ceiling would stand still until that time.

KEYS  1 sends
ARGV  1 window ms  2... age ms, id, age ms, id ...
Reply how many were missing
]]
local windowMs, missing = tonumber(ARGV[1]), 0
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + tonumber(time[2]) / 1000
local function text(value) return string.format('%.17g', value) end
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], text(now + windowMs), '+inf')) do
  redis.call('ZADD', KEYS[1], text(now), id)
end
for i = 2, #ARGV - 1, 2 do
  local at = now - tonumber(ARGV[i])
  missing = missing + redis.call('ZADD', KEYS[1], 'NX', text(at), ARGV[i + 1])
end
redis.call('PEXPIRE', KEYS[1], string.format('%.0f', windowMs + 1000))
return missing
