--[[
What an operator has set for an upstream, on all replicas: a pause, during which no call is sent, and an opening, which reopens
everything that a response had closed before it.

KEYS  1 pause  2 opening
ARGV  1 read | pause | resume | open  2 ms (of a pause; for which an opening is remembered)
Reply { ms left of the pause (0 = none), name of the opening (empty = none), ms for which it is remembered yet }
]]
local operation, ms = ARGV[1], ARGV[2]
if operation == 'pause' then redis.call('SET', KEYS[1], '1', 'PX', ms) end
if operation == 'resume' then redis.call('DEL', KEYS[1]) end
if operation == 'open' then redis.call('SET', KEYS[2], table.concat(redis.call('TIME'), '.'), 'PX', ms) end
local left = function(key) return tostring(math.max(0, redis.call('PTTL', key))) end
return { left(KEYS[1]), redis.call('GET', KEYS[2]) or '', left(KEYS[2]) }
