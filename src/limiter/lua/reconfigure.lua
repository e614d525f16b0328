--[[
Configuration changed: the bucket and lanes of it go on under new settings. Mirror of `reconfigure` in
scheduler.policy.ts.

Guarantees: a bucket that Redis does not know is not created, lanes that it does not know are passed over; a lane that
sleeps for a ceiling which has other limits now wakes.

KEYS  1 state  2 records  3 order  4 replicas
ARGV  1 bucket  2 replica  3 stated meters  4 learn (0/1)  5 probe  6 now ('' = TIME)  7... lane, weight, max in flight
      ('' = unlimited), per minute ('' = no ceiling), ceiling of each lane
Reply reconfigured {} | unknown_bucket {}
]]
local stateKey, recordsKey, orderKey, replicasKey = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
-- @include arguments
local bucketName, caller = identifier(ARGV[1], 'bucket'), identifier(ARGV[2], 'replica')
local setting = { meters = meterSettings(ARGV[3]), learn = ARGV[4] == '1', probe = number(ARGV[5], 'probe') }
local now = timeOf(ARGV[6])
local changes = {}
for i = 7, #ARGV, 5 do
  changes[#changes + 1] = { lane = identifier(ARGV[i], 'lane'), weight = number(ARGV[i + 1], 'weight'),
    maxInFlight = optional(ARGV[i + 2], 'maxInFlight') or false,
    perMinute = optional(ARGV[i + 3], 'perMinute') or false, ceiling = identifier(ARGV[i + 4], 'ceiling') }
  if changes[#changes].weight <= 0 then invalid('weight') end
end
-- @include scheduler

if not openBucket() then return replyUnknown('unknown_bucket', now) end
now = notBefore(now)
applySettings(setting, now)
for _, change in ipairs(changes) do
  local lane = laneOf(change.lane)
  if lane then applyLaneSetting(lane, change) end
end
pump(now)
save(now)
return replyWith('reconfigured', {}, tellGrants(nil), now)
