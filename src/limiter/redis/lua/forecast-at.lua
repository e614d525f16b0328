-- Mirror of forecast.policy.ts, forecast-meters.policy.ts and standstill.policy.ts: how long a call at a given position of a lane will wait. `lane` is nil for a
-- workspace that has nothing in this bucket yet; a position is { key, costs, weight, maxInFlight, perMinute, ahead }.

local forecasts = {}
do
  -- A ceiling is looked ahead no further than this many windows.
  -- @constant maxWindows ceilingWindowMs

  -- What the calls of the same lane that go first take.
  local function ownCostAhead(lane, ahead, name)
    if not lane or lane.waiting == 0 then return 0 end
    local meter = bucket.meters[name]
    local limit = meter and meter.limit or 0
    return math.min((waitingUnits(lane.waitingCosts, name) * ahead) / lane.waiting, ahead * limit)
  end

  local function drainMs(name, units, ahead, from)
    local meter = bucket.meters[name]
    if not meter or not meter.limit then return 0 end
    if meter.log then return windowLog.windowWaitMs(meter, units + ahead, from) end
    local ownMs = roomInMs(meter, units, bucket.waitingCosts[name] or 0, from)
    local over = levelAt(meter, from) + (units + ahead) - (meter.limit - keptFree(meter, 0))
    return ahead > 0 and math.max(ownMs, restMs(meter, from) + over / netRate(meter)) or ownMs
  end

  -- In the order in which equal waits are named.
  local heldBySleep = { 'ceiling_minute', 'ceiling_day', 'closed' }
  local heldByMeter = { requests = 'requests', images = 'requests', requests_burst = 'requests', requests_hour = 'requests', tokens = 'tokens', requests_day = 'upstream_day',
    tokens_day = 'upstream_day', cost = 'cost', input_tokens = 'tokens', output_tokens = 'tokens' }

  -- Mirror of nested-windows.policy.ts, with its windows: { meter, units, waitMs }, shortest first, of which the first `count` are meant.
  local callWindows = { requests = true, requests_day = true, requests_burst = true, requests_hour = true }

  local function fromEmptyMs(meter, units)
    if not meter.limit then return 0 end
    if not meter.log then return (math.max(0, units - meter.limit) * meter.windowMs) / meter.limit end
    return (math.ceil(units / meter.limit) - 1) * windowLog.periodMs(meter)
  end

  local function nestedWaitMs(windows, count, fewer, now)
    if count == 0 then return 0 end
    local meter, waitMs = windows[count][1], windows[count][3]
    local limit = meter.limit
    local aloneMs = waitMs(fewer)
    local waitsMs = math.max(aloneMs, nestedWaitMs(windows, count - 1, fewer, now))
    if not meter.log or not limit or count == 1 then return waitsMs end
    local units = windows[count][2] - fewer
    if meter.log[1] == 'fixed' then
      local beyond = units - math.max(0, limit - windowLog.loggedUnits(meter, now))
      if beyond <= 0 then return waitsMs end
      local inWindow, openMs = beyond - (math.ceil(beyond / limit) - 1) * limit, 0
      for i = 1, count - 1 do openMs = math.max(openMs, fromEmptyMs(windows[i][1], inWindow)) end
      return math.max(waitsMs, aloneMs + openMs)
    end
    local rounds = math.ceil(units / limit) - 1
    if rounds <= 0 then return waitsMs end
    local before = fewer + rounds * limit
    local firstMs = math.max(waitMs(before), nestedWaitMs(windows, count - 1, before, now))
    return math.max(waitsMs, rounds * windowLog.periodMs(meter) + firstMs)
  end

  local function serialWaitMs(lane, position, now)
    local most = position.maxInFlight
    if not lane or not most then return 0 end
    local abandoned = #lane.abandoned
    if abandoned >= most then return 0 end
    local rounds = math.floor((position.ahead + lane.inFlight - abandoned) / (most - abandoned))
    if rounds < 1 then return 0 end
    if lane.inFlight == abandoned or not lane.grantedAt then return rounds * lane.serviceMs end
    local underWayMs = math.max(lane.serviceMs / 2, now - lane.grantedAt - lane.serviceMs)
    return underWayMs + (rounds - 1) * lane.serviceMs
  end

  -- Until the first call of the lane can leave, and what refusals name then.
  local function laneStandstill(lane, position, shutMs, now)
    local waitMs, heldBy = shutMs, 'closed'
    local function consider(till, by)
      if till and till - now > waitMs then waitMs, heldBy = till - now, by end
    end
    for i, by in ipairs(heldBySleep) do consider(lane and lane.asleep[i], by) end
    local most = position.maxInFlight
    if lane and most then consider(lane.abandoned[#lane.abandoned - most + 1], 'serialized') end
    return waitMs, heldBy
  end

  -- The longest wait for any meter from then on; `needs` is a list of { name, units of the call, units ahead of it }.
  local function metersForecast(needs, from)
    local waitMs, heldBy = 0, 'queue'
    local function consider(ms, by)
      if ms > waitMs then waitMs, heldBy = ms, by end
    end
    local meters = bucket.meters
    local isNested = meters.requests and (meters.requests_burst or meters.requests_hour or meters.requests_day)
    local windows, isLogged = {}, false
    for _, need in ipairs(needs) do
      local name, units, ahead = need[1], need[2], need[3]
      consider(drainMs(name, units, ahead, from), heldByMeter[name])
      local meter = meters[name]
      if isNested and meter and callWindows[name] then
        local function waitMsOf(fewer) return drainMs(name, units, math.max(0, ahead - fewer), from) end
        windows[#windows + 1] = { meter, units + ahead, waitMsOf, meter.windowMs, #windows }
        isLogged = isLogged or meter.log
      end
    end
    if #windows > 1 and isLogged then
      table.sort(windows, function(one, other) return one[4] < other[4] or (one[4] == other[4] and one[5] < other[5]) end)
      consider(nestedWaitMs(windows, #windows, 0, from), 'requests')
    end
    return waitMs, heldBy
  end

  -- What the call takes from each meter, and what goes before it: calls of its lane, and these of other lanes (nil = none).
  local function needsOf(lane, position, others)
    local wanted, needs = {}, {}
    for _, cost in ipairs(position.costs) do wanted[cost[1]] = cost[2] end
    for _, name in ipairs(meterNames) do
      local units = wanted[name] or 0
      local ahead = ownCostAhead(lane, position.ahead, name)
      if others and units > 0 then ahead = ahead + otherLanes.units(others, name) end
      if units + ahead > 0 then needs[#needs + 1] = { name, units, ahead } end
    end
    return needs
  end

  -- What the bucket alone makes of the position, whatever the workspace's ceiling allows.
  local function bucketForecast(lane, position, elsewhere, now)
    local waitMs, heldBy = 0, lane and lane.asleep[sleepIndex.document] and 'cost' or 'queue'
    local function consider(ms, by)
      if ms > waitMs then waitMs, heldBy = ms, by end
    end
    local function afterStandstill(standstillMs, standstillBy, thenMs, thenBy)
      consider(standstillMs + thenMs, thenMs > standstillMs and thenBy or standstillBy)
    end
    local shutMs = closedMs(now)
    local others = elsewhere and otherLanes.ahead(lane, position, elsewhere)
    afterStandstill(shutMs, 'closed', metersForecast(needsOf(lane, position, others), now + shutMs))
    local stillMs, stillBy = laneStandstill(lane, position, shutMs, now)
    if stillMs > shutMs then
      afterStandstill(stillMs, stillBy, metersForecast(needsOf(lane, position, nil), now + stillMs))
    end
    consider(serialWaitMs(lane, position, now), 'serialized')
    if stillMs > 0 then
      local most = position.maxInFlight
      local roundsMs = lane and most and math.floor(position.ahead / most) * lane.serviceMs or 0
      afterStandstill(stillMs, stillBy, roundsMs, 'serialized')
    end
    return waitMs, heldBy
  end

  local function forecastBehind(lane, position, elsewhere, now)
    local waitMs, heldBy = bucketForecast(lane, position, elsewhere, now)
    local perMinute = position.perMinute
    if not perMinute then return waitMs, heldBy end
    local windows = 1
    while windows <= maxWindows and windows * perMinute <= position.ahead do
      local before = { key = position.key, costs = position.costs, weight = position.weight, maxInFlight = position.maxInFlight,
        ahead = position.ahead - windows * perMinute }
      local ms = bucketForecast(lane, before, elsewhere, now) + windows * ceilingWindowMs
      if ms > waitMs then waitMs, heldBy = ms, 'ceiling_minute' end
      windows = windows + 1
    end
    return waitMs, heldBy
  end

  -- Milliseconds, and what the longest wait comes from; where there is none, the line. May be too long where it is within `withinMs`
  -- (nil = never).
  function forecasts.at(lane, position, now, withinMs)
    local elsewhere = otherLanes.inSum(lane, position)
    if withinMs then
      local waitMs, heldBy = forecastBehind(lane, position, elsewhere, now)
      if waitMs <= withinMs then return waitMs, heldBy end
    end
    return forecastBehind(lane, position, otherLanes.laneByLane(lane, position, elsewhere), now)
  end

  -- Expected wait of a waiting ticket, how many of its lane go first, and what it waits for; nil if it does not wait.
  function forecasts.of(ticket, now, withinMs)
    if not ticket or ticket.lease then return nil end
    local lane = laneOf(ticket.lane)
    local ahead = rankOf(ticket.lane, ticket.order, ticket.id)
    local position = { key = lane.key, costs = knownCosts(ticket.costs, ticket.document), weight = lane.weight, maxInFlight = lane.maxInFlight,
      perMinute = lane.perMinute, ahead = ahead }
    local waitMs, heldBy = forecasts.at(lane, position, now, withinMs)
    return waitMs, ahead, heldBy
  end
end
