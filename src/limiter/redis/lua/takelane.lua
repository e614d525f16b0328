--[[
Takes a lane for one call, or keeps it for the call that has it.

KEYS  1 lane
ARGV  1 token of the call  2 how long it is kept, ms
Reply nothing: it is taken; otherwise for how long another call has it yet, ms.
]]
local token, keepMs = ARGV[1], tonumber(ARGV[2])
local owner = redis.call('GET', KEYS[1])
if owner and owner ~= token then return redis.call('PTTL', KEYS[1]) end
redis.call('SET', KEYS[1], token, 'PX', keepMs)
return false
