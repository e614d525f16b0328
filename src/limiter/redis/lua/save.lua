-- The end of every transition: what changed is written back, and every key gets its expiry. `memoryMs` mirrors
-- retention.policy.ts. Milliseconds.
local save
do
  -- @constant bucketMemoryMs blankMemoryMs unansweredMemoryMs
  local maxClosedMs = 30 * 24 * 3600000

  local function saveRecords()
    local written, gone = {}, {}
    for field, record in pairs(current) do
      if record then
        local packed = cmsgpack.pack(unpack(record))
        if packed ~= asRead[field] then
          written[#written + 1] = field
          written[#written + 1] = packed
          -- A call takes no more than some thousand words.
          if #written >= 1000 then
            redis.call('HSET', recordsKey, unpack(written))
            written = {}
          end
        end
      elseif asRead[field] ~= false then
        gone[#gone + 1] = field
      end
    end
    for replica, change in pairs(waitingChange) do
      local field = 'w:' .. replica
      if change ~= 0 and redis.call('HINCRBY', recordsKey, field, change) <= 0 then gone[#gone + 1] = field end
    end
    if #written > 0 then redis.call('HSET', recordsKey, unpack(written)) end
    if #gone > 0 then redis.call('HDEL', recordsKey, unpack(gone)) end
  end

  local function memoryOfLevels(now)
    if bucket.waiting > 0 or bucket.leases > 0 or bucket.closedAt then return bucketMemoryMs end
    local longest = bucket.opened and blankMemoryMs or unansweredMemoryMs
    for _, meter in pairs(bucket.meters) do
      if meter.reported or meter.heardAt then return bucketMemoryMs end
      if meter.limit then longest = math.max(longest, meter.at + meter.level / drainRate(meter) - now) end
    end
    return math.min(longest, bucketMemoryMs)
  end

  local function memoryMs(now)
    local memory = memoryOfLevels(now)
    for _, meter in pairs(bucket.meters) do memory = math.max(memory, windowLog.logMemoryMs(meter, now)) end
    return memory
  end

  function save(now)
    bucket.seen = now
    refreshIdleness()
    local byName = bucket.meters
    if not listedMeters then
      listedMeters = {}
      for _, name in ipairs(meterNames) do listedMeters[#listedMeters + 1] = byName[name] end
    end
    local shutMs = math.min(maxClosedMs, closedMs(now))
    local lifeMs = string.format('%.0f', math.ceil(memoryMs(now)) + math.ceil(shutMs))
    bucket.meters = listedMeters
    redis.call('SET', stateKey, cmsgpack.pack(unpack(bucket)), 'PX', lifeMs)
    bucket.meters = byName
    saveRecords()
    redis.call('PEXPIRE', recordsKey, lifeMs)
    redis.call('PEXPIRE', orderKey, lifeMs)
    redis.call('PEXPIRE', replicasKey, lifeMs)
  end
end
