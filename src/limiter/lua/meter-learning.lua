-- Mirror of meter-learning.policy.ts: what answers teach a meter.
local callsOfCalm = 2
local fastestRise = 1.01
local leastRiseMs = 0.05
local answeringShare = 0.8
local calmJitterMs = 50
local reserveMemoryMs = 60000
local oneSurpriseMs = 1000

local function keepFree(meter, units, now)
  meter.reserve = math.max(0, math.min(units, meter.limit * largestReserveShare))
  meter.surprisedAt = now
end

local function surprised(meter, units, now)
  local sinceMs = meter.surprisedAt < 0 and math.huge or now - meter.surprisedAt
  if sinceMs >= oneSurpriseMs then keepFree(meter, sinceMs <= reserveMemoryMs and units or meter.reserve, now) end
end

local function noteSurprise(meter, surprise, cost, now)
  if meter.learnedAt >= 0 and now > meter.learnedAt then
    local sinceMs = now - meter.learnedAt
    local taken = math.min(surprise / sinceMs, drainRate(meter))
    meter.others = meter.others + (taken - meter.others) * (sinceMs / (sinceMs + othersMemoryMs))
  end
  if cost > 0 and surprise > cost / 2 then
    surprised(meter, math.max(meter.reserve, cost), now)
  elseif meter.reserve > 0 and now - meter.surprisedAt > reserveMemoryMs then
    keepFree(meter, meter.reserve - cost, now)
  end
end

local function learnFastest(meter, seen)
  local tookMs = math.max(0, seen.headAt - seen.sentAt)
  local known = meter.fastestMs
  meter.fastestMs = known < 0 and tookMs or math.min(tookMs, known * fastestRise + leastRiseMs)
end

local function learnLimit(meter, report, seen, learn)
  if seen.sentAt < meter.limitFrom or not (report.limit > 0) then return end
  meter.limitFrom = seen.sentAt
  if meter.limit == 0 then fillAtMost(meter, report.limit) end
  meter.limit = (learn or meter.stated == 0) and report.limit or math.min(report.limit, meter.stated)
  if report.windowMs and report.windowMs > 0 then meter.windowMs = report.windowMs end
  meter.reserve = math.min(meter.reserve, meter.limit * largestReserveShare)
end

-- Calls granted shortly before are a list of { granted at, units }.
local function calmUpper(meter, highest, behind, seen, now)
  local rate = drainRate(meter)
  local sinceSent, sinceHead = math.max(0, now - seen.sentAt), math.max(0, now - seen.headAt)
  local answering = math.max(meter.fastestMs * answeringShare, meter.fastestMs - calmJitterMs)
  local sinceArrival = math.max(sinceHead, math.min(sinceSent - calmLatenessMs, sinceHead + answering))
  local upper = math.max(0, highest - rate * sinceArrival)
  local toCome = 0
  for at = #behind, 1, -1 do
    local arrivedAt = math.max(sinceArrival, now - behind[at][1] - calmLatenessMs)
    if arrivedAt > sinceSent then break end
    toCome = toCome + behind[at][2]
    upper = math.max(upper, math.max(0, highest - rate * arrivedAt) + toCome)
  end
  return upper
end

local function levelBounds(meter, report, mark, seen, now)
  local cost, granted, answered, returned, behind = mark[1], mark[2], mark[3], mark[4], mark[6]
  local rate = drainRate(meter)
  local jitter = jitterUnits(meter)
  local later = meter.granted - granted
  local onItsWay = math.min(meter.limit, math.max(0, meter.granted - answered - cost))
  local sinceHead = math.max(0, now - seen.headAt)
  local late = math.max(0, report.highest - rate * sinceHead) + onItsWay + jitter
  if meter.name == 'cost' then return report.lowest - rate * sinceHead, late end
  local sinceSent = math.max(0, now - seen.sentAt)
  local lower = report.lowest - rate * sinceSent
  local isInOrder = seen.quiet and cost > 0 and later <= rate * sinceSent + callsOfCalm * cost
  if not isInOrder then return lower, late end
  local counted = lower + math.max(0, later - (meter.returned - returned))
  if not seen.calm then return counted, late end
  return counted, math.min(late, calmUpper(meter, report.highest, behind, seen, now) + later)
end

local function move(meter, lower, upper, now)
  local rate = drainRate(meter)
  local held = meter.level + rate * restMs(meter, now)
  local most = math.max(0, math.min(math.max(held, lower), upper))
  meter.level = math.min(math.max(meter.level, lower), most)
  meter.at = now + (most - meter.level) / rate
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
    move(meter, upper, upper, now)
  else
    move(meter, lower, math.max(lower, upper), now)
  end
  learnFastest(meter, seen)
  meter.learnedAt = now
end

local function refused(meter, cost, waitMs, surprising, now)
  if meter.limit <= 0 then return end
  drain(meter, now)
  if surprising then surprised(meter, meter.reserve + cost, now) end
  move(meter, meter.limit - cost + waitMs * drainRate(meter), math.huge, now)
end
