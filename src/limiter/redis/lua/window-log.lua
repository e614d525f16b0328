-- Mirror of window-log.policy.ts: what was granted of late, of a meter whose window an operator describes. A log is
-- { counts, slots }, a slot { since, until, units }; the epoch is that of the server's clock.
local windowLog = {}
do
  -- @constant answersPerWindow firstsPerWindow wayGrainMs slowerShare endsPerWindow slotsPerWindow minMarginMs maxMarginMs windowsOfMargin

  local function marginMs(windowMs) return math.min(maxMarginMs, math.max(minMarginMs, windowMs / windowsOfMargin)) end

  function windowLog.loggedUnits(meter, now)
    local units = 0
    for _, slot in ipairs(meter.log[2]) do
      if slot[2] > now then units = units + slot[3] end
    end
    return units
  end

  function windowLog.keepLog(meter, counts, now)
    local before = meter.log
    if not counts then
      meter.log = false
    elseif not before then
      meter.log = { counts, meter.level > 0 and { { now, now + meter.windowMs, meter.level } } or {} }
    else
      before[1] = counts
    end
  end

  local function endOf(meter, now)
    local windowMs = meter.windowMs
    local margin = marginMs(windowMs)
    if meter.log[1] == 'rolling' then return now + windowMs + margin end
    return (math.floor((now + margin) / windowMs) + 1) * windowMs + margin
  end

  function windowLog.logUnits(meter, units, now)
    if not meter.log or units <= 0 then return end
    local slots = {}
    for _, slot in ipairs(meter.log[2]) do
      if slot[2] > now then slots[#slots + 1] = slot end
    end
    local till, last = endOf(meter, now), slots[#slots]
    local isFixed, joins = meter.log[1] == 'fixed', nil
    if last and isFixed then
      joins = last[2] >= till
    else
      joins = last and now - last[1] < meter.windowMs / slotsPerWindow
    end
    if joins then
      last[2], last[3] = isFixed and last[2] or till, last[3] + units
    else
      slots[#slots + 1] = { now, till, units }
    end
    meter.log = { meter.log[1], slots }
  end

  function windowLog.unlogUnits(meter, units, grantedAt)
    if not meter.log then return end
    local slots = meter.log[2]
    for i = #slots, 1, -1 do
      if slots[i][1] <= grantedAt then
        slots[i][3] = math.max(0, slots[i][3] - units)
        return
      end
    end
  end

  -- The call of a grant (of the meter's so many) left at a time, and its answer's head came at another.
  function windowLog.logSent(meter, granted, grantedAt, sentAt, headAt)
    if not meter.log then return end
    local slots, windowMs, known = meter.log[2], meter.windowMs, meter.fastestMs
    local tookMs = math.max(0, headAt - sentAt)
    local usualMs = known and math.min(tookMs, known + (tookMs - known) * slowerShare) or tookMs
    meter.fastestMs = usualMs
    local isFirst = meter.limit and granted <= meter.limit
    local part = isFirst and firstsPerWindow or answersPerWindow
    local lateMs = math.max(windowMs / part, isFirst and 0 or tookMs - usualMs)
    local countedAt = sentAt + math.min(tookMs, lateMs)
    local till = countedAt + windowMs + wayGrainMs
    if meter.log[1] == 'fixed' then till = endOf(meter, countedAt) end
    for i = #slots, 1, -1 do
      if slots[i][1] <= grantedAt then
        slots[i][2] = math.max(slots[i][2], till)
        return
      end
    end
  end

  -- The window in which an answer was made ends so long after its head, as it states.
  function windowLog.logStatedEnd(meter, sentAt, headAt, leftMs)
    if not meter.log or meter.log[1] ~= 'fixed' then return end
    local slots, windowMs = meter.log[2], meter.windowMs
    local till = headAt + math.min(leftMs, windowMs)
    if sentAt <= till - windowMs - windowMs / endsPerWindow then return end
    for i = #slots, 1, -1 do
      if slots[i][1] <= sentAt then
        slots[i][2] = math.max(slots[i][2], till)
        return
      end
    end
  end

  function windowLog.logReported(meter, lowest, now)
    windowLog.logUnits(meter, lowest - windowLog.loggedUnits(meter, now), now)
  end

  function windowLog.windowWaitMs(meter, units, now)
    local limit, windowMs = meter.limit, meter.windowMs
    if not meter.log or not limit then return 0 end
    local over = windowLog.loggedUnits(meter, now) + units - limit
    if over <= 0 then return 0 end
    local periodMs = meter.log[1] == 'fixed' and windowMs or windowMs + marginMs(windowMs)
    local rounds = math.ceil(over / limit) - 1
    local left = over - rounds * limit
    for _, slot in ipairs(meter.log[2]) do
      if slot[2] > now then
        left = left - slot[3]
        if left <= 0 then return slot[2] - now + rounds * periodMs end
      end
    end
    return endOf(meter, now) - now + rounds * periodMs
  end

  function windowLog.logMemoryMs(meter, now)
    local slots = meter.log and meter.log[2]
    local last = slots and slots[#slots]
    return math.max(0, (last and last[2] or now) - now)
  end
end
