--[[
Gives back the very slot that was taken, and its call of the day with it. Mirror of `giveSlotBack` in
ceiling.policy.ts. Guarantees: a slot that is not there any more changes nothing, so repeating changes nothing.

KEYS  1 sends  2 calls of the day
ARGV  1 id  2 also of the day (0/1)
Reply 1 | 0
]]
local removed = redis.call('ZREM', KEYS[1], ARGV[1])
if removed == 1 and ARGV[2] == '1' and tonumber(redis.call('GET', KEYS[2]) or '0') > 0 then
  redis.call('DECR', KEYS[2])
end
return removed
