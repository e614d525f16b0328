-- Mirror of meter.policy.ts: one dimension of a bucket. Same names, same order of operations, so that both stores
-- come to the same numbers.
-- @constant leastJitterMs mostJitterMs mostLatenessMs windowsOfLateness quietGapMs calmLatenessMs othersMemoryMs largestReserveShare

-- Units drained per millisecond; 0 while no limit is known.
local function drainRate(meter) return meter.limit and meter.limit / meter.windowMs or 0 end

local function jitterUnits(meter)
  local rate = drainRate(meter)
  return rate * math.min(mostJitterMs, math.max(leastJitterMs, 0.2 / rate))
end

local function latenessMs(meter)
  local jitterMs = math.min(mostJitterMs, math.max(leastJitterMs, 0.2 / drainRate(meter)))
  return math.max(jitterMs, math.min(mostLatenessMs, meter.windowMs / windowsOfLateness))
end

local function restMs(meter, now) return math.max(0, meter.at - now) end

local function drain(meter, now)
  if now <= meter.at then return end
  local sinceMs = now - meter.at
  local drained = meter.limit and sinceMs * drainRate(meter) or meter.level * (sinceMs / (sinceMs + meter.windowMs))
  meter.level = math.max(0, meter.level - drained)
  meter.at = now
end

local function othersSince(meter, now)
  if not meter.learnedAt or meter.others <= 0 then return 0 end
  local expected = meter.others * math.min(math.max(0, now - meter.learnedAt), othersMemoryMs)
  return math.min(expected, meter.limit * largestReserveShare)
end

local function roomInMs(meter, cost, now)
  if not meter.limit or cost <= 0 then return 0 end
  drain(meter, now)
  local usable = meter.limit - meter.reserve
  local over = meter.level + othersSince(meter, now) + math.min(cost, usable) - usable
  if over <= 0 then return 0 end
  local rate = drainRate(meter)
  local whenEmpty = meter.level / rate
  return restMs(meter, now) + math.min(over / math.max(rate - meter.others, rate / 4), whenEmpty)
end

-- The mark is { cost, granted right after, answered, returned, when it drains on, calls behind } of the grant.
local function take(meter, asked, now, behind)
  drain(meter, now)
  local cost = asked
  if meter.limit then cost = math.min(asked, meter.limit) end
  local answered, returned = meter.answered, meter.returned
  if cost > 0 and meter.limit then
    local lateMs = latenessMs(meter) - meter.level / drainRate(meter)
    meter.at = math.max(meter.at, now + lateMs)
  end
  meter.level = meter.level + cost
  meter.granted = meter.granted + cost
  return { cost, meter.granted, answered, returned, meter.at, behind }
end

local function refund(meter, units, now)
  drain(meter, now)
  meter.level = math.max(0, meter.level - units)
end

local function giveUnitsBack(meter, mark, grantedAt, now)
  local cost = mark[1]
  meter.returned = meter.returned + cost
  local hasRested = meter.at == mark[5] and meter.at > now
  refund(meter, hasRested and cost or math.max(0, cost - (now - grantedAt) * drainRate(meter)), now)
  if meter.level == 0 then meter.at = now end
end
