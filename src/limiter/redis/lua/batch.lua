-- Reading a batch. Everything is checked before the first command runs, because nothing a run wrote is rolled back: what
-- is malformed ends the run with an error and leaves no trace.

-- The meters a bucket may have, in the order in which costs are listed.
-- @constant meterNames
local isMeter = {}
for i = 1, #meterNames do isMeter[meterNames[i]] = true end

local function invalid(what) error('sluice: invalid ' .. what) end

-- 'inf' and '-inf' are numbers too.
local function number(value, what)
  value = tonumber(value)
  if value == nil or value ~= value then invalid(what) end
  return value
end

-- false = not stated.
local function optional(value, what)
  if value == nil then return false end
  return number(value, what)
end

-- Opaque names: nothing that could end a section of the sorted set or split a list. The last one of each kind that was right is
-- kept: calls of one lane come one after the other.
local identifier
do
  local lastOf = {}

  function identifier(value, what)
    if lastOf[what] == value and value ~= nil then return value end
    if type(value) ~= 'string' or value == '' or string.find(value, '[^%w_.%-]') then invalid(what) end
    lastOf[what] = value
    return value
  end
end

local function list(value, what)
  if type(value) ~= 'table' then invalid(what) end
  return value
end

local function meterName(value, what)
  if not isMeter[value] then invalid(what) end
  return value
end

-- Pairs of a meter and units.
local function costList(value, what)
  for _, cost in ipairs(list(value, what)) do
    meterName(cost[1], what)
    cost[2] = number(cost[2], what)
  end
  return value
end

local function laneSetting(record)
  identifier(record.lane, 'lane')
  record.weight = number(record.weight, 'weight')
  if record.weight <= 0 then invalid('weight') end
  record.maxInFlight = optional(record.maxInFlight, 'maxInFlight')
  record.perMinute = optional(record.perMinute, 'perMinute')
  identifier(record.ceilingTag, 'ceilingTag')
end

local function bucketSetting(record)
  record.probe = number(record.probe, 'probe')
  for _, one in ipairs(list(record.meters, 'meters')) do
    meterName(one.meter, 'meters')
    one.limit, one.windowMs = number(one.limit, 'limit'), number(one.windowMs, 'windowMs')
    if one.counts ~= nil and one.counts ~= 'rolling' and one.counts ~= 'fixed' then invalid('counts') end
  end
end

local function lessonOf(record)
  record.sentAt, record.headAt = number(record.sentAt, 'sentAt'), number(record.headAt, 'headAt')
  if record.rateMeter ~= nil then meterName(record.rateMeter, 'rateMeter') end
  record.isTimed = record.isTimed and true or false
  record.refusedUnits = optional(record.refusedUnits, 'refusedUnits')
  record.requestedCost = optional(record.requestedCost, 'requestedCost')
  for _, report in ipairs(list(record.meters, 'reports')) do
    meterName(report.meter, 'reports')
    report.limit = number(report.limit, 'limit')
    report.windowMs, report.resetMs = optional(report.windowMs, 'windowMs'), optional(report.resetMs, 'resetMs')
    report.lowest, report.highest = optional(report.lowest, 'lowest'), optional(report.highest, 'highest')
  end
end

-- By kind of event: checks its values.
local checks = {}

local function serverTime()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + tonumber(time[2]) / 1000
end

-- An event without a setting has that of the one before it.
local function readBatch(packed)
  local batch = cjson.decode(packed)
  identifier(batch.bucket, 'bucket')
  identifier(batch.replica, 'replica')
  local setting
  for _, event in ipairs(list(batch.events, 'events')) do
    if event.setting then
      setting = event.setting
      bucketSetting(setting)
    end
    event.setting = setting
    if not checks[event.kind] then invalid('kind') end
    checks[event.kind](event)
  end
  batch.now = batch.now and number(batch.now, 'now') or serverTime()
  return batch
end
