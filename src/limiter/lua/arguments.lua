-- Reading ARGV. Everything is checked before the first command runs, because nothing a script wrote is rolled back:
-- what is malformed ends the script with an error and leaves no trace.

-- The meters a bucket may have, in the order in which costs are listed.
local meterNames = { 'requests', 'tokens', 'requests_day', 'tokens_day', 'cost', 'images', 'requests_burst',
  'requests_hour' }
local isMeter = {}
for _, name in ipairs(meterNames) do isMeter[name] = true end

local function invalid(what) error('sluice: invalid ' .. what) end

local function number(text, what)
  local value = text and tonumber(text)
  if value == nil or value ~= value then invalid(what) end
  return value
end

-- '' = not told.
local function optional(text, what)
  if text == '' then return nil end
  return number(text, what)
end

-- Opaque names: nothing that could end a section of the sorted set or split a list.
local function identifier(text, what)
  if not text or not string.match(text, '^[%w_.%-]+$') then invalid(what) end
  return text
end

-- `name=units` words, as a list of { name, units }.
local function costList(text, what)
  local costs = {}
  for name, units in string.gmatch(text, '([^ =]+)=([^ =]+)') do
    if not isMeter[name] then invalid(what) end
    costs[#costs + 1] = { name, number(units, what) }
  end
  return costs
end

-- `meter:limit:windowMs:lowest:highest:resetMs` words, '-' = not told; nil when the age is not given: nothing was learned.
local function lessonOf(sentAgo, headAgo, reports, rateMeter, refusedUnits, requestedCost)
  local sentAgoMs = optional(sentAgo, 'sentAgoMs')
  if sentAgoMs == nil then return nil end
  local lesson = { sentAgoMs = sentAgoMs, headAgoMs = number(headAgo, 'headAgoMs'), meters = {}, rateMeter = nil,
    refusedUnits = optional(refusedUnits, 'refusedUnits'), requestedCost = optional(requestedCost, 'requestedCost') }
  if rateMeter ~= '' then
    if not isMeter[rateMeter] then invalid('rateMeter') end
    lesson.rateMeter = rateMeter
  end
  for name, limit, windowMs, lowest, highest, resetMs in
    string.gmatch(reports, '([^ :]+):([^ :]+):([^ :]+):([^ :]+):([^ :]+):([^ :]+)') do
    if not isMeter[name] then invalid('reports') end
    local report = { meter = name, limit = number(limit, 'limit') }
    if windowMs ~= '-' then report.windowMs = number(windowMs, 'windowMs') end
    if resetMs ~= '-' then report.resetMs = number(resetMs, 'resetMs') end
    if lowest ~= '-' then
      report.lowest, report.highest = number(lowest, 'lowest'), number(highest, 'highest')
    end
    lesson.meters[#lesson.meters + 1] = report
  end
  return lesson
end

-- Milliseconds; the server's own clock unless a test names the time.
local function timeOf(text)
  if text ~= '' then return number(text, 'now') end
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + tonumber(time[2]) / 1000
end

-- `meter:limit:windowMs` words.
local function meterSettings(text)
  local meters = {}
  for name, limit, windowMs in string.gmatch(text, '([^ :]+):([^ :]+):([^ :]+)') do
    if not isMeter[name] then invalid('meters') end
    meters[#meters + 1] = { meter = name, limit = number(limit, 'limit'), windowMs = number(windowMs, 'windowMs') }
  end
  return meters
end

-- A list of opaque names, at most `most` of them.
local function words(text, what, most)
  local list = {}
  for word in string.gmatch(text, '%S+') do list[#list + 1] = identifier(word, what) end
  if #list > most then invalid(what) end
  return list
end
