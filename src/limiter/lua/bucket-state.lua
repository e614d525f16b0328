-- Mirror of bucket-state.policy.ts: the data of one bucket. Records are read once, changed as tables, and written back
-- at the end (save.lua); a record that did not change is not written.
--   state    string: scalars and meters       records  hash: l:<lane> t:<ticket> e:<lease token> w:<replica> = waiting
--   order    sorted set, see sorted.lua       replicas sorted set: replica by the time it was last heard of

local bucket
-- By kind: packed as read (`false` = not there), and as it is now (`false` = gone).
local asRead, current = {}, {}
local waitingChange = {}

local laneFields = { 'key', 'weight', 'maxInFlight', 'start', 'inFlight', 'waiting', 'waitingCosts', 'asleepUntil',
  'places', 'unconfirmed', 'serviceMs', 'grantedAt', 'abandoned', 'readyAs' }
local ticketFields = { 'id', 'lane', 'replica', 'order', 'callClass', 'costs', 'leaseMs', 'lease' }
local leaseFields = { 'token', 'ticket', 'lane', 'replica', 'grantedAt', 'quiet', 'calm', 'marks', 'expiresAt',
  'answered', 'unconfirmed', 'abandoned', 'told' }
local meterFields = { 'name', 'limit', 'windowMs', 'stated', 'reported', 'level', 'at', 'granted', 'answered', 'returned',
  'others', 'heardAt', 'contest', 'top', 'untold', 'fastestMs' }
local bucketFields = { 'born', 'seen', 'learn', 'probe', 'opened', 'probingSince', 'closedUntil', 'closedAt', 'virtual',
  'sequence', 'lastGrantAt', 'crowdedAt', 'waiting', 'waitingWeight', 'leases', 'waitingCosts', 'meters' }
local fieldsOf = { l = laneFields, t = ticketFields, e = leaseFields }

-- Values by position; `false` stands for nothing.
local function listed(record, fields)
  local values = {}
  for i, field in ipairs(fields) do
    local value = record[field]
    values[i] = value == nil and false or value
  end
  return values
end

local function named(values, fields)
  local record = {}
  for i, field in ipairs(fields) do record[field] = values[i] end
  return record
end

local function recordOf(kind, name)
  local field = kind .. ':' .. name
  local record = current[field]
  if record == nil then
    local packed = redis.call('HGET', recordsKey, field)
    asRead[field] = packed
    record = packed and named(cmsgpack.unpack(packed), fieldsOf[kind])
    current[field] = record
  end
  return record or nil
end

local function ticketOf(id) return recordOf('t', id) end
local function leaseOf(token) return recordOf('e', token) end
local function keep(kind, name, record) current[kind .. ':' .. name] = record end
local function discard(kind, name)
  recordOf(kind, name)
  current[kind .. ':' .. name] = false
end

-- Length of the window of a meter as its name says it, milliseconds.
local function assumedWindowMs(name) return string.sub(name, -4) == '_day' and 86400000 or 60000 end

local function createMeter(name, now)
  return { name = name, limit = false, windowMs = assumedWindowMs(name), stated = false, reported = false, level = 0, at = now,
    granted = 0, answered = 0, returned = 0, others = 0, heardAt = false, contest = false, top = false, untold = false,
    fastestMs = false }
end

local function meterOf(name, now)
  local meter = bucket.meters[name]
  if not meter then
    meter = createMeter(name, now)
    bucket.meters[name] = meter
  end
  return meter
end

-- The bucket as it was left, or false.
local function openBucket()
  local packed = redis.call('GET', stateKey)
  if not packed then return false end
  bucket = named(cmsgpack.unpack(packed), bucketFields)
  local meters = {}
  for _, values in ipairs(bucket.meters) do meters[values[1]] = named(values, meterFields) end
  bucket.meters = meters
  return true
end

-- A new life of the bucket: whatever is left of an older one is gone.
local function createBucket(now)
  redis.call('DEL', recordsKey, orderKey, replicasKey)
  bucket = { born = now, seen = now, learn = true, probe = 0, opened = true, probingSince = -1, closedUntil = 0,
    closedAt = -1, virtual = 0, sequence = 0, lastGrantAt = false, crowdedAt = false, waiting = 0, waitingWeight = 0,
    leases = 0, waitingCosts = {}, meters = {} }
end

-- Time never steps back for a bucket.
local function notBefore(now) return math.max(now, bucket.seen) end
