--[[
The granted call took a slot of a ceiling that is nearly used. Mirror of `charged` in scheduler.policy.ts.

Guarantees: from now on the lane has at most as many grants outstanding as slots are left, and sleeps when none is; without
a number of slots the lane's grants are not counted any more.

KEYS  1 state  2 records  3 order  4 replicas
ARGV  1 bucket  2 replica  3 lease  4 slots ('' = the ceiling is not nearly used)  5 next slot ms  6 now ('' = TIME)
Reply noted {} | unknown_lease {}
]]
local stateKey, recordsKey, orderKey, replicasKey = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
-- @include arguments
local bucketName, caller, token = identifier(ARGV[1], 'bucket'), identifier(ARGV[2], 'replica'), identifier(ARGV[3], 'lease')
local slots, nextSlotMs, now = optional(ARGV[4], 'slots'), number(ARGV[5], 'nextSlotMs'), timeOf(ARGV[6])
-- @include scheduler

if not openBucket() then return replyUnknown('unknown_lease', now) end
now = notBefore(now)
local lease = leaseOf(token)
if lease then
  local lane = laneOf(lease.lane)
  noteTold(lease)
  confirm(lane, lease)
  lane.slots = slots or false
  if slots and slots <= 0 then sleep(lane, 'ceiling_minute', now + nextSlotMs) else refreshReadiness(lane) end
end
pump(now)
save(now)
return replyWith(lease and 'noted' or 'unknown_lease', {}, tellGrants(nil), now)
