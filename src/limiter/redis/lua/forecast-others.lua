-- Mirror of forecast-others.policy.ts: how many calls of other lanes go before a position of a lane. What waits elsewhere is
-- { lanes, rest, isCut }; waiting calls are { costs, calls }, of which `ahead` go first.

local otherLanes = {}
do
  -- @constant maxLanes
  local rounding = 1e-9

  -- The lanes of these names as they are now. They are only read: a lane that no event has asked for is not written back.
  local function lanesOf(names)
    local fields, lanes = {}, {}
    for i, name in ipairs(names) do fields[i] = 'l:' .. name end
    if #fields == 0 then return lanes end
    for i, packed in ipairs(redis.call('HMGET', recordsKey, unpack(fields))) do
      lanes[i] = current[fields[i]] or { cmsgpack.unpack(packed) }
    end
    return lanes
  end

  local function meanServiceCost(costs, calls)
    local mean = {}
    for name in pairs(bucket.meters) do mean[#mean + 1] = { name, waitingUnits(costs, name) / calls } end
    return serviceCost(mean)
  end

  local function subtract(costs, some)
    for name, units in pairs(some) do costs[name] = (costs[name] or 0) - units end
  end

  -- The start tag of the position.
  local function startOf(lane, position)
    local from = math.max(lane and lane.start or 0, bucket.virtual)
    if not lane or position.ahead <= 0 or lane.waiting == 0 then return from end
    return from + (position.ahead * meanServiceCost(lane.waitingCosts, lane.waiting)) / position.weight
  end

  -- The first ready lanes, class by class.
  local function firstReady(most)
    local names = {}
    for i, member in ipairs(redis.call('ZRANGEBYLEX', orderKey, '[r:', '(r;', 'LIMIT', '0', most)) do
      names[i] = string.sub(member, string.find(member, ':', 3, true) + 18)
    end
    return names
  end

  local function firstAsleep(most)
    local names = {}
    if most <= 0 then return names end
    for i, member in ipairs(redis.call('ZRANGEBYLEX', orderKey, '[s:', '(s;', 'LIMIT', '0', most)) do
      names[i] = string.sub(member, 20)
    end
    return names
  end

  -- What waits elsewhere in sum; nil = nothing.
  function otherLanes.inSum(lane, position)
    local waitingHere, costs = lane and lane.waiting or 0, {}
    local calls = bucket.waiting - waitingHere
    if calls <= 0 then return nil end
    for name, units in pairs(bucket.waitingCosts) do costs[name] = units end
    if lane then subtract(costs, lane.waitingCosts) end
    local weight = bucket.waitingWeight - (waitingHere > 0 and lane.weight or 0)
    return { lanes = {}, rest = { costs = costs, calls = calls, weight = weight }, isCut = true }
  end

  -- The same lane by lane. It takes the place of the sum: nothing is left of that.
  function otherLanes.laneByLane(lane, position, sum)
    if not sum or startOf(lane, position) <= bucket.virtual then return sum end
    local lanes, rest = sum.lanes, sum.rest
    local function read(names)
      for _, lane in ipairs(lanesOf(names)) do
        if lane.key ~= position.key and lane.waiting > 0 then
          local costs, calls = lane.waitingCosts, lane.waiting
          lanes[#lanes + 1] = { lane = lane, costs = costs, calls = calls, service = meanServiceCost(costs, calls), ahead = 0 }
          rest.calls, rest.weight = rest.calls - calls, rest.weight - lane.weight
          subtract(rest.costs, costs)
        end
      end
    end
    local ready = firstReady(maxLanes)
    read(ready)
    if rest.calls > 0 then read(firstAsleep(maxLanes - #ready)) end
    sum.isCut = #ready == maxLanes
    return sum
  end

  -- Eligible lanes of other names that are served before a lane of this name that starts then. One step per class.
  local function lanesBefore(lane, position, start)
    local before, from = lane and lane.readyAs and lane.start < start and -1 or 0, '[r:'
    while true do
      local member = redis.call('ZRANGEBYLEX', orderKey, from, '(r;', 'LIMIT', '0', '1')[1]
      if not member then return before end
      local callClass = string.match(member, '^r:([^:]+):')
      local till = '(r:' .. callClass .. ':' .. sortable(start) .. ':' .. position.key
      before = before + redis.call('ZLEXCOUNT', orderKey, '[r:' .. callClass .. ':', till)
      from = '[r:' .. callClass .. ';'
    end
  end

  local function aheadOf(other, start, key)
    local lane, calls = other.lane, other.calls
    local from = math.max(lane.start, bucket.virtual)
    if start < from then return 0 end
    local shares = ((start - from) * lane.weight) / other.service
    if not lane.readyAs then return math.min(calls, math.floor(shares + rounding)) end
    local before = precedes(lane.key, key) and math.floor(shares + rounding) + 1 or math.ceil(shares - rounding)
    return math.min(calls, math.max(0, before))
  end

  -- Calls of other lanes that go before the position, in a list that lives until it is asked for again.
  function otherLanes.ahead(lane, position, elsewhere)
    local start, rest, readyBefore = startOf(lane, position), elsewhere.rest, 0
    for _, other in ipairs(elsewhere.lanes) do
      local ahead, lane = aheadOf(other, start, position.key), other.lane
      if ahead > 0 and lane.readyAs then readyBefore = readyBefore + 1 end
      other.ahead = ahead
    end
    rest.ahead = 0
    if rest.calls > 0 then
      local share = (start - bucket.virtual) * math.max(0, rest.weight)
      local byShare = math.floor(share / meanServiceCost(rest.costs, rest.calls) + rounding)
      local before = elsewhere.isCut and lanesBefore(lane, position, start) - readyBefore or 0
      rest.ahead = math.min(rest.calls, math.max(byShare, before))
    end
    return elsewhere
  end

  -- What these calls take.
  function otherLanes.units(elsewhere, name)
    local meter = bucket.meters[name]
    local limit, units = meter and meter.limit or 0, 0
    local function count(waiting)
      local ahead = waiting.ahead
      if ahead > 0 then
        units = units + math.min((waitingUnits(waiting.costs, name) * ahead) / waiting.calls, ahead * limit)
      end
    end
    for _, other in ipairs(elsewhere.lanes) do count(other) end
    count(elsewhere.rest)
    return units
  end
end
