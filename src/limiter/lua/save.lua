-- The end of every transition: what changed is written back, and every key gets its expiry. `memoryMs` mirrors
-- memory.policy.ts. Milliseconds.
local bucketMemoryMs = 3600000
local blankMemoryMs = 60000
local unansweredMemoryMs = 5000
local longestClosedMs = 30 * 24 * 3600000

local function saveRecords()
  for field, record in pairs(current) do
    local before = asRead[field]
    if record then
      local packed = cmsgpack.pack(listed(record, fieldsOf[string.sub(field, 1, 1)]))
      if packed ~= before then redis.call('HSET', recordsKey, field, packed) end
    elseif before then
      redis.call('HDEL', recordsKey, field)
    end
  end
  for replica, change in pairs(waitingChange) do
    if change ~= 0 and redis.call('HINCRBY', recordsKey, 'w:' .. replica, change) <= 0 then
      redis.call('HDEL', recordsKey, 'w:' .. replica)
    end
  end
end

local function memoryMs(now)
  if bucket.waiting > 0 or bucket.leases > 0 or bucket.closedAt >= 0 then return bucketMemoryMs end
  local longest = bucket.opened and blankMemoryMs or unansweredMemoryMs
  for _, meter in pairs(bucket.meters) do
    if meter.reported or meter.heardAt then return bucketMemoryMs end
    if meter.limit then longest = math.max(longest, meter.at + meter.level / drainRate(meter) - now) end
  end
  return math.min(longest, bucketMemoryMs)
end

local function save(now)
  bucket.seen = now
  refreshIdleness()
  local state = listed(bucket, bucketFields)
  local meters = {}
  for _, name in ipairs(meterNames) do
    if bucket.meters[name] then meters[#meters + 1] = listed(bucket.meters[name], meterFields) end
  end
  state[#state] = meters
  local closedMs = math.min(longestClosedMs, math.max(0, bucket.closedUntil - now))
  local lifeMs = string.format('%.0f', math.ceil(memoryMs(now)) + math.ceil(closedMs))
  redis.call('SET', stateKey, cmsgpack.pack(state), 'PX', lifeMs)
  saveRecords()
  redis.call('PEXPIRE', recordsKey, lifeMs)
  redis.call('PEXPIRE', orderKey, lifeMs)
  redis.call('PEXPIRE', replicasKey, lifeMs)
end
