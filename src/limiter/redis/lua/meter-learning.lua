-- Mirror of meter-learning.policy.ts: what responses teach a meter.
local learnMeter, refused
do
  -- @constant fastestRise minRiseMs waitGrainMs

  local function learnFastest(meter, seen)
    local tookMs = math.max(0, seen.headAt - seen.sentAt)
    local known = meter.fastestMs
    meter.fastestMs = known and math.min(tookMs, known * fastestRise + minRiseMs) or tookMs
  end

  local function isShut(meter, cost, waitMs) return waitMs > waitGrainMs + cost / drainRate(meter) end

  local function heldAt(meter, now) return meter.level + netRate(meter) * restMs(meter, now) end

  local function move(meter, lower, upper, now)
    local rate = netRate(meter)
    local most = math.max(0, math.min(math.max(heldAt(meter, now), lower), upper))
    meter.level = math.min(math.max(meter.level, lower), most)
    meter.at = now + (most - meter.level) / rate
  end

  local function boundsInForce(meter, report, mark, seen, now)
    local proved, likely, isInOrder, upper = levelBounds(meter, report, mark, seen, now)
    local unused = unusedUnits(meter)
    local own = isHeldSlower(meter) and heldAt(meter, now) or 0
    return proved - unused, likely - unused, isInOrder, math.max(upper, own)
  end

  local function learnLevel(meter, report, mark, seen, now)
    local proved, likely, isInOrder, upper = boundsInForce(meter, report, mark, seen, now)
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
    local level = meter.level
    if level > before and not isInOrder and not meter.contest then
      level = math.min(level, math.max(before, proved))
    end
    noteOthers(meter, level - before, sinceMs)
    noteOthersBurst(meter, (isInOrder and likely or proved) - before, report.highest - report.lowest, cost, now)
  end

  -- Without a mark the call took nothing from the meter.
  function learnMeter(meter, report, mark, seen, now)
    drain(meter, now)
    local isNewer = not meter.reported or seen.sentAt >= meter.reported[3]
    if isNewer and report.limit > 0 then applyReport(meter, report, mark and mark[1] or 0, seen.sentAt, now) end
    if report.resetMs then windowLog.logStatedEnd(meter, seen.sentAt, seen.headAt, report.resetMs) end
    if not report.lowest or not meter.limit then return end
    if meter.log then return windowLog.logReported(meter, report.lowest - unusedUnits(meter), now) end
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
    meter.peak = { meter.level + unusedUnits(meter), meter.at, now }
    meter.heardAt = math.max(meter.heardAt or now, now + waitMs)
  end
end
