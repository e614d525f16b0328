-- Mirror of described-windows.policy.ts: which meter goes on with which described window when configuration is loaded again.
do
  -- @constant windowNames

  local function isWindow(stated)
    for _, name in ipairs(windowNames) do
      if name == stated.meter then return true end
    end
    return false
  end

  local function isAsLong(meter, window) return meter.stated and meter.stated[2] == window.windowMs end
  local function isOf(meter, window)
    return isAsLong(meter, window) and (meter.log and meter.log[1] or false) == (window.counts or false)
  end
  local function isNamed(meter, window) return meter.name == window.meter end
  local function isUnused(meter) return not meter.stated and not meter.reported end
  local preferences = { isOf, isAsLong, isNamed, isUnused }

  local function goesOn(stated)
    local meter = bucket.meters[stated.meter]
    return not isWindow(stated) or meter and isOf(meter, stated)
  end

  local function allGoOn(settings)
    for _, stated in ipairs(settings) do
      if not goesOn(stated) then return false end
    end
    return true
  end

  -- The position of the meter among those that are left; the one that has the name of the window goes before others.
  local function indexOf(left, fits, window)
    local found
    for i, meter in ipairs(left) do
      if fits(meter, window) then
        if isNamed(meter, window) then return i end
        found = found or i
      end
    end
    return found
  end

  local function sourceAmong(meters)
    local found, maxMs
    for _, meter in ipairs(meters) do
      if meter.limit and (not found or meter.windowMs > maxMs) then found, maxMs = meter, meter.windowMs end
    end
    return found
  end

  -- Meters without a window keep their names, or take free ones; where there is none, they are forgotten.
  local function park(left, next, windows)
    local taken, homeless = {}, {}
    for _, window in ipairs(windows) do taken[window.meter] = true end
    for _, meter in ipairs(left) do
      if taken[meter.name] then
        homeless[#homeless + 1] = meter
      else
        next[meter.name], taken[meter.name] = meter, true
      end
    end
    for _, meter in ipairs(homeless) do
      for _, name in ipairs(windowNames) do
        if not taken[name] then
          next[name], taken[name] = meter, true
          break
        end
      end
    end
  end

  -- An added window begins with what the longest of the others has counted.
  local function begunFrom(meter, name, others, now)
    local windowMs, level, at, log = meter.windowMs, levelAt(meter, now), math.max(meter.at, now), meter.log
    local slots = {}
    for i, slot in ipairs(log and log[2] or {}) do slots[i] = { slot[1], slot[2], slot[3] } end
    meter = createMeter(name, now, markNames.free(others, name))
    meter.windowMs, meter.level, meter.at, meter.log = windowMs, level, at, log and { log[1], slots }
    return meter
  end

  function windowLog.followWindows(settings, now)
    if allGoOn(settings) then return end
    local windows, left, next = {}, {}, {}
    for _, stated in ipairs(settings) do
      if isWindow(stated) then windows[#windows + 1] = stated end
    end
    for _, name in ipairs(windowNames) do left[#left + 1] = bucket.meters[name] end
    local source = sourceAmong(left)
    for _, fits in ipairs(preferences) do
      for _, window in ipairs(windows) do
        local index = not next[window.meter] and indexOf(left, fits, window)
        if index then next[window.meter] = table.remove(left, index) end
      end
    end
    park(left, next, windows)
    for _, window in ipairs(windows) do
      if not next[window.meter] and source then next[window.meter] = begunFrom(source, window.meter, next, now) end
    end
    listedMeters = nil
    for _, name in ipairs(windowNames) do bucket.meters[name] = next[name] end
    for name, meter in pairs(next) do
      local heldAs = markNames.of(meter)
      meter.name = name
      meter.heldAs = heldAs ~= name and heldAs
    end
  end
end
