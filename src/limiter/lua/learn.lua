--[[
Learns from an answer whose call is still in flight. Mirror of `learn` in scheduler.policy.ts.

Guarantees: a token that is not known changes nothing but what the pump does; the lease goes on.

KEYS  1 state  2 records  3 order  4 replicas
ARGV  1 bucket  2 replica  3 lease  4 sent ago ms  5 head ago ms  6 reports  7 meter of a rate throttle ('' = none
      named)  8 units that the refused call asked of it ('' = not told)  9 points that the document asks for ('' = not
      told)  10 now ('' = TIME)
Reply learned {} | unknown_lease {}
]]
local stateKey, recordsKey, orderKey, replicasKey = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
-- @include arguments
local bucketName, caller, token = identifier(ARGV[1], 'bucket'), identifier(ARGV[2], 'replica'), identifier(ARGV[3], 'lease')
local lesson, now = lessonOf(ARGV[4], ARGV[5], ARGV[6], ARGV[7], ARGV[8], ARGV[9]), timeOf(ARGV[10])
if not lesson then invalid('sentAgoMs') end
-- @include scheduler

if not openBucket() then return replyUnknown('unknown_lease', now) end
now = notBefore(now)
local lease = leaseOf(token)
if lease then
  noteTold(lease)
  applyLesson(lease, lesson, now)
end
pump(now)
save(now)
return replyWith(lease and 'learned' or 'unknown_lease', {}, tellGrants(nil), now)
