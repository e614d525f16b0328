--[[
Takes a lane for one call, or keeps it for the call that has it.

KEYS  1 lane
ARGV  1 token of the call  2 how long it is kept, ms
Reply nothing: it is taken; otherwise for how long another call has it yet, ms.
]]
local token, keepMs = ARGV[1], tonumber(ARGV[2])
local owner, leftMs = redis.call('GET', KEYS[1]), redis.call('PTTL', KEYS[1])
-- What does not expire is somebody else's value.
if owner and owner ~= token and leftMs >= 0 then return leftMs end
redis.call('SET', KEYS[1], token, 'PX', keepMs)
return false
