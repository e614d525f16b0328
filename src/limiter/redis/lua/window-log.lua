-- Mirror of window-log.policy.ts: what was granted of late, of a meter whose window an operator describes. A log is
-- { counts, slots }, a slot { since, until, units }; the epoch is that of the server's clock.
local windowLog = {}
do
  -- @constant responsesPerWindow firstsPerWindow wayGrainMs slowerShare endsPerWindow slotsPerWindow minMarginMs maxMarginMs windowsOfMargin
  -- @constant unitRounding

  local function marginMs(windowMs) return math.min(maxMarginMs, math.max(minMarginMs, windowMs / windowsOfMargin)) end

  function windowLog.loggedUnits(meter, now)
    local units = 0
    for _, slot in ipairs(meter.log[2]) do
      if slot[2] > now then units = units + slot[3] end
    end
    return units
  end

  local function endOf(counts, windowMs, now)
    local margin = marginMs(windowMs)
    if counts == 'rolling' then return now + windowMs + margin end
    return (math.floor((now + margin) / windowMs) + 1) * windowMs + margin
  end

  local function logOfLevel(meter, counts, now)
    if meter.level <= 0 then return { counts, {} } end
    local till = now + meter.windowMs
    if counts == 'fixed' then till = math.min(till, endOf(counts, meter.windowMs, now)) end
    return { counts, { { now, till, meter.level } } }
  end

  function windowLog.keepLog(meter, counts, now)
    local before = meter.log
    if not counts then
      meter.log = false
    elseif not before then
      meter.log = logOfLevel(meter, counts, now)
    elseif before[1] ~= counts then
      meter.log = windowLog.countedAs(meter, counts, meter.windowMs, now)
    end
  end

  -- The meter's log when its window is counted in another way or has another length from now on.
  function windowLog.countedAs(meter, counts, windowMs, now)
    local log, before = meter.log, meter.windowMs
    if not log then return false end
    local slots = {}
    for i, slot in ipairs(log[2]) do
      local endedAt = slot[2] - marginMs(before)
      local lastAt = math.max(slot[1], log[1] == 'rolling' and endedAt - before or math.min(now, endedAt))
      slots[i] = { slot[1], endOf(counts, windowMs, lastAt), slot[3] }
    end
    return { counts, slots }
  end

  function windowLog.logUnits(meter, units, now)
    if not meter.log or units <= 0 then return end
    local slots = {}
    for _, slot in ipairs(meter.log[2]) do
      if slot[2] > now then slots[#slots + 1] = slot end
    end
    local till, last = endOf(meter.log[1], meter.windowMs, now), slots[#slots]
    local isFixed, joins = meter.log[1] == 'fixed', nil
    if last and isFixed then
      joins = endOf('fixed', meter.windowMs, last[1]) >= till and last[2] <= till
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

  -- Notes when a granted call left and when the head of its response came. `mark`: the call's, of this meter.
  function windowLog.logSent(meter, mark, grantedAt, sentAt, headAt)
    if not meter.log then return end
    local slots, windowMs, known = meter.log[2], meter.windowMs, meter.fastestMs
    local tookMs = math.max(0, headAt - sentAt)
    local usualMs = known and math.min(tookMs, known + (tookMs - known) * slowerShare) or tookMs
    meter.fastestMs = usualMs
    local isFirst = meter.limit and mark[2] <= meter.limit
    local part = isFirst and firstsPerWindow or responsesPerWindow
    local lateMs = math.max(windowMs / part, isFirst and 0 or tookMs - usualMs)
    local countedAt = sentAt + math.min(tookMs, lateMs)
    local till = countedAt + windowMs + wayGrainMs
    local isFixed = meter.log[1] == 'fixed'
    if isFixed then till = endOf('fixed', windowMs, countedAt) end
    for i = #slots, 1, -1 do
      local slot = slots[i]
      if slot[1] <= grantedAt then
        if till <= slot[2] then return end
        local units = isFixed and math.min(mark[1], slot[3]) or slot[3]
        if units < slot[3] then
          slot[3] = slot[3] - units
          table.insert(slots, i, { slot[1], till, units })
        else
          slot[2] = till
        end
        return
      end
    end
  end

  -- Notes that a response states the end of its window: `leftMs` after the response's head.
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

  function windowLog.periodMs(meter)
    return meter.log and meter.log[1] == 'fixed' and meter.windowMs or meter.windowMs + marginMs(meter.windowMs)
  end

  function windowLog.windowWaitMs(meter, units, now)
    local limit, windowMs = meter.limit, meter.windowMs
    if not meter.log or not limit then return 0 end
    local rounds = math.ceil(units / limit - unitRounding) - 1
    local left = windowLog.loggedUnits(meter, now) + units - rounds * limit - limit
    local roundMs = windowLog.periodMs(meter)
    if left <= unitRounding then
      return rounds <= 0 and 0 or endOf(meter.log[1], windowMs, now) - now + (rounds - 1) * roundMs
    end
    local slots = {}
    for i, slot in ipairs(meter.log[2]) do slots[i] = slot end
    table.sort(slots, function(one, other) return one[2] < other[2] end)
    for _, slot in ipairs(slots) do
      if slot[2] > now then
        left = left - slot[3]
        if left <= unitRounding then return slot[2] - now + rounds * roundMs end
      end
    end
    return endOf(meter.log[1], windowMs, now) - now + rounds * roundMs
  end

  function windowLog.logMemoryMs(meter, now)
    local memory = 0
    for _, slot in ipairs(meter.log and meter.log[2] or {}) do memory = math.max(memory, slot[2] - now) end
    return memory
  end
end
