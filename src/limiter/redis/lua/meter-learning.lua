-- Mirror of meter-learning.policy.ts: what answers teach a meter.
local learnMeter, refused
do
  -- @constant callsOfCalm fastestRise leastRiseMs answeringShare calmJitterMs waitGrainMs

  local function learnFastest(meter, seen)
    local tookMs = math.max(0, seen.headAt - seen.sentAt)
    local known = meter.fastestMs
    meter.fastestMs = known and math.min(tookMs, known * fastestRise + leastRiseMs) or tookMs
  end

  local function isShut(meter, cost, waitMs) return waitMs > waitGrainMs + cost / drainRate(meter) end

  local function move(meter, lower, upper, now)
    local rate = netRate(meter)
    local held = meter.level + rate * restMs(meter, now)
    local most = math.max(0, math.min(math.max(held, lower), upper))
    meter.level = math.min(math.max(meter.level, lower), most)
    meter.at = now + (most - meter.level) / rate
  end

  local function noteTop(meter, level, seen, now)
    local top = meter.top
    local before = 0
    if top and seen.sentAt <= top.headAt then before = top.level - netRate(meter) * (now - top.at) end
    if level < before then return before end
    meter.top = { level, now, seen.headAt }
    return level
  end

  local function sinceArrivalMs(meter, seen, now)
    local sinceSent, sinceHead = math.max(0, now - seen.sentAt), math.max(0, now - seen.headAt)
    local fastestMs = meter.fastestMs or 0
    local answering = math.max(fastestMs * answeringShare, fastestMs - calmJitterMs)
    return math.max(sinceHead, math.min(sinceSent - calmLatenessMs, sinceHead + answering))
  end

  -- Calls granted shortly before are a list of { granted at, units }.
  local function calmUpper(meter, highest, behind, seen, now)
    local rate = netRate(meter)
    local sinceSent = math.max(0, now - seen.sentAt)
    local sinceArrival = sinceArrivalMs(meter, seen, now)
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

  local function upperBound(meter, highest, mark, seen, now)
    local isTimed = seen.calm and mark and meter.name ~= 'cost'
    local sinceArrival = isTimed and sinceArrivalMs(meter, seen, now) or math.max(0, now - seen.headAt)
    local told = math.max(0, highest - netRate(meter) * sinceArrival)
    local limit = meter.limit or 0
    if not mark then return told + math.min(limit, meter.granted) + jitterUnits(meter) end
    local untold = meter.untold
    if untold and seen.sentAt > untold.at then
      untold = false
      meter.untold = false
    end
    local toCome = math.max(0, meter.granted - meter.answered) + (untold and untold.units or 0)
    return noteTop(meter, told, seen, now) + math.min(limit, toCome) + jitterUnits(meter)
  end

  -- What is proved, what is likely, whether calls are in order, and the upper bound.
  local function levelBounds(meter, report, mark, seen, now)
    local atEnd = meter.name == 'cost'
    local sinceMs = math.max(0, now - (atEnd and seen.headAt or seen.sentAt))
    local proved = report.lowest - drainRate(meter) * sinceMs
    local upper = upperBound(meter, report.highest, mark, seen, now)
    if not mark or atEnd then return proved, proved, false, upper end
    local later = meter.granted - mark[2]
    local likely = report.lowest - netRate(meter) * sinceMs + math.max(0, later - (meter.returned - mark[3]))
    local isInOrder = seen.quiet and mark[1] > 0 and later <= drainRate(meter) * sinceMs + callsOfCalm * mark[1]
    if not isInOrder or not seen.calm then return proved, likely, isInOrder, upper end
    local calm = calmUpper(meter, report.highest, mark[5], seen, now) + later
    return proved, likely, isInOrder, math.min(upper, calm)
  end

  local function learnLevel(meter, report, mark, seen, now)
    local proved, likely, isInOrder, upper = levelBounds(meter, report, mark, seen, now)
    local before = meter.level
    local isFirst = not meter.fastestMs
    if isFirst and not meter.stated then
      move(meter, upper, upper, now)
    else
      move(meter, math.max(proved, math.min(likely, upper)), math.max(proved, upper), now)
    end
    local cost = mark and mark[1] or 0
    local sinceMs = meter.heardAt and seen.sentAt - meter.heardAt or 0
    if isFirst or sinceMs <= 0 or isShut(meter, cost, seen.closedMs) then return end
    noteOthers(meter, meter.level - before, sinceMs)
    noteGulp(meter, (isInOrder and likely or proved) - before, report.highest - report.lowest, cost, now)
  end

  -- Without a mark the call took nothing from the meter.
  function learnMeter(meter, report, mark, seen, learn, now)
    drain(meter, now)
    local isNewer = not meter.reported or seen.sentAt >= meter.reported[3]
    if isNewer and report.limit > 0 then
      applyReport(meter, report.limit, report.windowMs and report.windowMs > 0 and report.windowMs, report.resetMs,
        seen.sentAt, learn, now)
    end
    if not report.lowest or not meter.limit then return end
    learnLevel(meter, report, mark, seen, now)
    learnFastest(meter, seen)
    meter.heardAt = math.max(meter.heardAt or seen.sentAt, seen.sentAt)
  end

  function refused(meter, asked, waitMs, hadRoom, now)
    if not meter.limit then return end
    drain(meter, now)
    local cost = math.min(asked, meter.limit)
    local used = meter.limit - cost
    if hadRoom and meter.heardAt and not isShut(meter, cost, waitMs) then
      noteOthers(meter, math.max(0, used - meter.level), now - meter.heardAt)
      noteContest(meter, cost, now)
    end
    local rate = netRate(meter)
    if meter.level + rate * restMs(meter, now) < used + rate * waitMs then
      meter.level = used
      meter.at = now + waitMs
    end
    meter.top = { meter.level, meter.at, now }
    meter.heardAt = math.max(meter.heardAt or now, now + waitMs)
  end
end
