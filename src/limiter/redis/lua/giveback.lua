--[[
Gives back one slot by its id, and its call of the day's count. Mirror of `giveSlotBack` in ceiling.policy.ts. Guarantees:
a slot that is gone changes nothing, so repeating changes nothing, except where only the day counts: its calls have no ids.
No key is created.

KEYS  1 sends  2 calls of the day
ARGV  1 id ('' = only the day counts)  2 also of the day (0/1)
Reply 1 | 0
]]
local removed = ARGV[1] == '' and 1 or redis.call('ZREM', KEYS[1], ARGV[1])
if removed == 1 and ARGV[2] == '1' and (tonumber(redis.call('GET', KEYS[2])) or 0) > 0 then
  redis.call('DECR', KEYS[2])
end
return removed
