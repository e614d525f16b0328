-- Mirror of meter.policy.ts: one dimension of a bucket. Same names, same order of operations, so that both stores
-- come to the same numbers.
local leastJitterMs = 25
local mostJitterMs = 100
local quietGapMs = 20
local othersMemoryMs = 10000
local reserveMemoryMs = 60000
local largestReserveShare = 0.1

local function drainRate(meter) return meter.limit / meter.windowMs end

local function jitterUnits(meter)
  local rate = drainRate(meter)
  return rate * math.min(mostJitterMs, math.max(leastJitterMs, 0.2 / rate))
end

local function drain(meter, now)
  if now <= meter.at then return end
  meter.level = math.max(0, meter.level - (now - meter.at) * drainRate(meter))
  meter.at = now
end

local function applySetting(meter, limit, windowMs, learn, now)
  if meter.stated == limit then return end
  drain(meter, now)
  meter.stated = limit
  if meter.learnedAt < 0 then
    meter.limit = limit
    meter.windowMs = windowMs
  elseif not learn and meter.limit > limit then
    meter.limit = limit
  end
end

local function othersSince(meter, now)
  if meter.learnedAt < 0 or meter.others <= 0 then return 0 end
  local expected = meter.others * math.min(math.max(0, now - meter.learnedAt), othersMemoryMs)
  return math.min(expected, meter.limit * largestReserveShare)
end

local function roomInMs(meter, cost, now)
  if meter.limit <= 0 or cost <= 0 then return 0 end
  drain(meter, now)
  local usable = meter.limit - meter.reserve
  local over = meter.level + othersSince(meter, now) + math.min(cost, usable) - usable
  if over <= 0 then return 0 end
  local rate = drainRate(meter)
  local whenEmpty = meter.level / rate
  return math.min(over / math.max(rate - meter.others, rate / 4), whenEmpty)
end

-- The mark is { cost, granted right after, answered } of the grant.
local function take(meter, cost, now)
  drain(meter, now)
  local answered = meter.answered
  if cost > 0 then meter.level = math.max(meter.level, jitterUnits(meter)) end
  meter.level = meter.level + cost
  meter.granted = meter.granted + cost
  return { cost, meter.granted, answered }
end

local function refund(meter, units, now)
  drain(meter, now)
  meter.level = math.max(0, meter.level - units)
end

local function giveUnitsBack(meter, cost, grantedAt, now)
  refund(meter, math.max(0, cost - (now - grantedAt) * drainRate(meter)), now)
end

local function keepFree(meter, units, now)
  meter.reserve = math.max(0, math.min(units, meter.limit * largestReserveShare))
  meter.surprisedAt = now
end

local function noteSurprise(meter, surprise, cost, now)
  if meter.learnedAt >= 0 and now > meter.learnedAt then
    local sinceMs = now - meter.learnedAt
    meter.others = meter.others + (surprise / sinceMs - meter.others) * (sinceMs / (sinceMs + othersMemoryMs))
    meter.others = math.min(meter.others, drainRate(meter))
  end
  if cost > 0 and surprise > cost / 2 then
    keepFree(meter, math.max(meter.reserve, cost), now)
  elseif meter.reserve > 0 and now - meter.surprisedAt > reserveMemoryMs then
    keepFree(meter, meter.reserve - cost, now)
  end
end

local function learnLimit(meter, report, seen, learn)
  if seen.sentAt < meter.limitFrom or not (report.limit > 0) then return end
  meter.limitFrom = seen.sentAt
  meter.limit = (learn or meter.stated == 0) and report.limit or math.min(report.limit, meter.stated)
  if report.windowMs and report.windowMs > 0 then meter.windowMs = report.windowMs end
  meter.reserve = math.min(meter.reserve, meter.limit * largestReserveShare)
end

local function levelBounds(meter, report, mark, seen, now)
  local cost, granted, answered = mark[1], mark[2], mark[3]
  local rate = drainRate(meter)
  local jitter = jitterUnits(meter)
  local later = meter.granted - granted
  local onItsWay = math.max(0, meter.granted - answered - cost)
  local sinceHead = math.max(0, now - seen.headAt)
  local late = math.max(0, report.highest - rate * sinceHead) + onItsWay + jitter
  if meter.name == 'cost' then return report.lowest - rate * sinceHead, late end
  local sinceSent = math.max(0, now - seen.sentAt)
  local lower = report.lowest - rate * sinceSent
  if not seen.quiet then return lower, late end
  local inOrder = math.max(0, report.highest - rate * sinceSent) + later + jitter
  return lower + later, math.min(late, inOrder)
end

local function learnMeter(meter, report, mark, seen, learn, now)
  local first = meter.learnedAt < 0
  drain(meter, now)
  learnLimit(meter, report, seen, learn)
  if not report.lowest or meter.limit <= 0 then return end
  local lower, upper = levelBounds(meter, report, mark, seen, now)
  local surprise = first and 0 or math.max(0, lower - meter.level)
  noteSurprise(meter, surprise, mark[1], now)
  if first and meter.stated == 0 then
    meter.level = math.max(0, upper)
  else
    meter.level = math.max(0, math.min(math.max(meter.level, lower), math.max(lower, upper)))
  end
  meter.learnedAt = now
end

local function refused(meter, cost, waitMs, surprising, now)
  if meter.limit <= 0 then return end
  drain(meter, now)
  if surprising then keepFree(meter, meter.reserve + cost, now) end
  meter.level = math.max(meter.level, meter.limit - cost + waitMs * drainRate(meter))
end
