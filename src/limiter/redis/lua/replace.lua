--[[
Removes a key of another type than it is to have: somebody else has put that there, and no script could ever go on with it.

KEYS  1 key
ARGV  1 its type
Reply how many keys were removed
]]
return redis.call('TYPE', KEYS[1]).ok == ARGV[1] and 0 or redis.call('DEL', KEYS[1])
