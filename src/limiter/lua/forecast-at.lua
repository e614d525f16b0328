-- Mirror of forecast.policy.ts: how long a call at a given place of a lane will wait. `lane` is nil for a workspace
-- that has nothing in this bucket yet; a place is { key, costs, weight, maxInFlight, ahead }.

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

local function costAhead(lane, ahead, others, name)
  local meter = bucket.meters[name]
  local limit = meter and meter.limit or 0
  local waitingHere = lane and lane.waiting or 0
  local costHere = lane and lane.waitingCosts[name] or 0
  local waitingElsewhere = bucket.waiting - waitingHere
  local costElsewhere = (bucket.waitingCosts[name] or 0) - costHere
  local here = waitingHere > 0 and (costHere * ahead) / waitingHere or 0
  local elsewhere = waitingElsewhere > 0 and (costElsewhere * others) / waitingElsewhere or 0
  return math.min(here, ahead * limit) + math.min(elsewhere, others * limit)
end

local function drainFor(name, units, needed, now)
  local meter = meterOf(name, now)
  if not meter.limit then return 0 end
  local alone = roomInMs(meter, units, bucket.waitingCosts[name] or 0, now)
  local over = levelAt(meter, now) + needed - (meter.limit - keptFree(meter, 0))
  return needed > units and math.max(alone, restMs(meter, now) + over / netRate(meter)) or alone
end

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
  local underWayMs = math.max(lane.serviceMs / 2, now - lane.grantedAt - lane.serviceMs)
  return underWayMs + (rounds - 1) * lane.serviceMs
end

-- Milliseconds, and whether the longest wait comes from a daily meter.
local function forecastAt(lane, place, now)
  local others = othersAhead(lane, place)
  local waitMs = math.max(0, bucket.closedUntil - now, (lane and lane.asleepUntil or 0) - now)
  local day = false
  for _, cost in ipairs(place.costs) do
    local name, units = cost[1], cost[2]
    local needed = units + costAhead(lane, place.ahead, others, name)
    local meterMs = drainFor(name, units, needed, now)
    if meterMs > waitMs then
      waitMs = meterMs
      day = name == 'requests_day' or name == 'tokens_day'
    end
  end
  local servedMs = serialWaitMs(lane, place, now)
  if servedMs > waitMs then return servedMs, false end
  return waitMs, day
end

-- Expected wait of a waiting ticket and how many of its lane go first; nil if it does not wait.
local function forecastOf(ticket, now)
  if not ticket or ticket.lease then return nil end
  local lane = laneOf(ticket.lane)
  local ahead = rankOf(ticket.lane, ticket.order, ticket.id)
  local place = { key = lane.key, costs = ticket.costs, weight = lane.weight, maxInFlight = lane.maxInFlight, ahead = ahead }
  return (forecastAt(lane, place, now)), ahead
end
