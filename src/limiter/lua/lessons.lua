-- Mirror of lessons.policy.ts: what settings and answers do to the meters of a bucket. A lease's marks are a list of
-- { meter, { cost, granted, answered } }.
local function applySettings(setting, now)
  bucket.learn = setting.learn
  bucket.probe = setting.probe
  local stated = {}
  for _, one in ipairs(setting.meters) do
    meterOf(one.meter, now)
    stated[one.meter] = stated[one.meter] or one
  end
  for name, meter in pairs(bucket.meters) do applySetting(meter, stated[name] or false, setting.learn, now) end
end

local function unansweredMember(lease) return 'g:' .. sortable(lease.grantedAt) .. ':' .. lease.token end

-- The lease's call is no longer on its way to the upstream's counters.
local function answer(lease, now)
  if lease.answered then return end
  lease.answered = true
  if lease.quiet then drop(unansweredMember(lease)) end
  for _, mark in ipairs(lease.marks) do
    local meter = meterOf(mark[1], now)
    meter.answered = meter.answered + mark[2][1]
  end
end

local function markOf(lease, name)
  for _, mark in ipairs(lease.marks) do
    if mark[1] == name then return mark[2] end
  end
  return nil
end

local function applyLesson(lease, lesson, now)
  answer(lease, now)
  bucket.opened = true
  local seen = { sentAt = now - lesson.sentAgoMs, headAt = now - lesson.headAgoMs, quiet = lease.quiet,
    calm = lease.calm }
  for _, report in ipairs(lesson.meters) do
    local meter = meterOf(report.meter, now)
    learnMeter(meter, report, markOf(lease, report.meter), seen, bucket.learn, now)
  end
  if lesson.requestedCost then learnDocument(lease.document, lesson.requestedCost, now) end
end

local function applyThrottle(lease, closeMs, lesson, now)
  local named = lesson and lesson.rateMeter
  for _, mark in ipairs(lease.marks) do
    local isWindow = named == 'requests' and (mark[1] == 'requests_burst' or mark[1] == 'requests_hour')
    if closeMs > 0 and (not named or named == mark[1] or isWindow) then
      giveUnitsBack(meterOf(mark[1], now), mark[2], lease.grantedAt, now)
    end
  end
  if lesson then applyLesson(lease, lesson, now) else answer(lease, now) end
  if closeMs <= 0 then return end
  if named then
    local mark = markOf(lease, named)
    local reserved = mark and mark[1] or 0
    local asked = lesson.refusedUnits or reserved
    local isFirst = not bucket.closedAt or lease.grantedAt >= bucket.closedAt
    local surprising = isFirst and asked <= reserved
    if asked > 0 then refused(meterOf(named, now), asked, closeMs, surprising, now) end
  end
  bucket.closedUntil = math.max(bucket.closedUntil or now, now + closeMs)
  bucket.closedAt = now
end

-- `spent` is a list of { meter, units }; what it does not name stays as reserved.
local function correct(lease, spent, now)
  for _, units in ipairs(spent) do
    local mark = markOf(lease, units[1])
    if mark then refund(meterOf(units[1], now), mark[1] - units[2], now) end
  end
end

local function giveBack(lease, now)
  answer(lease, now)
  for _, mark in ipairs(lease.marks) do
    giveUnitsBack(meterOf(mark[1], now), mark[2], lease.grantedAt, now)
  end
end

local function noteService(lane, ms)
  lane.serviceMs = lane.serviceMs + (ms - lane.serviceMs) * (ms < lane.serviceMs and 0.5 or 0.2)
end
