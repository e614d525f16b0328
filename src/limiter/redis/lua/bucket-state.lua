-- Mirror of bucket-state.policy.ts: the data of one bucket. Records are read once, changed as tables, and written back
-- at the end (save.lua); a record that did not change is not written.
--   state    string: scalars and meters       records  hash: l:<lane> t:<ticket> e:<lease token> d:<document>
--                                                       w:<replica> = waiting
--   order    sorted set, see sorted.lua       replicas sorted set: replica by the time it was last heard of

-- @constant sequencePerMs

-- A record is kept and read as a list of values, and packed value by value, which unpacks in half the time of a packed list;
-- `false` stands for nothing. The loader (scripts.ts) turns
-- `lane.weight` into `lane[2]` by these lines, and refuses a field that is not among them.
-- @record lane: key weight maxInFlight perMinute ceilingTag start inFlight waiting waitingCosts asleep slots unconfirmed
--   serviceMs grantedAt abandoned slotBackAt readyAs
-- @record ticket: id lane replica order callClass costs document leaseMs lease
-- @record known: kind points lease until lanes at
-- @record lease: token ticket lane replica document grantedAt spacing marks expiresAt answered stage named
-- @record meter: name limit windowMs stated reported level at granted answered returned others heardAt contest
--   peak unreported fastestMs emptyAt log heldAs
-- @record contest: units allowance at
-- @record peak: level at headAt
-- @record unreported: units at
-- @record bucket: createdAt seen learn probe opened probingSince closedUntil closedAt virtual sequence lastGrantAt pilotAfter
--   crowdedAt waiting waitingWeight leases waitingCosts meters due promisedBy promisedAt
--   searchedTo

local function recordOf(kind, name)
  local field = kind .. ':' .. name
  local record = current[field]
  if record == nil then
    local packed = redis.call('HGET', recordsKey, field)
    asRead[field] = packed
    record = packed and { cmsgpack.unpack(packed) }
    current[field] = record
  end
  return record or nil
end

local function ticketOf(id) return recordOf('t', id) end
local function leaseOf(token) return recordOf('e', token) end
local function keep(kind, name, record) current[kind .. ':' .. name] = record end
-- Removes a record, which need not exist.
local function discard(kind, name) current[kind .. ':' .. name] = false end

-- @constant minuteMs dayMs
-- Length of the window of a meter as its name says it, milliseconds.
local function assumedWindowMs(name) return string.sub(name, -4) == '_day' and dayMs or minuteMs end

-- The names under which leases hold their marks of meters. No two meters of a bucket have the same.
local markNames = {}
do
  -- @constant windowNames

  function markNames.of(meter) return meter.heldAs or meter.name end

  function markNames.free(others, name)
    local used = {}
    for _, meter in pairs(others) do used[markNames.of(meter)] = true end
    if not used[name] then return name end
    for _, each in ipairs(windowNames) do
      if not used[each] then return each end
    end
    return name
  end

  -- The meter of which leases hold a mark under this name; nil: its window is not described any more.
  function markNames.meterOf(name)
    local meter = bucket.meters[name]
    if meter and markNames.of(meter) == name then return meter end
    for _, one in pairs(bucket.meters) do
      if markNames.of(one) == name then return one end
    end
    return nil
  end
end

local function createMeter(name, now, marks)
  return { name, false, assumedWindowMs(name), false, false, 0, now, 0, 0, 0, 0, false, false, false, false,
    false, false, false, marks ~= name and marks }
end

-- Units drained per millisecond; 0 while no limit is known.
local function drainRate(meter) return meter.limit and meter.limit / meter.windowMs or 0 end

local function meterOf(name, now)
  local meter = bucket.meters[name]
  if not meter then
    meter = createMeter(name, now, markNames.free(bucket.meters, name))
    bucket.meters[name] = meter
    listedMeters = nil
  end
  return meter
end

-- The bucket as it was left, or false.
local function openBucket()
  local packed = redis.call('GET', stateKey)
  if not packed then return false end
  bucket = { cmsgpack.unpack(packed) }
  -- Packed as a list; by name while the run lasts.
  local meters = {}
  listedMeters = bucket.meters
  for _, meter in ipairs(listedMeters) do meters[meter.name] = meter end
  bucket.meters = meters
  return true
end

-- A new life of the bucket: whatever is left of an older one is gone.
local function createBucket(probe, now)
  redis.call('DEL', recordsKey, orderKey, replicasKey)
  bucket = { now, now, true, probe, probe <= 0, false, false, false, 0, math.floor(now * sequencePerMs), false, false, false, 0, 0,
    0, {}, {}, { e = false, s = false }, false, false, false }
end

-- Milliseconds for which nobody may send yet; 0 = the bucket is open.
local function closedMs(now) return bucket.closedUntil and math.max(0, bucket.closedUntil - now) or 0 end

-- Time never steps back for a bucket.
local function notBefore(now) return math.max(now, bucket.seen) end
