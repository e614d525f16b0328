--[[
Once a second per replica and active bucket, and whenever the time named by a reply has come: the replica lives, its
leases go on, and what is due is granted. Mirror of `tick` in scheduler.policy.ts.

Guarantees: grants whose reply or message was lost are told again, until the replica names their lease here or in any
other call; a bucket that Redis does not know is not created (the replica enters its tickets again).

KEYS  1 state  2 records  3 order  4 replicas
ARGV  1 bucket  2 replica  3 leases held, at most 64 words  4 now ('' = TIME)
Reply ticked {tickets of this replica that wait, grants it has not named, waiting, in flight, meters...} |
      unknown_bucket {}; a meter is `<name> <limit> <level> <window ms>`
]]
local stateKey, recordsKey, orderKey, replicasKey = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
-- @include arguments
local bucketName, caller = identifier(ARGV[1], 'bucket'), identifier(ARGV[2], 'replica')
local held, now = words(ARGV[3], 'leases', 64), timeOf(ARGV[4])
-- @include scheduler

local function renewLeases()
  for _, token in ipairs(held) do
    local lease = leaseOf(token)
    if lease and not lease.abandoned and lease.replica == caller then
      noteTold(lease)
      expireAt(lease, now + ticketOf(lease.ticket).leaseMs)
    end
  end
end

local function forgetDeadReplicas()
  for _ = 1, mostPerPump do
    local first = redis.call('ZRANGE', replicasKey, 0, 0, 'WITHSCORES')
    if not first[1] or tonumber(first[2]) + replicaLifeMs >= now then return end
    redis.call('ZREM', replicasKey, first[1])
  end
end

-- Own grants of this pump, and those of earlier ones that the replica has not named.
local function grantsToTell()
  local told, grants = {}, tellGrants(nil)
  for _, lease in ipairs(granted) do told[lease.token] = true end
  local section = 'u:' .. caller
  for _, member in ipairs(redis.call('ZRANGEBYLEX', orderKey, '[' .. section .. ':', '(' .. section .. ';', 'LIMIT', 0, 64)) do
    local token = string.sub(member, #section + 2)
    if not told[token] then grants[#grants + 1] = grantText(leaseOf(token)) end
  end
  return grants, redis.call('ZLEXCOUNT', orderKey, '[' .. section .. ':', '(' .. section .. ';')
end

-- As of now, without moving the meters themselves.
local function meterTexts(own)
  for _, name in ipairs(meterNames) do
    local meter = bucket.meters[name]
    if meter and meter.limit then
      local level = text(levelAt(meter, now))
      own[#own + 1] = name .. ' ' .. text(meter.limit) .. ' ' .. level .. ' ' .. text(meter.windowMs)
    end
  end
  return own
end

if not openBucket() then return replyUnknown('unknown_bucket', now) end
now = notBefore(now)
redis.call('ZADD', replicasKey, text(now), caller)
renewLeases()
forgetDeadReplicas()
forgetIdleLanes(mostPerPump)
pump(now)
save(now)
local grants, unnamed = grantsToTell()
local waitingHere = redis.call('HGET', recordsKey, 'w:' .. caller) or '0'
local own = meterTexts({ waitingHere, text(unnamed), text(bucket.waiting), text(bucket.leases) })
return replyWith('ticked', own, grants, now)
