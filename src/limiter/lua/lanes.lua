-- Mirror of lanes.policy.ts: entering and leaving the line, sleeping and waking, and the one decision whether a lane
-- is in the running.
local orderUnit = 281474976710656

local function readyMember(lane)
  return lane.readyAs and 'r:' .. lane.readyAs .. ':' .. sortable(lane.start) .. ':' .. lane.key or false
end

local function idleMember(lane)
  local idle = lane.waiting == 0 and lane.inFlight == 0 and lane.asleepUntil == 0
  return idle and 'i:' .. sortable(lane.start) .. ':' .. lane.key or false
end

-- A lane remembers under which members the sorted set has it; between scripts they follow from its record.
local function laneOf(key)
  local lane = recordOf('l', key)
  if lane and lane.readyMember == nil then
    lane.readyMember, lane.idleMember = readyMember(lane), idleMember(lane)
  end
  return lane
end

local function moveMember(lane, field, member)
  if lane[field] == member then return end
  if lane[field] then drop(lane[field]) end
  if member then put(member) end
  lane[field] = member
end

-- First ticket of the line, looked up again only after the line has changed.
local function headOf(lane)
  if not lane.head then lane.head = ticketOf(string.sub(firstOf('l:' .. lane.key), #lane.key + 21)) end
  return lane.head
end

-- The one place that decides whether a lane is in the running.
local function refreshReadiness(lane)
  local ready = lane.waiting > 0 and lane.asleepUntil == 0
    and (not lane.maxInFlight or lane.inFlight < lane.maxInFlight)
    and (not lane.places or lane.unconfirmed < math.max(1, lane.places))
  if not lane.readyAs then lane.start = math.max(lane.start, bucket.virtual) end
  lane.readyAs = ready and headOf(lane).callClass or false
  moveMember(lane, 'readyMember', readyMember(lane))
end

-- Only a tick asks for idle lanes, so their section is brought up to date when the script ends.
local function refreshIdleness()
  for field, lane in pairs(current) do
    if lane and string.sub(field, 1, 2) == 'l:' then moveMember(lane, 'idleMember', idleMember(lane)) end
  end
end

local function laneFor(key, weight, maxInFlight)
  local lane = laneOf(key)
  if not lane then
    lane = { key = key, weight = weight, maxInFlight = maxInFlight, start = bucket.virtual, inFlight = 0, waiting = 0,
      waitingCosts = {}, asleepUntil = 0, places = false, unconfirmed = 0, serviceMs = 0,
      grantedAt = -1, abandoned = {}, readyAs = false, readyMember = false, idleMember = false }
    keep('l', key, lane)
  end
  if lane.weight ~= weight then
    if lane.waiting > 0 then bucket.waitingWeight = bucket.waitingWeight + (weight - lane.weight) end
    lane.weight = weight
  end
  lane.maxInFlight = maxInFlight
  return lane
end

-- A ticket starts (+1) or stops (-1) waiting: the sums of its lane, its bucket and its replica.
local function countWaiting(lane, ticket, sign)
  lane.head = nil
  lane.waiting = lane.waiting + sign
  bucket.waiting = bucket.waiting + sign
  waitingChange[ticket.replica] = (waitingChange[ticket.replica] or 0) + sign
  for _, cost in ipairs(ticket.costs) do
    local name, units = cost[1], cost[2] * sign
    lane.waitingCosts[name] = (lane.waitingCosts[name] or 0) + units
    bucket.waitingCosts[name] = (bucket.waitingCosts[name] or 0) + units
  end
end

-- What a call can take: of each meter no more than its limit, as far as one is known.
local function takeable(asked)
  local costs = {}
  for i, cost in ipairs(asked) do
    local meter = bucket.meters[cost[1]]
    costs[i] = { cost[1], meter and meter.limit and math.min(cost[2], meter.limit) or cost[2] }
  end
  return costs
end

-- How much of its lane's turn a call takes: the time for which it keeps its dearest meter busy, 1 where nothing is known.
local function turnOf(costs)
  local longest = 0
  for _, cost in ipairs(costs) do
    local name, units = cost[1], cost[2]
    local meter = bucket.meters[name]
    if units > 0 and meter and meter.limit and string.sub(name, -4) ~= '_day' then
      longest = math.max(longest, (math.min(units, meter.limit) * meter.windowMs) / meter.limit)
    end
  end
  return longest > 0 and longest or 1
end

local function enqueue(lane, ticket)
  if lane.waiting == 0 then bucket.waitingWeight = bucket.waitingWeight + lane.weight end
  put(lineMember(lane.key, ticket.order, ticket.id))
  countWaiting(lane, ticket, 1)
  refreshReadiness(lane)
end

local function dequeue(lane, ticket)
  if not drop(lineMember(lane.key, ticket.order, ticket.id)) then return end
  countWaiting(lane, ticket, -1)
  if lane.waiting == 0 then bucket.waitingWeight = bucket.waitingWeight - lane.weight end
  refreshReadiness(lane)
end

local function confirm(lane, lease)
  if not lease.unconfirmed then return end
  lease.unconfirmed = false
  lane.unconfirmed = lane.unconfirmed - 1
end

local function sleep(lane, untilTime)
  if lane.asleepUntil > 0 then drop('s:' .. sortable(lane.asleepUntil) .. ':' .. lane.key) end
  lane.asleepUntil = math.max(lane.asleepUntil, untilTime)
  put('s:' .. sortable(lane.asleepUntil) .. ':' .. lane.key)
  refreshReadiness(lane)
end

local function forgetIdleLanes(most)
  for _ = 1, most do
    local key, start = firstByTime('i')
    if not key or start > bucket.virtual then return end
    drop('i:' .. sortable(start) .. ':' .. key)
    discard('l', key)
  end
end

-- Returns what is left of the budget, and when the next lane wakes (nil: none sleeps, or the budget is used up).
local function wakeLanes(budget, now)
  while budget > 0 do
    local key, at = firstByTime('s')
    if not key or at > now then return budget, at end
    budget = budget - 1
    drop('s:' .. sortable(at) .. ':' .. key)
    local lane = laneOf(key)
    if lane then
      lane.asleepUntil = 0
      if lane.places then lane.places = math.max(1, lane.places) end
      refreshReadiness(lane)
    end
  end
  return budget
end
