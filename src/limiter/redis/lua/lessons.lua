-- Mirror of lessons.policy.ts: what settings and responses do to the meters of a bucket. A lease's marks are a list of
-- { name, mark }, by the `markName` of their meters.
local function applySettings(setting, now)
  bucket.learn = setting.learn
  bucket.probe = setting.probe
  windowLog.followWindows(setting.meters, now)
  local stated = {}
  for _, one in ipairs(setting.meters) do
    meterOf(one.meter, now)
    stated[one.meter] = stated[one.meter] or one
  end
  for name, meter in pairs(bucket.meters) do
    local one = stated[name] or false
    local counts = one and one.counts or false
    if not meter.log and counts then drain(meter, now) end
    if meter.log and not counts then
      meter.level, meter.at = math.min(windowLog.loggedUnits(meter, now), meter.limit or math.huge), math.max(meter.at, now)
    end
    if meter.log and counts == 'rolling' then windowLog.keepLog(meter, counts, now) end
    applySetting(meter, one, now)
    windowLog.keepLog(meter, counts, now)
  end
end

local function unansweredMember(lease) return 'g:' .. sortable(lease.grantedAt) .. ':' .. lease.token end

-- What the lease's call took of the meter of this name; nil: nothing.
local function markOf(lease, name)
  local meter = bucket.meters[name]
  local heldAs = meter and markNames.of(meter)
  for _, mark in ipairs(lease.marks) do
    if mark[1] == heldAs then return mark[2] end
  end
  return nil
end

-- Notes that the lease's call is no longer on its way: the upstream has counted it, or never will.
local function markLeaseAnswered(lease)
  if lease.answered then return end
  lease.answered = true
  firstCalls.endPilot(lease)
  if lease.spacing ~= 'crowded' then drop(unansweredMember(lease)) end
  for _, mark in ipairs(lease.marks) do
    local meter = markNames.meterOf(mark[1])
    if meter then markAnswered(meter, mark[2]) end
  end
end

-- Notes on the meters a call whose response stated nothing. If the call arrived upstream, it did so before `at`.
local function learnUnreported(lease, at)
  if lease.answered then return end
  markLeaseAnswered(lease)
  for _, mark in ipairs(lease.marks) do
    local meter = markNames.meterOf(mark[1])
    if meter then markUnreported(meter, mark[2], at) end
  end
end

local function applySilence(lease, now)
  learnUnreported(lease, now)
  bucket.opened = true
end

local applyLesson, applyThrottle
-- Lua allows 200 local names in one function, and an included file is a part of its script's.
do
  local function isReported(reports, name)
    for _, report in ipairs(reports) do
      if report.meter == name and report.lowest then return true end
    end
    return false
  end

  -- A call that left more than `calmLatenessMs` after its grant comes from a replica that lags behind: calls after it count as crowded.
  local function noteLateness(lease, sentAt)
    if sentAt - lease.grantedAt <= calmLatenessMs then return end
    bucket.crowdedAt = math.max(bucket.crowdedAt or sentAt, sentAt)
  end

  -- `shutMs`: the response refused the call until so many milliseconds after it; 0 = no refusal.
  function applyLesson(lease, lesson, shutMs, now)
    local isFirst = not lease.answered
    markLeaseAnswered(lease)
    bucket.opened = true
    noteLateness(lease, math.min(lesson.sentAt, now))
    local seen = { sentAt = math.min(lesson.sentAt, now), headAt = math.min(lesson.headAt, now), spacing = lease.spacing,
      closedMs = shutMs }
    for _, mark in ipairs(isFirst and lease.marks or {}) do
      local meter = markNames.meterOf(mark[1])
      if meter then windowLog.logSent(meter, mark[2], lease.grantedAt, seen.sentAt, seen.headAt) end
    end
    for _, report in ipairs(lesson.meters) do
      local meter = meterOf(report.meter, now)
      learnMeter(meter, report, markOf(lease, report.meter), seen, now)
    end
    if lesson.requestedCost then learnDocument(lease.document, lesson.requestedCost, now) end
    if not isFirst or shutMs > 0 then return end
    for _, mark in ipairs(lease.marks) do
      local meter = markNames.meterOf(mark[1])
      if meter and not isReported(lesson.meters, meter.name) then markUnreported(meter, mark[2], now) end
    end
  end

  -- Units that the refused call needed of the meter that refused it (nil = none), and whether the model had room for them.
  local function refusalOf(lease, name, lesson)
    local meter = bucket.meters[name]
    local mark = markOf(lease, name)
    local reserved = mark and mark[1] or 0
    local asked = lesson.refusedUnits or reserved
    if asked <= 0 then return nil end
    local grantedAt, contest = lease.grantedAt, meter and meter.contest
    local isKnown = meter and meter.heardAt
    local isNew = grantedAt >= (bucket.closedAt or grantedAt) and (not contest or grantedAt >= contest.at)
    return asked, asked <= reserved and lesson.isTimed and isKnown and isNew
  end

  function applyThrottle(lease, closeMs, lesson, now)
    local named = lesson and lesson.rateMeter
    for _, mark in ipairs(lease.marks) do
      local meter = markNames.meterOf(mark[1])
      local name = meter and meter.name
      local isWindow = named == 'requests' and (name == 'requests_burst' or name == 'requests_hour')
      if meter and closeMs > 0 and (not named or named == name or isWindow) then
        giveUnitsBack(meter, mark[2], lease.grantedAt, now)
      end
    end
    local asked, hadRoom
    if named then asked, hadRoom = refusalOf(lease, named, lesson) end
    if lesson then
      applyLesson(lease, lesson, closeMs, now)
    elseif closeMs > 0 then
      markLeaseAnswered(lease)
    else
      learnUnreported(lease, now)
    end
    if closeMs <= 0 then return end
    if asked then refused(meterOf(named, now), asked, closeMs, hadRoom, now) end
    bucket.closedUntil = math.max(bucket.closedUntil or now, now + closeMs)
    bucket.closedAt = now
  end
end

-- `spent` is a list of { meter, units }; what it does not name stays as reserved.
local function correct(lease, spent, now)
  for _, units in ipairs(spent) do
    local mark, meter = markOf(lease, units[1]), bucket.meters[units[1]]
    if meter then settleUnits(meter, mark and mark[1] or 0, units[2], lease.grantedAt, now) end
  end
end

local function giveLeaseUnitsBack(lease, now)
  markLeaseAnswered(lease)
  for _, mark in ipairs(lease.marks) do
    local meter = markNames.meterOf(mark[1])
    if meter then giveUnitsBack(meter, mark[2], lease.grantedAt, now) end
  end
end

-- @constant shorterServiceShare longerServiceShare
local function noteService(lane, ms)
  local share = ms < lane.serviceMs and shorterServiceShare or longerServiceShare
  lane.serviceMs = lane.serviceMs + (ms - lane.serviceMs) * share
end
