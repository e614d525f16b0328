-- Mirror of lessons.policy.ts: what settings and answers do to the meters of a bucket. A lease's marks are a list of
-- { meter, { cost, granted, answered } }.
local function applySettings(setting, now)
  bucket.learn = setting.learn
  bucket.probe = setting.probe
  for _, stated in ipairs(setting.meters) do
    applySetting(meterOf(stated.meter, now), stated.limit, stated.windowMs, setting.learn, now)
  end
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
    local mark = markOf(lease, report.meter) or { 0, meter.granted, 0, 0, 0, {} }
    learnMeter(meter, report, mark, seen, bucket.learn, now)
  end
  if lesson.requestedCost then learnDocument(lease.document, lesson.requestedCost, now) end
end

local function applyThrottle(lease, closeMs, lesson, now)
  local rateMeter = lesson and lesson.rateMeter
  local surprising = closeMs > 0 and (not bucket.closedAt or lease.grantedAt >= bucket.closedAt)
  for _, mark in ipairs(lease.marks) do
    if closeMs > 0 and (not rateMeter or rateMeter == mark[1]) then
      giveUnitsBack(meterOf(mark[1], now), mark[2], lease.grantedAt, now)
    end
  end
  if lesson then applyLesson(lease, lesson, now) else answer(lease, now) end
  if closeMs <= 0 then return end
  for _, mark in ipairs(lease.marks) do
    if rateMeter == mark[1] then refused(meterOf(mark[1], now), mark[2][1], closeMs, surprising, now) end
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
