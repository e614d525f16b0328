-- Mirror of forecast.policy.ts: how long a call at a given place of a lane will wait. `lane` is nil for a workspace
-- that has nothing in this bucket yet; a place is { key, costs, weight, maxInFlight, ahead }.

local forecastAt, forecastOf
do
  -- A ceiling is looked ahead no further than this many windows.
  -- @constant maxWindows ceilingWindowMs
  -- A whole number of calls, but for the rounding of a division.
  local rounding = 1e-9

  -- Of `calls` calls that cost `costs` in all, without those that are counted in `without`.
  local function meanTurn(costs, without, calls)
    local mean = {}
    for i, name in ipairs(meterNames) do
      mean[i] = { name, ((costs[name] or 0) - (without and without[name] or 0)) / calls }
    end
    return turnOf(mean)
  end

  -- Lanes in the running whose turn is before that of a lane of this name that starts then. One step per class.
  local function lanesBefore(start, key)
    local before, from = 0, '[r:'
    while true do
      local member = redis.call('ZRANGEBYLEX', orderKey, from, '(r;', 'LIMIT', '0', '1')[1]
      if not member then return before end
      local callClass = string.match(member, '^r:([^:]+):')
      local till = '(r:' .. callClass .. ':' .. sortable(start) .. ':' .. key
      before = before + redis.call('ZLEXCOUNT', orderKey, '[r:' .. callClass .. ':', till)
      from = '[r:' .. callClass .. ';'
    end
  end

  local function othersAhead(lane, place)
    local waitingHere = lane and lane.waiting or 0
    local waitingElsewhere = bucket.waiting - waitingHere
    if waitingElsewhere <= 0 then return 0 end
    local weightElsewhere = bucket.waitingWeight - (waitingHere > 0 and lane.weight or 0)
    local here = place.ahead > 0 and waitingHere > 0 and meanTurn(lane.waitingCosts, nil, waitingHere) or 0
    local from = math.max(lane and lane.start or 0, bucket.virtual)
    local start = from + (place.ahead * here) / place.weight
    local elsewhere = meanTurn(bucket.waitingCosts, lane and lane.waitingCosts, waitingElsewhere)
    local byShare = math.floor(((start - bucket.virtual) * math.max(0, weightElsewhere)) / elsewhere + rounding)
    local own = lane and lane.readyAs and lane.start < start and 1 or 0
    return math.min(waitingElsewhere, math.max(byShare, lanesBefore(start, place.key) - own))
  end

  -- What calls of the same lane that go first take.
  local function ownCostAhead(lane, ahead, name)
    if not lane or lane.waiting == 0 then return 0 end
    local meter = bucket.meters[name]
    local limit = meter and meter.limit or 0
    return math.min(((lane.waitingCosts[name] or 0) * ahead) / lane.waiting, ahead * limit)
  end

  local function costAhead(lane, ahead, others, name)
    local meter = bucket.meters[name]
    local limit = meter and meter.limit or 0
    local waitingElsewhere = bucket.waiting - (lane and lane.waiting or 0)
    local costElsewhere = (bucket.waitingCosts[name] or 0) - (lane and lane.waitingCosts[name] or 0)
    local elsewhere = waitingElsewhere > 0 and (costElsewhere * others) / waitingElsewhere or 0
    return ownCostAhead(lane, ahead, name) + math.min(elsewhere, others * limit)
  end

  local function drainFor(name, units, needed, now)
    local meter = meterOf(name, now)
    if not meter.limit then return 0 end
    local alone = roomInMs(meter, units, bucket.waitingCosts[name] or 0, now)
    local over = levelAt(meter, now) + needed - (meter.limit - keptFree(meter, 0))
    return needed > units and math.max(alone, restMs(meter, now) + over / netRate(meter)) or alone
  end

  -- In the order in which equal waits are named.
  local heldBySleep = { 'ceiling_minute', 'ceiling_day', 'closed' }
  local heldByMeter = { requests = 'requests', images = 'requests', requests_burst = 'requests', requests_hour = 'requests', tokens = 'tokens', requests_day = 'upstream_day',
    tokens_day = 'upstream_day', cost = 'cost' }

  local function serialWaitMs(lane, place, now)
    local most = place.maxInFlight
    if not lane or not most then return 0 end
    local abandoned = #lane.abandoned
    local standsUntil = lane.abandoned[abandoned - most + 1]
    if standsUntil then
      return math.max(0, standsUntil - now) + math.floor(place.ahead / most) * lane.serviceMs
    end
    local rounds = math.floor((place.ahead + lane.inFlight - abandoned) / (most - abandoned))
    if rounds < 1 then return 0 end
    if lane.inFlight == abandoned or not lane.grantedAt then return rounds * lane.serviceMs end
    local underWayMs = math.max(lane.serviceMs / 2, now - lane.grantedAt - lane.serviceMs)
    return underWayMs + (rounds - 1) * lane.serviceMs
  end

  -- What the bucket alone makes of the place, whatever the workspace's ceiling allows.
  local function bucketForecast(lane, place, now)
    local others = othersAhead(lane, place)
    local waitMs, heldBy = 0, lane and lane.asleep[sleepIndex.document] and 'cost' or 'queue'
    local function consider(ms, by)
      if ms > waitMs then waitMs, heldBy = ms, by end
    end
    consider(closedMs(now), 'closed')
    for i, by in ipairs(heldBySleep) do
      local till = lane and lane.asleep[i]
      if till then consider(till - now, by) end
    end
    local wanted = {}
    for _, cost in ipairs(place.costs) do wanted[cost[1]] = cost[2] end
    for _, name in ipairs(meterNames) do
      local units = wanted[name] or 0
      local ahead = units > 0 and costAhead(lane, place.ahead, others, name) or ownCostAhead(lane, place.ahead, name)
      if units + ahead > 0 then consider(drainFor(name, units, units + ahead, now), heldByMeter[name]) end
    end
    consider(serialWaitMs(lane, place, now), 'serialized')
    return waitMs, heldBy
  end

  -- Milliseconds, and what the longest wait comes from; where there is none, the line.
  function forecastAt(lane, place, now)
    local waitMs, heldBy = bucketForecast(lane, place, now)
    local perMinute = place.perMinute
    if not perMinute then return waitMs, heldBy end
    local windows = 1
    while windows <= maxWindows and windows * perMinute <= place.ahead do
      local before = { key = place.key, costs = place.costs, weight = place.weight, maxInFlight = place.maxInFlight,
        ahead = place.ahead - windows * perMinute }
      local ms = bucketForecast(lane, before, now) + windows * ceilingWindowMs
      if ms > waitMs then waitMs, heldBy = ms, 'ceiling_minute' end
      windows = windows + 1
    end
    return waitMs, heldBy
  end

  -- Expected wait of a waiting ticket, how many of its lane go first, and what it waits for; nil if it does not wait.
  function forecastOf(ticket, now)
    if not ticket or ticket.lease then return nil end
    local lane = laneOf(ticket.lane)
    local ahead = rankOf(ticket.lane, ticket.order, ticket.id)
    local place = { key = lane.key, costs = ticket.costs, weight = lane.weight, maxInFlight = lane.maxInFlight,
      perMinute = lane.perMinute, ahead = ahead }
    local waitMs, heldBy = forecastAt(lane, place, now)
    return waitMs, ahead, heldBy
  end
end
