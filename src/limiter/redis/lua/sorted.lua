-- Mirror of sorted.policy.ts: every ordered set of a bucket is a section of ONE lexicographic sorted set, so that each
-- step is O(log n) and a bucket stays few keys. A member is `section:position:name`; a position is fixed in width.
--   l:<lane>:<order>:<ticket>  waiting tickets      r:<class>:<start>:<lane>  ready lanes
--   e:<time>:<token>           leases by expiry     s:<time>:<lane>           sleeping lanes
--   i:<start>:<lane>           idle lanes           u:<replica>:<token>       grants their replica has not yet named
--   g:<time>:<token>           quiet leases by grant that no response has spoken of

-- 16 hex digits that sort as the numbers do (IEEE 754 bits, negative ones turned over). The last one is kept: leases of one
-- batch expire at one time.
local sortable
do
  local lastValue, lastDigits
  function sortable(value)
    if value == lastValue then return lastDigits end
    lastValue = value
    if value == 0 then value = 0 end
    local high, low = struct.unpack('>I4I4', struct.pack('>d', value))
    if high >= 2147483648 then
      high, low = 4294967295 - high, 4294967295 - low
    else
      high = high + 2147483648
    end
    lastDigits = string.format('%08x%08x', high, low)
    return lastDigits
  end
end

local function unsortable(digits)
  local high, low = tonumber(string.sub(digits, 1, 8), 16), tonumber(string.sub(digits, 9, 16), 16)
  if high >= 2147483648 then
    high = high - 2147483648
  else
    high, low = 4294967295 - high, 4294967295 - low
  end
  return (struct.unpack('>d', struct.pack('>I4I4', high, low)))
end

local function put(member) redis.call('ZADD', orderKey, '0', member) end
local function drop(member) return redis.call('ZREM', orderKey, member) == 1 end

-- First member of a section, or nil. Sections end in ':', and ';' is the next byte.
local function firstOf(section)
  return redis.call('ZRANGEBYLEX', orderKey, '[' .. section .. ':', '(' .. section .. ';', 'LIMIT', '0', '1')[1]
end

-- First entry of a section of times: name and time, or nil.
local function firstByTime(section)
  local member = firstOf(section)
  if not member then return nil end
  return string.sub(member, 20), unsortable(string.sub(member, 3, 18))
end

-- A member was put into a section of times, or dropped.
local function notePut(section, at)
  local known, from = earliest[section], bucket.due[section]
  if known == false or (known and at < known) then earliest[section] = at end
  if not from or at < from then bucket.due[section] = at end
end

local function noteDrop(section, at)
  if earliest[section] == at then earliest[section] = nil end
end

-- Earliest time in a section; false = it is empty.
local function earliestOf(section)
  local known = earliest[section]
  if known == nil then
    local _, at = firstByTime(section)
    known = at or false
    earliest[section] = known
  end
  return known
end

-- Whether the first entry of a section of times is due. The set is asked only when the time comes before which none is, which
-- the bucket keeps; false = the section is empty.
local function isDue(section, now)
  local from = bucket.due[section]
  if not from or from > now then return false end
  local at = earliestOf(section)
  bucket.due[section] = at
  return at and at <= now
end

-- Names of a section of times, from a time on and before another, in order.
local function between(section, from, till)
  local names = {}
  local range = { '[' .. section .. ':' .. sortable(from) .. ':', '(' .. section .. ':' .. sortable(till) .. ':' }
  for i, member in ipairs(redis.call('ZRANGEBYLEX', orderKey, range[1], range[2])) do names[i] = string.sub(member, 20) end
  return names
end

local function lineMember(lane, order, ticketId)
  return string.format('l:%s:%016.0f:%s', lane, order, ticketId)
end

-- How many tickets of the lane stand before this position.
local function rankOf(lane, order, ticketId)
  return redis.call('ZLEXCOUNT', orderKey, '[l:' .. lane .. ':', '(' .. lineMember(lane, order, ticketId))
end
