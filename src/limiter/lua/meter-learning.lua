-- Mirror of meter-learning.policy.ts: what answers teach a meter.
local learnMeter, refused
do
  -- @constant callsOfCalm fastestRise leastRiseMs answeringShare calmJitterMs reserveMemoryMs oneSurpriseMs

  local function keepFree(meter, units, now)
    meter.reserve = math.max(0, math.min(units, (meter.limit or 0) * largestReserveShare))
    meter.surprisedAt = now
  end

  local function surprised(meter, units, now)
    local sinceMs = meter.surprisedAt and now - meter.surprisedAt
    if sinceMs and sinceMs < oneSurpriseMs then return end
    keepFree(meter, sinceMs and sinceMs <= reserveMemoryMs and units or meter.reserve, now)
  end

  local function noteSurprise(meter, surprise, cost, isRefusal, now)
    if not isRefusal and meter.learnedAt and now > meter.learnedAt then
      local sinceMs = now - meter.learnedAt
      local taken = math.min(surprise / sinceMs, drainRate(meter))
      meter.others = meter.others + (taken - meter.others) * (sinceMs / (sinceMs + othersMemoryMs))
    end
    if cost > 0 and surprise > cost / 2 then
      surprised(meter, math.max(meter.reserve, cost), now)
    elseif meter.reserve > 0 and meter.surprisedAt and now - meter.surprisedAt > reserveMemoryMs then
      keepFree(meter, meter.reserve - cost, now)
    end
  end

  local function learnFastest(meter, seen)
    local tookMs = math.max(0, seen.headAt - seen.sentAt)
    local known = meter.fastestMs
    meter.fastestMs = known and math.min(tookMs, known * fastestRise + leastRiseMs) or tookMs
  end

  -- Calls granted shortly before are a list of { granted at, units }.
  local function calmUpper(meter, highest, behind, seen, now)
    local rate = drainRate(meter)
    local sinceSent, sinceHead = math.max(0, now - seen.sentAt), math.max(0, now - seen.headAt)
    local fastestMs = meter.fastestMs or 0
    local answering = math.max(fastestMs * answeringShare, fastestMs - calmJitterMs)
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

  local function onItsWay(meter, mark)
    local arrived = mark and mark[3] + mark[1] or 0
    return math.min(meter.limit or 0, math.max(0, meter.granted - arrived))
  end

  local function levelBounds(meter, report, mark, seen, now)
    local rate = drainRate(meter)
    local sinceHead = math.max(0, now - seen.headAt)
    local late = math.max(0, report.highest - rate * sinceHead) + onItsWay(meter, mark) + jitterUnits(meter)
    if meter.name == 'cost' then return report.lowest - rate * sinceHead, late end
    local sinceSent = math.max(0, now - seen.sentAt)
    local lower = report.lowest - rate * sinceSent
    if not mark or mark[1] <= 0 or not seen.quiet then return lower, late end
    local later = meter.granted - mark[2]
    if later > rate * sinceSent + callsOfCalm * mark[1] then return lower, late end
    local counted = lower + math.max(0, later - (meter.returned - mark[4]))
    if not seen.calm then return counted, late end
    return counted, math.min(late, calmUpper(meter, report.highest, mark[6], seen, now) + later)
  end

  local function move(meter, lower, upper, now)
    local rate = drainRate(meter)
    local held = meter.level + rate * restMs(meter, now)
    local most = math.max(0, math.min(math.max(held, lower), upper))
    meter.level = math.min(math.max(meter.level, lower), most)
    meter.at = now + (most - meter.level) / rate
  end

  -- Without a mark the call took nothing from the meter.
  function learnMeter(meter, report, mark, seen, learn, now)
    local first = not meter.learnedAt
    drain(meter, now)
    local isNewer = not meter.reported or seen.sentAt >= meter.reported[3]
    if isNewer and report.limit > 0 then
      applyReport(meter, report.limit, report.windowMs and report.windowMs > 0 and report.windowMs, report.resetMs,
        seen.sentAt, learn, now)
    end
    if not report.lowest or not meter.limit then return end
    local lower, upper = levelBounds(meter, report, mark, seen, now)
    local surprise = first and 0 or math.max(0, lower - meter.level)
    noteSurprise(meter, surprise, mark and mark[1] or 0, seen.refused, now)
    if first and not meter.stated then
      move(meter, upper, upper, now)
    else
      move(meter, lower, math.max(lower, upper), now)
    end
    learnFastest(meter, seen)
    meter.learnedAt = now
  end

  function refused(meter, asked, waitMs, surprising, now)
    if not meter.limit then return end
    drain(meter, now)
    local cost = math.min(asked, meter.limit)
    if surprising then surprised(meter, meter.reserve + cost, now) end
    move(meter, meter.limit - cost + waitMs * drainRate(meter), math.huge, now)
  end
end
