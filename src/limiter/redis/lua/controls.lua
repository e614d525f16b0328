--[[
What an operator has set for an upstream, on all replicas: a pause, during which no call is sent, and the time of an opening, which
reopens everything that a response had closed before it.

KEYS  1 pause  2 opening
ARGV  1 read | pause | resume | open  2 ms (of a pause; for which an opening is remembered)
Reply { ms left of the pause (0 = none), time of the opening on the server's clock (empty = none) }
]]
local operation, ms = ARGV[1], ARGV[2]
if operation == 'pause' then redis.call('SET', KEYS[1], '1', 'PX', ms) end
if operation == 'resume' then redis.call('DEL', KEYS[1]) end
if operation == 'open' then
  local time = redis.call('TIME')
  local now = tonumber(time[1]) * 1000 + tonumber(time[2]) / 1000
  redis.call('SET', KEYS[2], string.format('%.17g', now), 'PX', ms)
end
return { tostring(math.max(0, redis.call('PTTL', KEYS[1]))), redis.call('GET', KEYS[2]) or '' }
