--[[
Frees a lane, if this call has it.

KEYS  1 lane
ARGV  1 token of the call
Reply how many lanes were freed.
]]
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
