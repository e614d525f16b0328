-- Mirror of meter-bounds.policy.ts: between which levels a meter can be, by one response.
local levelBounds
do
  -- @constant burstToleranceCalls answeringShare calmJitterMs

  local function notePeak(meter, level, seen, now)
    local peak = meter.peak
    local before = 0
    if peak and seen.sentAt <= peak.headAt then before = peak.level - netRate(meter) * (now - peak.at) end
    if level < before then return before end
    meter.peak = { level, now, seen.headAt }
    return level
  end

  local function sinceArrivalMs(meter, seen, now)
    local sinceSent, sinceHead = math.max(0, now - seen.sentAt), math.max(0, now - seen.headAt)
    local fastestMs = meter.fastestMs or 0
    local answering = math.max(fastestMs * answeringShare, fastestMs - calmJitterMs)
    return math.max(sinceHead, math.min(sinceSent - calmLatenessMs, sinceHead + answering))
  end

  -- Calls granted shortly before are a list of { granted at, units }.
  local function calmUpper(meter, highest, inTransit, seen, now)
    local rate = netRate(meter)
    local sinceSent = math.max(0, now - seen.sentAt)
    local sinceArrival = sinceArrivalMs(meter, seen, now)
    local upper = math.max(0, highest - rate * sinceArrival)
    local toCome = 0
    for at = #inTransit, 1, -1 do
      local arrivedAt = math.max(sinceArrival, now - inTransit[at][1] - calmLatenessMs)
      if arrivedAt > sinceSent then break end
      toCome = toCome + inTransit[at][2]
      upper = math.max(upper, math.max(0, highest - rate * arrivedAt) + toCome)
    end
    return upper
  end

  local function upperBound(meter, highest, mark, seen, now)
    local isTimed = seen.spacing == 'calm' and mark and meter.name ~= 'cost'
    local sinceArrival = isTimed and sinceArrivalMs(meter, seen, now) or math.max(0, now - seen.headAt)
    local levelNow = math.max(0, highest - netRate(meter) * sinceArrival)
    local limit = meter.limit or 0
    if not mark then return levelNow + math.min(limit, meter.granted) + jitterUnits(meter) end
    local unreported = meter.unreported
    if unreported and seen.sentAt > unreported.at then
      unreported = false
      meter.unreported = false
    end
    local toCome = math.max(0, meter.granted - meter.answered) + (unreported and unreported.units or 0)
    return notePeak(meter, levelNow, seen, now) + math.min(limit, toCome) + jitterUnits(meter)
  end

  -- What is proved, what is likely, whether calls are in order, and the upper bound.
  function levelBounds(meter, report, mark, seen, now)
    local atEnd = meter.name == 'cost'
    local sinceMs = math.max(0, now - (atEnd and seen.headAt or seen.sentAt))
    local proved = report.lowest - drainRate(meter) * sinceMs
    local upper = upperBound(meter, report.highest, mark, seen, now)
    if not mark or atEnd then return proved, proved, false, upper end
    local later = meter.granted - mark[2]
    local likely = report.lowest - netRate(meter) * sinceMs + math.max(0, later - (meter.returned - mark[3]))
    local isInOrder = seen.spacing ~= 'crowded' and mark[1] > 0 and later <= drainRate(meter) * sinceMs + burstToleranceCalls * mark[1]
    if not isInOrder or seen.spacing ~= 'calm' then return proved, likely, isInOrder, upper end
    local calm = calmUpper(meter, report.highest, mark[5], seen, now) + later
    return proved, likely, isInOrder, math.min(upper, calm)
  end
end
