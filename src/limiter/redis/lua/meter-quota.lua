-- Mirror of meter-quota.policy.ts: which quota holds for a meter.
-- A stated quota is { limit, window }, a reported one { limit, window or false, sent at }. Limit and window in force, or
-- false for the limit.
local applySetting, applyReport, unusedUnits, isHeldSlower
do
  -- Mirror of window-learning.policy.ts: the length of a window that no response states. Milliseconds.
  -- @constant usualWindowsMs roundingMs roundedFromMs

  local function learnedWindowMs(known, leftMs)
    if not leftMs or leftMs <= 0 then return known end
    local minWindowMs = leftMs > roundedFromMs and leftMs - roundingMs or leftMs
    for _, windowMs in ipairs(usualWindowsMs) do
      if windowMs >= minWindowMs then return known and math.max(known, windowMs) or windowMs end
    end
    return known
  end

  local function quotaInForce(meter)
    local stated, reported = meter.stated, meter.reported
    if not reported then
      if not stated then return false, assumedWindowMs(meter.name) end
      return stated[1], stated[2]
    end
    local reportedLimit = reported[1]
    local reportedWindowMs = reported[2] or stated and stated[2] or assumedWindowMs(meter.name)
    if not stated or bucket.learn then return reportedLimit, reportedWindowMs end
    local limit = math.min(stated[1], reportedLimit)
    local slowerLimit, slowerWindowMs = reportedLimit, reportedWindowMs
    if stated[1] * reportedWindowMs < reportedLimit * stated[2] then slowerLimit, slowerWindowMs = stated[1], stated[2] end
    if limit == slowerLimit then return limit, slowerWindowMs end
    return limit, (limit * slowerWindowMs) / slowerLimit
  end

  local function onTheWay(meter) return math.max(0, meter.granted - meter.answered) end

  -- The most that the upstream can have counted by now, as far as its responses stated, or as was counted here when the limit
  -- was lowered; 0 = neither.
  local function levelThere(meter, answered, now)
    local peak, unreported = meter.peak, meter.unreported
    if not peak then return 0 end
    local counted = peak.level + onTheWay(meter) + answered + (unreported and unreported.units or 0)
    return math.max(0, counted - netRate(meter) * math.max(0, now - peak.at))
  end

  local function rememberLevel(meter, now)
    local level = math.max(meter.level, levelThere(meter, 0, now)) - onTheWay(meter)
    meter.peak = { level, math.max(meter.at, now), now }
    meter.unreported = false
  end

  -- `answered`: units of a call whose response is being learned from.
  local function enforce(meter, answered, now)
    local before = meter.limit
    local limit, windowMs = quotaInForce(meter)
    if limit == meter.limit and windowMs == meter.windowMs then return end
    drain(meter, now)
    local isLower = limit and (not meter.limit or limit < meter.limit)
    if isLower and meter.level > limit then
      if meter.limit and not meter.reported then rememberLevel(meter, now) end
      meter.level = limit
    end
    if windowMs ~= meter.windowMs and meter.log then
      meter.log = windowLog.countedAs(meter, meter.log[1], windowMs, now)
    end
    meter.limit = limit
    meter.windowMs = windowMs
    if not before or not limit or limit <= before then return end
    meter.level = math.max(meter.level, math.min(meter.level + limit - before, levelThere(meter, answered, now)))
  end

  function applySetting(meter, stated, now)
    meter.stated = stated and { stated.limit, stated.windowMs }
    enforce(meter, 0, now)
  end

  function unusedUnits(meter)
    if not meter.limit or not meter.reported then return 0 end
    return math.max(0, meter.reported[1] - meter.limit)
  end

  function isHeldSlower(meter)
    local limit, reported = meter.limit, meter.reported
    if not limit or not reported then return false end
    local reportedMs = reported[2] or meter.stated and meter.stated[2] or assumedWindowMs(meter.name)
    return limit * reportedMs < reported[1] * meter.windowMs
  end

  function applyReport(meter, report, cost, sentAt, now)
    local limit, leftMs = report.limit, report.resetMs
    local windowMs = report.windowMs and report.windowMs > 0 and report.windowMs
    local known = meter.reported and (meter.reported[1] == limit or not leftMs) and meter.reported[2] or false
    meter.reported = { limit, windowMs or learnedWindowMs(known, leftMs), sentAt }
    enforce(meter, cost, now)
  end
end
